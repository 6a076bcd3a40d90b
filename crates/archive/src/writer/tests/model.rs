//! A store as an archive sees it: a log in memory that is overwritten as soon as it is released, and a history of everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_testkit::bytes::random;
use tokio::sync::watch;

use crate::format::VolumeId;
use crate::format::tests::{delete, put};
use crate::source::*;

/// A write, in the terms of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) key: Vec<u8>,
    /// `None`: a delete.
    pub(super) value: Option<Bytes>,
    pub(super) continues: bool,
}

/// The part that survives a crash.
pub(super) struct Disk {
    pub(super) volume: VolumeId,
    /// Everything that was ever written.
    pub(super) history: BTreeMap<u64, Written>,
    batches: Vec<SourceBatch>,
    pub(super) floor: u64,
    next: u64,
    remembered: u64,
    /// The last record before the openings that remembered no log.
    last_owned: Option<u64>,
    /// All logs that were remembered.
    pub(super) logs: Vec<u64>,
    ring_bytes: u64,
}

impl Disk {
    pub(super) fn new(volume: VolumeId, ring_bytes: u64) -> Self {
        let (history, batches, logs) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self {
            volume,
            history,
            batches,
            floor: 0,
            next: 1,
            remembered: 0,
            last_owned: None,
            logs,
            ring_bytes,
        }
    }

    /// A copy of the data file.
    pub(super) fn copied(&self) -> Self {
        Self {
            history: self.history.clone(),
            batches: self.batches.clone(),
            floor: self.floor,
            next: self.next,
            remembered: self.remembered,
            last_owned: self.last_owned,
            ..Self::new(self.volume, self.ring_bytes)
        }
    }
}

/// An opened store.
pub(super) struct ModelStore {
    disk: Arc<Mutex<Disk>>,
    facts: SourceFacts,
    durable: watch::Sender<u64>,
    is_closed: watch::Sender<bool>,
    /// The store does not remember a log while this is true.
    pub(super) blocks_remember: watch::Sender<bool>,
    pub(super) released: AtomicU64,
    /// Reads of values panic.
    pub(super) panics: AtomicBool,
    /// Bytes of values that are being read, and the most at a time.
    reading: Mutex<(usize, usize)>,
}

impl ModelStore {
    pub(super) fn open(disk: &Arc<Mutex<Disk>>) -> Arc<Self> {
        let mut it = disk.lock();
        let durable = it.history.keys().next_back().copied().unwrap_or(0);
        let last_owned = *it.last_owned.get_or_insert(durable);
        let facts = SourceFacts {
            volume: it.volume,
            tablets: 4,
            remembered_log: it.remembered,
            recovered: Lsn(durable),
            last_owned: Lsn(last_owned),
            log_start: Lsn(it.floor + 1),
        };
        // Numbers of records that were not flushed are not used again.
        it.next = it.next.max(durable + 1) + 3;
        Arc::new(Self {
            disk: Arc::clone(disk),
            facts,
            durable: watch::Sender::new(durable),
            is_closed: watch::Sender::new(false),
            blocks_remember: watch::Sender::new(false),
            released: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            reading: Mutex::default(),
        })
    }

    pub(super) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    /// Writes a batch of the log; returns the number of its last record. Keys with values of more than 100 bytes have them elsewhere.
    pub(super) fn write(&self, records: Vec<(Vec<u8>, Option<Bytes>, bool)>) -> u64 {
        let mut disk = self.disk.lock();
        let mut batch = SourceBatch { store_ns: disk.next, wall_ns: disk.next * 10, records: Vec::new() };
        for (key, value, continues) in records {
            let lsn = disk.next;
            disk.next += 1;
            let (record, stored_bytes) = match &value {
                None => (delete(&key, continues), 0),
                Some(value) if value.len() <= 100 => (put(&key, value, true, continues), 0),
                Some(value) => (put(&key, value, false, continues), value.len() as u64),
            };
            batch.records.push(SourceRecord { lsn: Lsn(lsn), record, stored_bytes });
            disk.history.insert(lsn, Written { key, value, continues });
        }
        let last = disk.next - 1;
        disk.batches.push(batch);
        drop(disk);
        self.durable.send_replace(last);
        last
    }

