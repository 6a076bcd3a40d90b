//! The exact words of a check about trees and logs that no writer makes.

use std::sync::{Arc, Mutex};

use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_log::format::encode_record;
use shoal_tree::fixtures as pages;
use shoal_value::Home;
use shoal_value::packed::{RunEntry, Totals, run_key};
use smallvec::SmallVec;

use super::*;
use crate::recovery::report::NOT_RESTORED_MAX;
use crate::testing::fixtures::{BLOCKS, Fixture, entry, inline_entry, key, leaf_entry, options};
use crate::{ByteRange, PutOptions, block_on};

fn run_entry(entry: &RunEntry) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry.encode(&mut bytes);
    bytes
}

fn said(report: &CheckReport) -> Vec<(&str, u64)> {
    report.problems.iter().map(|problem| (&problem.what[..], problem.block)).collect()
}

/// One leaf with a sound object and with every kind of bad entry. Returns its block, and the block of a run without a
/// footer.
fn strange() -> (Fixture, u64, u64) {
    let mut made = Fixture::new();
    let (leaf, fixed) = (made.block(), made.blocks(2).block);
    let mut cut = inline_entry(&[7; 200]);
    cut.truncate(cut.len() - 197);
    let (inside, behind) = (run_key(fixed), run_key(BLOCKS - 2));
    // The footer of a run that a repair found cannot be located: that is no problem.
    let run = RunEntry { blocks: 2, fixed: true, ..RunEntry::default() };
    let items = [
        (key(1).encoded().to_vec(), inline_entry(b"abc")),
        (key(2).encoded().to_vec(), cut),
        (b"\xFF?".to_vec(), b"z".to_vec()),
        (inside.to_vec(), run_entry(&run)),
        (behind.to_vec(), run_entry(&RunEntry { blocks: 4, ..RunEntry::default() })),
    ];
    let items: Vec<_> = items.iter().map(|(key, entry)| (&key[..], entry.clone())).collect();
    let page = made.page(pages::leaf(made.tree(), leaf, &items));
    made.root(page, 1, 5);
    made.superblock.tablets[0].totals =
        Totals { runs: 2, packed_blocks: 6, value_bytes: 3, expiring: Some(0), ..Totals::default() };
    made.publish();
    (made, leaf, fixed)
}

#[test]
fn invalid_entries_and_runs_are_reported() {
    let (made, leaf, fixed) = strange();
    let report = made.check(false);
    let end = made.superblock.device_blocks;
    let free = Run::new(fixed + 2, (end - fixed - 2) as u32);
    let behind = Run::new(BLOCKS - 2, 4);
    assert_eq!(
        said(&report),
        [
            ("the entry of default/0002 cannot be read", leaf),
            ("a reserved key that this program does not know cannot be read", leaf),
            (&format!("the packed run {behind} is after the end of the device")[..], behind.block),
            (&format!("the free run {free} overlaps {behind}, which is in use"), free.block),
        ]
    );
    assert_eq!((report.objects, report.value_bytes), (2, 3));
}

/// A repair recounts around entries that cannot be read, trusts none of them, and keeps the rest.
#[test]
fn repair_of_invalid_entries_keeps_the_rest() {
    let (made, leaf, _) = strange();
    let report = made.check(true);
    assert!(!report.notes.iter().any(|note| note.contains("did not get to its end")), "{report:?}");
    let left = made.check(false);
    assert!(
        said(&left).iter().any(|(what, _)| *what == "the entry of default/0002 cannot be read"),
        "{left:?}"
    );
    let store = made.open().unwrap();
    let object = block_on(store.get(&key(1), ByteRange::ALL)).unwrap().unwrap();
    assert_eq!(object.value.to_vec(), b"abc");
    let bad = block_on(store.get(&key(2), ByteRange::ALL)).map(|_| ());
    assert!(matches!(bad, Err(Error::Corrupt { .. })), "{bad:?}");
    assert_ne!(crate::testing::fixtures::newest(&made.device).tablets[0].root.page.unwrap().block, leaf);
}

#[test]
fn blocks_of_two_objects_are_named() {
    let mut made = Fixture::new();
    let (leaf, value) = (made.block(), made.blocks(3));
    let bytes = [7; 8 << 10];
    (0..3).for_each(|block| made.write(value.block + block, &[7; 4096]));
    let extents = |first: u64| {
        let checksums = SmallVec::from_slice(&[shoal_base::checksum::crc32c(&bytes)]);
        let runs = SmallVec::from_slice(&[Run::new(value.block + first, 2)]);
        leaf_entry(1, &entry(2 * BLOCK_BYTES_U64, Home::Extents { offset: 0, runs, checksums }), &[])
    };
    let items = [(key(1).encoded().to_vec(), extents(0)), (key(2).encoded().to_vec(), extents(1))];
    let items: Vec<_> = items.iter().map(|(key, entry)| (&key[..], entry.clone())).collect();
    let page = made.page(pages::leaf(made.tree(), leaf, &items));
    made.root(page, 1, 2);
    made.superblock.tablets[0].totals =
        Totals { value_bytes: 4 * BLOCK_BYTES_U64, expiring: Some(0), ..Totals::default() };
    made.publish();
    let twice = Run::new(value.block + 1, 2);
    let report = made.check(false);
    assert_eq!(said(&report), [(&format!("blocks {twice} have two owners")[..], twice.block)]);
    assert_eq!(report.owned_blocks, 5, "one with two owners counts twice");
}

