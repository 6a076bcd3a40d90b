//! The objects of a store, on a server or embedded in this program, with one interface: that of the client. Code above is written
//! once, against [`Objects`].

mod embedded;

use std::path::PathBuf;

use bytes::Bytes;
use shoal_backup::{BackupStream, LastBackup};
use shoal_base::{BLOCK_BYTES, Entropy, SystemEntropy};
use shoal_client::{
    BackupSince, BucketPage, ByteRange, Client, DeleteItem, DeleteResult, Error, GetItem, GetResult, ListAll,
    ListEntry, ListRequest, ObjectAttributes, Page, PutItem, PutOptions, PutResult, RejectRules, Result, Run,
    Stat,
};
use shoal_engine::Store;

use crate::objects::embedded::{Embedded, EmbeddedGet, from_error};

/// A server, or an embedded store. Cheap to clone.
#[derive(Clone)]
pub enum Objects {
    /// A server.
    Remote(Client),
    /// A store that this program has open.
    Embedded(Embedded),
}

/// Writes a value piece by piece. Dropping it without [`finish`](Self::finish) stores nothing.
pub enum ObjectWriter {
    /// To a server.
    Remote(Box<shoal_client::PutStream>),
    /// To an embedded store.
    Embedded(Box<shoal_engine::ValueWriter>),
}

/// Reads a value piece by piece.
pub enum ObjectReader {
    /// From a server.
    Remote(Box<shoal_client::GetStream>),
    /// From an embedded store.
    Embedded(Box<EmbeddedGet>),
}

/// Reads a listing page by page.
pub enum Pages<'a> {
    /// From a server.
    Remote(ListAll),
    /// From an embedded store; no request after the last page.
    Embedded(&'a Embedded, Option<ListRequest>),
}

/// Reads the free runs of a store's space.
pub enum FreeRuns {
    /// From a server.
    Remote(Box<shoal_client::FreeSpace>),
    /// From an embedded store.
    Embedded(Box<shoal_engine::FreeRunIter>),
}

/// Reads a backup piece by piece.
pub enum BackupBytes {
    /// From a server.
    Remote(Box<shoal_client::Backup>),
    /// From an embedded store.
    Embedded(Box<BackupStream>),
}

/// Free runs of an embedded store that one call returns.
const FREE_RUNS_AT_ONCE: usize = 4096;

impl Objects {
    /// An open store in the file `path`.
    pub fn embedded(store: Store, path: PathBuf) -> Self {
        Self::Embedded(Embedded { store, path })
    }

    /// Stores an object of at most 4 MiB.
    pub async fn put(
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

    /// Starts to write an object of any size.
    pub fn put_stream(&self, bucket: &str, key: &[u8], options: PutOptions) -> Result<ObjectWriter> {
        Ok(match self {
            Self::Remote(client) => ObjectWriter::Remote(Box::new(client.put_stream(bucket, key, options))),
            Self::Embedded(store) => {
                ObjectWriter::Embedded(Box::new(store.put_stream(bucket, key, options)?))
            }
        })
    }

    /// Stores several objects at the same time; returns results in the order of `items`.
    pub async fn put_many(&self, bucket: &str, items: Vec<PutItem>) -> Vec<Result<PutResult>> {
        match self {
            Self::Remote(client) => client.multi_put(bucket, &items).await,
            Self::Embedded(store) => store.put_many(bucket, items).await,
        }
    }

    /// Starts to read `range` of an object; none if the object is absent.
    pub async fn get_stream(
        &self,
        bucket: &str,
        key: &[u8],
        range: ByteRange,
    ) -> Result<Option<ObjectReader>> {
        Ok(match self {
            Self::Remote(client) => {
                let stream = client.get_stream(bucket, key, range).await?;
                stream.map(|stream| ObjectReader::Remote(Box::new(stream)))
            }
            Self::Embedded(store) => {
                let stream = store.get_stream(bucket, key, range).await?;
                stream.map(|stream| ObjectReader::Embedded(Box::new(stream)))
            }
        })
    }

    /// Reads several objects of at most 4 MiB at the same time; returns results in the order of `keys`.
    pub async fn get_many(&self, bucket: &str, keys: Vec<Bytes>) -> Vec<Result<Option<GetResult>>> {
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
    pub async fn head(&self, bucket: &str, key: &[u8]) -> Result<Option<ObjectAttributes>> {
        match self {
            Self::Remote(client) => client.head(bucket, key).await,
            Self::Embedded(store) => store.head(bucket, key).await,
        }
    }

    /// Deletes objects; returns results in the order of `keys`. An absent object is no error unless `rules` reject it.
    pub async fn delete_many(
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
    pub async fn list(&self, request: &ListRequest) -> Result<Page<ListEntry>> {
        match self {
            Self::Remote(client) => client.list(request).await,
            Self::Embedded(store) => store.list(request).await,
        }
    }

    /// The pages of the listing of all keys in `bucket` that start with `prefix`.
    pub fn pages(&self, bucket: &str, prefix: &[u8]) -> Pages<'_> {
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_vec());
        self.pages_of(ListRequest { bucket, prefix, ..ListRequest::default() })
    }

    /// The pages of a listing.
    pub fn pages_of(&self, request: ListRequest) -> Pages<'_> {
        match self {
            Self::Remote(client) => Pages::Remote(client.list_all(request)),
            Self::Embedded(store) => Pages::Embedded(store, Some(request)),
        }
    }

