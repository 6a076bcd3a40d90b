//! The completion of an upload: one object of its parts, without a copy of their values.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shoal_base::limits::VALUE_BYTES_MAX;
use shoal_base::task::Boxed;
use shoal_base::{Lsn, blocks_for};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::part_key;
use shoal_common::key::ObjectKey;
use shoal_common::object::{Attributes, Expiry, Metadata, ObjectInfo, PutOptions};
use shoal_common::upload::{Completed, PartRef, Upload, UploadRecord, UploadState, check_items, check_parts};
use shoal_device::memory::Guarded;
use shoal_memtable::turns::Tries;
use shoal_pool::WriteMemory;
use shoal_value::{Entry, Filler, Home, JoinedManifest, Located, write_manifest};

use crate::bucket::BucketState;
use crate::read::get::FoundEntry;
use crate::store::{Inner, Store};
use crate::write::append::{Attempt, Condition, Seen};
use crate::write::batch::{Part, PreparedBatch};
use crate::write::change::{Placed, ReadLevel};
use crate::write::upload::{KEPT_AFTER_END, SeenUpload};

/// The judge of a completion: it sees the present object, and refuses with an error.
pub type Judge<'a, E> = dyn Fn(Option<&ObjectInfo>) -> std::result::Result<(), E> + Sync + 'a;

/// The options of a completion.
pub struct CompleteOptions<'a, E> {
    /// The metadata of the object.
    pub metadata: Metadata,
    /// Items that the record of the upload keeps, such as ETag and checksum: a repeated completion returns them. At most 512 bytes.
    pub answer: Attributes,
    /// Decides by the present object if the upload is completed; no other write comes between. It may be called several times.
    pub judge: Option<&'a Judge<'a, E>>,
    /// The upload is completed only if this bucket still exists.
    pub bucket: Option<&'a Arc<BucketState>>,
}

/// The outcome of a completion.
#[derive(Debug)]
pub enum Completing<E> {
    /// The object is durable, now or since an earlier completion of the upload.
    Done(Completed),
    /// The judge refused: the upload stays open.
    Refused(E),
}

/// The keys of a completion and their states, as they were seen.
#[derive(Default)]
struct SeenKeys {
    keys: Vec<ObjectKey>,
    seen: Vec<Option<Seen>>,
    /// The parts among the keys; true for one that the object gets.
    parts: Vec<(ObjectKey, bool)>,
}

impl SeenKeys {
    fn add(&mut self, key: &ObjectKey, seen: Option<Seen>) {
        self.keys.push(key.clone());
        self.seen.push(seen);
    }
}

impl Store {
    /// Makes the object of these parts, whose numbers ascend. No value is copied. All other parts are deleted. Durable on return; if the
    /// upload was completed before, the result is the one of that time.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::NoUpload`]; [`Error::NoPart`] if a part is missing or has another version: the upload stays open.
    /// [`Error::Invalid`] if the numbers do not ascend, if there are none, or if the parts have more than 5 GiB.
    pub fn complete_upload<'a, E: Send + Sync + 'a>(
        &'a self,
        upload: &'a Upload,
        parts: &'a [PartRef],
        options: CompleteOptions<'a, E>,
    ) -> Boxed<'a, Result<Completing<E>>> {
        Box::pin(async move {
            let CompleteOptions { metadata, answer, judge, bucket } = options;
            let refusal = OnceLock::new();
            let judge = judge.map(|judge| {
                |present: Option<&ObjectInfo>| judge(present).map_err(|refused| drop(refusal.set(refused)))
            });
            let judge = judge.as_ref().map(|judge| judge as &Judge<'_, ()>);
            let completed = self.complete(upload, parts, CompleteOptions { metadata, answer, judge, bucket });
            Ok(match completed.await? {
                Completing::Done(completed) => Completing::Done(completed),
                Completing::Refused(()) => {
                    Completing::Refused(refusal.into_inner().expect("the judge refused with an error"))
                }
            })
        })
    }

