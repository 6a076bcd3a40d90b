//! Values that arrive or leave in pieces: up to 5 GiB in bounded memory.

use std::sync::{Arc, Weak};

use shoal_base::limits::{VALUE_BYTES_MAX, VALUE_BYTES_SINGLE_MAX, VALUE_UNIT_BYTES};
use shoal_base::sync::Mutex;
use shoal_base::{BLOCK_BYTES_U64, Lsn, Run, blocks_for};
use shoal_buffer::Buffer;
use shoal_device::memory::Guarded;
use shoal_pool::{Hint, WriteMemory};

use crate::entry::{Home, RUNS_MAX};
use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::log::commit::ValueWrite;
use crate::object::{ByteRange, ObjectInfo, PutOptions, PutResult};
use crate::put::Filler;
use crate::retry::Identity;
use crate::space::Extents;
use crate::store::Store;
use crate::tablet::View;
use crate::update::{Change, Placed};
use crate::value::prepare::{home_of, manifest_blocks};
use crate::value::read::{self, Located};
use crate::write::Part;

/// Bytes that a stream collects before it writes them to an extent.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes of one piece of a value on its way out.
const READ_PIECE_BYTES: u64 = 1 << 20;
/// For so long a reader of a long value holds the space of the version that it reads; later it looks again.
const HOLD_VIEW_NS: u64 = 30_000_000_000;

/// A value on its way in. Dropping it without [`finish`](Self::finish) leaves nothing behind.
pub struct PutStream {
    store: Store,
    key: ObjectKey,
    options: PutOptions,
    /// Who the write is, where its sender says so.
    identity: Option<Identity>,
    /// Bytes that are not on the device yet; they become a single put where nothing more comes.
    pending: Vec<u8>,
    /// Metadata that goes in front of the value was taken into `pending`.
    started: bool,
    meta_in_front: usize,
    written: u64,
    extents: Vec<Arc<Extents>>,
    runs: Vec<Run>,
    checksums: Vec<u32>,
    under_way: Vec<ValueWrite>,
}

impl Store {
    /// Begins to store a value that arrives in pieces: up to 5 GiB. Nothing is visible before it is finished.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Poisoned`], [`Error::Closed`].
    pub fn put_stream(&self, key: &ObjectKey, options: PutOptions) -> Result<PutStream> {
        self.0.check_writable()?;
        self.0.new_entry(key, &options, 0)?;
        Ok(PutStream {
            store: self.clone(),
            key: key.clone(),
            options,
            identity: None,
            pending: Vec::new(),
            started: false,
            meta_in_front: 0,
            written: 0,
            extents: Vec::new(),
            runs: Vec::new(),
            checksums: Vec::new(),
            under_way: Vec::new(),
        })
    }

    /// As [`Self::put_stream`], done once ([`Self::update_once`]): the repetition is known when it is finished, and then what it
    /// carried is thrown away.
    ///
    /// # Errors
    /// As [`Self::put_stream`].
    pub fn put_stream_once(
        &self,
        identity: Identity,
        key: &ObjectKey,
        options: PutOptions,
    ) -> Result<PutStream> {
        Ok(PutStream { identity: Some(identity), ..self.put_stream(key, options)? })
    }

    /// The object to be read piece by piece; none where there is no such object.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub async fn get_stream(&self, key: &ObjectKey, range: ByteRange) -> Result<Option<GetStream>> {
        let inner = &*self.0;
        inner.check_open()?;
        let view = inner.tablet_of(key).view();
        let Some(found) = inner.find(&view, key.encoded()).await? else { return Ok(None) };
        let info = inner.info(&found).await?;
        let (first, bytes) = range.within(info.bytes);
        let until_ns = inner.now_ns().saturating_add(HOLD_VIEW_NS);
        let held = inner.streams.add(Held { _view: view, found, until_ns });
        Ok(Some(GetStream { store: self.clone(), key: key.clone(), info, next: first, left: bytes, held }))
    }
}

