//! All calls of the engine that read, for the commands of every family. Next: `crates/memtable/src/read_cache.rs` and `read/get.rs` of the engine.

use bytes::Bytes;
use shoal_base::limits::LIST_PAGE_MAX;
use shoal_engine::{
    ByteRange, Change, Error, ListPage, ListRequest, ListSink, Lookup, Object, ObjectInfo, ObjectKey,
    ReadLevel, ShortObject, Ticket, TryGet, Updated, Watch,
};

use super::call::{Call, Finished, Outcome, Scope};
use super::write::update;
use crate::answer::{Answer, Failed};
use crate::frontend::FrontendRef;
use crate::memory::{LONG_BYTES, Room};
use crate::shared::Shared;

/// The result of a read, and the write that must be durable before the answer leaves.
pub(crate) type Seen<T> = Result<(Option<T>, Option<Ticket>), Failed>;

/// Shows the value of a key if it is short, durable and in memory, or that there is none. A search that must wait is continued
/// at once, by [`get_from`], or dropped.
#[inline]
pub(crate) fn try_get<T>(
    shared: &mut Shared,
    key: &ObjectKey,
    show: impl FnOnce(Option<&[u8]>) -> T,
) -> TryGet<T> {
    shared.reader.try_get(key, |found| show(found.map(ShortObject::value)))
}

/// Answers the value of a key; its search continues at `lookup`.
pub(crate) async fn get_from(frontend: FrontendRef, key: ObjectKey, lookup: Lookup) -> Outcome {
    let (object, _room) = read_within(&frontend, lookup, &key, ByteRange::ALL).await?;
    Ok(Answer::value(object.map(|object| object.value)).into())
}

/// The reason why a value was not read.
enum Unread {
    Failed(Error),
    /// There is no room for its bytes.
    NoRoom(usize),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Reads an object, a long one when there is room for it.
async fn read_within<'a>(
    frontend: &'a FrontendRef,
    lookup: Lookup,
    key: &ObjectKey,
    range: ByteRange,
) -> Result<(Option<Object>, Room<'a>), Failed> {
    let (mut lookup, mut room, mut most) = (lookup, frontend.memory.room(), LONG_BYTES);
    loop {
        let fits = |bytes: u64| match usize::try_from(bytes).unwrap_or(usize::MAX) {
            bytes if bytes <= most || room.grow(bytes) => Ok(()),
            bytes => Err(Unread::NoRoom(bytes)),
        };
        match frontend.store.get_from(lookup, key, range, fits).await {
            Ok(object) => return Ok((object, room)),
            Err(Unread::Failed(error)) => return Err(error.into()),
            Err(Unread::NoRoom(bytes)) => {
                // The view of the search is gone: the records that it reaches may be reused meanwhile.
                (lookup, most) = (Lookup::default(), bytes);
                room = frontend.memory.room_for(bytes).await;
            }
        }
    }
}

impl Call {
    /// Reads an object. `newest`: in the state after its newest write, which must be durable before the answer leaves.
    pub(crate) async fn read(&self, key: &ObjectKey, newest: bool) -> Seen<Object> {
        if let Scope::Transaction(working) = &self.scope {
            return Ok((working.see(key, ReadLevel::Value)?, None));
        }
        match newest {
            true => self.see(key, ReadLevel::Value, |object| object.cloned()).await,
            false => Ok((self.read_part(key, ByteRange::ALL).await?, None)),
        }
    }

    /// The value of a key as an answer: a copy if it is short and in memory. A command that reads many has one `room` for all
    /// of them, and fails if there is none.
    pub(crate) async fn read_value(
        &self,
        key: &ObjectKey,
        room: &Room<'_>,
    ) -> Result<(Answer, Option<Ticket>), Failed> {
        if !self.newest {
            let store = &self.frontend.store;
            let copy = |found: &ShortObject<'_>| Answer::Bulk(Bytes::copy_from_slice(found.value()));
            return match store.try_get(key, |found| found.map_or(Answer::Null, copy)) {
                TryGet::Shown(answer) => Ok((answer, None)),
                TryGet::MustWait(lookup) => {
                    let fits = |bytes: u64| room.admit(bytes);
                    let object = store.get_from(lookup, key, ByteRange::ALL, fits).await?;
                    Ok((Answer::value(object.map(|object| object.value)), None))
                }
            };
        }
        let (object, pending) = self.read(key, self.newest).await?;
        Ok((Answer::value(object.map(|object| object.value)), pending))
    }