    /// As [`Self::complete_upload`], compiled once: its caller keeps the error of the judge.
    fn complete<'a>(
        &'a self,
        upload: &'a Upload,
        parts: &'a [PartRef],
        options: CompleteOptions<'a, ()>,
    ) -> Boxed<'a, Result<Completing<()>>> {
        Box::pin(async move {
            let inner = &*self.0;
            check_parts(parts)?;
            check_items(&options.answer)?;
            inner.be_writable().await?;
            inner.tablets.pass(&upload.key).await;
            let mut tries = Tries::new(&inner.tablets.turns);
            loop {
                tries.begin(std::iter::once(&upload.key)).await;
                let record = inner.see_upload(upload).await?;
                match record.found.as_ref().map(|(info, record)| (info.version, &record.state)) {
                    Some((version, UploadState::Completed { answer, after_object })) => {
                        let version = Lsn(version.0.saturating_sub(*after_object));
                        return Ok(Completing::Done(Completed { version, answer: answer.clone() }));
                    }
                    Some((_, UploadState::Open)) => {}
                    _ => return Err(upload.missing()),
                }
                let mut seen = SeenKeys::default();
                let manifest = inner.see_parts(upload, parts, &mut seen).await?;
                if let Some(judge) = options.judge {
                    let present = inner.see_object(&upload.key, &mut seen).await?;
                    if judge(present.as_ref()).is_err() {
                        return Ok(Completing::Refused(()));
                    }
                }
                let tried = inner.try_complete(upload, &options, manifest, (record, seen)).await?;
                if let Some(version) = tried {
                    return Ok(Completing::Done(Completed { version, answer: options.answer }));
                }
                tries.conflict();
            }
        })
    }
}

impl Inner {
    /// The object that an upload replaces.
    async fn see_object(&self, key: &ObjectKey, seen: &mut SeenKeys) -> Result<Option<ObjectInfo>> {
        let (state, found) = self.look(self.tablets.of(key), key, ReadLevel::Version).await?;
        seen.add(key, Some(state));
        match found {
            Some(found) => self.info(&found).await.map(Some),
            None => Ok(None),
        }
    }

    /// Makes the object if no state that was seen changes meanwhile; returns its version. `None`: try again.
    async fn try_complete(
        &self,
        upload: &Upload,
        options: &CompleteOptions<'_, ()>,
        mut manifest: JoinedManifest,
        (record, mut seen): (SeenUpload, SeenKeys),
    ) -> Result<Option<Lsn>> {
        let put = PutOptions { metadata: options.metadata.clone(), ..PutOptions::default() };
        self.name_features_of(&options.metadata)?;
        self.name_uploads()?;
        let mut batch = PreparedBatch::new(self).in_bucket(options.bucket);
        let adopts = manifest.bytes() > 0;
        let object = Part { continues: true, adopts, ..Part::LAST };
        if adopts {
            let placed = self.write_joined(&upload.key, &put, &mut manifest).await?;
            batch.put_placed(&upload.key, &placed, object).await?;
        } else {
            batch.put(&upload.key, &Buffer::new(), &put, object).await?;
        }
        for (key, is_used) in &seen.parts {
            batch.delete(key, Part { adopts: adopts && *is_used, ..object }).await?;
        }
        let Some((_, before)) = record.found else { return Err(upload.missing()) };
        let after_object = batch.records.len() as u64;
        let state = UploadState::Completed { answer: options.answer.clone(), after_object };
        let value = UploadRecord { state, ..before }.encode().into();
        batch.put(&record.key, &value, &kept_for_a_while(), Part::LAST).await?;
        seen.add(&record.key, Some(record.seen));
        let admitted = self.admit_batch(batch).await?;
        let (object, last) = (admitted.batch.records[0].record.clone(), admitted.last(0));
        let condition = Condition::Seen { keys: &seen.keys, seen: &seen.seen, watches: &[] };
        let Attempt::Done(_) = self.try_queue(condition, &mut Some(admitted))? else { return Ok(None) };
        drop(seen);
        self.log.committer.request_commit(1);
        let last = self.log.committer.drive_until(&last).await?;
        self.count(&self.counters.puts);
        assert_eq!(
            last.0 - object.lsn().0,
            after_object,
            "the records of a batch have consecutive numbers (R22)"
        );
        Ok(Some(object.lsn()))
    }

