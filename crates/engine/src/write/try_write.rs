//! Short puts without options: their values ride in the log and then go to a leaf. They are queued without waiting.
//!
//! They are one batch: one claim of space, one admission, one reading of the clock, one hold of the memtables' locks,
//! and one place in the committer's queue. Their numbers are consecutive, and they become durable together.

use std::borrow::Borrow;

use shoal_base::codec::varint_bytes;
use shoal_common::key::ObjectKey;
use shoal_log::Record;
use shoal_log::format::{RecordKind, RecordPlace, write_record};
use shoal_space_manager::TREE_BLOCKS_PER_RECORD;
use shoal_tablets::counters::OperationCounters;
use shoal_value::{Entry, Home, Meta, Placement, placement_of};
use smallvec::SmallVec;

use crate::store::{Inner, Store};
use crate::write::append::{Attempt, Condition};
use crate::write::batch::{AdmittedBatch, PreparedBatch};
use crate::write::ticket::Ticket;

/// Bytes of an entry with an inline value and without metadata, besides the value and its length: flags, time, length
/// of the metadata.
const ENTRY_BYTES: usize = 1 + 8 + 1;

/// Short puts of one call at most: the memtables' locks are held for all of them.
pub const SHORT_PUTS_MAX: usize = 64;

impl Store {
    /// Returns true if a value of this many bytes rides in the log and then goes to a leaf, so that [`Self::try_write`]
    /// may take it.
    #[must_use]
    pub fn is_short(&self, key: &ObjectKey, value_bytes: usize) -> bool {
        placement_of(key.encoded().len(), 0, value_bytes, &self.0.tuning) == Placement::Leaf
    }

    /// Queues up to [`SHORT_PUTS_MAX`] puts of short values, without rules and metadata, without waiting; of a key that
    /// is named twice the later put wins. Returns `None` if nothing happened: then [`Self::write`] waits, or returns
    /// the error. Takes memory for the records only. At present all of them or none survive a crash, but that is not
    /// promised.
    pub fn try_write<K: Borrow<ObjectKey>>(&self, puts: &[(K, &[u8])]) -> Option<Ticket> {
        let inner = &*self.0;
        inner.check_writable().ok()?;
        // Without a committer's thread the caller would have to wait.
        if puts.is_empty()
            || puts.len() > SHORT_PUTS_MAX
            || !inner.log.committer.has_thread()
            || puts.iter().any(|(key, _)| inner.tablets.is_closed(key.borrow()))
            || !puts.iter().all(|(key, value)| self.is_short(key.borrow(), value.len()))
        {
            return None;
        }
        let reservation = inner.space.claim_apply(TREE_BLOCKS_PER_RECORD * puts.len() as u64).ok()?;
        let modified_ns = inner.environment.clock.wall_ns();
        let mut batch = PreparedBatch { reservation: Some(reservation), ..PreparedBatch::new(inner) };
        batch.records.reserve_exact(puts.len());
        for (key, value) in puts {
            batch.add_record(key.borrow(), inner.short_record(key.borrow(), value, modified_ns));
        }
        let (memory, blocks) = batch.needs().ok()?;
        let permit = inner.try_admit(puts.len(), memory, blocks)?;
        inner.apply_early().ok()?;
        let admitted = AdmittedBatch { batch, permit };
        let last = admitted.last(0);
        let Ok(Attempt::Done(_)) = inner.try_queue(Condition::Always, &mut Some(admitted)) else {
            return None;
        };
        inner.log.committer.request_commit(puts.len());
        let value_bytes: usize = puts.iter().map(|(_, value)| value.len()).sum();
        OperationCounters::add(&inner.counters.value_bytes_written, value_bytes as u64);
        OperationCounters::add(&inner.counters.puts, puts.len() as u64);
        Some(Ticket::new(self.clone(), last).with_count(puts.len()))
    }
}

