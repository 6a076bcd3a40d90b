//! Lists the keys of a bucket.
//!
//! The entries of a page are parsed in place: prost would allocate a structure for each.

use bytes::Bytes;
use shoal_api::fields::{Fields, bytes_of};
use shoal_api::v1;
use shoal_base::task::Boxed;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{BucketPage, DamagedRange, ListEntry, ListRequest, ObjectAttributes, Page, TabletId};
use crate::operation::{decoded, info};
use crate::retry::Failed;
use crate::wire;

/// Pages requested ahead that wait to be taken; the one after them is in flight. One is enough to keep a server busy, and each may have 3 MiB.
const PAGES_AHEAD_MAX: usize = 1;

/// Numbers of the fields of a `ListResponse`.
const ENTRIES: u32 = 1;
const COMMON_PREFIXES: u32 = 2;
const NEXT_START_AFTER: u32 = 3;
const DAMAGED: u32 = 4;

impl Client {
    /// One page of the keys of a bucket, in the order of their bytes.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn list<'a>(&'a self, request: &'a ListRequest) -> Boxed<'a, Result<Page<ListEntry>>> {
        Box::pin(async move { self.page_of(&self.list_message(request).await?) })
    }

    /// The answer for a page as it is on the wire.
    async fn list_message(&self, request: &ListRequest) -> Result<Bytes> {
        let request = v1::ListRequest {
            bucket: request.bucket.clone(),
            prefix: request.prefix.clone().into(),
            delimiter: request.delimiter.clone().into(),
            start_after: request.start_after.clone().into(),
            page_size: u32::try_from(request.limit).unwrap_or(u32::MAX),
        };
        self.retry.read(|| self.transport.call_for_bytes::<v1::List>(&request)).await
    }

    fn page_of(&self, message: &Bytes) -> Result<Page<ListEntry>> {
        parse(message).map_err(|failed| match failed {
            Unparsed::Message(status) => self.transport.failed(&status).error,
            Unparsed::Field(failed) => failed.error,
        })
    }

    /// The names of the buckets that hold objects, in the order of their bytes, after `start_after` (empty: from the first one
    /// on): one page of at most 1,000.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn list_buckets<'a>(&'a self, start_after: &'a str) -> Boxed<'a, Result<BucketPage>> {
        Box::pin(async move {
            let request = v1::ListBucketsRequest { start_after: start_after.to_owned(), page_size: 0 };
            self.retry
                .read(|| async {
                    let answer = self.transport.call::<v1::ListBuckets>(request.clone()).await?;
                    let v1::ListBucketsResponse { buckets, more, damaged } = answer;
                    Ok(BucketPage { names: buckets, is_cut: more, damaged })
                })
                .await
        })
    }

    /// All pages from `request` on, one after the other.
    #[must_use]
    pub fn list_all(&self, request: ListRequest) -> ListAll {
        ListAll { client: self.clone(), request: Some(request), ahead: None }
    }
}

/// The reason why an answer is no page.
enum Unparsed {
    /// It is not protobuf.
    Message(Status),
    /// It violates the protocol.
    Field(Failed),
}

impl From<Status> for Unparsed {
    fn from(status: Status) -> Self {
        Self::Message(status)
    }
}

impl From<Failed> for Unparsed {
    fn from(failed: Failed) -> Self {
        Self::Field(failed)
    }
}

/// The page in `message`; its keys refer to it.
fn parse(message: &Bytes) -> Result<Page<ListEntry>, Unparsed> {
    let is_entry = |field: &Result<(u32, _), _>| matches!(field, Ok((ENTRIES, _)));
    let entries = Vec::with_capacity(Fields::of(message).filter(is_entry).count());
    let mut page = Page { entries, ..Page::default() };
    for field in Fields::of(message) {
        match field? {
            (ENTRIES, field) => page.entries.push(entry(message, bytes_of(field)?)?),
            (COMMON_PREFIXES, field) => page.common_prefixes.push(bytes_of(field)?.to_vec()),
            (NEXT_START_AFTER, field) => page.next = Some(bytes_of(field)?.to_vec()),
            (DAMAGED, field) => page.damaged.push(damaged(decoded(field)?)?),
            _ => {}
        }
    }
    Ok(page)
}

/// The entry of a page in `entry`, a part of `message`.
fn entry(message: &Bytes, entry: &[u8]) -> Result<ListEntry, Unparsed> {
    let (mut key, mut attributes) = (Bytes::new(), None::<ObjectAttributes>);
    for field in Fields::of(entry) {
        match field? {
            (1, field) => key = message.slice_ref(bytes_of(field)?),
            (2, field) => attributes = Some(info(bytes_of(field)?)?),
            _ => {}
        }
    }
    Ok(ListEntry { key, info: attributes.ok_or_else(wire::no_info)? })
}

/// The start of the page after the one in `message`. An error of the message is left to [`parse`].
fn next_of(message: &[u8]) -> Option<Vec<u8>> {
    let fields = Fields::of(message).map_while(Result::ok);
    let next = fields.filter(|&(number, _)| number == NEXT_START_AFTER).last()?;
    bytes_of(next.1).ok().map(<[u8]>::to_vec)
}

fn damaged(range: v1::DamagedRange) -> Result<DamagedRange, Failed> {
    let v1::DamagedRange { tablet, from, to, block, why } = range;
    let tablet = u16::try_from(tablet)
        .map_err(|_| wire::protocol("the number of tablets is beyond that of any store"))?;
    Ok(DamagedRange { tablet: TabletId(tablet), from: from.into(), to: to.map(Into::into), block, why })
}

