//! Buckets with a record: they survive openings and crashes, and no put is lost in a deleted one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use shoal_device::Device;
use shoal_device_sim::SimDevice;
use shoal_engine::{
    BucketConfig, BucketState, Change, Decision, Error, Expiry, ListRequest, Lsn, Metadata, Object,
    ObjectKey, PutOptions, ReadLevel, RejectRules, Store, TransactOptions, Write, WriteBatch, block_on,
};

use crate::common::{ByName, assert_clean, blank, open, quiet, tiny, tiny_with_threads, tiny_without_layers};

fn config(tag: u8, bytes: usize) -> BucketConfig {
    let mut config = BucketConfig { has_crc_etags: tag.is_multiple_of(2), ..BucketConfig::default() };
    config.items.set(tag, Some(&vec![tag; bytes]));
    config
}

fn set(tag: u8, bytes: usize) -> impl FnOnce(&mut BucketConfig) -> Result<(), Error> {
    move |config| {
        config.items.set(tag, Some(&vec![tag; bytes]));
        Ok(())
    }
}

fn loaded(device: &Device) -> Store {
    let store = open(device, tiny()).unwrap();
    store.load_buckets().unwrap();
    store
}

fn found(store: &Store, name: &str) -> Option<BucketConfig> {
    store.bucket(name).unwrap().map(|state| state.config().clone())
}

fn names(store: &Store) -> Vec<String> {
    block_on(store.buckets("", 0)).unwrap().names
}

fn in_bucket(name: &str) -> ObjectKey {
    ObjectKey::new(name, b"object").unwrap()
}

/// Puts an object if the bucket with this state is not closed.
fn put(store: &Store, state: &Arc<BucketState>) -> Result<(), Error> {
    let (key, value) = (in_bucket(state.name()), vec![7; 30].into());
    let options = PutOptions::default();
    let pending = block_on(store.write(Write::put(&key, &value, &options).in_bucket(state)))?;
    block_on(pending.durable()).map(drop)
}

#[test]
fn buckets_are_created_changed_and_deleted_durably() {
    let (_, device) = blank(512, 3);
    let store = open(&device, tiny()).unwrap();
    assert!(matches!(store.bucket("photos"), Err(Error::Busy(_))), "before they are loaded");
    store.load_buckets().unwrap();
    assert_eq!(found(&store, "photos"), None);
    store.set("in-default", "v").unwrap();
    // In a leaf, packed, in extents.
    for (tag, bytes) in [(1, 10), (2, 1_500), (3, 60_000)] {
        let created = store.create_bucket(&format!("bucket-{tag}"), config(tag, bytes)).unwrap();
        assert!(created.is_new && created.state.config().created_ns > 0);
        let again = store.create_bucket(&format!("bucket-{tag}"), BucketConfig::default()).unwrap();
        assert!(!again.is_new && Arc::ptr_eq(&again.state, &created.state));
    }
    assert_eq!(names(&store), ["bucket-1", "bucket-2", "bucket-3", "default"]);
    assert_eq!(store.stat().objects_with_log(), 1, "records are no objects");
    let before = found(&store, "bucket-1").unwrap();
    let changed = store
        .update_bucket("bucket-1", |config| {
            config.items.set(200, Some(b"new"));
            config.created_ns = 0;
            Ok(())
        })
        .unwrap();
    assert_eq!(changed.config().created_ns, before.created_ns);
    let refused = store.update_bucket("bucket-2", |config| {
        config.items = Default::default();
        Err(Error::Invalid("no".into()))
    });
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert!(store.update_bucket("bucket-2", set(9, 65_536)).is_err());
    store.delete_bucket("bucket-3").unwrap();
    for name in ["bucket-3", "default", "absent"] {
        assert!(matches!(store.delete_bucket(name), Err(Error::NoBucket(_))), "{name}");
        assert!(matches!(store.update_bucket(name, |_| Ok(())), Err(Error::NoBucket(_))), "{name}");
    }
    assert!(store.create_bucket("Not A Name", BucketConfig::default()).is_err());
    let states = |store: &Store| [1, 2, 3].map(|tag| found(store, &format!("bucket-{tag}")));
    let all = states(&store);
    assert_eq!(all[0].as_ref().unwrap().items.get(200), Some(&b"new"[..]));
    assert_eq!(all[1].as_ref().unwrap().items.get(2).unwrap().len(), 1_500);
    assert_eq!(all[2], None);
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "with buckets");
    let store = loaded(&device);
    assert_eq!(states(&store), all);
    assert_eq!(names(&store), ["bucket-1", "bucket-2", "default"]);
}

