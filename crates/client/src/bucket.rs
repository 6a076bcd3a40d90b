//! A bucket of a server behind the interface that both transports have.

use bytes::Bytes;

use crate::client::Client;
use crate::error::Result;
use crate::multi::{GetItem, PutItem};
use crate::object::{ByteRange, Objects, PutOptions, RejectRules};

/// The objects of one bucket, over gRPC.
#[derive(Clone, Debug)]
pub struct Bucket {
    client: Client,
    name: String,
}

impl Client {
    /// The objects of one bucket.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Bucket {
        Bucket { client: self.clone(), name: name.into() }
    }
}

fn item((key, value): &(Bytes, Bytes)) -> PutItem {
    PutItem { key: key.clone(), value: value.clone(), options: PutOptions::default() }
}

impl Objects for Bucket {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let object = self.client.get(&self.name, key, ByteRange::ALL).await?;
        Ok(object.map(|object| object.value))
    }

    async fn get_versioned(&self, key: &[u8]) -> Result<Option<(u64, Bytes)>> {
        let object = self.client.get(&self.name, key, ByteRange::ALL).await?;
        Ok(object.map(|object| (object.info.version, object.value)))
    }

    async fn put(&self, key: &[u8], value: Bytes, rules: RejectRules) -> Result<()> {
        let options = PutOptions { rules, ..PutOptions::default() };
        self.client.put(&self.name, key, value, options).await.map(|_| ())
    }

    async fn delete(&self, key: &[u8]) -> Result<()> {
        self.client.delete(&self.name, key, RejectRules::default()).await.map(|_| ())
    }

    async fn get_many(&self, keys: &[Bytes]) -> Vec<Result<Option<Bytes>>> {
        let items: Vec<_> =
            keys.iter().map(|key| GetItem { key: key.clone(), range: ByteRange::ALL }).collect();
        let found = self.client.multi_get(&self.name, &items).await.into_iter();
        found.map(|result| result.map(|object| object.map(|object| object.value))).collect()
    }

    async fn put_many(&self, items: &[(Bytes, Bytes)]) -> Vec<Result<()>> {
        let items: Vec<_> = items.iter().map(item).collect();
        let put = self.client.multi_put(&self.name, &items).await.into_iter();
        put.map(|result| result.map(|_| ())).collect()
    }

    async fn put_together(&self, items: &[(Bytes, Bytes)]) -> Result<()> {
        let items: Vec<_> = items.iter().map(item).collect();
        self.client.put_together(&self.name, &items).await.map(|_| ())
    }
}