impl PutStream {
    /// Takes the next bytes of the value.
    ///
    /// # Errors
    /// As [`Store::put`]; [`Error::Invalid`] above 5 GiB.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.written + (self.pending.len() + bytes.len()) as u64 > VALUE_BYTES_MAX {
            return Err(Error::Invalid(format!("a value has at most {VALUE_BYTES_MAX} bytes")));
        }
        while !bytes.is_empty() {
            if self.pending.len() == PIECE_BYTES {
                self.write_piece().await?;
            }
            let count = bytes.len().min(PIECE_BYTES - self.pending.len());
            let (now, later) = bytes.split_at(count);
            self.pending.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// The value is complete: makes it durable and visible.
    ///
    /// # Errors
    /// As [`Store::put`], and as [`Store::put_once`] where it has an identity.
    pub async fn finish(mut self) -> Result<PutResult> {
        if !self.started && self.pending.len() as u64 <= VALUE_BYTES_SINGLE_MAX {
            let value = Buffer::from(std::mem::take(&mut self.pending));
            return match self.identity {
                Some(identity) => self.store.put_once(identity, &self.key, value, self.options.clone()).await,
                None => self.store.put(&self.key, value, self.options.clone()).await,
            };
        }
        if !self.pending.is_empty() {
            self.write_piece().await?;
        }
        self.settle().await?;
        let store = self.store.clone();
        let inner = &*store.0;
        let value_bytes = self.written - self.meta_in_front as u64;
        let (mut entry, _) = inner.new_entry(&self.key, &self.options, value_bytes)?;
        let blocks = manifest_blocks(self.runs.len(), self.checksums.len());
        let manifest = if blocks > 0 { Some(inner.claim_manifest(blocks).await?) } else { None };
        let mut writes = Vec::new();
        let checksums = std::mem::take(&mut self.checksums);
        let home = home_of(&inner.device, &self.runs, 0, checksums, manifest.as_ref(), &mut writes);
        inner.write_values(writes).await?;
        entry.home = home;
        if let Some(end) = entry.end {
            inner.expiring.note(end, self.key.encoded());
        }
        let mut head = Vec::with_capacity(96);
        entry.encode(&mut head);
        let placed = Placed { entry: head, extents: self.extents.drain(..).chain(manifest).collect() };
        if let Some(identity) = self.identity {
            let change = Change::Placed(placed);
            let (version, _) = store.write_once(identity, &self.key, self.options.rules, change).await?;
            return Ok(PutResult { version });
        }
        let write = inner.admit_write(inner.prepare_placed(&self.key, &placed, Part::LAST).await?).await?;
        let written = inner.commit(&self.key, self.options.rules, write).await?;
        inner.count(&inner.counters.puts);
        Ok(PutResult { version: written.version })
    }

    /// Writes what is pending to an extent of its own, in the background; at most one is under way.
    async fn write_piece(&mut self) -> Result<()> {
        let store = self.store.clone();
        let inner = &*store.0;
        inner.check_writable()?;
        if !self.started {
            self.started = true;
            // A repetition of a write that was done gets its answer, whatever its rules say of what it left.
            if self.identity.is_none() {
                inner.check_rules(&self.key, self.options.rules).await?;
            }
            let (entry, meta) = inner.new_entry(&self.key, &self.options, 0)?;
            self.meta_in_front = entry.meta_in_front() as usize;
            if self.meta_in_front > 0 {
                self.pending.splice(0..0, meta);
            }
        }
        // Whole units, so that no unit lies in two pieces; only the last piece may end within one.
        let whole = self.pending.len() / VALUE_UNIT_BYTES * VALUE_UNIT_BYTES;
        let take = if self.pending.len() >= PIECE_BYTES { whole } else { self.pending.len() };
        let (extents, _) = {
            let blocks = blocks_for(take as u64);
            let owner = inner.own.owner_of(&self.key);
            inner.claim(|| inner.space.claim_value(owner, blocks, 0)).await?
        };
        self.settle().await?;
        let mut filler = Filler::new(extents.runs());
        filler.take(&self.pending[..take]);
        self.pending.drain(..take);
        let (bufs, checksums) = filler.finish();
        let mut batch = inner.device.batch();
        for (run, memory) in extents.runs().iter().zip(bufs) {
            let memory = WriteMemory::Own(memory);
            let write = inner.device.write(run.block, Guarded { memory, guard: extents.clone() });
            self.under_way.push(batch.add(write));
        }
        batch.start_in_background();
        self.written += take as u64;
        self.checksums.extend(checksums);
        for &run in extents.runs() {
            match self.runs.last_mut() {
                Some(last) if last.end() == run.block && is_whole_units(*last) => last.blocks += run.blocks,
                _ => self.runs.push(run),
            }
        }
        self.extents.push(extents);
        if self.runs.len() > RUNS_MAX {
            let needed = blocks_for(self.written);
            return Err(Error::Full { needed, available: inner.space.available() });
        }
        Ok(())
    }

    async fn settle(&mut self) -> Result<()> {
        let mut result = Ok(());
        for write in self.under_way.drain(..) {
            if let Err(error) = write.await.ok() {
                result = Err(Error::Io(error));
            }
        }
        result
    }
}

fn is_whole_units(run: Run) -> bool {
    (u64::from(run.blocks) * BLOCK_BYTES_U64).is_multiple_of(VALUE_UNIT_BYTES as u64)
}

