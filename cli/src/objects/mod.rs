//! Objects wherever they are: on a server, or in a store that this program opened itself. Commands are written once, against
//! [`Objects`], in the client's words.

mod embedded;

use std::path::PathBuf;

use anyhow::anyhow;
use bytes::Bytes;
use shoal_backup::{BackupStream, LastBackup};
use shoal_base::{BLOCK_BYTES, Entropy, SystemEntropy};
use shoal_client::{
    BackupSince, BucketPage, ByteRange, Client, ConnectOptions, DeleteItem, DeleteResult, Error, GetItem,
    ListPage, ListRequest, Object, ObjectInfo, PutItem, PutOptions, PutResult, RejectRules, Result, Run,
    Stat,
};
use shoal_engine::Store;

use crate::failure::Usage;
use crate::objects::embedded::{Embedded, EmbeddedGet, from_error};

/// Attempts of a call: for about ten seconds, so that a long import outlives a restart of the server. `--timeout` may stop it
/// sooner.
const ATTEMPTS: u32 = 14;

/// A server, or an embedded store. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Objects {
    Remote(Client),
    Embedded(Embedded),
}

/// A value on its way in. Dropping it without [`finish`](Self::finish) stores nothing.
pub(crate) enum PutStream {
    Remote(Box<shoal_client::PutStream>),
    Embedded(Box<shoal_engine::PutStream>),
}

/// A value on its way out.
pub(crate) enum GetStream {
    Remote(Box<shoal_client::GetStream>),
    Embedded(Box<EmbeddedGet>),
}

/// The free runs of a store's space on their way.
pub(crate) enum FreeSpace {
    Remote(Box<shoal_client::FreeSpace>),
    Embedded(Box<shoal_engine::FreeSpace>),
}

/// A backup on its way.
pub(crate) enum Backup {
    Remote(Box<shoal_client::Backup>),
    Embedded(Box<BackupStream>),
}

/// Free runs that an embedded store returns at a time.
const FREE_RUNS_AT_ONCE: usize = 4096;

impl Objects {
    /// Connects to the server of `options`.
    pub(crate) async fn remote(options: ConnectOptions) -> anyhow::Result<Self> {
        Ok(Self::Remote(Self::connect(options).await?))
    }

