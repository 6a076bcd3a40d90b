//! The buckets that have a record, in memory. A bucket without a record exists while it has objects.
//!
//! A change of a record is durable before the registry has it; one task at a time changes records. The write path looks at the
//! registry only while a bucket is being deleted, and for writes that name the state of their bucket ([`BucketState`]).
//!
//! **Deletion.** A bucket without objects is closed, then each memtable's lock is taken once. A put either was queued before that, so the
//! look for objects after it finds it, or sees the mark under the lock and is refused. So no put is lost in a deleted bucket.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use shoal_base::list::DamagedRange;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_common::bucket::BucketConfig;
use shoal_common::error::{Error, Result};
use shoal_common::event::Token;
use shoal_common::hidden_key::is_hidden;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::{ObjectKey, system_key};

/// Most buckets with a record: all records are in memory, typically some hundred bytes each.
pub const BUCKETS_MAX: usize = 10_000;

/// Most bytes of all records together.
pub(crate) const RECORDS_BYTES_MAX: usize = 64 << 20;

/// The start of the keys of records in the store's own bucket.
pub(crate) const RECORD_PREFIX: &[u8] = b"bucket/";

/// The object with the record of a bucket.
pub(crate) fn record_key(bucket: &str) -> ObjectKey {
    system_key(&[RECORD_PREFIX, bucket.as_bytes()].concat())
}

/// Returns true for the object with the record of a bucket.
pub(crate) fn is_record(key: &ObjectKey) -> bool {
    key.is_system() && key.key().starts_with(RECORD_PREFIX)
}

/// A bucket with a record, as of one moment. A change of the record makes another state.
#[derive(Debug)]
pub struct BucketState {
    name: String,
    config: BucketConfig,
    /// Shared by all states of the bucket.
    is_closed: Arc<AtomicBool>,
}

impl BucketState {
    pub(crate) fn new(name: &str, config: BucketConfig) -> Self {
        Self { name: name.to_owned(), config, is_closed: Arc::default() }
    }

    /// The same bucket with other settings.
    pub(crate) fn with(&self, config: BucketConfig) -> Self {
        Self { name: self.name.clone(), config, is_closed: self.is_closed.clone() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &BucketConfig {
        &self.config
    }

    /// About the bytes that it takes in memory.
    fn byte_count(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.config.items.as_bytes().len()
    }

    /// Returns true if the bucket is deleted, or is being deleted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

/// The record of a bucket, or the reason why this program cannot use it.
pub(crate) type Known = std::result::Result<Arc<BucketState>, String>;

/// The records of all buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownBuckets {
    pub states: BTreeMap<String, Known>,
    /// Damaged ranges of encoded keys that may have had records.
    pub hidden: Vec<DamagedRange>,
}

impl KnownBuckets {
    /// Checks that this state of a bucket has room beside those of the others.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(crate) fn check_room(&self, state: &BucketState) -> Result<()> {
        let others = self.states.iter().filter(|(name, _)| **name != state.name);
        let (mut count, mut bytes) = (1, state.byte_count());
        for (_, other) in others {
            count += 1;
            bytes += other.as_ref().map_or(0, |other| other.byte_count());
        }
        if count > BUCKETS_MAX {
            return Err(Error::Invalid(format!("a store has at most {BUCKETS_MAX} buckets with settings")));
        }
        if bytes > RECORDS_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the settings of all buckets together have {bytes} bytes; {RECORDS_BYTES_MAX} are allowed"
            )));
        }
        Ok(())
    }
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Buckets {
    /// `None` until they are loaded.
    known: ArcSwapOption<KnownBuckets>,
    /// The bucket that is closing.
    closing: ArcSwapOption<BucketState>,
    /// True while there is one. Stored outside of the memtables' locks, loaded under them.
    is_closing: AtomicBool,
    /// The turn of the one task that changes records.
    pub turn: Token<()>,
}

impl Buckets {
    /// The records, if they are loaded.
    pub(crate) fn known(&self) -> Option<Arc<KnownBuckets>> {
        self.known.load_full()
    }

    /// Replaces all records. Only for the task whose turn it is.
    pub(crate) fn set_known(&self, known: KnownBuckets) {
        self.known.store(Some(Arc::new(known)));
    }

    /// Changes the entry of one bucket; `None` removes it. Only for the task whose turn it is.
    pub(crate) fn replace(&self, name: &str, state: Option<Arc<BucketState>>) {
        let mut known = self.known().map_or_else(KnownBuckets::default, |known| (*known).clone());
        match state {
            Some(state) => _ = known.states.insert(name.to_owned(), Ok(state)),
            None => _ = known.states.remove(name),
        }
        self.set_known(known);
    }

