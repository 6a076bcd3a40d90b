//! The stores that are libraries: each makes some puts durable, for several threads at a time.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use bytes::Bytes;

use crate::peer::Sqlite;
use crate::scale::stores::missing;

/// A put of a client.
pub struct Put {
    pub key: Vec<u8>,
    pub value: Bytes,
}

/// A store that takes puts.
pub trait Puts: Send + Sync {
    /// Stores these; they are durable when this returns.
    fn put(&self, puts: Vec<Put>) -> Result<()>;
}

/// A new store in `folder`, with `cache` bytes of cache.
pub fn create(name: &str, folder: &Path, cache: u64) -> Result<Arc<dyn Puts>> {
    Ok(match name {
        "sqlite" => Arc::new(Sqlite::with_cache(folder.join("sqlite"), cache)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Arc::new(rocks::Rocks::create(folder, cache)?),
        _ => bail!("{}", missing(name)),
    })
}

impl Puts for Sqlite {
    fn put(&self, puts: Vec<Put>) -> Result<()> {
        self.put_all(puts.into_iter().map(|put| (put.key, put.value)))
    }
}

#[cfg(feature = "rocksdb")]
mod rocks {
    use std::path::Path;

    use anyhow::Result;
    use rocksdb::{DB, WriteBatch, WriteOptions};

    use super::{Put, Puts};
    use crate::scale::rocksdb::options;

    /// RocksDB, whose threads group their commits themselves.
    pub struct Rocks {
        database: DB,
    }

    impl Rocks {
        pub fn create(folder: &Path, cache: u64) -> Result<Self> {
            Ok(Self { database: DB::open(&options(cache)?, folder.join("rocksdb"))? })
        }
    }

    impl Puts for Rocks {
        fn put(&self, puts: Vec<Put>) -> Result<()> {
            let mut write = WriteBatch::default();
            puts.iter().for_each(|put| write.put(&put.key, &put.value));
            let mut durable = WriteOptions::default();
            durable.set_sync(true);
            Ok(self.database.write_opt(write, &durable)?)
        }
    }
}
