//! Puts of what a source says one after the other and only once: a tar, or a server of Redis.
//!
//! Values up to a batch are put in batches, several at the same time; larger ones by the thread that reads the source, in pieces. The
//! puts of one key keep their order: the next one waits until the one before is answered.

use std::collections::HashSet;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use shoal_base::limits::KEY_BYTES_MAX;
use shoal_client::{PutItem, PutOptions, RejectRules};

use crate::copying::{Location, copy};
use crate::failure::one_line;
use crate::output::show_key;
use crate::transfer::attributes::Kind;
use crate::transfer::destination::Destination;
use crate::transfer::report::Report;
use crate::transfer::work::{self, BATCH_BYTES_MAX, Batches};

/// A value that is to be put.
struct Item {
    put: PutItem,
    kind: Kind,
}

/// The keys whose puts are not answered yet.
#[derive(Default)]
struct Pending {
    keys: Mutex<HashSet<Bytes>>,
    answered: Condvar,
}

/// Where the thread that reads the source puts what it finds.
pub(crate) struct Feeder<'a> {
    to: &'a Destination,
    pending: &'a Pending,
    batches: &'a mut Batches<Item>,
}

impl Destination {
    /// Runs `source` on this thread and the puts with `jobs` workers. Blocks; not to be called on a thread of the runtime.
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
                    Ok(_) => self.report.done(kind, bytes),
                    Err(error) => self.failed(&show_key(key), &error),
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
    pub(crate) fn report(&self) -> &Report {
        &self.to.report
    }

    /// The key of what the source calls `name`; none: it does not take part, or no key can be made of it.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Bytes> {
        if !self.to.filter.takes(name) {
            self.report().excluded();
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
    pub(crate) fn put(&mut self, key: Bytes, value: Bytes, kind: Kind, options: PutOptions) {
        let bytes = value.len() as u64;
        if self.report().manner().dry_run {
            return self.report().would(kind, &key, bytes);
        }
        self.wait_for(&key);
        if bytes > BATCH_BYTES_MAX {
            let put = self.to.objects.put(&self.to.bucket, &key, value, options);
            return match self.to.handle.block_on(put) {
                Ok(_) => self.report().done(kind, bytes),
                Err(error) => self.to.failed(&show_key(&key), &error),
            };
        }
        self.pending.keys.lock().insert(key.clone());
        self.batches.add(Item { put: PutItem { key, value, options }, kind }, bytes);
    }

    /// Puts a value in the pieces that `next` gives, none at the end.
    ///
    /// # Errors
    /// That of `next`. Nothing is put then.
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
        // The pieces behind a failure are read, too: the source goes on behind them.
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
            Some(Ok(_)) => to.report.done(Kind::File, 0),
            Some(Err(error)) => {
                to.report.take_back_bytes(sent);
                to.failed(&show_key(key), &error);
            }
            None => {}
        }
        Ok(())
    }

    /// Makes `key` a copy of the object of what the source calls `name`, which was put before.
    pub(crate) fn copy(&mut self, name: &[u8], key: Bytes) {
        let source = Bytes::from([&self.to.prefix, name].concat());
        self.wait_for(&source);
        self.wait_for(&key);
        let place = |key: &Bytes| Location { bucket: self.to.bucket.clone(), key: key.clone() };
        let (from, to) = (place(&source), place(&key));
        let copied = copy(&self.to.objects, &from, &to, RejectRules::default());
        match self.to.handle.block_on(copied) {
            Ok(copied) => self.report().done(Kind::File, copied.bytes),
            Err(error) => {
                let why = format!("it is a hard link: {}", one_line(&error));
                self.report().failed(&show_key(&key), &why);
            }
        }
    }

    /// Ends the import early, after the puts of all that came so far.
    pub(crate) fn stop(&mut self, why: &str) {
        self.batches.send();
        let mut waiting = self.pending.keys.lock();
        while !waiting.is_empty() {
            self.pending.answered.wait(&mut waiting);
        }
        drop(waiting);
        self.report().stop(why);
    }

    /// Waits until the puts of `key` are answered.
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
