//! Many small operations in few messages, on Shoal's own interface: the stream of operations, and the batches.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use shoal_client::{ByteRange, Client, ConnectOptions, GetItem, OperationStream, PutItem, PutOptions};

use super::keys::{Key, Source};
use super::load::{Call, Ended, Load, Outcome};

/// The objects' bucket.
pub(super) const BUCKET: &str = "many";

/// Operations in a batch.
pub(super) const BATCH: usize = 100;

/// The kind of operations, and the way that they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One by one over a stream, by one task: gets and puts in turn.
    Stream,
    StreamGet,
    StreamPut,
    /// As `Stream`, with a future for each operation.
    StreamFutures,
    MultiGet,
    MultiPut,
}

impl Pattern {
    /// Calls in flight: operations of the stream, or batches.
    pub(super) fn in_flight(self) -> usize {
        match self {
            Self::Stream | Self::StreamGet | Self::StreamPut | Self::StreamFutures => 1_000,
            Self::MultiGet | Self::MultiPut => 10,
        }
    }
}

/// The objects of a server, and the connection to it.
pub(super) struct Many {
    pub(super) client: Client,
    stream: OperationStream,
    pub(super) source: Rc<Source>,
    pub(super) value_bytes: usize,
    keys: Vec<Rc<Key>>,
}

/// Batches, or operations with a future each.
pub(super) struct Travelling {
    pub(super) many: Rc<Many>,
    pub(super) pattern: Pattern,
    pub(super) turn: Cell<usize>,
}

impl Many {
    /// Connects, and puts `count` objects with keys and values of these lengths.
    pub(super) async fn load(
        source: &Rc<Source>,
        address: SocketAddr,
        count: usize,
        [key_bytes, value_bytes]: [usize; 2],
    ) -> Result<Rc<Self>> {
        let options = ConnectOptions { connections: 1, ..ConnectOptions::new(address.to_string()) };
        let client = Client::connect(options).await.context("no server answers")?;
        let stream = client.operations(BUCKET);
        let keys: Vec<_> = (0..count).map(|_| source.key(key_bytes)).collect();
        let many = Rc::new(Self { source: Rc::clone(source), client, stream, value_bytes, keys });
        for keys in many.keys.chunks(BATCH * 10) {
            Rc::clone(&many).multi_put(keys.to_vec()).await?;
        }
        Ok(many)
    }

    pub(super) fn any(&self) -> Rc<Key> {
        Rc::clone(&self.keys[self.source.below(self.keys.len())])
    }

    async fn get(self: Rc<Self>, key: Rc<Key>) -> Result<Ended> {
        let floor = key.begin_read();
        match self.stream.get(key.name.clone(), ByteRange::ALL).await? {
            Some(object) => key.check(&self.source, floor, &object.value)?,
            None => bail!("an object is lost"),
        }
        Ok(ended(1))
    }

    async fn put(self: Rc<Self>, key: Rc<Key>) -> Result<Ended> {
        let value = self.source.value(self.value_bytes);
        let writing = key.begin_write(value);
        let put = self.stream.put(key.name.clone(), self.source.bytes(value), PutOptions::default()).await;
        key.end_write(&writing, put.is_ok());
        put?;
        Ok(ended(1))
    }

    async fn multi_get(self: Rc<Self>, keys: Vec<Rc<Key>>) -> Result<Ended> {
        let floors: Vec<usize> = keys.iter().map(|key| key.begin_read()).collect();
        let items: Vec<GetItem> =
            keys.iter().map(|key| GetItem { key: key.name.clone(), ..GetItem::default() }).collect();
        let results = self.client.multi_get(BUCKET, &items).await;
        for ((key, floor), result) in keys.iter().zip(floors).zip(results) {
            key.check(&self.source, floor, &result?.context("an object is lost")?.value)?;
        }
        Ok(ended(keys.len()))
    }

    async fn multi_put(self: Rc<Self>, keys: Vec<Rc<Key>>) -> Result<Ended> {
        let started: Vec<_> = keys
            .iter()
            .map(|key| {
                let value = self.source.value(self.value_bytes);
                (key.begin_write(value), value)
            })
            .collect();
        let items: Vec<PutItem> = keys
            .iter()
            .zip(&started)
            .map(|(key, (_, value))| PutItem {
                key: key.name.clone(),
                value: self.source.bytes(*value),
                options: PutOptions::default(),
            })
            .collect();
        let results = self.client.multi_put(BUCKET, &items).await;
        for ((key, (writing, _)), result) in keys.iter().zip(&started).zip(results) {
            key.end_write(writing, result.is_ok());
            result?;
        }
        Ok(ended(keys.len()))
    }
}

impl Load for Travelling {
    fn next(&self) -> Call {
        let turn = self.turn.get();
        self.turn.set(turn + 1);
        let many = Rc::clone(&self.many);
        let batch = |many: &Many| (0..BATCH).map(|_| many.any()).collect::<Vec<_>>();
        match self.pattern {
            Pattern::MultiGet => {
                let keys = batch(&many);
                Box::pin(many.multi_get(keys))
            }
            Pattern::MultiPut => {
                let keys = batch(&many);
                Box::pin(many.multi_put(keys))
            }
            _ => {
                let key = many.any();
                if turn.is_multiple_of(2) { Box::pin(many.get(key)) } else { Box::pin(many.put(key)) }
            }
        }
    }
}

pub(super) fn ended(operations: usize) -> Ended {
    Ended { outcome: Outcome::Done, operations: operations as u64, work: Duration::ZERO }
}
