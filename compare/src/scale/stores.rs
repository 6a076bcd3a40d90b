//! The stores that grow beside each other: each stores a batch durably, in the calling thread, with the same cache.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use heed::types::Bytes;
use redb::{ReadableDatabase, ReadableTable};
use rusqlite::{Connection, OptionalExtension};
use shoal_bench::scale::{Batch, Shoal, Target};
use shoal_compare::lmdb;
use shoal_device::FileOptions;

use super::peer::Peer;

/// The stores by their names on the command line and in the chart.
pub const STORES: [(&str, &str); 6] = [
    ("shoal", "Shoal"),
    ("rocksdb", "RocksDB"),
    ("sqlite", "SQLite"),
    ("lmdb", "LMDB"),
    ("redb", "redb"),
    ("fjall", "fjall"),
];

/// The configuration of each, for the header.
pub const CONFIGURED: &str = "all: one client, a flush for each batch, the cache as given. RocksDB: WAL with sync, bloom filter of 10 bits, LZ4, two \
                              background jobs, else its defaults. SQLite: WAL, synchronous=FULL, a checkpoint at 256 MiB of log, table WITHOUT ROWID. LMDB: \
                              its cache is the kernel's, not bounded. redb: durability immediate. fjall: SyncAll. Shoal: as shoal serve, no scrub";

/// Bytes that Shoal's file and LMDB's map may grow to.
const SIZE_MAX: u64 = 64 << 30;

/// Pages of SQLite's log at which it is taken over: the size of Shoal's log.
const CHECKPOINT_PAGES: u32 = 65_536;

/// A new store in `folder`, with `cache` bytes of cache.
pub fn create(name: &str, folder: &Path, cache: u64) -> Result<Box<dyn Peer>> {
    fs::create_dir_all(folder)?;
    Ok(match name {
        "shoal" => {
            let options = FileOptions { create: true, ..FileOptions::default() };
            let device = shoal_device::open(&folder.join("shoal.data"), &options)?;
            Box::new(Shoal::create(device, SIZE_MAX, cache)?)
        }
        "sqlite" => Box::new(Sqlite::create(folder, cache)?),
        "lmdb" => Box::new(Lmdb::create(folder)?),
        "redb" => Box::new(Redb::create(folder, cache)?),
        "fjall" => Box::new(Fjall::create(folder, cache)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(super::rocksdb::Rocks::create(folder, cache)?),
        _ => bail!("{}", missing(name)),
    })
}

/// Returns true if this program can run a store of that name.
pub fn is_known(name: &str) -> bool {
    STORES.iter().any(|(known, _)| *known == name) && (cfg!(feature = "rocksdb") || name != "rocksdb")
}

/// The reason why there is no store of that name.
pub fn missing(name: &str) -> String {
    if name == "rocksdb" {
        return "rocksdb is not built in: apt-get install librocksdb-dev libclang-14-dev, then add --features rocksdb".into();
    }
    let names: Vec<&str> = STORES.iter().map(|(name, _)| *name).collect();
    format!("there is no store {name:?}; there are {}", names.join(", "))
}

impl Peer for Shoal {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        Shoal::get(self, key)
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        Shoal::delete(self, keys)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Shoal::close(*self)
    }
}

struct Sqlite(Connection);

impl Sqlite {
    fn create(folder: &Path, cache: u64) -> Result<Self> {
        let database = Connection::open(folder.join("objects.db"))?;
        database.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -{};
             PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
             CREATE TABLE objects (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;",
            cache >> 10
        ))?;
        Ok(Self(database))
    }
}

impl Target for Sqlite {
    fn put(&mut self, batch: &Batch) -> Result<()> {
        let what = if batch.if_absent { "IGNORE" } else { "REPLACE" };
        let transaction = self.0.transaction()?;
        {
            let text = format!("INSERT OR {what} INTO objects VALUES (?1, ?2)");
            let mut insert = transaction.prepare_cached(&text)?;
            for put in &batch.puts {
                insert.execute((&put.key[..], &put.value[..]))?;
            }
        }
        Ok(transaction.commit()?)
    }
}

