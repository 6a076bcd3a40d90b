//! What all commands share: the store, the bucket of the keys, the clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use shoal_base::{Clock, Entropy};
use shoal_buffer::Buffer;
use shoal_engine::{
    Bucket, ByteRange, Change, Environment, Expiry, Look, Metadata, Object, ObjectKey, Pending, Store,
    Updated,
};

use crate::answer::{Answer, Failed, Finished, Outcome};
use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::options::{Durability, RedisOptions};

/// What all threads of the face share.
pub(crate) struct Face {
    pub store: Store,
    pub options: RedisOptions,
    /// The bucket of the keys.
    pub bucket: Bucket,
    pub address: SocketAddr,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Forty digits that tell this run of the server from others; also its identity in a cluster.
    pub run_id: String,
    pub since_ns: u64,
    pub clients: Clients,
    pub cursors: Cursors,
    pub commands: AtomicU64,
}

impl Face {
    pub(crate) fn new(
        store: Store,
        options: RedisOptions,
        bucket: Bucket,
        address: SocketAddr,
        environment: Environment,
    ) -> Arc<Self> {
        let Environment { clock, entropy } = environment;
        let mut run_id: String = (0..3).map(|_| format!("{:016x}", entropy.next_u64())).collect();
        run_id.truncate(40);
        Arc::new(Self {
            store,
            options,
            bucket,
            address,
            since_ns: clock.monotonic_ns(),
            clock,
            entropy,
            run_id,
            clients: Clients::default(),
            cursors: Cursors::default(),
            commands: AtomicU64::new(0),
        })
    }

    /// The object that a key names.
    pub(crate) fn key(&self, key: &[u8]) -> Result<ObjectKey, Failed> {
        Ok(self.bucket.key(key)?)
    }

    /// Whether writes are acknowledged before they are durable.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.options.durability != Durability::Sync
    }

    /// Now, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ns() / 1_000_000
    }

    /// Reads an object. `newest`: as its newest write leaves it, which must be durable first.
    pub(crate) async fn read(
        &self,
        key: &ObjectKey,
        newest: bool,
    ) -> Result<(Option<Object>, Option<Pending>), Failed> {
        if !newest {
            return Ok((self.store.get(key, ByteRange::ALL).await?, None));
        }
        let keep = |object: Option<&Object>| (Change::Keep, object.cloned());
        let Updated { answer, pending } = self.store.update(key, Look::Value, keep).await?;
        Ok((answer, pending))
    }

    /// What is known about an object, its value left out.
    pub(crate) async fn head(
        &self,
        key: &ObjectKey,
        newest: bool,
    ) -> Result<(Option<shoal_engine::ObjectInfo>, Option<Pending>), Failed> {
        if !newest {
            return Ok((self.store.head(key).await?, None));
        }
        let keep = |object: Option<&Object>| (Change::Keep, object.map(|object| object.info.clone()));
        let Updated { answer, pending } = self.store.update(key, Look::Info, keep).await?;
        Ok((answer, pending))
    }

    /// Updates an object; what `decide` answers leaves when it is durable.
    pub(crate) async fn update(
        &self,
        key: &ObjectKey,
        look: Look,
        decide: impl FnMut(Option<&Object>) -> (Change, Answer),
    ) -> Outcome {
        let Updated { answer, pending } = self.store.update(key, look, decide).await?;
        Ok(Finished::after(answer, pending))
    }
}

/// A change that gives the object a new value and leaves all else as it is.
pub(crate) fn new_value(object: Option<&Object>, value: Vec<u8>) -> Change {
    Change::Put {
        value: Bytes::from(value).into(),
        metadata: object.map_or_else(Metadata::default, |object| object.info.metadata.clone()),
        expiry: object.and_then(|object| object.info.expiry).into(),
    }
}

/// A change that gives the object another time to live.
pub(crate) fn new_expiry(object: &Object, expiry: Expiry) -> Change {
    Change::Put { value: object.value.clone(), metadata: object.info.metadata.clone(), expiry }
}

/// A change that stores a value as SET does: nothing of the old object stays.
pub(crate) fn set_value(value: &Bytes, expiry: Expiry) -> Change {
    Change::Put { value: Buffer::from(value.clone()), metadata: Metadata::default(), expiry }
}
