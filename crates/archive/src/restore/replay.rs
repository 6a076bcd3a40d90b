//! The restore itself: a base, then the batches of the log up to the moment, in the order of the store's writes.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use shoal_backup::{Contents, Event, ObjectHead};
use shoal_base::Lsn;
use shoal_base::checksum::crc32c;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_engine::{LoggedKey, ObjectKey};
use shoal_log::format::{EncodedRecord, RecordKind};
use shoal_value::split_home;

use super::base::BaseReader;
use super::object::{WrongPut, entry_of, head_of, metadata_of};
use super::pieces::PendingPieces;
use super::plan::NearMoment;
use super::slots::{ReadBatch, ReadSlot, SlotReader};
use super::{
    ArchiveReader, RestoreError, RestoreMoment, RestorePlan, RestoreProgress, RestoreTarget, RestoredState,
    RestoredWrite,
};
use crate::format::{
    ArchiveName, FormatError, LogSlot, LoggedRecord, LoggedValue, RecordLog, SegmentBatch, SegmentHeader,
};

/// A restore on its way.
pub(super) struct Replay<'a> {
    reader: &'a ArchiveReader,
    plan: &'a RestorePlan,
    target: &'a mut dyn RestoreTarget,
    progress: &'a RestoreProgress,
    state: RestoredState,
    pieces: PendingPieces,
}

/// The result of a log, or of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// The moment: later batches are not part of the state.
    Moment,
    /// The end of a log that has a tombstone, or of a slot.
    End,
    /// The end of the archive.
    Newest,
}

impl<'a> Replay<'a> {
    pub(super) fn new(
        reader: &'a ArchiveReader,
        plan: &'a RestorePlan,
        target: &'a mut dyn RestoreTarget,
        progress: &'a RestoreProgress,
    ) -> Self {
        let (version, wall_ns) = (plan.base.version, plan.base.taken_ns);
        let state =
            RestoredState { version, wall_ns, base_writes: 0, log_writes: 0, base_bytes: 0, log_bytes: 0 };
        Self { reader, plan, target, progress, state, pieces: PendingPieces::default() }
    }

    pub(super) async fn run(mut self) -> Result<RestoredState, RestoreError> {
        self.progress.base_bytes.store(self.plan.base.bytes, Ordering::Relaxed);
        self.base().await?;
        let mut reached = Reached::End;
        for (log, first) in &self.plan.logs {
            reached = self.log(*log, *first).await?;
            self.pieces.clear();
            if reached != Reached::End {
                break;
            }
        }
        match self.plan.moment {
            RestoreMoment::Version(version)
                if reached != Reached::Moment && self.state.version != version =>
            {
                let newest = NearMoment { version: self.state.version, wall_ns: self.state.wall_ns };
                Err(RestoreError::NoSuchMoment(format!(
                    "version {version} is not archived: the newest moment is {newest}"
                )))
            }
            _ => Ok(self.state),
        }
    }

    async fn base(&mut self) -> Result<(), RestoreError> {
        let mut base = BaseReader::open(self.reader, self.plan.base, self.progress).await?;
        let mut has_end = false;
        while let Some(event) = base.next().await? {
            has_end |= matches!(event, Event::End(_));
            self.take_event(event).await?;
        }
        if !has_end {
            let last = ArchiveName::Part { base: self.plan.base.id, part: self.plan.base.parts - 1 };
            let why = "the base ends before its last frame";
            return Err(FormatError::Damaged { object: last.to_string(), offset: 0, why }.into());
        }
        self.state.base_bytes = self.plan.base.bytes;
        Ok(())
    }

    async fn take_event(&mut self, event: Event) -> Result<(), RestoreError> {
        match event {
            Event::Header(header) => {
                let is_of_volume = header.store == self.reader.record.volume;
                let is_base = matches!(header.contents, Contents::Full | Contents::Base);
                if !is_of_volume || !is_base || header.version != self.plan.base.version {
                    let object = ArchiveName::Part { base: self.plan.base.id, part: 0 }.to_string();
                    let why = "it is no base of this volume with the version in the record";
                    return Err(FormatError::Foreign { object, why }.into());
                }
                Ok(())
            }
            Event::Objects(objects) => {
                self.count_base(objects.len());
                let puts = objects.into_iter().map(|object| RestoredWrite::Put(Box::new(object)));
                self.target.write(puts.collect()).await
            }
            Event::Begin(head) => {
                self.count_base(1);
                self.target.start_long(head).await
            }
            Event::Piece { bytes, is_last } => {
                self.target.piece(bytes).await.map_err(RestoreError::Target)?;
                if is_last { self.target.finish_long().await } else { Ok(()) }
            }
            Event::Bucket(bucket) => {
                self.count_base(1);
                let record = RestoredWrite::Bucket { name: bucket.name, record: Some(bucket.record) };
                self.target.write(vec![record]).await
            }
            Event::Loss(loss) => {
                self.target.missing(&loss);
                Ok(())
            }
            Event::Index(_) | Event::Deleted(_) | Event::Skipped(_) | Event::End(_) => Ok(()),
        }
        .map_err(RestoreError::Target)
    }

