//! The stores of the table: durable puts and gets of single objects by many threads, and a listing of all keys.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::Connection;
use shoal_compare::lmdb;
use shoal_engine::{
    ByteRange, ListRequest, ObjectKey, OpenOptions, PathOptions, PutOptions, Store, block_on,
};

use crate::scale::stores::missing;

/// The stores by their names on the command line and in the table.
pub const STORES: [(&str, &str); 5] = [
    ("ext4", "files on ext4"),
    ("sqlite", "SQLite"),
    ("lmdb", "LMDB"),
    ("rocksdb", "RocksDB"),
    ("shoal", "Shoal"),
];

/// The configuration of each, for the header.
pub const CONFIGURED: &str = "ext4: 256 folders; temporary name, fsync, rename, fsync of the folder. SQLite: WAL, synchronous=FULL; one writer \
                              groups waiting puts, a connection for each reader. LMDB: one writer groups waiting puts, sync. RocksDB: WAL with sync, \
                              bloom filter of 10 bits, LZ4, cache as given, else its defaults. Shoal: as an embedded store, cache as given";

/// Bytes that Shoal's file and LMDB's map may grow to.
const SIZE_MAX: u64 = 64 << 30;
/// Puts that a writer takes into one transaction at most.
const GROUP_PUTS_MAX: usize = 1024;
const BUCKET: &str = "table";

/// A store that many threads use; `client` is the number of the calling thread.
pub trait Subject: Sync {
    /// Stores an object; it is durable when this returns.
    fn put(&self, client: usize, key: &[u8], value: &Bytes) -> Result<()>;

    /// Reads an object as a whole and returns its length.
    fn get(&self, client: usize, key: &[u8]) -> Result<usize>;

    /// Lists all keys in order and returns their number.
    fn list(&self) -> Result<u64>;

    /// Closes the store in order.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Opens the store `name` in `folder`, or makes it.
pub fn open(name: &str, folder: &Path, cache: u64, clients: usize) -> Result<Box<dyn Subject>> {
    fs::create_dir_all(folder)?;
    Ok(match name {
        "ext4" => Box::new(Files::open(folder)?),
        "sqlite" => Box::new(Sqlite::open(folder, cache, clients)?),
        "lmdb" => Box::new(Lmdb::open(folder)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(Rocks::open(folder, cache)?),
        "shoal" => {
            let open = OpenOptions { cache_bytes: usize::try_from(cache)?, ..OpenOptions::default() };
            let options = PathOptions { bytes_max: SIZE_MAX, open, ..PathOptions::default() };
            Box::new(Shoal(block_on(Store::open_path(folder.join("shoal.data"), options))?))
        }
        _ => bail!("{}", missing(name)),
    })
}

/// Keys `ab/cd/name` are stored as `ab/cd-name`.
struct Files(PathBuf);

impl Files {
    fn open(root: &Path) -> Result<Self> {
        for number in 0..=255_u8 {
            fs::create_dir_all(root.join(format!("{number:02x}")))?;
        }
        Ok(Self(root.to_owned()))
    }

    fn path(&self, key: &[u8]) -> Result<PathBuf> {
        let (folder, name) = std::str::from_utf8(key)?.split_once('/').context("a key has a folder")?;
        Ok(self.0.join(folder).join(name.replace('/', "-")))
    }
}

impl Subject for Files {
    fn put(&self, client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        let path = self.path(key)?;
        let folder = path.parent().context("a key has a folder")?;
        let temporary = folder.join(format!(".tmp-{client}"));
        let mut file = File::create(&temporary)?;
        file.write_all(value)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        Ok(File::open(folder)?.sync_all()?)
    }

    fn get(&self, _client: usize, key: &[u8]) -> Result<usize> {
        Ok(fs::read(self.path(key)?)?.len())
    }

    fn list(&self) -> Result<u64> {
        let mut keys = 0;
        for folder in 0..=255_u8 {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.0.join(format!("{folder:02x}")))? {
                names.push(entry?.file_name());
            }
            // A put that the kill interrupted leaves its temporary name.
            names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
            names.sort_unstable();
            keys += names.len() as u64;
        }
        Ok(keys)
    }
}

/// A put that waits for the writer.
struct Waiting {
    key: Vec<u8>,
    value: Bytes,
    done: SyncSender<bool>,
}

/// The only writer of a store that has one: each transaction takes all puts that wait.
struct Writer(Mutex<Sender<Waiting>>);

impl Writer {
    fn start(mut write: impl FnMut(&[Waiting]) -> Result<()> + Send + 'static) -> Self {
        let (queue, waiting) = mpsc::channel::<Waiting>();
        thread::spawn(move || {
            while let Ok(first) = waiting.recv() {
                let rest = waiting.try_iter().take(GROUP_PUTS_MAX - 1);
                let group: Vec<Waiting> = std::iter::once(first).chain(rest).collect();
                let written = write(&group);
                if let Err(error) = &written {
                    eprintln!("a transaction failed: {error:#}");
                }
                // A client that stopped does not wait.
                group.iter().for_each(|put| drop(put.done.send(written.is_ok())));
            }
        });
        Self(Mutex::new(queue))
    }

