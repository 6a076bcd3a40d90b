//! Puts the entries of a source that is read in order and only once: a tar, or a server of the Redis protocol.
//!
//! A copy takes the value of an object that this import put, never of an older one: the version of its source is at least the lowest
//! version of this import's puts, and the entry of its source has not failed.
//!
//! Values up to a batch are put in batches, several at a time; the thread that reads the source puts larger ones, in pieces. Puts of
//! one key keep their order: a put waits for the answer to the one before.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use shoal_base::limits::KEY_BYTES_MAX;
use shoal_client::{Lsn, PutItem, PutOptions, PutResult, RejectRules, Result};

use crate::attributes::FileKind;
use crate::copying::{Location, copy, is_absent};
use crate::import::Import;
use crate::report::TransferReport;
use crate::text::{one_line, show_key};
use crate::work::{self, BATCH_BYTES_MAX, Batches};

/// Maximum number of remembered keys without a stored entry, eight bytes each. With more, no copies are made.
const UNSTORED_MAX: usize = 1 << 20;

/// A value to put.
struct Item {
    put: PutItem,
    kind: FileKind,
}

/// The keys with unanswered puts, and the results of the answered ones.
struct Pending {
    keys: Mutex<HashSet<Bytes>>,
    answered: Condvar,
    /// The lowest version of this import's puts. An object with a lower version is older than the import.
    lowest_version: AtomicU64,
    unstored: Mutex<Unstored>,
}

impl Default for Pending {
    fn default() -> Self {
        let lowest_version = AtomicU64::new(u64::MAX);
        Self { keys: Mutex::default(), answered: Condvar::new(), lowest_version, unstored: Mutex::default() }
    }
}

impl Pending {
    /// A put of `key` was answered with `version`.
    fn stored(&self, version: Lsn) {
        self.lowest_version.fetch_min(version.0, Ordering::Relaxed);
    }
}

/// Hashes of the keys whose last entry was not stored.
#[derive(Default)]
struct Unstored {
    hasher: RandomState,
    hashes: HashSet<u64>,
    /// More than [`UNSTORED_MAX`] were added.
    is_incomplete: bool,
}

impl Unstored {
    fn add(&mut self, key: &[u8]) {
        if self.hashes.len() < UNSTORED_MAX {
            self.hashes.insert(self.hasher.hash_one(key));
        } else {
            self.is_incomplete = true;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if !self.hashes.is_empty() {
            self.hashes.remove(&self.hasher.hash_one(key));
        }
    }

    /// Returns true if the last entry of `key` may not be stored.
    fn may_have(&self, key: &[u8]) -> bool {
        self.is_incomplete || self.hashes.contains(&self.hasher.hash_one(key))
    }
}

/// Puts the entries that the thread reads from the source.
pub(crate) struct Feeder<'a> {
    to: &'a Import,
    pending: &'a Pending,
    batches: &'a mut Batches<Item>,
}

impl Import {
    /// Runs `source` on this thread, and the puts on `jobs` workers. Blocks: not for threads of the runtime.
    pub(crate) fn feed<R>(&self, jobs: u16, source: impl FnOnce(&mut Feeder<'_>) -> R) -> R {
        let pending = Pending::default();
        work::run(
            jobs,
            |batch| self.put_batch(batch, &pending),
            |batches| source(&mut Feeder { to: self, pending: &pending, batches }),
        )
    }

    fn put_batch(&self, batch: Vec<Item>, pending: &Pending) {
        let keys: Vec<Bytes> = batch.iter().map(|item| item.put.key.clone()).collect();
        if !self.report.is_stopped() {
            let sizes: Vec<_> = batch.iter().map(|item| (item.kind, item.put.value.len() as u64)).collect();
            let items = batch.into_iter().map(|item| item.put).collect();
            let results = self.handle.block_on(self.objects.put_many(&self.bucket, items));
            for ((key, (kind, bytes)), result) in keys.iter().zip(sizes).zip(results) {
                match result {
                    Ok(put) => {
                        pending.stored(put.version);
                        self.report.done(kind, bytes);
                    }
                    Err(error) => {
                        pending.unstored.lock().add(key);
                        self.failed(&show_key(key), &error);
                    }
                }
            }
        }
        let mut waiting = pending.keys.lock();
        keys.iter().for_each(|key| _ = waiting.remove(key));
        pending.answered.notify_all();
    }
}

impl Feeder<'_> {
    /// The report of the import.
    pub(crate) fn report(&self) -> &TransferReport {
        &self.to.report
    }