    /// Reads the durable state of a part of an object.
    pub(crate) async fn read_part(
        &self,
        key: &ObjectKey,
        range: ByteRange,
    ) -> Result<Option<Object>, Failed> {
        Ok(read_within(&self.frontend, Lookup::default(), key, range).await?.0)
    }

    /// The attributes of an object, without its value.
    pub(crate) async fn head(&self, key: &ObjectKey, newest: bool) -> Seen<ObjectInfo> {
        if let Scope::Transaction(working) = &self.scope {
            return Ok((working.see(key, ReadLevel::Info)?.map(|object| object.info), None));
        }
        match newest {
            true => self.see(key, ReadLevel::Info, |object| object.map(|object| object.info.clone())).await,
            false => Ok((self.frontend.store.head(key).await?, None)),
        }
    }

    async fn see<T>(
        &self,
        key: &ObjectKey,
        look: ReadLevel,
        tell: impl Fn(Option<&Object>) -> Option<T>,
    ) -> Seen<T> {
        let keep = |object: Option<&Object>| (Change::NoChange, tell(object));
        let Updated { answer, pending } = update(&self.frontend, key, look, keep).await?;
        Ok((answer, pending.into_iter().next()))
    }

    /// Reads an object with its version; waits until its newest write is durable if a read must see it.
    pub(crate) async fn read_version(&self, key: &ObjectKey) -> Result<Option<Object>, Failed> {
        if self.newest {
            // The version of a write in flight is not known yet.
            let (_, pending) = self.see(key, ReadLevel::Version, |_| Some(())).await?;
            if let Some(pending) = pending {
                pending.durable().await?;
            }
        }
        self.read_part(key, ByteRange::ALL).await
    }

    /// Answers with `tell` of the object; its key is the first word after the name.
    pub(crate) async fn answer_object(&self, tell: impl FnOnce(Option<Object>) -> Answer) -> Outcome {
        let (object, pending) = self.read(&self.key(1)?, self.newest).await?;
        Ok(Finished::after(tell(object), pending))
    }

    /// Answers with `tell` of the object's attributes; its key is the first word after the name.
    pub(crate) async fn answer_info(&self, tell: impl FnOnce(Option<ObjectInfo>) -> Answer) -> Outcome {
        let (info, pending) = self.head(&self.key(1)?, self.newest).await?;
        Ok(Finished::after(tell(info), pending))
    }

    /// One page of keys.
    pub(crate) async fn list(
        &self,
        prefix: &[u8],
        start_after: Vec<u8>,
        limit: usize,
    ) -> Result<ListPage, Failed> {
        Ok(self.frontend.store.list(&self.list_request(prefix, start_after, limit)).await?)
    }

    /// The same; `sink` takes the keys. Returns the key after which the next page starts.
    pub(crate) async fn list_into(
        &self,
        prefix: &[u8],
        start_after: Vec<u8>,
        limit: usize,
        sink: &mut dyn ListSink,
    ) -> Result<Option<Vec<u8>>, Failed> {
        let request = self.list_request(prefix, start_after, limit);
        Ok(self.frontend.store.list_into(&request, sink).await?.next)
    }

    fn list_request(&self, prefix: &[u8], start_after: Vec<u8>, limit: usize) -> ListRequest {
        ListRequest {
            bucket: self.frontend.options.bucket.clone(),
            prefix: prefix.to_vec(),
            delimiter: Vec::new(),
            start_after,
            limit: limit.min(LIST_PAGE_MAX),
        }
    }

    /// Starts to watch an object.
    pub(crate) async fn watch(&self, key: &[u8]) -> Result<Watch, Failed> {
        Ok(self.frontend.store.watch(&self.frontend.key(key)?).await?)
    }
}