impl Inner {
    fn short_record(&self, key: &ObjectKey, value: &[u8], modified_ns: u64) -> Record {
        let entry = Entry {
            modified_ns,
            end: None,
            value_bytes: value.len() as u64,
            meta: Meta::Inline(SmallVec::new()),
            home: Home::Inline,
        };
        // The exact size: a record shorter than its memory needs another allocation.
        let body_bytes = ENTRY_BYTES + varint_bytes(value.len() as u64) + value.len();
        let record = write_record(
            RecordKind::Put,
            self.tablets.of(key).id,
            key.encoded(),
            body_bytes,
            RecordPlace::default(),
            |out| {
                entry.encode(out);
                out.extend_from_slice(value);
            },
        );
        let mut record = Record::new(record);
        record.set_reserved_blocks(TREE_BLOCKS_PER_RECORD);
        record
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use shoal_base::Lsn;
    use shoal_base::plug::{Hold, may_hold};
    use shoal_buffer::Buffer;
    use shoal_common::object::{PutOptions, RejectRules};
    use shoal_common::options::{Environment, OpenOptions};
    use shoal_device::Device;
    use shoal_log::Waiting;
    use shoal_testkit::clock::SteppingClock;
    use shoal_testkit::task::poll_once;
    use shoal_testkit::wait::eventually;

    use super::*;
    use crate::testing::fixtures::{in_memory, key, open_in};
    use crate::{ByteRange, block_on};

    fn open(device: &Device) -> Store {
        open_with(device, true)
    }

    fn open_with(device: &Device, background: bool) -> Store {
        let options = OpenOptions { cache_bytes: 16 << 20, background, ..OpenOptions::default() };
        open_in(device, options, Environment::default())
    }

    fn put_all(store: &Store, puts: &[(ObjectKey, &[u8])]) -> Option<Vec<Lsn>> {
        let pending = store.try_write(puts)?;
        assert_eq!(pending.count(), puts.len());
        let last = block_on(poll_fn(|context| pending.poll_durable(context))).unwrap();
        Some(pending.versions(last).collect())
    }

    fn got(store: &Store, name: impl std::fmt::Display) -> Option<(Vec<u8>, Lsn)> {
        let object = block_on(store.get(&key(name), ByteRange::ALL)).unwrap()?;
        Some((object.value.to_vec(), object.info.version))
    }

    #[test]
    fn short_puts_get_consecutive_versions() {
        let device = in_memory();
        let store = open(&device);
        let mut puts: Vec<(ObjectKey, &[u8])> = (0..20).map(|at| (key(at), &b"first"[..])).collect();
        puts.push((key(3), b"later"));
        let versions = put_all(&store, &puts).unwrap();
        assert!(versions.windows(2).all(|pair| pair[0].next() == pair[1]), "{versions:?}");
        for at in 0..20 {
            let wanted =
                if at == 3 { (b"later".to_vec(), versions[20]) } else { (b"first".to_vec(), versions[at]) };
            assert_eq!(got(&store, at), Some(wanted), "{at}");
        }
        assert_eq!(store.0.counters.puts.load(Ordering::Relaxed), 21);
        block_on(store.close()).unwrap();
        drop(store);
        let store = open(&device);
        assert_eq!(got(&store, 3), Some((b"later".to_vec(), versions[20])));
        assert_eq!(got(&store, 19), Some((b"first".to_vec(), versions[19])));
    }

    #[test]
    fn long_or_too_many_puts_are_declined() {
        let store = open(&in_memory());
        let long = vec![0; store.0.tuning.leaf_value_bytes_max + 1];
        assert!(put_all(&store, &[(key("a"), b"short"), (key("b"), &long)]).is_none());
        let many: Vec<(ObjectKey, &[u8])> = (0..=SHORT_PUTS_MAX).map(|at| (key(at), &b"v"[..])).collect();
        assert!(put_all(&store, &many).is_none());
        assert!(put_all(&store, &many[1..]).is_some());
        assert!(put_all(&store, &[]).is_none());
        assert_eq!((got(&store, "a"), got(&store, 0)), (None, None));
        // The reservations and permits of the failed calls are free again.
        block_on(store.0.checkpointer.apply_all()).unwrap();
        assert_eq!(store.0.tablets.admission.held(), (0, 0));
        assert_eq!(store.0.space.reserved_blocks(), 0);
    }

    /// Returns true if most of a hundred tries succeed. Each try starts while no thread drives; the committer's thread,
    /// which seals, may be in the way of some.
    fn often(store: &Store, mut succeeds: impl FnMut() -> bool) -> bool {
        let mut tries = || {
            while !store.0.log.committer.is_idle() {
                std::thread::yield_now();
            }
            succeeds()
        };
        (0..100).filter(|_| tries()).count() > 70
    }

    /// A bell, and a waker that rings it, or holds the ring back.
    #[derive(Default)]
    struct Rung {
        rings: AtomicUsize,
        wakes: AtomicUsize,
    }

    impl Hold for Rung {
        fn start_held(&self) {
            self.rings.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Wake for Rung {
        fn wake(self: Arc<Self>) {
            if !may_hold(&self) {
                self.start_held();
            }
            self.wakes.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn waiting_thread_is_woken_once_per_batch() {
        let store = open(&in_memory());
        let rings_once = || {
            let rung = Arc::new(Rung::default());
            let waker = Waker::from(rung.clone());
            let pending = store.gather(|| {
                [0, 1, 2].map(|at| {
                    let pending = store.try_write(&[(key(at), b"value")]).unwrap();
                    let durable = pending.poll_durable(&mut Context::from_waker(&waker));
                    (pending, durable.is_pending())
                })
            });
            for (pending, _) in &pending {
                block_on(poll_fn(|context| pending.poll_durable(context))).unwrap();
            }
            if !pending.iter().all(|(_, waits)| *waits) {
                return false;
            }
            eventually("the thread is rung", || rung.rings.load(Ordering::SeqCst) > 0);
            (rung.wakes.load(Ordering::SeqCst), rung.rings.load(Ordering::SeqCst)) == (3, 1)
        };
        assert!(often(&store, rings_once));
    }

    /// A thread commits its writes itself if all of its clients wait. Other writes, and writes that it queues while another
    /// thread commits, go to the committer's thread: nothing is lost, and the thread does not wait.
    #[test]
    fn thread_of_only_client_commits_itself() {
        let clock = Arc::new(SteppingClock::new(0));
        let environment = Environment { clock: clock.clone(), ..Environment::default() };
        let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
        let store = open_in(&in_memory(), options, environment);
        let keys: Vec<ObjectKey> = (0..50).map(key).collect();
        let queue = |keys: &[ObjectKey], commits: bool| {
            let puts: Vec<(&ObjectKey, &[u8])> = keys.iter().map(|key| (key, &b"value"[..])).collect();
            let mut queued = None;
            store.turn(|| {
                queued = store.try_write(&puts);
                if commits { Waiting::One } else { Waiting::Several }
            });
            queued
        };
        let make_room = || block_on(store.0.checkpointer.apply_all()).unwrap();
        let wait = |pending: Ticket| block_on(poll_fn(|context| pending.poll_durable(context))).unwrap();

        // A value with its own extents goes to the device with the batch.
        let (name, value) = (key("long"), Buffer::from(vec![7; 50_000]));
        let options = PutOptions::default();
        let put_long = || {
            let mut put = std::pin::pin!(store.write(crate::Write::put(&name, &value, &options)));
            let mut polled = std::task::Poll::Pending;
            store.turn(|| {
                polled = poll_once(put.as_mut());
                Waiting::One
            });
            match polled {
                std::task::Poll::Ready(pending) => pending.unwrap().is_durable(),
                std::task::Poll::Pending => {
                    wait(block_on(put).unwrap());
                    false
                }
            }
        };
        assert!(often(&store, put_long));
        assert_eq!(got(&store, "long").unwrap().0, value.to_vec());

        for count in [1, 2, 50] {
            let commits = || {
                let Some(pending) = queue(&keys[..count], true) else {
                    make_room();
                    return false;
                };
                let is_durable = pending.is_durable();
                wait(pending);
                is_durable
            };
            assert!(often(&store, commits), "{count}");
        }
        make_room();
        wait(queue(&keys, false).unwrap());
        let token = block_on(store.0.log.committer.stop());
        let pending = queue(&[key("c")], true).unwrap();
        assert!(!pending.is_durable());
        drop(token);
        wait(pending);
        assert!(got(&store, "c").is_some());

        // A slow device has the committer's thread.
        let commits_next = || {
            let mut commits = false;
            store.turn(|| {
                commits = store.0.log.committer.commits_next();
                Waiting::One
            });
            commits
        };
        assert!(often(&store, commits_next));
        // A turn after one with several values expects several: none waits for its batch. A turn with one value
        // resets that.
        let several = || {
            store.turn(|| {
                (0..3).for_each(|_| _ = store.0.log.committer.commits_next());
                Waiting::One
            });
            commits_next()
        };
        assert!(!often(&store, several));
        assert!(often(&store, commits_next));
        clock.set_step(3_000_000);
        block_on(store.put(&key("d"), value.clone(), PutOptions::default())).unwrap();
        assert!(!often(&store, commits_next));
    }

    /// A superseded record frees its room at once: one key that is written all the time fills no memtable. After all
    /// applies nothing is held for any kind of superseded record: values in leaves, in the log, in extents, and
    /// deletes.
    #[test]
    fn superseded_records_take_no_room() {
        // No other thread applies.
        let store = open_with(&in_memory(), false);
        let put = |name: &str, bytes: usize| {
            block_on(store.put(&key(name), Buffer::from(vec![7; bytes]), PutOptions::default())).unwrap();
        };
        put("a", 100);
        put("a", 100);
        let held = store.0.tablets.admission.held();
        for _ in 0..100 {
            put("a", 100);
        }
        assert_eq!(store.0.tablets.admission.held(), held, "two records: the newest, and the one before it");
        for bytes in [100, 5_000, 100_000, 5_000, 100, 100_000] {
            for _ in 0..3 {
                put("b", bytes);
            }
            block_on(store.delete(&key("b"), RejectRules::default())).unwrap();
        }
        block_on(store.0.checkpointer.apply_all()).unwrap();
        assert_eq!(store.0.tablets.admission.held(), (0, 0));
        assert_eq!(store.0.space.reserved_blocks(), 0);
    }

    /// Two threads queue several puts at a time over all tablets, while memtables are frozen and applied all the time.
    #[test]
    fn nothing_is_lost_over_freezes() {
        let store = open(&in_memory());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    block_on(store.0.checkpointer.apply_all()).unwrap();
                }
            });
            let writers = ["x", "y"].map(|name| {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..100_u64 {
                        let value = round.to_le_bytes();
                        let puts: Vec<(ObjectKey, &[u8])> =
                            (0..8).map(|at| (key(format!("{name}{at}")), &value[..])).collect();
                        let versions = loop {
                            // Without room the call is repeated.
                            if let Some(versions) = put_all(store, &puts) {
                                break versions;
                            }
                            std::thread::yield_now();
                        };
                        for (at, version) in versions.iter().enumerate() {
                            let wanted = (value.to_vec(), *version);
                            assert_eq!(got(store, format!("{name}{at}")), Some(wanted), "{round}");
                        }
                    }
                })
            });
            let failed = writers.into_iter().filter_map(|writer| writer.join().err()).count();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0);
        });
    }
}
