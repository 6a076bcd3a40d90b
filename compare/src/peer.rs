//! The stores that are compared: each stores an object durably, in the calling thread.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::Connection;
use shoal_base::BLOCK_BYTES_U64;
use shoal_bench::payload::ObjectSet;
use shoal_device::{DeviceCounters, FileOptions};
use shoal_engine::{
    Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, RejectRules, Store, block_on,
};

/// Bytes that a Shoal store may grow to: as `shoal serve` with its default.
const SHOAL_BYTES: u64 = 64 << 30;

/// Bytes of the written store that were written before.
const WRITTEN_BYTES: u64 = 8 << 30;

/// SQLite's own default of its cache, in bytes.
const SQLITE_CACHE_BYTES: u64 = 2_000 << 10;

/// Puts that the SQLite writer takes into one transaction at most.
const TRANSACTION_PUTS_MAX: usize = 1024;

/// Threads that remove the objects of a case.
const CLEANERS: u64 = 16;

/// A store that is compared.
pub trait Peer: Sync {
    /// Stores an object; it is durable when this returns. `client` is the number of the calling thread.
    fn put(&self, client: usize, key: &[u8], value: &Bytes) -> Result<()>;

    /// Removes the first `count` objects of `set`; not measured.
    fn clear(&self, set: &ObjectSet, count: u64) -> Result<()>;

    /// The store's own counters of its device.
    fn own(&self) -> Option<DeviceCounters> {
        None
    }
}

/// Plain files: `ab/cd/name`; write to a temporary name, fsync, rename, fsync of the directory.
pub struct Files(PathBuf);

impl Files {
    /// Makes the 65,536 directories under `root`.
    pub fn new(root: PathBuf) -> Result<Self> {
        for first in 0..=255_u8 {
            for second in 0..=255_u8 {
                fs::create_dir_all(root.join(format!("{first:02x}/{second:02x}")))?;
            }
        }
        rustix::fs::syncfs(File::open(&root)?)?;
        Ok(Self(root))
    }

    fn path(&self, key: &[u8]) -> Result<PathBuf> {
        Ok(self.0.join(std::str::from_utf8(key)?))
    }
}

impl Peer for Files {
    fn put(&self, client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        let path = self.path(key)?;
        let folder = path.parent().context("a key has a folder")?;
        let temporary = folder.join(format!(".tmp-{client}"));
        let mut file = File::create(&temporary)?;
        file.write_all(value)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(folder)?.sync_all()?;
        Ok(())
    }

    fn clear(&self, set: &ObjectSet, count: u64) -> Result<()> {
        in_parallel(count, |number| {
            // A put that was cut short by the end of the case left nothing.
            let _ = fs::remove_file(self.path(&set.key(number))?);
            Ok(())
        })
    }
}

/// A put that waits for the writer.
struct Waiting {
    key: Vec<u8>,
    value: Bytes,
    done: SyncSender<bool>,
}

/// SQLite in WAL mode with synchronous=FULL; one writer puts everything that waits into one transaction.
pub struct Sqlite {
    queue: Mutex<Option<Sender<Waiting>>>,
    writer: Mutex<Option<JoinHandle<Result<()>>>>,
    folder: PathBuf,
}

impl Sqlite {
    /// A new database in `folder`, which is removed with everything in it at the end.
    pub fn new(folder: PathBuf) -> Result<Self> {
        Self::with_cache(folder, SQLITE_CACHE_BYTES)
    }

