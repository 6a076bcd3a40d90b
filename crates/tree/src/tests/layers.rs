//! Trees as layers are written: full pages with filters, used by the leaf finder and by lookups.

use shoal_base::Lsn;
use shoal_base::task::block_on;

use crate::testing::memory::*;
use crate::*;
use shoal_common::error::Error;

fn written(memory: &Memory, entries: &[(Vec<u8>, Vec<u8>)]) -> Root {
    let mut sink = MemorySink::new(memory);
    block_on(async {
        let mut writer = TreeWriter::new(TREE, Lsn(3), &mut sink);
        for (key, entry) in entries {
            writer.push(key, entry).await.unwrap();
        }
        let root = writer.finish().await.unwrap();
        assert!(sink.released.is_empty(), "a new tree replaces no page");
        root
    })
}

fn entries(count: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    let of =
        |number: u32| (format!("photos/{:08}", number * 2).into_bytes(), vec![7; 8 + number as usize % 90]);
    (0..count).map(of).collect()
}

#[test]
fn a_written_tree_is_full_and_its_filters_hold_its_keys() {
    for count in [0, 1, 2, 60, 90, 700, 20_000] {
        let memory = Memory::default();
        let entries = entries(count);
        let root = written(&memory, &entries);
        assert_eq!(root.entries, u64::from(count));
        let mut seen = Seen::default();
        // The walk asks each leaf's filter for each of its keys.
        let walked = block_on(TREE.walk(&memory, root, &mut seen)).unwrap();
        assert_eq!((seen.problems, seen.entries == entries), (Vec::new(), true), "{count} entries");
        let full = seen.leaves.iter().filter(|leaf| seen.used[&leaf.block] * 10 >= 4_096 * 9).count();
        assert!(full + 2 >= walked.leaves as usize, "{full} of {} leaves are full", walked.leaves);
    }
}

#[test]
fn a_finder_names_the_leaf_of_each_key_and_denies_most_absent_ones() {
    let memory = Memory::default();
    let entries = entries(20_000);
    let root = written(&memory, &entries);
    assert_eq!(root.height, 3);
    memory.take_reads();
    let mut finder = LeafFinder::new(TREE, &memory, root);
    let mut passed = 0;
    for (key, entry) in &entries {
        let place = block_on(finder.find(&Probe::unexpected(TREE, key))).unwrap();
        let LeafPlace::Leaf { page, may_hold: true, .. } = place else { panic!("{place:?}") };
        if entry.len() == 8 {
            let found =
                block_on(TREE.lookup_leaf(&memory, page, &Probe::expected(TREE, key))).unwrap().unwrap();
            assert_eq!(*found, **entry);
        }
        let absent = [&key[..], b"!"].concat();
        let place = block_on(finder.find(&Probe::unexpected(TREE, &absent))).unwrap();
        let LeafPlace::Leaf { may_hold, .. } = place else { panic!("{place:?}") };
        passed += u32::from(may_hold);
    }
    assert!(passed < 600, "{passed} of 20,000 absent keys pass");
    assert!(matches!(
        block_on(LeafFinder::new(TREE, &memory, Root::EMPTY).find(&Probe::unexpected(TREE, b"a"))),
        Ok(LeafPlace::None)
    ));
}

/// A damaged page above the leaves denies nothing: its keys may exist or not.
#[test]
fn a_damaged_page_denies_nothing() {
    let memory = Memory::default();
    let root = written(&memory, &entries(20_000));
    let mut seen = Seen::default();
    block_on(TREE.walk(&memory, root, &mut seen)).unwrap();
    let (all, is_whole) = block_on(TREE.pages(&memory, root)).unwrap();
    assert!(is_whole && all.len() == seen.pages.len());
    let top = root.page.unwrap();
    let level_1 = seen.inner.iter().find(|page| **page != top).unwrap();
    memory.corrupt(level_1.block);
    let mut finder = LeafFinder::new(TREE, &memory, root);
    let (mut unknown, mut known) = (0, 0);
    for number in 0..20_000 {
        let key = format!("photos/{:08}", number * 2 + 1).into_bytes();
        match block_on(finder.find(&Probe::unexpected(TREE, &key))).unwrap() {
            LeafPlace::Unknown(page) => {
                assert_eq!(page, *level_1);
                unknown += 1;
            }
            LeafPlace::Leaf { .. } => known += 1,
            LeafPlace::None => panic!("the tree has leaves"),
        }
    }
    assert!(unknown > 500 && known > 5_000, "{unknown} keys below the damage, {known} elsewhere");
    let (rest, is_whole) = block_on(TREE.pages(&memory, root)).unwrap();
    assert!(!is_whole && rest.len() < all.len());
}

