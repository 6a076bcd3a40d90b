//! Room that an apply returns as it goes.

use std::sync::Arc;

use shoal_base::{Lsn, TabletId};
use shoal_log::Record;
use shoal_log::format::{RecordKind, encode_record};
use shoal_tablets::apply::pace::Pace;
use shoal_tablets::apply::progress::{HOME, Progress, WHOLE};

use crate::testing::fixtures::Fixture;

#[test]
fn room_comes_back_with_each_part_or_at_the_end() {
    let store = Fixture::new().open().unwrap();
    let admission = &store.0.tablets.admission;
    let of = |ops: usize| {
        admission.take(100, 1_000);
        Progress::new(&store.0.log.committer, Some(admission.lend(100, 1_000)), ops, ops > 0)
    };
    let mut progress = of(100);
    let mut before = 1_000;
    let mut is_done = |progress: &mut Progress<'_>, ops| {
        progress.note(ops);
        let held = admission.held().1;
        assert!(held < before, "nothing came back: {held} bytes are counted");
        before = held;
        held
    };
    is_done(&mut progress, 100);
    is_done(&mut progress, 100);
    progress.looks();
    is_done(&mut progress, 100);
    progress.merges(60, 40);
    is_done(&mut progress, 60);
    progress.merges_into_base();
    is_done(&mut progress, 20);
    assert!(is_done(&mut progress, 20) <= 50, "all is done, except roundings");
    assert!(progress.end(0).is_none());
    assert_eq!(admission.held(), (0, 0));
    // A small memtable lends nothing.
    let mut progress = of(0);
    progress.note(400);
    assert_eq!(admission.held(), (100, 1_000));
    assert!(progress.end(0).is_none());
    assert_eq!(admission.held(), (0, 0));
    // A memtable that leaves half of its room to a pause.
    let mut progress = of(100).with_pause(1_000, 5);
    progress.note(100 * WHOLE / HOME);
    let held = admission.held();
    assert_eq!(held.1, 500);
    let pause = progress.end(10).unwrap();
    assert_eq!(admission.held(), held);
    drop(pause);
    assert_eq!(admission.held(), (0, 0));
    // A failed apply takes its room back.
    let mut progress = of(100);
    progress.note(200);
    drop(progress);
    assert_eq!(admission.held(), (100, 1_000));
    admission.release(100, 1_000);
}

/// Symptom: an apply of values of 4 KiB wrote all of them in the first eighth of its time, and commits waited behind them. Cause: its parts
/// had the weights of an apply that waits for the processor.
#[test]
fn a_paced_apply_spends_most_of_its_time_on_values_that_go_home() {
    let store = Fixture::new().open().unwrap();
    let inner = &store.0;
    let share = |records: &[Arc<Record>]| {
        let pace = Pace::new(&inner.checkpointer, 1_000);
        let mut progress =
            Progress::new(&inner.log.committer, None, records.len(), false).with_pace(Some(pace));
        progress.note(records.len());
        progress.brings_home(records);
        let before = progress.done;
        progress.note(records.len());
        (progress.done - before) * 100 / progress.whole
    };
    let records = |body_bytes: usize| {
        let encoded = encode_record(RecordKind::Put, TabletId(0), b"key", &[&vec![7; body_bytes]], false);
        let record = Arc::new(Record::recovered(encoded, Lsn(1)));
        std::iter::repeat_n(record, 64).collect::<Vec<_>>()
    };
    assert_eq!(share(&records(100)), 23);
    assert_eq!(share(&records(4_096)), 62);
}