    /// Returns true while a bucket is closing. A batch asks under its memtables' locks.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Checks that none of these keys is that of an object, an upload or a part in a bucket that is closing. Called under the memtables'
    /// locks.
    ///
    /// # Errors
    /// [`Error::Busy`]: nobody knows yet if the bucket is deleted.
    pub(crate) fn check_open<'k>(&self, mut encoded_keys: impl Iterator<Item = &'k [u8]>) -> Result<()> {
        let closing = self.closing.load();
        let Some(closing) = closing.as_deref().filter(|_| !injected(Bug::ClosingIgnored)) else {
            return Ok(());
        };
        let name = closing.name.as_bytes();
        let is_of = |key: &[u8]| {
            let named = if is_hidden(key) { key.get(1..).unwrap_or_default() } else { key };
            named.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
        };
        if encoded_keys.any(is_of) { Err(Error::Busy("its bucket is being deleted")) } else { Ok(()) }
    }

    /// Closes a bucket until the guard is dropped, or for good. Only for the task whose turn it is. Puts that are not queued under a
    /// memtable's lock by now are refused.
    pub(crate) fn close(&self, state: Arc<BucketState>) -> ClosedBucket<'_> {
        state.is_closed.store(true, Ordering::Release);
        self.closing.store(Some(state.clone()));
        let was_closing = self.is_closing.swap(true, Ordering::AcqRel);
        assert!(!was_closing, "one bucket at a time is closing (R43)");
        ClosedBucket { buckets: self, state, is_deleted: false }
    }

    /// Names after `start_after`, in order.
    pub(crate) fn names_after(&self, start_after: &str, limit: usize) -> Vec<String> {
        let Some(known) = self.known() else { return Vec::new() };
        let bounds = (Bound::Excluded(start_after), Bound::Unbounded);
        known.states.range::<str, _>(bounds).take(limit).map(|(name, _)| name.clone()).collect()
    }
}

/// A bucket that is closing.
pub(crate) struct ClosedBucket<'a> {
    buckets: &'a Buckets,
    state: Arc<BucketState>,
    is_deleted: bool,
}

impl ClosedBucket<'_> {
    /// The record is gone: the bucket stays closed for those who know this state.
    pub(crate) fn deleted(mut self) {
        assert!(self.state.is_closed(), "a bucket is closed when its record goes (R43)");
        self.is_deleted = true;
        self.buckets.replace(&self.state.name, None);
    }
}

impl Drop for ClosedBucket<'_> {
    fn drop(&mut self) {
        if !self.is_deleted {
            self.state.is_closed.store(false, Ordering::Release);
        }
        self.buckets.is_closing.store(false, Ordering::Release);
        self.buckets.closing.store(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(buckets: &Buckets, name: &str) -> Arc<BucketState> {
        let state = Arc::new(BucketState::new(name, BucketConfig::default()));
        buckets.replace(name, Some(state.clone()));
        state
    }

    #[test]
    fn a_closing_bucket_refuses_its_keys_alone() {
        let buckets = Buckets::default();
        let state = known(&buckets, "photos");
        let check = |key: &'static [u8]| buckets.check_open([&b"other\0k"[..], key].into_iter());
        assert!(!buckets.is_closing());
        let other = state.with(BucketConfig { has_crc_etags: true, ..BucketConfig::default() });
        let closed = buckets.close(state.clone());
        assert!(buckets.is_closing());
        assert!(matches!(check(b"photos\0k"), Err(Error::Busy(_))));
        for key in [&b"\xFDphotos\0k\0upload"[..], b"\xFCphotos\0part"] {
            assert!(matches!(check(key), Err(Error::Busy(_))), "uploads and parts too");
        }
        for key in [&b"photos-2\0k"[..], b"photo\0s", b"x\0photos\0", b"\xFDphotos-2\0k\0upload"] {
            check(key).unwrap();
        }
        assert!(state.is_closed() && other.is_closed(), "all states of the bucket");
        drop(closed);
        assert!(!other.is_closed() && check(b"photos\0k").is_ok());
        buckets.close(state.clone()).deleted();
        assert!(state.is_closed() && check(b"photos\0k").is_ok() && buckets.names_after("", 9).is_empty());
    }

    #[test]
    fn records_are_bounded_in_number_and_bytes() {
        let state = |name: &str, bytes: usize| {
            let mut config = BucketConfig::default();
            config.items.set(3, Some(&vec![1; bytes]));
            Arc::new(BucketState::new(name, config))
        };
        let (mut known, big) = (KnownBuckets::default(), RECORDS_BYTES_MAX / 2 - 400);
        known.check_room(&state("a", big)).unwrap();
        known.states.insert("a".into(), Ok(state("a", big)));
        known.check_room(&state("b", big)).unwrap();
        let refused = known.check_room(&state("b", big + 800)).unwrap_err().to_string();
        assert!(refused.contains("67108864 are allowed"), "{refused}");
        known.check_room(&state("a", 2 * big)).unwrap();
        known.states.extend((0..BUCKETS_MAX).map(|which| (which.to_string(), Err(String::new()))));
        assert!(known.check_room(&state("b", 0)).is_err());
        known.states.remove("0");
        known.check_room(&state("a", 0)).unwrap();
    }

    #[test]
    fn names_are_in_order() {
        let buckets = Buckets::default();
        assert!(buckets.names_after("", 10).is_empty());
        for name in ["c", "a", "b"] {
            known(&buckets, name);
        }
        assert_eq!(buckets.names_after("", 10), ["a", "b", "c"]);
        assert_eq!(buckets.names_after("a", 1), ["b"]);
    }
}
