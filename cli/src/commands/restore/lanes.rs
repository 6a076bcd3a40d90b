//! The writes of a restore, in lanes: those of a key stay in order, and several large batches are on their way at a time.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use shoal_archive::restore::{RestoreTarget, RestoredWrite, TargetError};
use shoal_backup::{ExpiresAt, Loss, ObjectHead, ObjectRecord};
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_engine::{Error, Expiry, ObjectKey, PutOptions, RejectRules, Store, ValueWriter, Write};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cannot;
use crate::commands::backup::words;
use crate::output::warn;

/// Batches on their way.
const LANES: usize = 8;
/// A batch is full with this number of writes, or bytes of values.
const BATCH_WRITES: usize = 256;
const BATCH_BYTES: usize = 512 << 10;
/// Batches that wait for a lane.
const BATCHES_WAITING: usize = 2;
/// Between two attempts to write to a store that is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A write of a lane.
struct LaneWrite {
    key: ObjectKey,
    /// Boxed: a buffer has room for a short value. None: a delete.
    put: Option<Box<(Buffer, PutOptions)>>,
}

impl LaneWrite {
    fn write(&self) -> Write<'_> {
        match self.put.as_deref() {
            Some((value, options)) => Write::put(&self.key, value, options),
            None => Write::delete(&self.key, RejectRules::default()),
        }
    }
}

/// The next step of a lane.
enum Step {
    Writes(Vec<LaneWrite>),
    /// A value in pieces that is whole.
    Finish(ObjectKey, Box<ValueWriter>),
}

/// A batch that is being filled, and its lane.
struct Lane {
    writes: Vec<LaneWrite>,
    bytes: usize,
    steps: mpsc::Sender<Step>,
}

/// The new store, as the target of a restore.
pub(super) struct Lanes {
    store: Store,
    lanes: Vec<Lane>,
    tasks: JoinSet<anyhow::Result<()>>,
    long: Option<(ObjectKey, Option<Box<ValueWriter>>)>,
    is_stopped: Arc<AtomicBool>,
    /// Buckets with a record.
    pub(super) buckets: BTreeSet<String>,
    /// Puts whose time was over.
    pub(super) expired: u64,
    /// Things that the store could not read for the base.
    pub(super) missing: u64,
}

impl Lanes {
    /// Lanes into `store`, until `is_stopped`.
    pub(super) fn new(store: &Store, is_stopped: Arc<AtomicBool>) -> Self {
        let mut tasks = JoinSet::new();
        let lane = |_| {
            let (steps, taken) = mpsc::channel(BATCHES_WAITING);
            tasks.spawn(run_lane(store.clone(), taken));
            Lane { writes: Vec::new(), bytes: 0, steps }
        };
        let lanes = (0..LANES).map(lane).collect();
        let (store, long, buckets) = (store.clone(), None, BTreeSet::new());
        Self { store, lanes, tasks, long, is_stopped, buckets, expired: 0, missing: 0 }
    }

    /// Waits until all writes are durable.
    pub(super) async fn finish(&mut self) -> anyhow::Result<()> {
        for at in 0..self.lanes.len() {
            self.send(at).await?;
        }
        self.lanes.clear();
        self.join().await
    }

    /// The results of the lanes.
    async fn join(&mut self) -> anyhow::Result<()> {
        let mut result = Ok(());
        while let Some(done) = self.tasks.join_next().await {
            let done = done.context("a write of the restore broke off").and_then(|done| done);
            result = result.and(done);
        }
        result
    }

    fn lane_of(&self, key: &ObjectKey) -> usize {
        let mut hasher = DefaultHasher::new();
        key.encoded().hash(&mut hasher);
        (hasher.finish() % self.lanes.len().max(1) as u64) as usize
    }

    async fn push(&mut self, write: LaneWrite) -> anyhow::Result<()> {
        let at = self.lane_of(&write.key);
        let lane = &mut self.lanes[at];
        lane.bytes += write.put.as_ref().map_or(0, |put| put.0.len());
        lane.writes.push(write);
        if lane.writes.len() >= BATCH_WRITES || lane.bytes >= BATCH_BYTES {
            self.send(at).await?;
        }
        Ok(())
    }

    async fn send(&mut self, at: usize) -> anyhow::Result<()> {
        let lane = &mut self.lanes[at];
        let writes = std::mem::take(&mut lane.writes);
        lane.bytes = 0;
        match writes.is_empty() {
            true => Ok(()),
            false => self.send_step(at, Step::Writes(writes)).await,
        }
    }

    async fn send_step(&mut self, at: usize, step: Step) -> anyhow::Result<()> {
        if self.lanes[at].steps.send(step).await.is_ok() {
            return Ok(());
        }
        // The lane failed.
        self.lanes.clear();
        self.join().await?;
        bail!("a write of the restore broke off")
    }