/// What keeps the space of the version that is read.
struct Held {
    _view: Arc<View>,
    found: crate::get::FoundEntry,
    until_ns: u64,
}

/// What one reader holds; none once it took too long.
type Place = Mutex<Option<Arc<Held>>>;
type Slot = Arc<Place>;

/// What all readers of long values hold, so that the space of a reader that is slow or forgotten comes free without it.
#[derive(Default)]
pub(crate) struct HeldStreams(Mutex<Vec<Weak<Place>>>);

impl HeldStreams {
    fn add(&self, held: Held) -> Slot {
        let slot = Arc::new(Mutex::new(Some(Arc::new(held))));
        let mut slots = self.0.lock();
        // As many dead ones as living are tolerated, so that adding one costs little on average.
        if slots.len() == slots.capacity() {
            slots.retain(|slot| slot.strong_count() > 0);
        }
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// Lets go of what was held until before `now_ns`. A read under way keeps it until the device answered.
    pub(crate) fn expire(&self, now_ns: u64) {
        let slots: Vec<Slot> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for slot in slots {
            let expired = slot.lock().take_if(|held| held.until_ns < now_ns);
            drop(expired);
        }
    }
}

/// A value on its way out.
pub struct GetStream {
    store: Store,
    key: ObjectKey,
    info: ObjectInfo,
    next: u64,
    left: u64,
    held: Slot,
}

impl GetStream {
    /// What is known about the whole object.
    #[must_use]
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The next piece (at most 1 MiB); none at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`]; [`Error::Changed`] where the object was overwritten or deleted and its
    /// reader took longer than the space of old versions is held (30 s).
    pub async fn next(&mut self) -> Result<Option<Buffer>> {
        if self.left == 0 {
            return Ok(None);
        }
        let inner = &*self.store.0;
        inner.check_open()?;
        inner.streams.expire(inner.now_ns());
        let held = self.held.lock().clone();
        let held = match held {
            Some(held) => held,
            None => {
                let held = Arc::new(self.look_again().await?);
                *self.held.lock() = Some(held.clone());
                held
            }
        };
        // Pieces end at unit borders, so that no unit is loaded twice.
        let to_border =
            READ_PIECE_BYTES - (self.next + u64::from(held.found.entry.meta_in_front())) % READ_PIECE_BYTES;
        let bytes = self.left.min(to_border);
        let value = if held.found.entry.home == Home::Inline {
            inner.read_object(&held.found, self.next, bytes).await?.value
        } else {
            let located =
                Located::find(&inner.device, &inner.pool, &held.found.entry, held.found.version).await?;
            let from = u64::from(held.found.entry.meta_in_front()) + self.next;
            read::read(&inner.device, &inner.pool, &located, from, bytes, Hint::Scan).await?
        };
        self.next += bytes;
        self.left -= bytes;
        Ok(Some(value))
    }

    /// Finds the same version under a newer view.
    async fn look_again(&self) -> Result<Held> {
        let inner = &*self.store.0;
        let view = inner.tablet_of(&self.key).view();
        let read: Lsn = self.info.version;
        let found = inner.find(&view, self.key.encoded()).await?.filter(|found| found.version == read);
        let found = found.ok_or(Error::Changed { read })?;
        Ok(Held { _view: view, found, until_ns: inner.now_ns().saturating_add(HOLD_VIEW_NS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use crate::by_hand::ByHand;

    /// Limits that no test reaches with real bytes.
    #[test]
    fn a_value_that_is_too_long_or_in_too_many_runs_is_refused() {
        let mut made = ByHand::with_blocks(8_192);
        made.publish();
        let store = made.open().unwrap();
        let free = store.0.space.allocator().free_blocks();
        let key = ObjectKey::new("default", b"1").unwrap();
        let begin = || store.put_stream(&key, PutOptions::default()).unwrap();
        let mut stream = begin();
        stream.written = VALUE_BYTES_MAX - 10;
        block_on(stream.write(&[1; 10])).unwrap();
        let refused = block_on(stream.write(&[1]));
        assert!(
            matches!(&refused, Err(Error::Invalid(why)) if why.contains("a value has at most")),
            "{refused:?}"
        );
        drop(stream);

        let mut stream = begin();
        block_on(stream.write(&[1; 100_000])).unwrap();
        stream.runs = (0..RUNS_MAX as u64).map(|run| Run::new(3 * run, 1)).collect();
        let refused = block_on(stream.write_piece());
        assert!(matches!(refused, Err(Error::Full { needed: 25, .. })), "{refused:?}");
        drop(stream);
        assert_eq!(store.0.space.allocator().free_blocks(), free, "what was taken is back");
        assert!(block_on(store.get(&key, ByteRange::ALL)).unwrap().is_none());
    }
}