    fn count_base(&mut self, count: usize) {
        self.state.base_writes += count as u64;
        RestoreProgress::add(&self.progress.writes, count as u64);
    }

    async fn log(&mut self, log: RecordLog, first: u64) -> Result<Reached, RestoreError> {
        let mut slots = SlotReader::new(self.reader, log, first);
        while let Some(slot) = slots.next().await? {
            self.check_gap(&slot.header)?;
            RestoreProgress::add(&self.progress.log_done, slot.header.bytes);
            self.state.log_bytes += slot.header.bytes;
            if self.slot(slot).await? == Reached::Moment {
                return Ok(Reached::Moment);
            }
        }
        Ok(if slots.is_sealed { Reached::End } else { Reached::Newest })
    }

    /// Checks that the log continues the state, if this is its first slot.
    fn check_gap(&self, header: &SegmentHeader) -> Result<(), RestoreError> {
        if !header.flags.after_gap || header.end.last_lsn <= self.state.version {
            return Ok(());
        }
        let before = NearMoment { version: self.state.version, wall_ns: self.state.wall_ns };
        let after = self.plan.later.iter().find(|base| base.version >= header.end.last_lsn);
        let after = match after {
            Some(base) => format!("the first one after it is {}", NearMoment::of(base)),
            None => "there is none after it yet: the server makes a base".to_owned(),
        };
        Err(RestoreError::NoSuchMoment(format!(
            "the moment is in a gap of the archive, because {} of the log were not archived. The last moment before it is {before}; {after}",
            if header.end.last_lsn.0 - self.state.version.0 == 1 { "a record" } else { "records" }
        )))
    }

    async fn slot(&mut self, slot: ReadSlot) -> Result<Reached, RestoreError> {
        for ReadBatch { batch, records } in slot.batches {
            let last = Lsn((batch.first_lsn.0 + u64::from(batch.count)).saturating_sub(1));
            let is_numbered = batch.count > 0;
            let is_after = match self.plan.moment {
                _ if !is_numbered || last <= self.plan.base.version => false,
                RestoreMoment::Newest => false,
                RestoreMoment::Time(ns) => batch.wall_ns > ns,
                RestoreMoment::Version(version) => last > version,
            };
            if is_after {
                return Ok(Reached::Moment);
            }
            self.batch(slot.header.slot, &batch, records).await?;
            if is_numbered && last > self.state.version {
                (self.state.version, self.state.wall_ns) = (last, batch.wall_ns);
                self.progress.wall_ns.store(batch.wall_ns, Ordering::Relaxed);
            }
        }
        Ok(Reached::End)
    }

    async fn batch(
        &mut self,
        slot: LogSlot,
        batch: &SegmentBatch,
        records: Vec<LoggedRecord>,
    ) -> Result<(), RestoreError> {
        let mut writes = Vec::with_capacity(records.len());
        for record in records {
            let (lsn, record, value) = match record {
                LoggedRecord::Piece(piece) => {
                    self.pieces.add(slot, &piece);
                    continue;
                }
                LoggedRecord::Write { lsn, record, value } => (lsn, record, value),
            };
            let is_new = lsn > self.plan.base.version;
            if let LoggedValue::InPieces { id, checksums } = &value {
                let place = PlacedRecord { slot, batch, lsn, record: &record };
                let long = self.long_value(&place, *id, checksums)?;
                if let Some(long) = long.filter(|_| is_new) {
                    // Everything before it comes before it.
                    self.write(std::mem::take(&mut writes)).await?;
                    self.put_long(&place, long, checksums).await?;
                }
                continue;
            }
            if is_new && let Some(write) = write_of(slot, batch, lsn, &record, value)? {
                writes.push(write);
            }
        }
        self.write(writes).await
    }

    async fn write(&mut self, writes: Vec<RestoredWrite>) -> Result<(), RestoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        self.state.log_writes += writes.len() as u64;
        RestoreProgress::add(&self.progress.writes, writes.len() as u64);
        self.target.write(writes).await.map_err(RestoreError::Target)
    }
}

/// A record with its place.
struct PlacedRecord<'a> {
    slot: LogSlot,
    batch: &'a SegmentBatch,
    lsn: Lsn,
    record: &'a EncodedRecord,
}

/// A put whose value is in pieces.
struct LongValue {
    key: ObjectKey,
    pieces: Vec<super::pieces::PendingPiece>,
}