    /// Writes one object of this number of bytes.
    pub(super) fn put(&self, key: &str, bytes: usize) -> u64 {
        let value = Bytes::from(random(bytes, bytes as u64 + self.disk.lock().next));
        self.write(vec![(key.as_bytes().to_vec(), Some(value), false)])
    }

    /// The most bytes of values that were read at a time.
    pub(super) fn bytes_read_at_once(&self) -> usize {
        self.reading.lock().1
    }

    pub(super) fn is_full(&self) -> bool {
        self.log_fill_permille() >= 1000
    }
}

impl ArchivedStore for ModelStore {
    fn facts(&self) -> SourceFacts {
        self.facts
    }

    fn remember_log(&self, log: u64) -> Boxed<'_, Result<(), SourceError>> {
        async move {
            let mut blocks = self.blocks_remember.subscribe();
            let _ = blocks.wait_for(|blocks| !blocks).await;
            let mut disk = self.disk.lock();
            (disk.remembered, disk.last_owned) = (log, None);
            disk.logs.push(log);
            Ok(())
        }
        .boxed()
    }

    fn durable(&self) -> Lsn {
        Lsn(*self.durable.borrow())
    }

    fn next_batch(&self, after: Lsn) -> Boxed<'_, Result<Option<SourceBatch>, SourceError>> {
        async move {
            if *self.is_closed.borrow() {
                return Err(SourceError::Closed("closed".into()));
            }
            tokio::task::yield_now().await;
            // A store may not notice that the log was overwritten below.
            let disk = self.disk.lock();
            let next = disk.batches.iter().find(|batch| batch.records.last().unwrap().lsn > after);
            Ok(next.cloned())
        }
        .boxed()
    }

    fn stored<'a>(
        &'a self,
        record: &'a SourceRecord,
        first: u64,
        bytes: usize,
    ) -> Boxed<'a, Result<Bytes, SourceError>> {
        async move {
            {
                let mut reading = self.reading.lock();
                reading.0 += bytes;
                reading.1 = reading.1.max(reading.0);
            }
            tokio::task::yield_now().await;
            self.reading.lock().0 -= bytes;
            assert!(!self.panics.load(Ordering::Relaxed), "the panic of the test");
            let disk = self.disk.lock();
            if record.lsn.0 <= disk.floor {
                return Err(SourceError::Lost("the blocks were reused".into()));
            }
            let value = disk.history[&record.lsn.0].value.as_ref().unwrap();
            Ok(value.slice(first as usize..first as usize + bytes))
        }
        .boxed()
    }

    fn wait_for(&self, after: Lsn) -> Boxed<'_, ()> {
        async move {
            let (mut durable, mut closed) = (self.durable.subscribe(), self.is_closed.subscribe());
            tokio::select! {
                _ = durable.wait_for(|durable| *durable > after.0) => {}
                _ = closed.wait_for(|closed| *closed) => {}
            }
        }
        .boxed()
    }

    fn release(&self, lsn: Lsn) {
        let mut disk = self.disk.lock();
        assert!(lsn.0 <= *self.durable.borrow(), "released {lsn}, which is not flushed");
        disk.floor = disk.floor.max(lsn.0);
        let floor = disk.floor;
        disk.batches.retain(|batch| batch.records.last().unwrap().lsn.0 > floor);
        self.released.fetch_max(lsn.0, Ordering::Relaxed);
    }

    fn log_fill_permille(&self) -> u32 {
        let disk = self.disk.lock();
        let records = disk.batches.iter().flat_map(|batch| &batch.records);
        let bytes: u64 = records.map(|record| record.record.bytes.len() as u64).sum();
        (bytes * 1000 / disk.ring_bytes) as u32
    }

    fn start_base(&self, _: u64) -> Boxed<'_, Result<Box<dyn BaseStream>, SourceError>> {
        async { Err(SourceError::Closed("this store has no bases".into())) }.boxed()
    }
}
