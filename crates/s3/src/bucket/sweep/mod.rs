//! Deletes what has come to its end: objects by the lifecycle rules of their buckets, and open uploads by these rules or by the life that
//! the operator chose (`docs/adr/2026-11-30-lifecycle.md`).
//!
//! One task sweeps the whole store, page by page, and remembers no more than the page, and which buckets are done for the day: a stop drops it
//! at once, and it starts again at the front. It examines and deletes at a bounded rate. A delete is conditional on the version that was
//! seen: an object that is overwritten meanwhile stays.

mod clock;
mod note;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use shoal_base::limits::LIST_PAGE_MAX;
use shoal_engine::{
    BucketState, Error, ListRequest, ListSink, Lsn, ObjectInfo, ObjectKey, RejectRules, UploadInfo,
};

use self::clock::SettledClock;
use self::note::Noting;
use super::lifecycle::{LifecycleRule, RuledObject, abort_of, expiration_of, prefixes_of};
use crate::request::error::S3Result;
use crate::state::S3State;
use crate::time::{DAY_S, SECOND_NS};

/// A sweep starts at least this often. Objects end at midnight: a bucket is examined once a day, and when its settings change.
const EVERY_MAX: Duration = Duration::from_secs(3_600);

/// A sweep starts at most this often.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// Objects and uploads that are examined in a second.
const EXAMINED_PER_S: u32 = 2_000;

/// Objects and uploads that are deleted in a second.
const DELETED_PER_S: u32 = 200;

/// Objects of a page.
const PAGE: u32 = 200;

/// Objects that are deleted together: they share a flush.
const DELETED_TOGETHER: usize = 20;

/// An object or upload takes its share of a second.
async fn pause(count: u32, per_s: u32) {
    tokio::time::sleep(Duration::from_secs(1) * count / per_s).await;
}

/// The task.
pub(crate) struct Sweeper {
    state: Arc<S3State>,
    /// The life of an upload that no rule is about; `None`: it stays.
    upload_life: Option<Duration>,
    clock: SettledClock,
    /// Buckets whose objects were examined, with the state and the day.
    done: HashMap<String, (Weak<BucketState>, u64)>,
}

/// The number of deletions of a sweep.
#[derive(Debug, Default, PartialEq, Eq)]
struct SweepCounts {
    objects: usize,
    uploads: usize,
}

impl Sweeper {
    pub(crate) fn new(state: Arc<S3State>, upload_life: Option<Duration>) -> Self {
        Self { state, upload_life, clock: SettledClock::default(), done: HashMap::new() }
    }

    /// Sweeps until it is dropped. The next sweep tries again what failed in one.
    pub(crate) async fn run(mut self) {
        let every = self.upload_life.map_or(EVERY_MAX, |life| (life / 24).clamp(EVERY_MIN, EVERY_MAX));
        loop {
            if self.settled_ns() > 0 {
                let SweepCounts { objects, uploads } = self.sweep().await;
                if objects + uploads > 0 {
                    tracing::info!(objects, uploads, "deleted expired objects, and aborted old uploads");
                }
            }
            tokio::time::sleep(every).await;
        }
    }

    /// The time by which things come to their end.
    fn settled_ns(&mut self) -> u64 {
        let clock = &self.state.environment.clock;
        self.clock.read(clock.wall_ns(), clock.monotonic_ns())
    }

    async fn sweep(&mut self) -> SweepCounts {
        let mut counts = SweepCounts::default();
        if let Err(error) = self.sweep_buckets(&mut counts.objects).await {
            tracing::warn!("expired objects were not all deleted: {error}");
        }
        if let Err(error) = self.sweep_uploads(&mut counts.uploads).await {
            tracing::warn!("old uploads were not all aborted: {error}");
        }
        counts
    }

    async fn sweep_buckets(&mut self, count: &mut usize) -> S3Result<()> {
        self.done.retain(|_, (state, _)| state.strong_count() > 0);
        let mut after = String::new();
        loop {
            let page = self.state.store.buckets(&after, LIST_PAGE_MAX).await?;
            for name in &page.names {
                // One bucket does not stop the others.
                if let Err(error) = self.sweep_bucket(name, count).await {
                    tracing::warn!("expired objects of bucket {name:?} were not all deleted: {error}");
                }
            }
            match page.names.last().filter(|_| page.is_cut) {
                Some(last) => after.clone_from(last),
                None => return Ok(()),
            }
        }
    }

    async fn sweep_bucket(&mut self, name: &str, count: &mut usize) -> S3Result<()> {
        let Some(found) = self.state.buckets.find_record(&self.state.store, name)? else { return Ok(()) };
        let (Some(rules), Some(state)) = (found.lifecycle, found.record) else { return Ok(()) };
        let day = self.settled_ns() / SECOND_NS / DAY_S;
        let now = (Arc::downgrade(&state), day);
        if self.done.get(name).is_some_and(|(state, day)| Weak::ptr_eq(state, &now.0) && *day == now.1) {
            return Ok(());
        }
        let mut is_whole = true;
        for prefix in prefixes_of(&rules) {
            is_whole &= self.sweep_prefix((name, &state), prefix, &rules, count).await?;
        }
        if is_whole {
            self.done.insert(name.to_owned(), now);
        }
        Ok(())
    }