#[test]
fn check_reports_progress() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    for which in 0..3 {
        block_on(store.put(&key(which), vec![1; 100].into(), PutOptions::default())).unwrap();
    }
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.put(&key(9), vec![1; 50].into(), PutOptions::default())).unwrap();
    drop(store);
    let told = Arc::new(Mutex::new(Vec::new()));
    let options = CheckOptions {
        progress: Some({
            let told = told.clone();
            Arc::new(move |objects, bytes| told.lock().unwrap().push((objects, bytes)))
        }),
        ..CheckOptions::default()
    };
    let report = block_on(check(made.device.clone(), &options)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let told = told.lock().unwrap();
    assert_eq!((told.first(), told.last()), (Some(&(3, 300)), Some(&(4, 350))), "{told:?}");
    assert!(told.is_sorted());
}

/// Symptom: a check counted an object twice that the log overwrites, and its results as objects.
#[test]
fn objects_are_counted_as_a_listing_has_them() {
    let made = Fixture::with_blocks(4_096);
    let open = || {
        let environment = crate::testing::fixtures::environment();
        block_on(crate::Store::open(made.device.clone(), options(), environment)).unwrap()
    };
    let store = open();
    let put = |which: usize| {
        block_on(store.put(&key(which), vec![1; 100].into(), PutOptions::default())).unwrap();
    };
    (0..3).for_each(put);
    block_on(store.0.checkpointer.apply_all()).unwrap();
    // One is overwritten, one deleted, one new, one new and deleted again.
    [1, 7, 8].into_iter().for_each(put);
    for which in [2, 8] {
        block_on(store.delete(&key(which), crate::RejectRules::default())).unwrap();
    }
    block_on(store.note_backup(crate::BackupNote { version: Lsn(1), taken_ns: 1 })).unwrap();
    drop(store);
    let report = made.check(false);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.objects, report.own_objects, report.log_records), (3, 1, 6));
    drop(open());
}

#[test]
fn problems_beyond_report_limit_are_counted() {
    let mut report = CheckReport::default();
    for which in 0..PROBLEMS_MAX + 2 {
        report.problem("wrong".into(), which as u64);
        report.was_restored(which.to_string());
        report.was_not_done_again("name", "why");
    }
    (0..PROBLEMS_MAX).for_each(|which| report.may_be_lost(which.to_string()));
    report.may_be_lost("0".into());
    assert!(!report.may_be_lost_more, "it is listed");
    report.may_be_lost("another".into());
    assert!(report.may_be_lost_more);
    let listed = (report.problems.len(), report.restored.len(), report.may_be_lost.len());
    assert_eq!(listed, (PROBLEMS_MAX, PROBLEMS_MAX, PROBLEMS_MAX));
    let all = PROBLEMS_MAX as u64 + 2;
    assert_eq!((report.problem_count, report.restored_count), (all, all));
    report.was_not_restored("name", &Error::Closed);
    assert_eq!(report.notes.len(), NOT_RESTORED_MAX);
}

/// A record of the log that cannot be decoded, although its checksum is right.
#[test]
fn unreadable_record_is_reported() {
    let mut made = Fixture::new();
    made.publish();
    made.batch(&[encode_record(RecordKind::Put, TabletId(0), key(1).encoded(), &[&[9]], false)]);
    // The last batch would be dropped if it is not complete: this batch is not the last.
    made.batch(&[encode_record(RecordKind::Delete, TabletId(0), key(2).encoded(), &[], false)]);
    let report = made.check(false);
    assert_eq!(said(&report), [("record 1 of default/0001 cannot be read", 0)]);
    assert_eq!(report.log_records, 2);
    let opened =
        block_on(crate::Store::open(made.device.clone(), options(), crate::testing::fixtures::environment()));
    let opened = opened.map(|_| ());
    assert!(
        matches!(&opened, Err(Error::Corrupt { what, .. }) if what == "the body of record 1"),
        "{opened:?}"
    );
}

/// A parent with other counts than its children have, although every checksum matches.
#[test]
fn a_count_that_is_wrong_is_named() {
    let mut made = Fixture::new();
    let (leaf, root) = (made.block(), made.block());
    let object = key(1);
    let child = made.page(pages::leaf(made.tree(), leaf, &[(object.encoded(), inline_entry(b"abc"))]));
    let page = made.page(pages::inner(made.tree(), root, 1, &[(b"", child, 3)]));
    made.root(page, 2, 3);
    made.superblock.tablets[0].totals = Totals { value_bytes: 3, expiring: Some(0), ..Totals::default() };
    made.publish();
    let report = made.check(false);
    let named =
        said(&report).into_iter().find(|(what, _)| what.contains("1 entries are there, the parent counts 3"));
    assert_eq!(named.map(|(_, block)| block), Some(leaf), "{report:?}");
}

#[test]
fn hidden_keys_cover_all_gaps() {
    let gap = |low: &str, high: Option<&str>| Gap {
        block: 1,
        low: low.into(),
        high: high.map(Into::into),
        why: "torn".into(),
    };
    let within = |gaps: &[Gap]| -> String {
        let hidden = KeyRanges::of(gaps);
        ('a'..='j').filter(|key| hidden.contains(key.to_string().as_bytes())).collect()
    };
    assert_eq!(within(&[]), "");
    assert_eq!(within(&[gap("f", Some("h")), gap("b", Some("d")), gap("c", Some("c"))]), "bcfg");
    assert_eq!(within(&[gap("b", Some("e")), gap("c", Some("d")), gap("e", Some("f"))]), "bcde");
    assert_eq!(within(&[gap("h", None), gap("b", Some("c")), gap("i", Some("j"))]), "bhij");
}
