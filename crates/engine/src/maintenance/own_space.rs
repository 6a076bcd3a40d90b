//! Saves the groups of the buckets with separate space, in an object of the store's own bucket.

use std::time::Duration;

use crate::store::Store;
use shoal_common::error::{Error, Result};
use shoal_common::key::system_key;
use shoal_common::object::{ByteRange, PutOptions};

/// Changes are saved at most this often.
pub(crate) const SAVE_PERIOD: Duration = Duration::from_secs(1);

/// The key of that object in the store's own bucket.
const KEY: &[u8] = b"own-space";

impl Store {
    /// Restores the saved groups of the buckets with separate space.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn restore_own_space(&self) -> Result<()> {
        let inner = &*self.0;
        if inner.own.count() == 0 {
            return Ok(());
        }
        let found = match self.get(&system_key(KEY), ByteRange::default()).await {
            Ok(Some(object)) => object.value.to_vec(),
            Ok(None) => return Ok(()),
            Err(Error::Corrupt { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let text = std::str::from_utf8(&found).ok();
        if text.and_then(|text| inner.own.restore(text, &inner.space)).is_none() {
            tracing::warn!(
                "cannot read which groups belong to which bucket: the buckets start with new ones"
            );
        }
        *inner.own.saved.lock() = inner.space.allocator().owner_changes();
        Ok(())
    }

    /// Saves the groups of the buckets with separate space, if they changed. Returns true if they did.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub(crate) async fn save_own_space(&self) -> Result<bool> {
        let inner = &*self.0;
        let changes = inner.space.allocator().owner_changes();
        if inner.own.count() == 0 || *inner.own.saved.lock() == changes {
            return Ok(false);
        }
        let text = inner.own.text(&inner.space).into_bytes();
        self.put(&system_key(KEY), text.into(), PutOptions::default()).await?;
        *inner.own.saved.lock() = changes;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::in_memory_as;
    use crate::{Environment, FormatOptions, ObjectKey, OpenOptions, block_on};

    /// A bucket's values share no group with another's, before a restart and after it.
    #[test]
    fn bucket_groups_are_exclusive() {
        let device = in_memory_as(&FormatOptions::for_blocks(8192));
        block_on(async {
            let mut groups = Vec::new();
            for round in 0..3u8 {
                let options = OpenOptions { own_space: vec!["films".into()], ..OpenOptions::default() };
                let store = Store::open(device.clone(), options, Environment::default()).await.unwrap();
                let allocator = store.0.space.allocator();
                assert_eq!(allocator.groups_of(1), groups, "round {round}");
                for index in 0..20u8 {
                    for bucket in ["films", "mail"] {
                        let key = ObjectKey::new(bucket, &[round, index]).unwrap();
                        store.put(&key, vec![index; 70_000].into(), PutOptions::default()).await.unwrap();
                    }
                }
                groups = allocator.groups_of(1);
                let own: u32 = groups.iter().map(|run| run.blocks).sum();
                let needed = (u32::from(round) + 1) * 20 * 18;
                assert!((needed..needed + 3 * 128).contains(&own), "{own} blocks for {needed}");
                assert_eq!(store.stat().own_blocks, u64::from(own));
                store.close().await.unwrap();
            }
            assert!(
                ObjectKey::new(".shoal", b"own-space").is_err(),
                "the store's own bucket is nobody else's"
            );
            assert_eq!(
                crate::check(device, &crate::CheckOptions::default()).await.unwrap().problems.len(),
                0
            );
        });
    }
}