impl Peer for Sqlite {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        let mut get = self.0.prepare_cached("SELECT value FROM objects WHERE key = ?1")?;
        Ok(get.query_row([key], |row| row.get::<_, Vec<u8>>(0)).optional()?.is_some())
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let transaction = self.0.transaction()?;
        {
            let mut delete = transaction.prepare_cached("DELETE FROM objects WHERE key = ?1")?;
            for key in keys {
                delete.execute([&key[..]])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close().map_err(|(_, error)| error.into())
    }
}

struct Lmdb {
    env: heed::Env,
    objects: heed::Database<Bytes, Bytes>,
}

impl Lmdb {
    fn create(folder: &Path) -> Result<Self> {
        let env = lmdb::open(folder, usize::try_from(SIZE_MAX)?)?;
        let mut write = env.write_txn()?;
        let objects = env.create_database(&mut write, Some("objects"))?;
        write.commit()?;
        Ok(Self { env, objects })
    }
}

impl Target for Lmdb {
    fn put(&mut self, batch: &Batch) -> Result<()> {
        let mut write = self.env.write_txn()?;
        for put in &batch.puts {
            if batch.if_absent {
                self.objects.get_or_put(&mut write, &put.key, &put.value)?;
            } else {
                self.objects.put(&mut write, &put.key, &put.value)?;
            }
        }
        Ok(write.commit()?)
    }
}

impl Peer for Lmdb {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        let read = self.env.read_txn()?;
        Ok(self.objects.get(&read, key)?.map(<[u8]>::to_vec).is_some())
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let mut write = self.env.write_txn()?;
        for key in keys {
            self.objects.delete(&mut write, key)?;
        }
        Ok(write.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

const REDB: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("objects");

struct Redb(redb::Database);

impl Redb {
    fn create(folder: &Path, cache: u64) -> Result<Self> {
        let mut builder = redb::Database::builder();
        builder.set_cache_size(usize::try_from(cache)?);
        Ok(Self(builder.create(folder.join("objects.redb"))?))
    }
}

impl Target for Redb {
    fn put(&mut self, batch: &Batch) -> Result<()> {
        let write = self.0.begin_write()?;
        {
            let mut objects = write.open_table(REDB)?;
            for put in &batch.puts {
                if !batch.if_absent || objects.get(&put.key[..])?.is_none() {
                    objects.insert(&put.key[..], &put.value[..])?;
                }
            }
        }
        Ok(write.commit()?)
    }
}

impl Peer for Redb {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        let objects = self.0.begin_read()?.open_table(REDB)?;
        Ok(objects.get(key)?.map(|value| value.value().to_vec()).is_some())
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let write = self.0.begin_write()?;
        {
            let mut objects = write.open_table(REDB)?;
            for key in keys {
                objects.remove(&key[..])?;
            }
        }
        Ok(write.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Fjall {
    database: fjall::Database,
    objects: fjall::Keyspace,
}

impl Fjall {
    fn create(folder: &Path, cache: u64) -> Result<Self> {
        let database = fjall::Database::builder(folder.join("fjall")).cache_size(cache).open();
        let database = database.context("fjall did not open")?;
        let objects = database.keyspace("objects", fjall::KeyspaceCreateOptions::default)?;
        Ok(Self { database, objects })
    }
}

impl Target for Fjall {
    fn put(&mut self, batch: &Batch) -> Result<()> {
        let mut write = self.database.batch().durability(Some(fjall::PersistMode::SyncAll));
        for put in &batch.puts {
            if !batch.if_absent || !self.objects.contains_key(&put.key)? {
                write.insert(&self.objects, &put.key[..], &put.value[..]);
            }
        }
        Ok(write.commit()?)
    }
}

impl Peer for Fjall {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.objects.get(key)?.is_some())
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let mut write = self.database.batch().durability(Some(fjall::PersistMode::SyncAll));
        keys.iter().for_each(|key| write.remove(&self.objects, &key[..]));
        Ok(write.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_bench::scale::{Load, ORDERS};

    #[test]
    fn every_store_takes_every_order() {
        let folder = std::env::temp_dir().join(format!("shoal-compare-test-{}", std::process::id()));
        for (name, _) in STORES.into_iter().filter(|(name, _)| is_known(name)) {
            for order in ORDERS {
                let mut peer = create(name, &folder.join(format!("{name}-{order}")), 16 << 20).unwrap();
                let mut load = Load::new(order, 100, 300, 0);
                let mut keys = Vec::new();
                for _ in 0..3 {
                    let batch = load.batch(100);
                    peer.put(&batch).unwrap();
                    keys.extend(batch.puts.into_iter().map(|put| put.key));
                }
                assert!(keys.iter().all(|key| peer.get(key).unwrap()), "{name} {order}");
                // An order may name a key twice.
                let (gone, kept) = keys.split_at(150);
                peer.delete(gone).unwrap();
                assert!(!gone.iter().any(|key| peer.get(key).unwrap()), "{name} {order}");
                let is_kept = |key: &&Vec<u8>| !gone.contains(key);
                assert!(kept.iter().filter(is_kept).all(|key| peer.get(key).unwrap()), "{name} {order}");
                peer.close().unwrap();
            }
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!(missing("rocksdb").contains("--features") && missing("x").contains("lmdb"));
    }
}
