//! RocksDB, from the library of the system.

use std::path::Path;

use anyhow::Result;
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteBatch, WriteOptions};
use shoal_bench::scale::{Batch, Target};

use super::peer::Peer;

/// Bits of the bloom filter for each key.
const FILTER_BITS: f64 = 10.0;

pub struct Rocks {
    database: DB,
    durable: WriteOptions,
}

impl Rocks {
    pub fn create(folder: &Path, cache: u64) -> Result<Self> {
        let mut durable = WriteOptions::default();
        durable.set_sync(true);
        Ok(Self { database: DB::open(&options(cache)?, folder.join("rocksdb"))?, durable })
    }
}

/// The options of a database with `cache` bytes of cache.
pub fn options(cache: u64) -> Result<Options> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(usize::try_from(cache)?)?);
    blocks.set_bloom_filter(FILTER_BITS, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.increase_parallelism(2);
    Ok(options)
}

impl Target for Rocks {
    fn put(&mut self, batch: &Batch) -> Result<()> {
        let mut write = WriteBatch::default();
        for put in &batch.puts {
            if !batch.if_absent || self.database.get_pinned(&put.key)?.is_none() {
                write.put(&put.key, &put.value);
            }
        }
        Ok(self.database.write_opt(write, &self.durable)?)
    }
}

impl Peer for Rocks {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.database.get(key)?.is_some())
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let mut write = WriteBatch::default();
        keys.iter().for_each(|key| write.delete(key));
        Ok(self.database.write_opt(write, &self.durable)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