#[test]
fn a_bucket_with_objects_is_not_deleted() {
    let (_, device) = blank(512, 4);
    let store = loaded(&device);
    // A bucket of other frontends gets a record, and keeps its objects.
    let key = in_bucket("photos");
    block_on(store.put(&key, vec![1].into(), PutOptions::default())).unwrap();
    let state = store.create_bucket("photos", BucketConfig::default()).unwrap().state;
    assert!(matches!(store.delete_bucket("photos"), Err(Error::BucketNotEmpty(name)) if name == "photos"));
    assert!(!state.is_closed());
    put(&store, &state).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    let store = loaded(&device);
    let state = store.bucket("photos").unwrap().unwrap();
    assert!(
        matches!(store.delete_bucket("photos"), Err(Error::BucketNotEmpty(_))),
        "its object is in a tree"
    );
    block_on(store.delete(&in_bucket("photos"), RejectRules::default())).unwrap();
    store.delete_bucket("photos").unwrap();
    assert!(matches!(put(&store, &state), Err(Error::NoBucket(_))));
    assert!(names(&store).is_empty());
    // The same name again is another bucket.
    let again = store.create_bucket("photos", BucketConfig::default()).unwrap();
    assert!(again.is_new);
    put(&store, &again.state).unwrap();
    assert!(matches!(put(&store, &state), Err(Error::NoBucket(_))));
}

