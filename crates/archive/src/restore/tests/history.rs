//! A random history of a store, and its archive as a writer leaves it: several logs, bases, gaps, values of each kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use shoal_backup::BackupStream;
use shoal_base::checksum::crc32c;
use shoal_base::{Entropy, Lsn, ManualClock, Run, SeededEntropy, TabletId};
use shoal_common::object::EndTime;
use shoal_engine::{Metadata, ObjectKey, PutOptions, RejectRules, Store, block_on};
use shoal_log::format::{EncodedRecord, RecordKind, encode_record};
use shoal_storekit::StoreKit;
use shoal_value::{Entry, Home, encode_metadata, place_of_metadata};

use crate::format::*;

/// The start of the wall clock, nanoseconds.
pub(super) const START_NS: u64 = 1_700_000_000_000_000_000;
/// Bytes of a part of a base.
const PART_BYTES: usize = 600;

/// An object as the model has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) value: Vec<u8>,
    pub(super) content_type: String,
    /// The deadline by the wall clock.
    pub(super) end_ns: Option<u64>,
}

/// All objects.
pub(super) type Objects = BTreeMap<Vec<u8>, Held>;

/// A batch of the history.
pub(super) struct Moment {
    pub(super) last: Lsn,
    pub(super) wall_ns: u64,
    /// It is in no log.
    pub(super) is_lost: bool,
    pub(super) objects: Objects,
}

/// A history with its archive.
pub(super) struct History {
    pub(super) record: ArchiveRecord,
    pub(super) objects: BTreeMap<String, Bytes>,
    pub(super) moments: Vec<Moment>,
    store: Store,
    clock: Arc<ManualClock>,
    dice: SeededEntropy,
    model: Objects,
    last: Lsn,
    wall_ns: u64,
    segment: Option<SegmentWriter>,
    /// The end of the log so far, and the checksum of its last header.
    end: LogEnd,
    chain: u32,
    seq: u64,
    /// Values in pieces.
    pieces: u64,
}

impl History {
    pub(super) fn new(seed: u64) -> Self {
        let clock = Arc::new(ManualClock::new(START_NS));
        let store = StoreKit::steady(8_192, &clock).in_memory();
        let mut record = crate::testing::record();
        (record.volume, record.tablets, record.logs[0].claimed_ns) = (store.identity(), 2, START_NS);
        let end = LogEnd { last_lsn: Lsn::NONE, store_ns: 0, wall_ns: START_NS };
        let mut history = Self {
            record,
            objects: BTreeMap::new(),
            moments: Vec::new(),
            store,
            clock,
            dice: SeededEntropy::new(seed),
            model: Objects::new(),
            last: Lsn::NONE,
            wall_ns: START_NS,
            segment: None,
            end,
            chain: 0,
            seq: 0,
            pieces: 0,
        };
        history.open(false);
        history.base();
        history
    }

    pub(super) fn roll(&self, sides: u64) -> u64 {
        self.dice.below(sides)
    }