    /// The same with `cache` bytes of cache.
    pub fn with_cache(folder: PathBuf, cache: u64) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let database = Connection::open(folder.join("objects.db"))?;
        database.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -{};
             CREATE TABLE objects (key BLOB PRIMARY KEY, value BLOB NOT NULL);",
            cache >> 10
        ))?;
        let (queue, waiting) = mpsc::channel::<Waiting>();
        let writer = thread::spawn(move || {
            let mut database = database;
            while let Ok(first) = waiting.recv() {
                let group: Vec<Waiting> =
                    std::iter::once(first).chain(waiting.try_iter().take(TRANSACTION_PUTS_MAX - 1)).collect();
                let transaction = database.transaction()?;
                {
                    let mut insert =
                        transaction.prepare_cached("INSERT OR REPLACE INTO objects VALUES (?1, ?2)")?;
                    for put in &group {
                        insert.execute((&put.key[..], &put.value[..]))?;
                    }
                }
                transaction.commit()?;
                for put in group {
                    // No client waits any more if the case is over.
                    let _ = put.done.send(true);
                }
            }
            Ok(())
        });
        Ok(Self { queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(writer)), folder })
    }

    /// Stores these; they are durable when this returns.
    pub fn put_all(&self, puts: impl Iterator<Item = (Vec<u8>, Bytes)>) -> Result<()> {
        let queue = self.queue.lock().clone().context("the writer has ended")?;
        let mut answers = Vec::new();
        for (key, value) in puts {
            let (done, answer) = mpsc::sync_channel(1);
            queue.send(Waiting { key, value, done }).map_err(|_| anyhow!("the writer failed"))?;
            answers.push(answer);
        }
        let are_done = answers.iter().all(|answer| answer.recv().unwrap_or(false));
        ensure!(are_done, "the writer failed");
        Ok(())
    }
}

impl Peer for Sqlite {
    fn put(&self, _client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        self.put_all(std::iter::once((key.to_vec(), value.clone())))
    }

    /// The whole database is removed in the end.
    fn clear(&self, _set: &ObjectSet, _count: u64) -> Result<()> {
        Ok(())
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.queue.lock().take();
        if let Some(writer) = self.writer.lock().take()
            && !matches!(writer.join(), Ok(Ok(())))
        {
            eprintln!("SQLite's writer failed");
        }
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} was not removed: {error}", self.folder.display());
        }
    }
}

/// Shoal, embedded.
pub struct Shoal {
    store: Store,
    path: PathBuf,
}

impl Shoal {
    /// A new store in a new file, which is removed at the end: as `shoal serve` makes it, growing as it fills, or with
    /// `is_written` with 8 GiB written before.
    pub fn new(path: &Path, is_written: bool) -> Result<Self> {
        let device = shoal_device::open(path, &FileOptions { create: true, ..FileOptions::default() })?;
        let layout = FormatOptions {
            initial_blocks: is_written.then_some(WRITTEN_BYTES / BLOCK_BYTES_U64),
            ..FormatOptions::for_blocks(SHOAL_BYTES / BLOCK_BYTES_U64)
        };
        let store = block_on(async {
            Store::format(&device, &layout, &Environment::default()).await?;
            Store::open(device, OpenOptions::default(), Environment::default()).await
        })?;
        Ok(Self { store, path: path.to_owned() })
    }
}

impl Peer for Shoal {
    fn put(&self, _client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        let mut buffer = shoal_buffer::Buffer::new();
        buffer.append(value.clone());
        block_on(self.store.put(&ObjectKey::new("compare", key)?, buffer, PutOptions::default()))?;
        Ok(())
    }

    fn clear(&self, set: &ObjectSet, count: u64) -> Result<()> {
        in_parallel(count, |number| {
            let key = ObjectKey::new("compare", &set.key(number))?;
            block_on(self.store.delete(&key, RejectRules::default()))?;
            Ok(())
        })?;
        let began = Instant::now();
        while self.store.stat().memtable_records > 0 && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn own(&self) -> Option<DeviceCounters> {
        Some(self.store.stat().device)
    }
}

impl Drop for Shoal {
    fn drop(&mut self) {
        if let Err(error) = block_on(self.store.close()) {
            eprintln!("Shoal did not close in order: {error}");
        }
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("{} was not removed: {error}", self.path.display());
        }
    }
}

fn in_parallel(count: u64, step: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let part = &|first: u64| (first..count).step_by(CLEANERS as usize).try_for_each(&step);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CLEANERS).map(|first| scope.spawn(move || part(first))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    })
}