/// A lookup of an absent key in a layer reads no leaf, except for one in a thousand; one of a base in memory does not ask filters.
#[test]
fn filters_save_the_reads_of_leaves() {
    let memory = Memory::default();
    let entries = entries(5_000);
    let root = written(&memory, &entries);
    let mut seen = Seen::default();
    block_on(TREE.walk(&memory, root, &mut seen)).unwrap();
    seen.inner.iter().for_each(|page| memory.cache(page.block));
    memory.take_reads();
    let mut read = 0;
    for (key, _) in &entries {
        let absent = [&key[..], b"!"].concat();
        let found = block_on(TREE.lookup(&memory, root, &Probe::unexpected(TREE, &absent))).unwrap();
        assert!(found.is_none());
        read += memory.take_reads().0.iter().filter(|page| seen.leaves.contains(page)).count();
        assert!(block_on(TREE.lookup(&memory, root, &Probe::unexpected(TREE, key))).unwrap().is_some());
        memory.take_reads();
    }
    assert!(read < 25, "{read} leaves were read for 5,000 absent keys");
}

/// Half of the keys are in ten layers, the others in the base. All pages above the leaves are in memory, no leaf is.
#[test]
fn get_through_ten_layers_reads_at_most_one_leaf() {
    let memory = Memory::default();
    // An entry of eight bytes is a tombstone in a layer.
    let mut entries = entries(20_000);
    entries.iter_mut().for_each(|(_, entry)| entry.push(7));
    let base = written(&memory, &entries);
    let mut roots = Vec::new();
    for layer in 0..10 {
        let of_layer = entries.iter().enumerate().filter(|(number, _)| number % 20 == layer);
        let of_layer: Vec<_> = of_layer.map(|(_, entry)| entry.clone()).collect();
        roots.push(written(&memory, &of_layer));
    }
    roots.push(base);
    for &root in &roots {
        let mut seen = Seen::default();
        block_on(TREE.walk(&memory, root, &mut seen)).unwrap();
        seen.inner.iter().for_each(|page| memory.cache(page.block));
    }
    let leaves_read = |key: &[u8], is_there: bool| {
        memory.take_reads();
        let found = roots.iter().any(|&root| {
            let is_base = root == base;
            let probe = if is_base { Probe::expected(TREE, key) } else { Probe::unexpected(TREE, key) };
            block_on(TREE.lookup(&memory, root, &probe)).unwrap().is_some()
        });
        assert_eq!(found, is_there);
        let (reads, _) = memory.take_reads();
        let tops = reads.iter().filter(|page| memory.is_cached(page.block)).count();
        reads.len() - tops
    };
    let present: usize = entries.iter().map(|(key, _)| leaves_read(key, true)).sum();
    let absent: usize = entries.iter().map(|(key, _)| leaves_read(&[&key[..], b"!"].concat(), false)).sum();
    assert!((20_000..20_400).contains(&present), "{present} leaves were read for 20,000 keys");
    assert!(absent < 400, "{absent} leaves were read for 20,000 absent keys");
}

/// Entries come in the order of their keys and are not empty.
#[test]
fn a_writer_refuses_what_no_page_may_hold() {
    let memory = Memory::default();
    let mut sink = MemorySink::new(&memory);
    let mut writer = TreeWriter::new(TREE, Lsn(3), &mut sink);
    block_on(async {
        assert!(matches!(writer.push(b"a", b"").await, Err(Error::Invalid(_))));
        assert!(matches!(writer.push(b"a", &[0; ENTRY_BYTES_MAX]).await, Err(Error::Invalid(_))));
        writer.push(b"a", &[0; ENTRY_BYTES_MAX - 1]).await.unwrap();
        assert_eq!(writer.finish().await.unwrap().entries, 1);
    });
}