    /// Some steps of a store's life.
    pub(super) fn live(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.roll(20) {
                0 => self.base(),
                1 => {
                    self.seal(true);
                    self.open(false);
                }
                2 => self.gap(),
                3 => self.heartbeat(),
                4..7 => self.flush(),
                _ => self.batch(false),
            }
        }
        self.flush();
    }

    fn log(&self) -> u64 {
        self.record.logs.last().unwrap().id
    }

    fn start(&self) -> SegmentStart {
        let slot = LogSlot { log: self.log(), seq: self.seq };
        let (volume, epoch, end) = (self.record.volume, self.record.epoch, self.end);
        let (chain, nonce) = (self.chain, self.dice.next_u64());
        SegmentStart { volume, slot, epoch, chain, nonce, flags: SegmentFlags::default(), end }
    }

    fn create(&mut self, bytes: Vec<u8>) {
        self.chain = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let slot = LogSlot { log: self.log(), seq: self.seq };
        self.objects.insert(slot.to_string(), bytes.into());
        self.seq += 1;
    }

    fn open(&mut self, after_gap: bool) {
        (self.seq, self.chain) = (0, 0);
        if after_gap {
            self.end.last_lsn = self.last;
        }
        let flags = SegmentFlags { after_gap, closing: false };
        let opening = SegmentStart { flags, ..self.start() }.opening(&Opening::default());
        self.create(opening);
    }

    fn heartbeat(&mut self) {
        self.flush();
        let heartbeat = self.start().heartbeat(self.wall_ns);
        self.create(heartbeat);
    }

    /// Sends the segment.
    pub(super) fn flush(&mut self) {
        if let Some(writer) = self.segment.take() {
            let bytes = writer.finish();
            let volume = self.record.volume;
            let slot = LogSlot { log: self.log(), seq: self.seq };
            self.end = SegmentHeader::decode(&bytes[..128], &volume, slot).unwrap().end;
            self.create(bytes);
        }
    }

    /// Seals the log, and names the next one in the record.
    fn seal(&mut self, confirmed: bool) {
        self.flush();
        let (volume, epoch) = (self.record.volume, self.record.epoch + 1);
        let next = self.dice.next_u64();
        let slot = LogSlot { log: self.log(), seq: self.seq };
        let tombstone = Tombstone { volume, slot, sealer_epoch: epoch, sealer_log: next };
        self.objects.insert(slot.to_string(), tombstone.encode().into());
        let (seq, last_lsn) = (self.seq, self.end.last_lsn);
        let log = self.record.logs.last_mut().unwrap();
        if confirmed {
            (log.end, log.last_lsn) = (Some(seq), last_lsn);
        }
        self.record.epoch = epoch;
        let log =
            RecordLog { id: next, epoch, first: 0, end: None, last_lsn: Lsn::NONE, claimed_ns: self.wall_ns };
        self.record.logs.push(log);
    }

    /// Seals the log of the last owner with a record that does not name the end yet.
    pub(super) fn seal_unconfirmed(&mut self) {
        self.seal(false);
    }

    /// Seals the log for good: no server follows.
    pub(super) fn close(&mut self) {
        self.seal(true);
        self.record.logs.pop();
        self.record.owner = None;
    }

    /// Some batches are not archived; a new log starts after them.
    fn gap(&mut self) {
        self.flush();
        for _ in 0..=self.roll(2) {
            self.batch(true);
        }
        self.seal(true);
        self.open(true);
    }

    fn batch(&mut self, is_lost: bool) {
        self.wall_ns += self.roll(3) * 700_000_000;
        self.clock.set_wall(self.wall_ns);
        let count = 1 + self.roll(3);
        let mut batch = BatchWriter::new(self.last.next(), self.store_ns(), self.wall_ns);
        for at in 0..count {
            self.write(&mut batch, at + 1 < count);
        }
        let moment = Moment { last: self.last, wall_ns: self.wall_ns, is_lost, objects: self.model.clone() };
        self.moments.push(moment);
        if !is_lost {
            let start = self.start();
            self.segment.get_or_insert_with(|| SegmentWriter::new(start)).push(batch);
        }
    }

    /// A batch of one put, in a slot for itself.
    pub(super) fn put_alone(&mut self) {
        self.wall_ns += 1_000_000_000;
        self.clock.set_wall(self.wall_ns);
        let key = ObjectKey::new("b", format!("alone {}", self.last).as_bytes()).unwrap();
        let value = vec![self.last.0 as u8; 300];
        let put = self.store.put(&key, value.clone().into(), PutOptions::default());
        self.numbered(block_on(put).unwrap().version);
        let mut batch = BatchWriter::new(self.last, self.store_ns(), self.wall_ns);
        self.push_put(&mut batch, &key, &Metadata::default(), None, &value, false);
        let held = Held { value, content_type: String::new(), end_ns: None };
        self.model.insert(key.encoded().to_vec(), held);
        let (last, wall_ns, objects) = (self.last, self.wall_ns, self.model.clone());
        self.moments.push(Moment { last, wall_ns, is_lost: false, objects });
        self.push(batch, Some(last));
    }

    /// Seals the log, and starts another one.
    pub(super) fn next_log(&mut self) {
        self.seal(true);
        self.open(false);
    }

    /// Loses some batches.
    pub(super) fn lose_some(&mut self) {
        self.gap();
    }

    /// Slots of the log of the newest base that a restore replays from it, and the bytes of all slots that it replays.
    pub(super) fn slots_after_base(&self) -> u64 {
        let base = self.record.bases.last().unwrap();
        let log = self.record.logs.iter().find(|log| log.id == base.log).unwrap();
        log.end.unwrap_or(self.seq) - base.seq
    }

    pub(super) fn bytes_after_base(&self) -> u64 {
        let base = self.record.bases.last().unwrap();
        let is_replayed = |name: &&String| match ArchiveName::parse(name) {
            Some(ArchiveName::Slot(slot)) => slot.log != base.log || slot.seq >= base.seq,
            _ => false,
        };
        self.objects.iter().filter(|(name, _)| is_replayed(name)).map(|(_, bytes)| bytes.len() as u64).sum()
    }

    pub(super) fn wall_ns(&self) -> u64 {
        self.wall_ns
    }

    /// A slot with this batch, which has numbers up to `last`.
    pub(super) fn push(&mut self, batch: BatchWriter, last: Option<Lsn>) {
        self.flush();
        let mut writer = SegmentWriter::new(self.start());
        writer.push(batch);
        self.segment = Some(writer);
        self.flush();
        self.last = last.unwrap_or(self.last);
    }

    /// Store time runs with the wall clock here, an hour after its start.
    fn store_ns(&self) -> u64 {
        self.wall_ns - START_NS + 3_600_000_000_000
    }

    fn write(&mut self, batch: &mut BatchWriter, continues: bool) {
        let key = ObjectKey::new("b", format!("{:02}", self.roll(25)).as_bytes()).unwrap();
        if self.roll(4) == 0 {
            let version = block_on(self.store.delete(&key, RejectRules::default())).unwrap().version;
            self.numbered(version);
            batch.push(&encode_record(RecordKind::Delete, TabletId(0), key.encoded(), &[], continues));
            self.model.remove(key.encoded());
            return;
        }
        let bytes = [0, 5, 90, 3_000, 70_000][self.roll(5) as usize] + self.roll(4) as usize;
        let value: Vec<u8> = (0..bytes).map(|at| (at as u64 + self.last.0) as u8).collect();
        let content_type = ["", "text/plain"][self.roll(2) as usize].to_owned();
        let mut metadata = Metadata { content_type: content_type.clone(), ..Metadata::default() };
        if self.roll(3) == 0 {
            metadata.user.push(("long".into(), vec![7; 900].into()));
        }
        let end = match self.roll(6) {
            0 => Some(EndTime::Wall(self.wall_ns + 1_000_000_000_000_000)),
            1 => Some(EndTime::Store(self.store_ns() + 2_000_000_000_000_000)),
            _ => None,
        };
        let end_ns = end.map(|end| match end {
            EndTime::Wall(ns) => ns,
            EndTime::Store(ns) => ns - self.store_ns() + self.wall_ns,
        });
        let expiry = match end_ns {
            Some(ns) => shoal_engine::Expiry::At(ns),
            None => shoal_engine::Expiry::Never,
        };
        let options = PutOptions { metadata: metadata.clone(), expiry, ..PutOptions::default() };
        let version = block_on(self.store.put(&key, value.clone().into(), options)).unwrap().version;
        self.numbered(version);
        self.push_put(batch, &key, &metadata, end, &value, continues);
        self.model.insert(key.encoded().to_vec(), Held { value, content_type, end_ns });
    }

    fn push_put(
        &mut self,
        batch: &mut BatchWriter,
        key: &ObjectKey,
        metadata: &Metadata,
        end: Option<EndTime>,
        value: &[u8],
        continues: bool,
    ) {
        let encoded = encode_metadata(metadata).unwrap();
        let meta = place_of_metadata(key.encoded().len(), metadata, &encoded);
        let mut entry =
            Entry { modified_ns: 9, end, value_bytes: value.len() as u64, meta, home: Home::Inline };
        let front = if entry.meta_in_front() > 0 { &encoded[..] } else { &[] };
        let stored = [front, value].concat();
        let checksums: Vec<u32> = stored.chunks(64 << 10).map(crc32c).collect();
        let kind = if stored.is_empty() { 0 } else { self.roll(3) };
        let mut body = Vec::new();
        if kind > 0 {
            let runs = smallvec::smallvec![Run::new(33, 100)];
            entry.home = Home::Extents { offset: 0, runs, checksums: checksums.iter().copied().collect() };
        }
        entry.encode(&mut body);
        let record = |body: &[&[u8]]| -> EncodedRecord {
            encode_record(RecordKind::Put, TabletId(0), key.encoded(), body, continues)
        };
        match kind {
            0 => batch.push(&record(&[&body, &stored])),
            1 => batch.push_carried(&record(&[&body]), &stored),
            _ => {
                self.pieces += 1;
                let piece = ValuePiece { id: self.pieces, index: 0, bytes: stored.into() };
                batch.push_piece(&piece);
                batch.push_in_pieces(&record(&[&body]), self.pieces, &checksums);
            }
        }
    }

    fn numbered(&mut self, version: Lsn) {
        assert_eq!(version, self.last.next(), "the store numbers its records one after the other");
        self.last = version;
    }

    /// Makes a base of the store as it is. It replays from a slot that may be some before the next one.
    pub(super) fn base(&mut self) {
        let seq = self.seq.saturating_sub(self.roll(3));
        let mut stream = block_on(BackupStream::begin_base(&self.store, self.dice.next_u64())).unwrap();
        let id = self.dice.next_u64();
        let (mut parts, mut part) = (Vec::new(), Vec::new());
        while let Some(bytes) = block_on(stream.next()).unwrap() {
            part.extend_from_slice(&bytes);
            if part.len() >= PART_BYTES {
                parts.push(std::mem::take(&mut part));
            }
        }
        if !part.is_empty() {
            parts.push(part);
        }
        let end = BaseEnd { parts: parts.iter().map(|part| BasePart::of(part)).collect() };
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let count = parts.len() as u32;
        for (part, bytes) in (0..).zip(parts) {
            self.objects.insert(ArchiveName::Part { base: id, part }.to_string(), bytes.into());
        }
        let end = end.encode();
        let base = RecordBase {
            id,
            version: self.last,
            log: self.log(),
            seq,
            parts: count,
            end_crc: BaseEnd::crc_of(&end),
            bytes,
            objects: self.model.len() as u64,
            taken_ns: self.wall_ns,
        };
        self.objects.insert(ArchiveName::BaseEnd { base: id }.to_string(), end.into());
        self.record.bases.push(base);
        if self.record.bases.len() == 1 {
            (self.record.oldest_lsn, self.record.oldest_ns) = (base.version, base.taken_ns);
        }
    }

    /// The state at the last moment that `is_before` accepts; the initial one before all.
    pub(super) fn state_at(&self, is_before: impl Fn(&Moment) -> bool) -> (Objects, Option<usize>) {
        let count = self.moments.iter().take_while(|moment| is_before(moment)).count();
        let last = count.checked_sub(1);
        (last.map(|at| self.moments[at].objects.clone()).unwrap_or_default(), last)
    }
}

impl Drop for History {
    fn drop(&mut self) {
        block_on(self.store.close()).unwrap();
    }
}