    async fn take(&mut self, writes: Vec<RestoredWrite>) -> anyhow::Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        for write in writes {
            match write {
                RestoredWrite::Put(object) => {
                    let ObjectRecord { head, value } = *object;
                    let options = self.options(&head);
                    let put = options.map(|options| Box::new((Buffer::from(value), options)));
                    self.push(LaneWrite { key: head.key, put }).await?;
                }
                RestoredWrite::Delete(key) => self.push(LaneWrite { key, put: None }).await?,
                RestoredWrite::Bucket { name, record } => self.bucket(name, record).await?,
            }
        }
        Ok(())
    }

    async fn bucket(&mut self, name: String, record: Option<Bytes>) -> anyhow::Result<()> {
        crate::backup::buckets::set(&self.store, &name, record.as_deref()).await?;
        match record {
            Some(_) => self.buckets.insert(name),
            None => self.buckets.remove(&name),
        };
        Ok(())
    }

    /// The options of a put; `None` if the object's time is over.
    fn options(&mut self, head: &ObjectHead) -> Option<PutOptions> {
        let expiry = match head.expiry {
            None => Expiry::Never,
            Some(ExpiresAt { at_ns, is_relative }) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let left_ns = at_ns.saturating_sub(now.as_nanos() as u64);
                if left_ns == 0 {
                    self.expired += 1;
                    return None;
                }
                if is_relative { Expiry::After(Duration::from_nanos(left_ns)) } else { Expiry::At(at_ns) }
            }
        };
        let (metadata, modified_ns) = (head.metadata.clone(), Some(head.modified_ns));
        Some(PutOptions { metadata, modified_ns, expiry, ..PutOptions::default() })
    }

    async fn start(&mut self, head: ObjectHead) -> anyhow::Result<()> {
        let writer = match self.options(&head) {
            Some(options) => {
                let writer = self.store.put_stream(&head.key, options).with_context(|| cannot(&head.key))?;
                Some(Box::new(writer.with_length(head.value_bytes)))
            }
            None => None,
        };
        self.long = Some((head.key, writer));
        Ok(())
    }

    async fn write_piece(&mut self, bytes: Bytes) -> anyhow::Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        match &mut self.long {
            Some((key, Some(writer))) => writer.write(&bytes).await.map_err(|error| failed(error, key)),
            _ => Ok(()),
        }
    }

    async fn finish_piece(&mut self) -> anyhow::Result<()> {
        match self.long.take() {
            Some((key, Some(writer))) => {
                let at = self.lane_of(&key);
                self.send(at).await?;
                self.send_step(at, Step::Finish(key, writer)).await
            }
            Some((key, None)) => self.push(LaneWrite { key, put: None }).await,
            None => Ok(()),
        }
    }
}

impl RestoreTarget for Lanes {
    fn write(&mut self, writes: Vec<RestoredWrite>) -> Boxed<'_, Result<(), TargetError>> {
        Box::pin(async move { self.take(writes).await.map_err(TargetError::from) })
    }

    fn start_long(&mut self, head: ObjectHead) -> Boxed<'_, Result<(), TargetError>> {
        Box::pin(async move { self.start(head).await.map_err(TargetError::from) })
    }

    fn piece(&mut self, bytes: Bytes) -> Boxed<'_, Result<(), TargetError>> {
        Box::pin(async move { self.write_piece(bytes).await.map_err(TargetError::from) })
    }

    fn finish_long(&mut self) -> Boxed<'_, Result<(), TargetError>> {
        Box::pin(async move { self.finish_piece().await.map_err(TargetError::from) })
    }

    fn missing(&mut self, loss: &Loss) {
        self.long = None;
        self.missing += 1;
        warn(&format!("shoal: warning: the base of the archive lacks something: {}", words(loss)));
    }
}

/// Writes the batches of a lane, one after the other. Durable on return.
async fn run_lane(store: Store, mut steps: mpsc::Receiver<Step>) -> anyhow::Result<()> {
    let mut last = None;
    while let Some(step) = steps.recv().await {
        match step {
            Step::Finish(key, writer) => {
                writer.finish().await.map_err(|error| failed(error, &key))?;
            }
            Step::Writes(writes) => last = Some(write_all(&store, &writes).await?),
        }
    }
    if let Some(last) = last {
        last.durable().await?;
    }
    Ok(())
}

async fn write_all(store: &Store, writes: &[LaneWrite]) -> anyhow::Result<shoal_engine::Ticket> {
    let batch = writes.iter().map(LaneWrite::write).collect::<shoal_engine::WriteBatch<'_>>();
    match write_batch(store, batch, writes).await {
        // More than a batch of a small log has room for.
        Err(Error::Invalid(_)) if writes.len() > 1 => {
            let (front, back) = writes.split_at(writes.len() / 2);
            Box::pin(write_all(store, front)).await?;
            Box::pin(write_all(store, back)).await
        }
        Err(error) => Err(failed(error, &writes[0].key)),
        Ok(ticket) => Ok(ticket),
    }
}

async fn write_batch<'a>(
    store: &Store,
    mut batch: shoal_engine::WriteBatch<'a>,
    writes: &'a [LaneWrite],
) -> shoal_engine::Result<shoal_engine::Ticket> {
    loop {
        match store.write(batch).await {
            Err(Error::Busy(_)) => tokio::time::sleep(BUSY_PAUSE).await,
            done => return done,
        }
        batch = writes.iter().map(LaneWrite::write).collect();
    }
}

fn failed(error: Error, key: &ObjectKey) -> anyhow::Error {
    match error {
        Error::Full { .. } => anyhow!("{error}").context("the new store is too small: give a larger --size"),
        error => anyhow!(error).context(cannot(key)),
    }
}
