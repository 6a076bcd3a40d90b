//! The end of uploads: abort, and the removal of records that are not needed any more.
//!
//! The record is marked first, so that no part is stored after it; then the parts are deleted, and then the record. A crash between these
//! leaves the record with its deadline: the reaper does the rest.

use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::{part_key, upload_key};
use shoal_common::key::{Bucket, ObjectKey};
use shoal_common::object::Attributes;
use shoal_common::upload::{Upload, UploadRecord, UploadState, UploadsAfter};

use crate::store::{Inner, Store};
use crate::write::append::{Attempt, Condition, Seen};
use crate::write::batch::{Part, PreparedBatch};
use crate::write::change::ReadLevel;
use crate::write::txn::Reaped;
use crate::write::upload::complete::kept_for_a_while;

/// Parts that one batch deletes at most.
const PARTS_AT_A_TIME: usize = 256;
/// Uploads into a bucket that are aborted at a time.
const UPLOADS_AT_A_TIME: usize = 100;

impl Store {
    /// Deletes an upload and its parts, or the record of a completed one. Returns true if it was open. Durable on return; works on a full
    /// device.
    ///
    /// # Errors
    /// As [`Self::delete`].
    pub fn abort_upload<'a>(&'a self, upload: &'a Upload) -> Boxed<'a, Result<bool>> {
        Box::pin(async move {
            let inner = &*self.0;
            let Ok(key) = upload_key(upload) else { return Ok(false) };
            if !inner.checkpointer.has_uploads() {
                return Ok(false);
            }
            inner.be_writable().await?;
            let Some(was_open) = inner.end_upload(upload).await? else { return Ok(false) };
            inner.remove_upload(upload, &key).await?;
            Ok(was_open)
        })
    }

    /// Aborts all uploads into a bucket that takes no objects any more, and removes the records of completed ones.
    ///
    /// # Errors
    /// As [`Self::abort_upload`], and as [`Self::list_uploads`].
    pub(crate) async fn abort_uploads_into(&self, bucket: &str) -> Result<()> {
        if !self.0.checkpointer.has_uploads() {
            return Ok(());
        }
        let bucket = Bucket::new(bucket)?;
        loop {
            let page = self.list_uploads(&bucket, b"", &UploadsAfter::Start, UPLOADS_AT_A_TIME).await?;
            for info in &page.uploads {
                self.abort_upload(&info.upload).await?;
            }
            if page.next.is_none() {
                return Ok(());
            }
        }
    }
}

impl Inner {
    /// Marks an open upload: it takes no parts from now on. Returns true if it was open; `None` if there is none.
    async fn end_upload(&self, upload: &Upload) -> Result<Option<bool>> {
        self.name_uploads()?;
        loop {
            let record = self.see_upload(upload).await?;
            let Some(open) = record.open() else { return Ok(record.found.map(|_| false)) };
            let ended =
                UploadRecord { state: UploadState::Aborted, items: Attributes::default(), ..open.clone() };
            let mut batch = PreparedBatch::new(self).ending_upload();
            let part = Part { uses_reserve: true, ..Part::LAST };
            batch.put(&record.key, &ended.encode().into(), &kept_for_a_while(), part).await?;
            if self.write_if_unchanged(batch, &[record.key], &[Some(record.seen)]).await? {
                return Ok(Some(true));
            }
        }
    }

    /// Deletes the parts of an upload that is not open, and its record.
    async fn remove_upload(&self, upload: &Upload, key: &ObjectKey) -> Result<()> {
        let (mut after, mut at_a_time) = (0, PARTS_AT_A_TIME);
        loop {
            let numbers = self.part_numbers(upload, after, at_a_time).await?;
            let Some(&last) = numbers.last() else { break };
            match self.delete_parts(upload, &numbers).await {
                Ok(true) => after = last,
                // A part changed meanwhile.
                Ok(false) => {}
                // The reserve has room for fewer deletes (R3).
                Err(Error::Full { .. }) if at_a_time > 1 => at_a_time /= 2,
                Err(error) => return Err(error),
            }
        }
        let mut batch = PreparedBatch::new(self);
        batch.delete(key, Part::LAST).await?;
        self.write_if_unchanged(batch, &[], &[]).await.map(|_| ())
    }

    /// Deletes some parts. Returns false if one of them changed meanwhile: nothing was deleted then. The delete of a part that an object
    /// adopted is the last record of its key (R44).
    async fn delete_parts(&self, upload: &Upload, numbers: &[u16]) -> Result<bool> {
        let (mut keys, mut seen) = (Vec::new(), Vec::new());
        for &number in numbers {
            let key = part_key(upload, number);
            let (state, found) = self.look(self.tablets.of(&key), &key, ReadLevel::Existence).await?;
            if found.is_some() {
                keys.push(key);
                seen.push(Some(state));
            }
        }
        if keys.is_empty() {
            return Ok(true);
        }
        let mut batch = PreparedBatch::new(self);
        for (at, key) in keys.iter().enumerate() {
            batch.delete(key, Part { continues: at + 1 < keys.len(), ..Part::LAST }).await?;
        }
        self.write_if_unchanged(batch, &keys, &seen).await
    }

    /// Writes a batch if these keys are in the states that were seen; durable on return. Returns false if one is not.
    async fn write_if_unchanged<'a>(
        &'a self,
        batch: PreparedBatch<'a>,
        keys: &[ObjectKey],
        seen: &[Option<Seen>],
    ) -> Result<bool> {
        let admitted = self.admit_batch(batch).await?;
        let last = admitted.last(0);
        let condition = Condition::Seen { keys, seen, watches: &[] };
        let Attempt::Done(_) = self.try_queue(condition, &mut Some(admitted))? else { return Ok(false) };
        self.log.committer.request_commit(1);
        self.log.committer.drive_until(&last).await?;
        Ok(true)
    }

    /// Removes the record of an upload, and parts that are left of it, if its deadline has passed. Users do not see it: it does not count
    /// as an expired object.
    ///
    /// # Errors
    /// As a delete.
    pub(crate) async fn reap_upload(&self, upload: &Upload) -> Result<Reaped> {
        let Ok(key) = upload_key(upload) else { return Ok(Reaped::Stays) };
        let (_, found) = self.look_stored(self.tablets.of(&key), &key, ReadLevel::Info).await?;
        match found.and_then(|found| Some((found.entry.end?, found.version))) {
            Some((end, version)) if self.is_over(Some(end), version) => {
                self.be_writable().await?;
                self.remove_upload(upload, &key).await?;
                Ok(Reaped::Stays)
            }
            Some((end, _)) => Ok(Reaped::Later { end }),
            None => Ok(Reaped::Stays),
        }
    }
}
