//! Applies and their layers.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use shoal_tree::layers::LAYERS_MAX;

use crate::testing::fixtures::{Fixture, environment, key, options};
use crate::{OpenOptions, PutOptions, Store, block_on};

/// Applies that find the last place for a layer and then wait for each other's turn.
#[test]
fn waiting_applies_write_no_extra_layer() {
    let fixture = Fixture::with_blocks(4_096);
    let mut options = options();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    let store = block_on(Store::open(fixture.device.clone(), options, environment())).unwrap();
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    let put = |which: usize| block_on(store.put(&key(which), vec![1; 10].into(), PutOptions::default()));
    let layers = || tablet.view().trees.layers.list.len();
    for which in 0.. {
        put(which).unwrap();
        block_on(checkpointer.apply_alone(tablet)).unwrap();
        if layers() + 2 == LAYERS_MAX {
            break;
        }
    }
    let turn = block_on(checkpointer.applier.turn());
    let mut applies: Vec<_> = (0..4).map(|_| Box::pin(checkpointer.apply_alone(tablet))).collect();
    for apply in &mut applies {
        assert!(apply.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(turn);
    for (which, apply) in applies.into_iter().enumerate() {
        put(1_000 + which).unwrap();
        block_on(apply).unwrap();
        assert!(layers() < LAYERS_MAX, "{} layers (R33)", layers());
    }
}

/// A thread drops the applied memtable; without threads the apply drops it.
#[test]
fn an_applied_memtable_is_dropped() {
    for background in [false, true] {
        let fixture = Fixture::with_blocks(4_096);
        let options = OpenOptions { background, ..options() };
        let store = block_on(Store::open(fixture.device.clone(), options, environment())).unwrap();
        let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
        block_on(store.put(&key(1), vec![1; 10].into(), PutOptions::default())).unwrap();
        let memtable = Arc::downgrade(&tablet.view().active);
        block_on(checkpointer.apply_tablet(tablet)).unwrap();
        let began = Instant::now();
        while memtable.strong_count() > 0 {
            assert!(background && began.elapsed() < Duration::from_secs(20), "the memtable is still there");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