/// The pages of a listing. They are not one snapshot: an object written meanwhile after the last returned page may be seen.
///
/// After the first page, a task requests two pages ahead, so the server lists while the client parses a page and the caller uses it: needs a
/// runtime that runs tasks meanwhile, or gains nothing.
pub struct ListAll {
    client: Client,
    /// The request for the next page; none at the end.
    request: Option<ListRequest>,
    /// The pages from `request` on.
    ahead: Option<Ahead>,
}

impl ListAll {
    /// The next page; `None` at the end. After a failure, the same page is requested again.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn next_page(&mut self) -> Result<Option<Page<ListEntry>>> {
        let Some(request) = &self.request else { return Ok(None) };
        let listed = match &mut self.ahead {
            Some(ahead) => ahead.next().await,
            None => None,
        };
        let listed = match listed {
            Some(listed) => listed,
            None => self.client.list_message(request).await,
        };
        let page = listed.and_then(|message| Ok((next_of(&message), self.client.page_of(&message)?)));
        let (next, page) = page.inspect_err(|_| self.ahead = None)?;
        let Some(next) = next else {
            self.request = None;
            return Ok(Some(page));
        };
        // Without progress, the listing would never stop.
        if next <= request.start_after {
            return Err(Error::Protocol("a page of the listing does not follow the page before".into()));
        }
        let request = ListRequest { start_after: next, ..request.clone() };
        if self.ahead.is_none() {
            self.ahead = Some(Ahead::start(self.client.clone(), request.clone()));
        }
        self.request = Some(request);
        Ok(Some(page))
    }

    /// Continues after `key`, if the next page starts before it.
    pub fn skip_to(&mut self, key: Vec<u8>) {
        if let Some(request) = &mut self.request
            && request.start_after < key
        {
            request.start_after = key;
            self.ahead = None;
        }
    }
}

/// The pages that a task requests ahead: one that waits to be taken, and the one after it. Dropping this cancels the call in flight.
struct Ahead {
    pages: mpsc::Receiver<Result<Bytes>>,
    task: JoinSet<()>,
}

impl Ahead {
    fn start(client: Client, request: ListRequest) -> Self {
        let (taker, pages) = mpsc::channel(PAGES_AHEAD_MAX);
        let mut task = JoinSet::new();
        task.spawn(list_ahead(client, request, taker));
        Self { pages, task }
    }

    /// The next page; `None` if the task ended, because the runtime is stopping.
    async fn next(&mut self) -> Option<Result<Bytes>> {
        let page = self.pages.recv().await;
        if page.is_none()
            && let Some(Err(error)) = self.task.join_next().await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
        page
    }
}

/// Lists from `request` on, up to the last page or a failure.
async fn list_ahead(client: Client, mut request: ListRequest, taker: mpsc::Sender<Result<Bytes>>) {
    loop {
        let listed = client.list_message(&request).await;
        let next = listed.as_ref().ok().and_then(|message| next_of(message));
        let next = next.filter(|next| *next > request.start_after);
        if taker.send(listed).await.is_err() {
            return;
        }
        match next {
            Some(next) => request.start_after = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::operation::tests::bytes;

    proptest! {
        /// The page is the one that prost would have read, and the keys are not copied.
        #[test]
        fn pages_decode_as_prost(
            entries in prop::collection::vec((bytes(60), any::<u64>(), any::<Option<u64>>(), "[a-z]{0,3}"), 0..9),
            prefixes in prop::collection::vec(bytes(9), 0..4), next in prop::option::of(bytes(60)), tablet in 0..4_u32
        ) {
            let entries = entries.into_iter().map(|(key, version, ttl_ns, content_type)| {
                let metadata = v1::Metadata { content_type, user: Vec::new() };
                let metadata = (!metadata.content_type.is_empty()).then_some(metadata);
                let info = v1::ObjectInfo { version, bytes: 5, metadata, ttl_ns, ..Default::default() };
                v1::ListEntry { key, info: Some(info) }
            });
            let range = v1::DamagedRange { tablet, from: "a".into(), ..Default::default() };
            let whole = v1::ListResponse {
                entries: entries.collect(),
                common_prefixes: prefixes,
                next_start_after: next,
                damaged: vec![range],
            };
            let message = Bytes::from(whole.encode_to_vec());
            prop_assert_eq!(next_of(&message), whole.next_start_after.clone().map(Vec::from));
            let Ok(page) = parse(&message) else { panic!("it is a page") };
            let held = message.as_ptr_range();
            for (entry, expected) in page.entries.iter().zip(&whole.entries) {
                prop_assert_eq!(&entry.key, &expected.key);
                prop_assert_eq!(&entry.info, &wire::info(expected.info.clone()).unwrap());
                prop_assert!(entry.key.is_empty() || held.contains(&entry.key.as_ptr()));
            }
            prop_assert_eq!(page.entries.len(), whole.entries.len());
            prop_assert_eq!(page.next, whole.next_start_after.map(Vec::from));
            let prefixes: Vec<Vec<u8>> = whole.common_prefixes.into_iter().map(Vec::from).collect();
            prop_assert_eq!(page.common_prefixes, prefixes);
            prop_assert_eq!((page.damaged.len(), page.damaged[0].tablet), (1, TabletId(tablet as u16)));
        }
    }

    #[test]
    fn entry_without_info_violates_the_protocol() {
        let entries = vec![v1::ListEntry { key: "a".into(), info: None }];
        let message = v1::ListResponse { entries, ..Default::default() }.encode_to_vec();
        assert!(matches!(parse(&message.into()), Err(Unparsed::Field(_))));
        assert!(matches!(parse(&Bytes::from_static(&[0xff])), Err(Unparsed::Message(_))));
    }
}
