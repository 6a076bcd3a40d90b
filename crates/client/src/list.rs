//! Lists the keys of a bucket.

use shoal_api::v1;
use shoal_base::task::Boxed;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{BucketPage, DamagedRange, ListEntry, ListRequest, Page, TabletId};
use crate::retry::Failed;
use crate::wire;

impl Client {
    /// One page of the keys of a bucket, in the order of their bytes.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn list<'a>(&'a self, request: &'a ListRequest) -> Boxed<'a, Result<Page<ListEntry>>> {
        Box::pin(async move {
            let request = v1::ListRequest {
                bucket: request.bucket.clone(),
                prefix: request.prefix.clone().into(),
                delimiter: request.delimiter.clone().into(),
                start_after: request.start_after.clone().into(),
                page_size: u32::try_from(request.limit).unwrap_or(u32::MAX),
            };
            self.retry
                .read(|| async {
                    let answer = self.transport.call::<v1::List>(request.clone()).await?;
                    let entry = |entry: v1::ListEntry| {
                        Ok(ListEntry { key: entry.key, info: wire::info(entry.info)? })
                    };
                    Ok(Page {
                        entries: answer.entries.into_iter().map(entry).collect::<Result<_, _>>()?,
                        common_prefixes: answer.common_prefixes.into_iter().map(Into::into).collect(),
                        next: answer.next_start_after.map(Into::into),
                        damaged: answer.damaged.into_iter().map(damaged).collect::<Result<_, _>>()?,
                    })
                })
                .await
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

fn damaged(range: v1::DamagedRange) -> Result<DamagedRange, Failed> {
    let v1::DamagedRange { tablet, from, to, block, why } = range;
    let tablet = u16::try_from(tablet)
        .map_err(|_| wire::protocol("the number of tablets is beyond that of any store"))?;
    Ok(DamagedRange { tablet: TabletId(tablet), from: from.into(), to: to.map(Into::into), block, why })
}

/// The pages of a listing. They are not one snapshot: an object written meanwhile after the last returned page may be seen.
///
/// The next page is requested when a page is returned, so the server lists while the caller uses the page: needs a runtime that runs
/// tasks meanwhile, or gains nothing.
pub struct ListAll {
    client: Client,
    /// The request for the next page; none at the end.
    request: Option<ListRequest>,
    /// The call for the next page. Dropping it cancels the call.
    ahead: Option<JoinSet<Result<Page<ListEntry>>>>,
}

impl ListAll {
    /// The next page; `None` at the end. After a failure, the same page is requested again.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn next_page(&mut self) -> Result<Option<Page<ListEntry>>> {
        let Some(request) = &self.request else { return Ok(None) };
        let called = match &mut self.ahead {
            Some(call) => call.join_next().await,
            None => None,
        };
        self.ahead = None;
        let page = match called {
            Some(Ok(page)) => page?,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Nobody called, or the runtime is stopping.
            Some(Err(_)) | None => self.client.list(request).await?,
        };
        match &page.next {
            // Without progress, the listing would never stop.
            Some(next) if *next <= request.start_after => {
                return Err(Error::Protocol("a page of the listing does not follow the page before".into()));
            }
            Some(next) => {
                let request = ListRequest { start_after: next.clone(), ..request.clone() };
                let (client, next) = (self.client.clone(), request.clone());
                self.ahead.insert(JoinSet::new()).spawn(async move { client.list(&next).await });
                self.request = Some(request);
            }
            None => self.request = None,
        }
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