    /// Deletes the expired objects of a bucket whose keys start with `prefix`. Returns false if some are left: a delete failed, or the
    /// settings have changed since the start.
    async fn sweep_prefix(
        &mut self,
        (name, state): (&str, &Arc<BucketState>),
        prefix: &str,
        rules: &[LifecycleRule],
        count: &mut usize,
    ) -> S3Result<bool> {
        let mut request = ListRequest {
            bucket: name.to_owned(),
            prefix: prefix.into(),
            limit: PAGE as usize,
            ..ListRequest::default()
        };
        let mut is_whole = true;
        loop {
            let mut page =
                ExpiredObjects { rules, settled_s: self.settled_ns() / SECOND_NS, found: Vec::new() };
            let next = self.state.store.list_into(&request, &mut page).await?.next;
            pause(PAGE, EXAMINED_PER_S).await;
            for some in page.found.chunks(DELETED_TOGETHER) {
                let is_same = |now: &Arc<BucketState>| Arc::ptr_eq(now, state);
                if !self.state.store.bucket(name)?.as_ref().is_some_and(is_same) {
                    return Ok(false);
                }
                let deletes = some.iter().map(|(key, version)| self.expire(name, key, *version));
                for deleted in join_all(deletes).await {
                    match deleted {
                        Ok(was_deleted) => *count += usize::from(was_deleted),
                        Err(error) => {
                            tracing::warn!("an expired object of bucket {name:?} was not deleted: {error}");
                            is_whole = false;
                        }
                    }
                }
                pause(some.len() as u32, DELETED_PER_S).await;
            }
            match next {
                Some(next) => request.start_after = next,
                None => return Ok(is_whole),
            }
        }
    }

    /// Deletes an object if it still has this version. Returns true if it had.
    async fn expire(&self, bucket: &str, key: &[u8], version: Lsn) -> Result<bool, Error> {
        let noting = Noting::begin(&self.state.metrics, "LifecycleExpiration");
        let rules = RejectRules { if_version_not: Some(version), ..RejectRules::default() };
        let deleted = match ObjectKey::new(bucket, key) {
            Ok(key) => self.state.store.delete(&key, rules).await.map(|_| ()),
            Err(error) => Err(error),
        };
        noting.end(bucket, key, deleted.as_ref().err());
        match deleted {
            Ok(()) => Ok(true),
            Err(Error::ConditionFailed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn sweep_uploads(&mut self, count: &mut usize) -> S3Result<()> {
        let mut after = None;
        loop {
            let settled_ns = self.settled_ns();
            let page = self.state.store.all_uploads(after.as_ref(), PAGE as usize).await?;
            pause(PAGE, EXAMINED_PER_S).await;
            for info in page.uploads.iter().filter(|info| info.completed.is_none()) {
                if self.has_ended(info, settled_ns)? && self.abort(info).await? {
                    *count += 1;
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Returns true if the time of an upload is over. A rule for its key counts instead of the operator's life.
    fn has_ended(&self, info: &UploadInfo, settled_ns: u64) -> S3Result<bool> {
        let (key, created_s) = (&info.upload.key, info.created_ns / SECOND_NS);
        let found = self.state.buckets.find_record(&self.state.store, key.bucket())?.unwrap_or_default();
        if found.has_unread_lifecycle() {
            return Ok(false);
        }
        let rules = found.lifecycle.as_deref().unwrap_or_default();
        if let Some((end_s, _)) = abort_of(rules, key.key(), created_s) {
            return Ok(end_s <= settled_ns / SECOND_NS);
        }
        let Some(life) = self.upload_life else { return Ok(false) };
        let life_ns = u64::try_from(life.as_nanos()).unwrap_or(u64::MAX);
        Ok(info.created_ns.saturating_add(life_ns) <= settled_ns)
    }

    /// Aborts an upload, whose parts are deleted with it. Returns true if it was open.
    async fn abort(&self, info: &UploadInfo) -> Result<bool, Error> {
        let noting = Noting::begin(&self.state.metrics, "LifecycleAbort");
        let aborted = self.state.store.abort_upload(&info.upload).await;
        let key = &info.upload.key;
        noting.end(key.bucket(), key.key(), aborted.as_ref().err());
        pause(1, DELETED_PER_S).await;
        aborted
    }
}

/// Keeps the expired objects of a page.
struct ExpiredObjects<'a> {
    rules: &'a [LifecycleRule],
    settled_s: u64,
    /// Keys, with the versions that were seen.
    found: Vec<(Vec<u8>, Lsn)>,
}

impl ListSink for ExpiredObjects<'_> {
    fn take(&mut self, key: &[u8], info: ObjectInfo) -> bool {
        let ObjectInfo { metadata, bytes, modified_ns, .. } = &info;
        let object = RuledObject { key, metadata, bytes: *bytes, modified_ns: *modified_ns };
        if expiration_of(self.rules, &object).is_some_and(|(second, _)| second <= self.settled_s) {
            self.found.push((key.to_vec(), info.version));
        }
        true
    }

    fn needs_only_summary(&self) -> bool {
        self.rules.iter().all(|rule| rule.filter.tags.pairs().is_empty())
    }
}

#[cfg(test)]
mod tests;