/// A write, a batch, a stream and a transaction.
#[test]
fn every_kind_of_write_heeds_the_bucket_that_it_names() {
    let (_, device) = blank(4_096, 7);
    let store = loaded(&device);
    let (key, value, options) = (in_bucket("photos"), vec![7; 3_000].into(), PutOptions::default());
    let all = |state: &Arc<BucketState>| {
        let batch: WriteBatch<'_> =
            [(); 2].map(|()| Write::put(&key, &value, &options).in_bucket(state)).into_iter().collect();
        let batch = block_on(store.write(batch)).map(|_| ());
        let rules = PutOptions {
            rules: RejectRules { if_version_at_most: Some(Lsn(0)), ..RejectRules::default() },
            ..PutOptions::default()
        };
        let with_rules = [(); 2].map(|()| Write::put(&key, &value, &rules).in_bucket(state));
        let with_rules =
            block_on(store.write(with_rules.into_iter().collect::<WriteBatch<'_>>())).map(|_| ());
        let mut stream = store.put_stream(&key, PutOptions::default()).unwrap().in_bucket(state.clone());
        block_on(stream.write(&vec![1; 5_000_000])).unwrap();
        let stream = block_on(stream.finish()).map(|_| ());
        let change =
            Change::Put { value: vec![1].into(), metadata: Metadata::default(), expiry: Expiry::Never };
        let transact = TransactOptions { bucket: Some(state), ..TransactOptions::default() };
        let keys = [(key.clone(), ReadLevel::Info)];
        let decide = |_: &[Option<Object>]| Decision::one(change.clone(), ());
        let transact = block_on(store.transact(&keys, &transact, decide)).map(|_| ());
        [batch, with_rules, stream, transact]
    };
    let state = store.create_bucket("photos", BucketConfig::default()).unwrap().state;
    assert!(all(&state).iter().all(Result::is_ok));
    block_on(store.delete(&key, RejectRules::default())).unwrap();
    store.delete_bucket("photos").unwrap();
    for refused in all(&state) {
        assert!(matches!(&refused, Err(Error::NoBucket(name)) if name == "photos"), "{refused:?}");
    }
    assert!(names(&store).is_empty());
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "what the refused writes took is free");
}

/// If damage may hide a record, nobody knows the settings: the bucket is not taken for one without a record.
#[test]
fn a_damaged_record_is_no_absent_one() {
    let (sim, device) = blank(512, 8);
    let store = open(&device, tiny_without_layers()).unwrap();
    store.create_bucket("photos", config(1, 40)).unwrap();
    store.set("key", "value").unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    let mut image = sim.image();
    let pages: Vec<u64> = (58..image.blocks()).filter(|&block| image.block(block)[4..6] == *b"Sp").collect();
    assert!(!pages.is_empty());
    for block in pages {
        let mut page = *image.block(block);
        page[200] ^= 1;
        image.write(block, &page);
    }
    let store = open(&quiet(&image).1, tiny_without_layers()).unwrap();
    store.load_buckets().unwrap();
    assert!(matches!(store.bucket("photos"), Err(Error::Corrupt { .. })));
    assert!(matches!(store.create_bucket("photos", BucketConfig::default()), Err(Error::Corrupt { .. })));
    assert!(matches!(store.delete_bucket("photos"), Err(Error::Corrupt { .. })));
}

/// After any crash a bucket has the settings from before or after the write in flight, and acknowledged ones stay.
#[test]
fn every_crash_of_a_bucket_recovers() {
    let sim = SimDevice::from_image(blank(256, 5).0.image());
    let store = loaded(&Device::new(sim.clone()));
    sim.mark(0);
    let first = store.create_bucket("photos", config(1, 40)).unwrap().state.config().clone();
    sim.mark(1);
    let second = store.update_bucket("photos", set(7, 3_000)).unwrap().config().clone();
    sim.mark(2);
    store.delete_bucket("photos").unwrap();
    sim.mark(3);
    block_on(store.close()).unwrap();
    let steps = [None, Some(first), Some(second), None];
    let mut seen = [0; 4];
    sim.history().for_each_crash_state(64, 1, |point, image| {
        let acknowledged = point.marks.last().copied().unwrap_or(0) as usize;
        let store = loaded(&Device::new(SimDevice::from_image(image)));
        let state = found(&store, "photos");
        let step = (acknowledged..4).find(|step| steps[*step] == state);
        let step = step.unwrap_or_else(|| panic!("state {}: {acknowledged}, {state:?}", point.id));
        assert!(step <= acknowledged + 1, "state {}: step {step} after {acknowledged}", point.id);
        seen[step] += 1;
        // It can be created and deleted.
        let again = store.create_bucket("photos", BucketConfig::default()).unwrap();
        assert_eq!(again.is_new, state.is_none());
        store.delete_bucket("photos").unwrap();
    });
    assert!(seen.iter().all(|count| *count > 3), "{seen:?}");
}

/// The order of a round's puts and its deletion: mostly a race. Every tenth round deletes first and every tenth one deletes
/// last, because a loaded machine may decide each race in the same way.
struct Turns {
    round: usize,
    writers: usize,
    started: AtomicUsize,
    ended: AtomicUsize,
    deleted: AtomicBool,
}

impl Turns {
    fn new(round: usize, writers: usize) -> Self {
        let (started, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { round, writers, started, ended, deleted: AtomicBool::new(false) }
    }

    fn start_put(&self) {
        self.started.fetch_add(1, Ordering::SeqCst);
        while self.round.is_multiple_of(10) && !self.deleted.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    fn end_put(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn delete<T>(&self, deletion: impl FnOnce() -> T) -> T {
        let awaited = if self.round % 10 == 1 { &self.ended } else { &self.started };
        while awaited.load(Ordering::SeqCst) < self.writers {
            thread::yield_now();
        }
        let result = deletion();
        self.deleted.store(true, Ordering::SeqCst);
        result
    }
}

/// Puts race with the deletion of their bucket: if it is deleted, none of them was stored.
#[test]
fn no_put_is_lost_in_a_deleted_bucket() {
    const ROUNDS: usize = 300;
    let (_, device) = blank(1_024, 6);
    let store = open(&device, tiny_with_threads()).unwrap();
    store.load_buckets().unwrap();
    let (mut deleted, mut kept) = (0, 0);
    for round in 0..ROUNDS {
        let state = store.create_bucket("photos", BucketConfig::default()).unwrap().state;
        let (stored, turns) = (AtomicUsize::new(0), Turns::new(round, 2));
        let result = thread::scope(|scope| {
            for thread in 0..2 {
                let (store, state, stored, turns) = (&store, &state, &stored, &turns);
                scope.spawn(move || {
                    turns.start_put();
                    for _ in 0..round % 7 * (100 + 50 * thread) {
                        std::hint::spin_loop();
                    }
                    let result = put(store, state);
                    turns.end_put();
                    match result {
                        Ok(()) => _ = stored.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert!(matches!(error, Error::NoBucket(_) | Error::Busy(_)), "{error}")
                        }
                    }
                });
            }
            turns.delete(|| store.delete_bucket("photos"))
        });
        let request = ListRequest { bucket: "photos".into(), ..ListRequest::default() };
        let has_objects = !block_on(store.list(&request)).unwrap().entries.is_empty();
        let stored = stored.into_inner();
        match result {
            Ok(()) => {
                deleted += 1;
                assert_eq!(
                    (stored, has_objects),
                    (0, false),
                    "round {round}: a put is lost in a deleted bucket"
                );
            }
            Err(Error::BucketNotEmpty(_)) => {
                kept += 1;
                assert!(stored > 0 && has_objects && !state.is_closed(), "round {round}");
                block_on(store.delete(&in_bucket("photos"), RejectRules::default())).unwrap();
                store.delete_bucket("photos").unwrap();
            }
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    assert!(deleted > 0 && kept > 0, "{deleted} deleted, {kept} kept");
    block_on(store.close()).unwrap();
}

/// A put that names no bucket is before the deletion, which finds it, or after it, in a bucket without a record; or it is refused.
#[test]
fn a_put_of_another_frontend_is_before_or_after_the_deletion() {
    const ROUNDS: usize = 200;
    let (_, device) = blank(1_024, 9);
    let store = open(&device, tiny_with_threads()).unwrap();
    store.load_buckets().unwrap();
    let mut seen = [0; 3];
    for round in 0..ROUNDS {
        store.create_bucket("photos", BucketConfig::default()).unwrap();
        let (key, turns) = (in_bucket("photos"), Turns::new(round, 1));
        let (deleted, stored) = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                turns.start_put();
                (0..round % 8 * 100).for_each(|_| std::hint::spin_loop());
                let stored = block_on(store.put(&key, vec![7].into(), PutOptions::default()));
                turns.end_put();
                stored
            });
            (turns.delete(|| store.delete_bucket("photos")), writer.join().unwrap())
        });
        let exists = block_on(store.head(&key)).unwrap().is_some();
        let has_record = store.bucket("photos").unwrap().is_some();
        match (&deleted, &stored) {
            (Err(Error::BucketNotEmpty(_)), Ok(_)) => seen[0] += 1,
            (Ok(()), Err(Error::Busy(_))) => seen[1] += 1,
            (Ok(()), Ok(_)) => seen[2] += 1,
            other => panic!("round {round}: {other:?}"),
        }
        assert_eq!((exists, has_record), (stored.is_ok(), deleted.is_err()), "round {round}: {seen:?}");
        block_on(store.delete(&key, RejectRules::default())).unwrap();
        if has_record {
            store.delete_bucket("photos").unwrap();
        }
    }
    assert!(seen[0] > 0 && seen[2] > 0, "{seen:?}");
    block_on(store.close()).unwrap();
}