    /// Looks at all parts of an upload. Returns a manifest of those that the object gets, in the order of `wanted`.
    async fn see_parts(
        &self,
        upload: &Upload,
        wanted: &[PartRef],
        seen: &mut SeenKeys,
    ) -> Result<JoinedManifest> {
        let mut numbers: Vec<u16> = self.part_numbers(upload, 0, usize::MAX).await?;
        numbers.extend(wanted.iter().map(|part| part.number));
        numbers.sort_unstable();
        numbers.dedup();
        let (mut manifest, mut wanted) = (JoinedManifest::default(), wanted.iter().peekable());
        for number in numbers {
            let key = part_key(upload, number);
            let (state, found) = self.look(self.tablets.of(&key), &key, ReadLevel::Version).await?;
            let used = wanted.next_if(|part| part.number == number);
            if let Some(part) = used {
                let found = found.as_ref().filter(|found| found.version == part.version);
                let found = found.ok_or(Error::NoPart(number))?;
                self.add_segment(number, found, &mut manifest).await?;
            }
            seen.add(&key, Some(state));
            if found.is_some() {
                seen.parts.push((key, used.is_some()));
            }
            if manifest.bytes() > VALUE_BYTES_MAX {
                return Err(Error::Invalid(format!(
                    "the parts have more than {VALUE_BYTES_MAX} bytes together"
                )));
            }
        }
        Ok(manifest)
    }

    /// Adds a part to the manifest of an object.
    async fn add_segment(
        &self,
        number: u16,
        found: &FoundEntry,
        manifest: &mut JoinedManifest,
    ) -> Result<()> {
        let Entry { value_bytes, home, .. } = &found.entry;
        let metadata = found.metadata_in_memory().ok_or(Error::NoPart(number))??;
        let note = metadata.attributes.get(Attributes::CHECKSUM).unwrap_or_default();
        match home {
            Home::Inline if *value_bytes == 0 => manifest.push((number, note), (0, 0), &[], &[]),
            // No writer of parts places one like this.
            Home::Inline | Home::Packed { .. } => return Err(Error::NoPart(number)),
            Home::Extents { .. } | Home::Manifest { .. } => {
                let located = Located::find(&self.device, &self.pool, &found.entry, found.version).await?;
                if located.is_joined() {
                    return Err(Error::NoPart(number));
                }
                let place = (*value_bytes, located.offset() as u16);
                manifest.push((number, note), place, located.runs(), located.checksums());
            }
        }
        Ok(())
    }

    /// Writes the manifest of an object, and its metadata if that is stored before the value.
    async fn write_joined(
        &self,
        key: &ObjectKey,
        options: &PutOptions,
        manifest: &mut JoinedManifest,
    ) -> Result<Placed> {
        let (mut entry, meta) = self.new_entry(key, options, manifest.bytes())?;
        let (mut writes, mut extents) = (Vec::new(), Vec::new());
        if entry.meta_in_front() > 0 {
            let (blocks, owner) = (blocks_for(meta.len() as u64), self.own.owner_of(key));
            let (front, _) = self.claim(|| self.space.claim_value(owner, blocks, 0)).await?;
            let mut filler = Filler::new(front.runs());
            filler.take(&meta);
            let (buffers, checksums) = filler.finish();
            for (run, buffer) in front.runs().iter().zip(buffers) {
                let memory = Guarded { memory: WriteMemory::Own(buffer), guard: front.clone() };
                writes.push(self.device.write(run.block, memory));
            }
            manifest.put_in_front(meta.len() as u64, front.runs(), &checksums);
            extents.push(front);
        }
        manifest.check().map_err(|_| {
            Error::Invalid(
                "the parts are in too many pieces on the device: upload fewer and larger parts".into(),
            )
        })?;
        let encoded = manifest.encode();
        let place = self.claim_manifest(blocks_for(encoded.0.len() as u64)).await?;
        entry.home = write_manifest(&self.device, encoded, &place, &mut writes);
        extents.push(place);
        self.write_values(writes).await?;
        let mut head = Vec::with_capacity(96);
        entry.encode(&mut head);
        Ok(Placed { entry: head, extents })
    }
}

/// The options of the record of an upload that is not open any more.
pub(super) fn kept_for_a_while() -> PutOptions {
    const KEPT: Duration = KEPT_AFTER_END;
    PutOptions { expiry: Expiry::After(KEPT), ..PutOptions::default() }
}
