//! The store as the clients of a case see it: called directly, or through the server and the network's client.

use anyhow::{Result, ensure};
use bytes::Bytes;
use shoal_client::Client;
use shoal_engine::{ObjectKey, Store};

use crate::payload::Ends;

/// The bucket of everything written by a benchmark.
pub(crate) const BUCKET: &str = "bench";

/// Keys of one page of a listing.
const PAGE_KEYS: u32 = 1000;

/// One way to a store. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Target {
    /// In this thread.
    Embedded(Store),
    /// Over the loopback interface.
    Server(Client),
}

impl Target {
    pub(crate) async fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        match self {
            Self::Embedded(store) => {
                let mut buffer = shoal_buffer::Buffer::new();
                buffer.append(value);
                store.put(&ObjectKey::new(BUCKET, key)?, buffer, shoal_engine::PutOptions::default()).await?;
            }
            Self::Server(client) => {
                client.put(BUCKET, key, value, shoal_client::PutOptions::default()).await?;
            }
        }
        Ok(())
    }

    /// The compared parts of the value; `None` if there is no such object.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Ends>> {
        match self {
            Self::Embedded(store) => {
                let key = ObjectKey::new(BUCKET, key)?;
                let Some(object) = store.get(&key, shoal_engine::ByteRange::ALL).await? else {
                    return Ok(None);
                };
                let mut ends = Ends { bytes: object.value.len() as u64, ..Ends::default() };
                let count = object.value.len().min(ends.first.len());
                object.value.copy_out(0, &mut ends.first[..count])?;
                object.value.copy_out(object.value.len() - count, &mut ends.last[..count])?;
                Ok(Some(ends))
            }
            Self::Server(client) => {
                let object = client.get(BUCKET, key, shoal_client::ByteRange::ALL).await?;
                Ok(object.map(|object| Ends::of(&object.value)))
            }
        }
    }

    pub(crate) async fn delete(&self, key: &[u8]) -> Result<()> {
        match self {
            Self::Embedded(store) => {
                store.delete(&ObjectKey::new(BUCKET, key)?, shoal_engine::RejectRules::default()).await?;
            }
            Self::Server(client) => {
                client.delete(BUCKET, key, shoal_client::RejectRules::default()).await?;
            }
        }
        Ok(())
    }

    /// One page of all keys after `after`: their number, and the start of the next page.
    pub(crate) async fn list(&self, after: &[u8]) -> Result<(u64, Option<Vec<u8>>)> {
        let request = shoal_engine::ListRequest {
            bucket: BUCKET.into(),
            start_after: after.to_vec(),
            limit: PAGE_KEYS as usize,
            ..shoal_engine::ListRequest::default()
        };
        let (keys, next) = match self {
            Self::Embedded(store) => {
                let page = store.list(&request).await?;
                (page.entries.len(), page.next)
            }
            Self::Server(client) => {
                let page = client.list(&request).await?;
                (page.entries.len(), page.next)
            }
        };
        ensure!(keys > 0, "there is nothing to list");
        Ok((keys as u64, next))
    }
}