    fn put(&self, key: &[u8], value: &Bytes) -> Result<()> {
        let (done, answer) = mpsc::sync_channel(1);
        let put = Waiting { key: key.to_vec(), value: value.clone(), done };
        self.0.lock().send(put).map_err(|_| anyhow!("the writer stopped"))?;
        ensure!(answer.recv().unwrap_or(false), "the writer failed");
        Ok(())
    }
}

struct Sqlite {
    writer: Writer,
    readers: Vec<Mutex<Connection>>,
}

impl Sqlite {
    fn open(folder: &Path, cache: u64, clients: usize) -> Result<Self> {
        let connect = |cache: u64| -> Result<Connection> {
            let database = Connection::open(folder.join("objects.db"))?;
            database.execute_batch(&format!(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -{};
                 CREATE TABLE IF NOT EXISTS objects (key BLOB PRIMARY KEY, value BLOB NOT NULL);",
                cache >> 10
            ))?;
            Ok(database)
        };
        let share = cache / (clients as u64 + 1);
        let mut database = connect(share)?;
        let writer = Writer::start(move |group| {
            let transaction = database.transaction()?;
            {
                let mut insert =
                    transaction.prepare_cached("INSERT OR REPLACE INTO objects VALUES (?1, ?2)")?;
                for put in group {
                    insert.execute((&put.key[..], &put.value[..]))?;
                }
            }
            Ok(transaction.commit()?)
        });
        let readers = (0..clients).map(|_| Ok(Mutex::new(connect(share)?))).collect::<Result<_>>()?;
        Ok(Self { writer, readers })
    }
}

impl Subject for Sqlite {
    fn put(&self, _client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        self.writer.put(key, value)
    }

    fn get(&self, client: usize, key: &[u8]) -> Result<usize> {
        let database = self.readers[client].lock();
        let mut get = database.prepare_cached("SELECT value FROM objects WHERE key = ?1")?;
        Ok(get.query_row([key], |row| row.get::<_, Vec<u8>>(0))?.len())
    }

    fn list(&self) -> Result<u64> {
        let database = self.readers[0].lock();
        let mut list = database.prepare("SELECT key FROM objects ORDER BY key")?;
        let mut rows = list.query([])?;
        let mut keys = 0;
        while let Some(row) = rows.next()? {
            keys += u64::from(!row.get::<_, Vec<u8>>(0)?.is_empty());
        }
        Ok(keys)
    }
}

struct Lmdb {
    env: heed::Env,
    objects: heed::Database<heed::types::Bytes, heed::types::Bytes>,
    writer: Writer,
}

impl Lmdb {
    fn open(folder: &Path) -> Result<Self> {
        let env = lmdb::open(folder, usize::try_from(SIZE_MAX)?)?;
        let mut write = env.write_txn()?;
        let objects = env.create_database(&mut write, Some("objects"))?;
        write.commit()?;
        let theirs = env.clone();
        let writer = Writer::start(move |group| {
            let mut write = theirs.write_txn()?;
            for put in group {
                objects.put(&mut write, &put.key[..], &put.value[..])?;
            }
            Ok(write.commit()?)
        });
        Ok(Self { env, objects, writer })
    }
}

impl Subject for Lmdb {
    fn put(&self, _client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        self.writer.put(key, value)
    }

    fn get(&self, _client: usize, key: &[u8]) -> Result<usize> {
        let read = self.env.read_txn()?;
        let value = self.objects.get(&read, key)?.map(<[u8]>::to_vec);
        Ok(value.context("an object is missing")?.len())
    }

    fn list(&self) -> Result<u64> {
        let read = self.env.read_txn()?;
        let mut keys = 0;
        for entry in self.objects.remap_data_type::<heed::types::DecodeIgnore>().iter(&read)? {
            keys += u64::from(!entry?.0.to_vec().is_empty());
        }
        Ok(keys)
    }
}

#[cfg(feature = "rocksdb")]
struct Rocks(rocksdb::DB, rocksdb::WriteOptions);

#[cfg(feature = "rocksdb")]
impl Rocks {
    fn open(folder: &Path, cache: u64) -> Result<Self> {
        let options = crate::scale::rocksdb::options(cache)?;
        let mut durable = rocksdb::WriteOptions::default();
        durable.set_sync(true);
        Ok(Self(rocksdb::DB::open(&options, folder.join("rocksdb"))?, durable))
    }
}

#[cfg(feature = "rocksdb")]
impl Subject for Rocks {
    fn put(&self, _client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        Ok(self.0.put_opt(key, value, &self.1)?)
    }

    fn get(&self, _client: usize, key: &[u8]) -> Result<usize> {
        Ok(self.0.get(key)?.context("an object is missing")?.len())
    }

    fn list(&self) -> Result<u64> {
        let mut keys = 0;
        for entry in self.0.iterator(rocksdb::IteratorMode::Start) {
            keys += u64::from(!entry?.0.is_empty());
        }
        Ok(keys)
    }
}

struct Shoal(Store);

impl Subject for Shoal {
    fn put(&self, _client: usize, key: &[u8], value: &Bytes) -> Result<()> {
        let mut buffer = shoal_buffer::Buffer::new();
        buffer.append(value.clone());
        block_on(self.0.put(&ObjectKey::new(BUCKET, key)?, buffer, PutOptions::default()))?;
        Ok(())
    }

    fn get(&self, _client: usize, key: &[u8]) -> Result<usize> {
        let found = block_on(self.0.get(&ObjectKey::new(BUCKET, key)?, ByteRange::ALL))?;
        Ok(found.context("an object is missing")?.value.to_vec().len())
    }

    fn list(&self) -> Result<u64> {
        let (mut keys, mut start_after) = (0, Vec::new());
        loop {
            let request =
                ListRequest { bucket: BUCKET.into(), start_after, limit: 1_000, ..ListRequest::default() };
            let page = block_on(self.0.list(&request))?;
            keys += page.entries.len() as u64;
            match page.next {
                Some(next) => start_after = next,
                None => return Ok(keys),
            }
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(block_on(self.0.close()).map(drop)?)
    }
}