    /// The key of the source's `name`; none if it does not take part, or cannot be a key.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Bytes> {
        if !self.to.filter.takes(name) {
            self.report().excluded(1);
            return None;
        }
        let key = [&self.to.prefix, name].concat();
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let why = format!("its key would have {} bytes, 1 to {KEY_BYTES_MAX} are allowed", key.len());
            self.report().refused(&show_key(&key), &why);
            return None;
        }
        Some(key.into())
    }

    /// Puts a value that is in memory.
    pub(crate) fn put(&mut self, key: Bytes, value: Bytes, kind: FileKind, options: PutOptions) {
        let bytes = value.len() as u64;
        if self.report().manner().dry_run {
            return self.report().would(kind, &key, bytes);
        }
        self.wait_for(&key);
        if bytes > BATCH_BYTES_MAX {
            let put = self.to.objects.put(&self.to.bucket, &key, value, options);
            let put = self.to.handle.block_on(put);
            return self.settle(&key, put, kind, bytes);
        }
        self.pending.unstored.lock().remove(&key);
        self.pending.keys.lock().insert(key.clone());
        self.batches.add(Item { put: PutItem { key, value, options }, kind }, bytes);
    }

    /// Puts a value in the pieces that `next` returns.
    ///
    /// # Errors
    /// The error of `next`. Nothing is put then.
    pub(crate) fn put_pieces<E>(
        &mut self,
        key: &Bytes,
        options: PutOptions,
        mut next: impl FnMut() -> Result<Option<Bytes>, E>,
    ) -> Result<(), E> {
        self.wait_for(key);
        let to = self.to;
        let mut stream = match to.objects.put_stream(&to.bucket, key, options) {
            Ok(stream) => Some(stream),
            Err(error) => {
                to.failed(&show_key(key), &error);
                None
            }
        };
        let mut sent = 0;
        // After a failure the other pieces are still read: the next entry of the source follows them.
        while let Some(piece) = next().inspect_err(|_| to.report.take_back_bytes(sent))? {
            let Some(open) = &mut stream else { continue };
            let bytes = piece.len() as u64;
            if let Err(error) = to.handle.block_on(open.write(piece)) {
                to.report.take_back_bytes(std::mem::take(&mut sent));
                to.failed(&show_key(key), &error);
                stream = None;
                continue;
            }
            to.report.add_bytes(bytes);
            sent += bytes;
        }
        match stream.map(|stream| to.handle.block_on(stream.finish())) {
            Some(put) => {
                if put.is_err() {
                    to.report.take_back_bytes(sent);
                }
                self.settle(key, put, FileKind::File, 0);
            }
            None => self.not_stored(key),
        }
        Ok(())
    }

    /// Reports the result of a put on this thread.
    fn settle(&self, key: &Bytes, put: Result<PutResult>, kind: FileKind, bytes: u64) {
        match put {
            Ok(put) => {
                self.pending.stored(put.version);
                self.pending.unstored.lock().remove(key);
                self.report().done(kind, bytes);
            }
            Err(error) => {
                self.not_stored(key);
                self.to.failed(&show_key(key), &error);
            }
        }
    }

    /// The entry of `key` was not stored: later entries cannot be copies of an older object with this key.
    pub(crate) fn not_stored(&self, key: &[u8]) {
        self.pending.unstored.lock().add(key);
    }

    /// Makes `key` a copy of the object that this import put for the source's `name`. Fails if there is none.
    pub(crate) fn copy(&mut self, name: &[u8], key: Bytes) {
        let source = Bytes::from([&self.to.prefix, name].concat());
        if source == key || !self.to.filter.takes(name) {
            return self.copy_failed(&key, &unstored(&source));
        }
        if self.report().manner().dry_run {
            return self.report().would(FileKind::File, &key, 0);
        }
        self.wait_for(&source);
        self.wait_for(&key);
        if self.pending.unstored.lock().may_have(&source) {
            return self.copy_failed(&key, &unstored(&source));
        }
        let place = |key: &Bytes| Location { bucket: self.to.bucket.clone(), key: key.clone() };
        let (from, to) = (place(&source), place(&key));
        let least = Lsn(self.pending.lowest_version.load(Ordering::Relaxed));
        let copied = copy(&self.to.objects, &from, least, &to, RejectRules::default());
        match self.to.handle.block_on(copied) {
            Ok(copied) => {
                self.pending.stored(copied.version);
                self.pending.unstored.lock().remove(&key);
                self.report().done(FileKind::File, copied.bytes);
            }
            Err(error) if is_absent(&error) => self.copy_failed(&key, &unstored(&source)),
            Err(error) => self.copy_failed(&key, &one_line(&error)),
        }
    }

    fn copy_failed(&self, key: &[u8], why: &str) {
        self.not_stored(key);
        self.report().failed(&show_key(key), &format!("it is a hard link: {why}"));
    }

    /// Stops the import early, once all entries so far are put.
    pub(crate) fn stop(&mut self, why: &str) {
        self.batches.send();
        let mut waiting = self.pending.keys.lock();
        while !waiting.is_empty() {
            self.pending.answered.wait(&mut waiting);
        }
        drop(waiting);
        self.report().stop(why);
    }

    /// Waits for the answers to the puts of `key`. Their results are visible after this.
    fn wait_for(&mut self, key: &Bytes) {
        if !self.pending.keys.lock().contains(key) {
            return;
        }
        self.batches.send();
        let mut waiting = self.pending.keys.lock();
        while waiting.contains(key) {
            self.pending.answered.wait(&mut waiting);
        }
    }
}

fn unstored(source: &[u8]) -> String {
    format!("the entry {:?} that it links to was not stored", show_key(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unstored_entries_are_remembered_up_to_a_limit() {
        let mut unstored = Unstored::default();
        unstored.add(b"a");
        assert!(unstored.may_have(b"a") && !unstored.may_have(b"b"));
        unstored.remove(b"a");
        assert!(!unstored.may_have(b"a"), "a later entry of this name was stored");
        for number in 0..=UNSTORED_MAX as u64 {
            unstored.add(&number.to_le_bytes());
        }
        assert_eq!(unstored.hashes.len(), UNSTORED_MAX);
        assert!(unstored.may_have(b"b"), "the list of unstored entries is incomplete");
    }
}