impl Replay<'_> {
    /// The pieces of a value; `None` if its key is not restored.
    fn long_value(
        &mut self,
        place: &PlacedRecord<'_>,
        id: u64,
        checksums: &[u32],
    ) -> Result<Option<LongValue>, RestoreError> {
        let wrong = |why| damaged(place.slot, why);
        let body = place.record.body();
        let (head, _) = split_home(&body).map_err(|_| wrong("the entry of a put is damaged"))?;
        // A value that the base has needs no piece of it, and the first ones may be in dead slots.
        if place.lsn <= self.plan.base.version {
            self.pieces.forget(id);
            return Ok(None);
        }
        assert_eq!(
            checksums.len() as u64,
            head.stored_bytes.div_ceil(VALUE_UNIT_BYTES as u64),
            "a decoded record has a checksum of each unit"
        );
        let pieces = self.pieces.take(id, head.stored_bytes, place.slot)?;
        match LoggedKey::of(place.record.key()) {
            None => Err(wrong("a record has a key that no object has").into()),
            Some(LoggedKey::Object(key)) => Ok(Some(LongValue { key, pieces })),
            Some(LoggedKey::Bucket(_) | LoggedKey::Own) => Ok(None),
        }
    }

    async fn put_long(
        &mut self,
        place: &PlacedRecord<'_>,
        long: LongValue,
        checksums: &[u32],
    ) -> Result<(), RestoreError> {
        let (mut last, mut head, mut checksums) = (None, None::<ObjectHead>, checksums);
        for piece in long.pieces {
            let mut bytes = piece.bytes(self.reader, &mut last).await?;
            let (its, rest) = checksums.split_at(bytes.len().div_ceil(VALUE_UNIT_BYTES).min(checksums.len()));
            checksums = rest;
            if !bytes.chunks(VALUE_UNIT_BYTES).map(crc32c).eq(its.iter().copied()) {
                return Err(damaged(place.slot, "the pieces of a value do not match its checksums").into());
            }
            if head.is_none() {
                let object = object_of(place, long.key.clone(), &mut bytes);
                let object = object.map_err(|why| damaged(place.slot, why))?;
                head = Some(object.clone());
                self.target.start_long(object).await.map_err(RestoreError::Target)?;
            }
            if !bytes.is_empty() {
                self.target.piece(bytes).await.map_err(RestoreError::Target)?;
            }
        }
        self.state.log_writes += 1;
        RestoreProgress::add(&self.progress.writes, 1);
        self.target.finish_long().await.map_err(RestoreError::Target)
    }
}

/// The head of a put whose value is in pieces. `first` is the first one, from which metadata is taken off.
fn object_of(place: &PlacedRecord<'_>, key: ObjectKey, first: &mut Bytes) -> Result<ObjectHead, WrongPut> {
    let (entry, _) = entry_of(place.record, false)?;
    let metadata = metadata_of(&entry, first)?;
    Ok(head_of(place.batch, place.lsn, key, &entry, metadata))
}

/// The write that a record is; `None` if a restored store does not have its key.
fn write_of(
    slot: LogSlot,
    batch: &SegmentBatch,
    lsn: Lsn,
    record: &EncodedRecord,
    value: LoggedValue,
) -> Result<Option<RestoredWrite>, FormatError> {
    let wrong = |why| damaged(slot, why);
    let key = LoggedKey::of(record.key());
    let key = match key.ok_or_else(|| wrong("a record has a key that no object has"))? {
        LoggedKey::Own => return Ok(None),
        key => key,
    };
    if record.kind == RecordKind::Delete {
        return Ok(Some(match key {
            LoggedKey::Bucket(name) => RestoredWrite::Bucket { name, record: None },
            LoggedKey::Object(key) => RestoredWrite::Delete(key),
            LoggedKey::Own => return Ok(None),
        }));
    }
    let is_inline = value == LoggedValue::InRecord;
    let (entry, inline) = entry_of(record, is_inline).map_err(wrong)?;
    let mut stored = match value {
        LoggedValue::Carried { stored, .. } => stored,
        LoggedValue::InRecord | LoggedValue::InPieces { .. } => inline,
    };
    let metadata = metadata_of(&entry, &mut stored).map_err(wrong)?;
    Ok(Some(match key {
        LoggedKey::Bucket(name) => RestoredWrite::Bucket { name, record: Some(stored) },
        LoggedKey::Object(key) => {
            let head = head_of(batch, lsn, key, &entry, metadata);
            RestoredWrite::Put(Box::new(shoal_backup::ObjectRecord { head, value: stored }))
        }
        LoggedKey::Own => return Ok(None),
    }))
}

fn damaged(slot: LogSlot, why: &'static str) -> FormatError {
    FormatError::Damaged { object: slot.to_string(), offset: 0, why }
}
