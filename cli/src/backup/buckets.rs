//! The records of buckets that a restore puts into its new store.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use shoal_backup::BucketRecord;
use shoal_engine::{Error, Store};

/// Between two attempts to write to a store that is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Names of buckets with a record.
#[derive(Default)]
pub(crate) struct RestoredBuckets {
    /// In the new store.
    all: BTreeSet<String>,
    /// In the backup that is being restored.
    now: BTreeSet<String>,
}

impl RestoredBuckets {
    /// Restores a record.
    pub(crate) async fn put(&mut self, store: &Store, bucket: BucketRecord) -> anyhow::Result<()> {
        let BucketRecord { name, record } = bucket;
        set(store, &name, Some(&record)).await?;
        self.all.insert(name.clone());
        self.now.insert(name);
        Ok(())
    }

    /// The backup is at its end. If it has everything, the buckets that it lacks have no record any more.
    pub(crate) async fn end_backup(&mut self, store: &Store, has_everything: bool) -> anyhow::Result<()> {
        let now = std::mem::take(&mut self.now);
        if has_everything {
            for name in self.all.difference(&now) {
                set(store, name, None).await?;
            }
            self.all = now;
        }
        Ok(())
    }

    /// The number of records in the new store.
    pub(crate) fn count(&self) -> u64 {
        self.all.len() as u64
    }
}

/// Sets the record of the bucket `name`, or removes it.
pub(crate) async fn set(store: &Store, name: &str, record: Option<&[u8]>) -> anyhow::Result<()> {
    loop {
        match store.restore_bucket(name, record).await {
            Err(Error::Busy(_)) => tokio::time::sleep(BUSY_PAUSE).await,
            done => return done.with_context(|| format!("cannot restore the settings of bucket {name:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_engine::{BucketConfig, block_on};
    use shoal_storekit::StoreKit;

    use super::*;

    fn record(tag: u8) -> Vec<u8> {
        let mut config = BucketConfig::default();
        config.items.set(tag, Some(b"x"));
        config.encode().unwrap()
    }

    /// The records of a chain are those of its last backup; after one that lacks something, earlier ones stay.
    #[test]
    fn the_last_backup_decides_which_buckets_have_a_record() {
        let mut kit = StoreKit::new(2_048);
        kit.options.background = false;
        let (store, mut restored) = (kit.in_memory(), RestoredBuckets::default());
        let mut backup = |records: &[(&str, u8)], has_everything| {
            for &(name, tag) in records {
                let bucket = BucketRecord { name: name.into(), record: record(tag).into() };
                block_on(restored.put(&store, bucket)).unwrap();
            }
            block_on(restored.end_backup(&store, has_everything)).unwrap();
            restored.count()
        };
        assert_eq!(backup(&[("a", 1), ("b", 1), ("c", 1)], true), 3);
        assert_eq!(backup(&[("b", 2)], false), 3);
        assert_eq!(backup(&[("b", 3), ("c", 1), ("d", 1)], true), 3);
        store.load_buckets().unwrap();
        let tags = ["a", "b", "c", "d"].map(|name| {
            let state = store.bucket(name).unwrap()?;
            state.config().items.iter().next().map(|(tag, _)| tag)
        });
        assert_eq!(tags, [None, Some(3), Some(1), Some(1)]);
        block_on(store.close()).unwrap();
    }
}