    /// A connection to the server of `options`.
    pub(crate) async fn connect(options: ConnectOptions) -> anyhow::Result<Client> {
        let options = ConnectOptions { attempts: ATTEMPTS, ..options };
        match Client::connect(options).await {
            Ok(client) => Ok(client),
            Err(Error::Invalid(why)) => Err(Usage(why).into()),
            Err(error @ Error::Unavailable { .. }) => {
                Err(anyhow!("{error} (--server names another one; --data FILE works without one)"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A store that is open in this program, in the file `path`.
    pub(crate) fn embedded(store: Store, path: PathBuf) -> Self {
        Self::Embedded(Embedded { store, path })
    }

    /// Stores an object whose value is in memory (at most 4 MiB).
    pub(crate) async fn put(
        &self,
        bucket: &str,
        key: &[u8],
        value: Bytes,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self {
            Self::Remote(client) => client.put(bucket, key, value, options).await,
            Self::Embedded(store) => store.put(bucket, key, value, options).await,
        }
    }

    /// Starts to store an object of any size.
    pub(crate) fn put_stream(&self, bucket: &str, key: &[u8], options: PutOptions) -> Result<PutStream> {
        Ok(match self {
            Self::Remote(client) => PutStream::Remote(Box::new(client.put_stream(bucket, key, options))),
            Self::Embedded(store) => PutStream::Embedded(Box::new(store.put_stream(bucket, key, options)?)),
        })
    }

    /// Several puts at the same time, in the order of `items`.
    pub(crate) async fn put_many(&self, bucket: &str, items: Vec<PutItem>) -> Vec<Result<PutResult>> {
        match self {
            Self::Remote(client) => client.multi_put(bucket, &items).await,
            Self::Embedded(store) => store.put_many(bucket, items).await,
        }
    }

    /// Starts to read an object, or its bytes in `range`; none if there is no such object.
    pub(crate) async fn get_stream(
        &self,
        bucket: &str,
        key: &[u8],
        range: ByteRange,
    ) -> Result<Option<GetStream>> {
        Ok(match self {
            Self::Remote(client) => {
                let stream = client.get_stream(bucket, key, range).await?;
                stream.map(|stream| GetStream::Remote(Box::new(stream)))
            }
            Self::Embedded(store) => {
                let stream = store.get_stream(bucket, key, range).await?;
                stream.map(|stream| GetStream::Embedded(Box::new(stream)))
            }
        })
    }

    /// Several objects of at most 4 MiB, in the order of `keys`.
    pub(crate) async fn get_many(&self, bucket: &str, keys: Vec<Bytes>) -> Vec<Result<Option<Object>>> {
        match self {
            Self::Remote(client) => {
                let item = |key| GetItem { key, range: ByteRange::ALL };
                let items: Vec<GetItem> = keys.into_iter().map(item).collect();
                client.multi_get(bucket, &items).await
            }
            Self::Embedded(store) => store.get_many(bucket, keys).await,
        }
    }

    /// The version, length, times and metadata of an object.
    pub(crate) async fn head(&self, bucket: &str, key: &[u8]) -> Result<Option<ObjectInfo>> {
        match self {
            Self::Remote(client) => client.head(bucket, key).await,
            Self::Embedded(store) => store.head(bucket, key).await,
        }
    }

    /// Deletes objects, in the order of `keys`. Absent ones are no error unless `rules` reject them.
    pub(crate) async fn delete_many(
        &self,
        bucket: &str,
        keys: Vec<Bytes>,
        rules: RejectRules,
    ) -> Vec<Result<DeleteResult>> {
        match self {
            Self::Remote(client) => {
                let items: Vec<DeleteItem> = keys.into_iter().map(|key| DeleteItem { key, rules }).collect();
                client.multi_delete(bucket, &items).await
            }
            Self::Embedded(store) => store.delete_many(bucket, keys, rules).await,
        }
    }

    /// One page of keys, in order.
    pub(crate) async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        match self {
            Self::Remote(client) => client.list(request).await,
            Self::Embedded(store) => store.list(request).await,
        }
    }

    /// The names of buckets that hold objects, after `start_after`: one page.
    pub(crate) async fn list_buckets(&self, start_after: &str) -> Result<BucketPage> {
        match self {
            Self::Remote(client) => client.list_buckets(start_after).await,
            Self::Embedded(store) => store.list_buckets(start_after).await,
        }
    }

    /// Figures about the store.
    pub(crate) async fn stat(&self) -> Result<Stat> {
        match self {
            Self::Remote(client) => client.stat().await,
            Self::Embedded(store) => store.stat().await,
        }
    }

    /// The server's texts for a support case; none without a server.
    pub(crate) async fn report(&self) -> Result<Vec<(String, String)>> {
        match self {
            Self::Remote(client) => client.report().await,
            Self::Embedded(_) => Ok(Vec::new()),
        }
    }

    /// Pauses or resumes relocation.
    pub(crate) async fn pause_relocation(&self, pause: bool) -> Result<()> {
        match self {
            Self::Remote(client) => return client.pause_relocation(pause).await,
            Self::Embedded(embedded) if pause => embedded.store.pause_relocation(),
            Self::Embedded(embedded) => embedded.store.resume_relocation(),
        }
        Ok(())
    }

    /// The free runs of the store's space, as they are now.
    pub(crate) async fn free_space(&self) -> Result<FreeSpace> {
        match self {
            Self::Remote(client) => Ok(FreeSpace::Remote(Box::new(client.free_space().await?))),
            Self::Embedded(embedded) => Ok(FreeSpace::Embedded(Box::new(embedded.store.free_space()))),
        }
    }

    /// A backup of all objects as they are now, or of the changes since another one.
    pub(crate) async fn backup(&self, since: Option<&LastBackup>) -> Result<Backup> {
        match self {
            Self::Remote(client) => {
                let backup = match since {
                    None => client.backup().await?,
                    Some(last) => {
                        let (version, pages) = (last.version, last.pages_as_bytes().into());
                        let up_to = last.up_to.clone().map(|(tablet, key)| (tablet.0, key.into()));
                        client.backup_since(BackupSince { store: last.store, version, pages, up_to }).await?
                    }
                };
                Ok(Backup::Remote(Box::new(backup)))
            }
            Self::Embedded(embedded) => {
                let number = SystemEntropy.next_u64();
                let stream = match since {
                    None => BackupStream::begin(&embedded.store, number).await,
                    Some(last) => BackupStream::begin_since(&embedded.store, number, last).await,
                };
                Ok(Backup::Embedded(Box::new(stream.map_err(from_error)?)))
            }
        }
    }

    /// The data file, if this program has it open.
    pub(crate) fn data_file(&self) -> Option<&PathBuf> {
        match self {
            Self::Remote(_) => None,
            Self::Embedded(embedded) => Some(&embedded.path),
        }
    }

    /// To be called once at the end; an embedded store is closed in order.
    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Remote(_) => Ok(()),
            Self::Embedded(embedded) => embedded.store.close().await.map_err(from_error),
        }
    }
}

impl PutStream {
    /// Takes the next bytes of the value.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match self {
            Self::Remote(stream) => stream.write(bytes).await,
            Self::Embedded(stream) => stream.write(&bytes).await.map_err(from_error),
        }
    }

    /// The value is complete: makes it durable and visible.
    pub(crate) async fn finish(self) -> Result<PutResult> {
        match self {
            Self::Remote(stream) => stream.finish().await,
            Self::Embedded(stream) => stream.finish().await.map_err(from_error),
        }
    }
}

impl GetStream {
    /// The version, length, times and metadata of the whole object.
    pub(crate) fn info(&self) -> &ObjectInfo {
        match self {
            Self::Remote(stream) => stream.info(),
            Self::Embedded(stream) => &stream.info,
        }
    }

    /// The next bytes; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Self::Remote(stream) => stream.next().await,
            Self::Embedded(stream) => stream.next().await,
        }
    }
}

impl Backup {
    /// The next bytes; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Self::Remote(backup) => backup.next().await,
            Self::Embedded(backup) => {
                let chunk = backup.next().await.map_err(from_error)?;
                Ok(chunk.map(Bytes::from))
            }
        }
    }
}

impl FreeSpace {
    /// Bytes of a block, blocks that are in use or usable now, blocks of a group of the allocator.
    pub(crate) fn layout(&self) -> (u32, u64, u32) {
        match self {
            Self::Remote(space) => (space.block_bytes, space.blocks, space.group_blocks),
            Self::Embedded(space) => (BLOCK_BYTES as u32, space.device_blocks(), space.group_blocks()),
        }
    }

    /// The next runs, in ascending order; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Run>>> {
        match self {
            Self::Remote(space) => space.next().await,
            Self::Embedded(space) => {
                let runs: Vec<Run> = space.take(FREE_RUNS_AT_ONCE).collect();
                Ok(Some(runs).filter(|runs| !runs.is_empty()))
            }
        }
    }
}

/// Returns true if further requests would fail the same way, so that it makes no sense to continue.
pub(crate) fn is_lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Full(_)
            | Error::ReadOnly(_)
            | Error::Denied(_)
            | Error::Unavailable { .. }
            | Error::Protocol(_)
    )
}