    /// One page of the names of buckets with objects, after `start_after`.
    pub async fn list_buckets(&self, start_after: &str) -> Result<BucketPage> {
        match self {
            Self::Remote(client) => client.list_buckets(start_after).await,
            Self::Embedded(store) => store.list_buckets(start_after).await,
        }
    }

    /// The figures of the store.
    pub async fn stat(&self) -> Result<Stat> {
        match self {
            Self::Remote(client) => client.stat().await,
            Self::Embedded(store) => store.stat().await,
        }
    }

    /// The server's texts for a support case; none without a server.
    pub async fn report(&self) -> Result<Vec<(String, String)>> {
        match self {
            Self::Remote(client) => client.report().await,
            Self::Embedded(_) => Ok(Vec::new()),
        }
    }

    /// Pauses or resumes relocation.
    pub async fn pause_relocation(&self, pause: bool) -> Result<()> {
        match self {
            Self::Remote(client) => return client.pause_relocation(pause).await,
            Self::Embedded(embedded) if pause => embedded.store.pause_relocation(),
            Self::Embedded(embedded) => embedded.store.resume_relocation(),
        }
        Ok(())
    }

    /// The free runs of the store's space, of now.
    pub async fn free_space(&self) -> Result<FreeRuns> {
        match self {
            Self::Remote(client) => Ok(FreeRuns::Remote(Box::new(client.free_space().await?))),
            Self::Embedded(embedded) => Ok(FreeRuns::Embedded(Box::new(embedded.store.free_space()))),
        }
    }

    /// Starts a backup of all objects of now, or of the changes since another backup.
    pub async fn backup(&self, since: Option<&LastBackup>) -> Result<BackupBytes> {
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
                Ok(BackupBytes::Remote(Box::new(backup)))
            }
            Self::Embedded(embedded) => {
                let number = SystemEntropy.next_u64();
                let stream = match since {
                    None => BackupStream::begin(&embedded.store, number).await,
                    Some(last) => BackupStream::begin_since(&embedded.store, number, last).await,
                };
                Ok(BackupBytes::Embedded(Box::new(stream.map_err(from_error)?)))
            }
        }
    }

    /// The data file, if this program has it open.
    pub fn data_file(&self) -> Option<&PathBuf> {
        match self {
            Self::Remote(_) => None,
            Self::Embedded(embedded) => Some(&embedded.path),
        }
    }

    /// Closes an embedded store in order. Call this once, at the end.
    pub async fn close(self) -> Result<()> {
        match self {
            Self::Remote(_) => Ok(()),
            Self::Embedded(embedded) => embedded.store.close().await.map_err(from_error),
        }
    }
}

impl ObjectWriter {
    /// Appends bytes to the value.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match self {
            Self::Remote(stream) => stream.write(bytes).await,
            Self::Embedded(stream) => stream.write(&bytes).await.map_err(from_error),
        }
    }

    /// Completes the value, and makes the object durable and visible.
    pub async fn finish(self) -> Result<PutResult> {
        match self {
            Self::Remote(stream) => stream.finish().await,
            Self::Embedded(stream) => stream.finish().await.map_err(from_error),
        }
    }
}

impl ObjectReader {
    /// The version, length, times and metadata of the whole object.
    pub fn info(&self) -> &ObjectAttributes {
        match self {
            Self::Remote(stream) => stream.info(),
            Self::Embedded(stream) => &stream.info,
        }
    }

    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Self::Remote(stream) => stream.next().await,
            Self::Embedded(stream) => stream.next().await,
        }
    }
}

impl Pages<'_> {
    /// The next page; none after the last one.
    pub async fn next(&mut self) -> Result<Option<Page<ListEntry>>> {
        let (store, rest) = match self {
            Self::Remote(pages) => return pages.next_page().await,
            Self::Embedded(store, rest) => (store, rest),
        };
        let Some(request) = rest else { return Ok(None) };
        let mut page = store.list(request).await?;
        match page.next.take() {
            Some(next) => request.start_after = next,
            None => *rest = None,
        }
        Ok(Some(page))
    }

    /// Continues after `key`, if the next page starts before it.
    pub(crate) fn skip_to(&mut self, key: Vec<u8>) {
        match self {
            Self::Remote(pages) => pages.skip_to(key),
            Self::Embedded(_, Some(request)) if request.start_after < key => request.start_after = key,
            Self::Embedded(..) => {}
        }
    }
}

impl BackupBytes {
    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Self::Remote(backup) => backup.next().await,
            Self::Embedded(backup) => {
                let chunk = backup.next().await.map_err(from_error)?;
                Ok(chunk.map(Bytes::from))
            }
        }
    }
}

impl FreeRuns {
    /// Bytes of a block, blocks in use or usable now, blocks of a group of the allocator.
    pub fn layout(&self) -> (u32, u64, u32) {
        match self {
            Self::Remote(space) => (space.block_bytes, space.blocks, space.group_blocks),
            Self::Embedded(space) => (BLOCK_BYTES as u32, space.device_blocks(), space.group_blocks()),
        }
    }

    /// The next runs, in ascending order; none at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Run>>> {
        match self {
            Self::Remote(space) => space.next().await,
            Self::Embedded(space) => {
                let runs: Vec<Run> = space.take(FREE_RUNS_AT_ONCE).collect();
                Ok(Some(runs).filter(|runs| !runs.is_empty()))
            }
        }
    }
}

/// Returns true if further requests would fail the same way.
pub fn is_lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Full(_)
            | Error::ReadOnly(_)
            | Error::Denied(_)
            | Error::Unavailable { .. }
            | Error::Protocol(_)
    )
}
