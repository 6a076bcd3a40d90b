//! The websites of buckets, for browsers: requests to a host name below `--s3-website-domain`. They have no signature, so they are let in by
//! the policy of the bucket, or the ACLs of its objects. Errors are pages of HTML.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use shoal_engine::ObjectKey;
use shoal_http::{ConnectionFlow, MemoryPermit, Peer};

use super::call::S3Call;
use crate::access::decide::Origin;
use crate::answer::S3Answer;
use crate::answer::body::S3Body;
use crate::answer::xml::XmlWriter;
use crate::bucket::FoundBucket;
use crate::bucket::website::Website;
use crate::object::get;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::request::operation::{OperationRow, S3Operation};
use crate::request::query::QueryParameters;
use crate::request::target::BucketAndKey;
use crate::sign::payload::PayloadHash;
use crate::state::{Caller, S3State};
use crate::text::percent_encode_path;

/// The header of an object that redirects its readers on a website.
const REDIRECT: &str = "x-amz-website-redirect-location";

const ERROR_CODE: HeaderName = HeaderName::from_static("x-amz-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-amz-error-message");

/// A GET or HEAD of a page.
pub(super) struct PageRequest<'a> {
    pub(super) row: &'static OperationRow,
    /// With an empty key: the root.
    pub(super) target: &'a BucketAndKey,
    pub(super) headers: &'a HeaderMap,
    pub(super) origin: Origin,
    pub(super) permit: Arc<MemoryPermit>,
}

impl<'a> PageRequest<'a> {
    pub(super) fn new(
        (peer, flow): (&Peer, &Arc<ConnectionFlow>),
        (row, target, headers): (&'static OperationRow, &'a BucketAndKey, &'a HeaderMap),
        is_secure: bool,
    ) -> Self {
        let origin = Origin { address: peer.address.ip(), is_secure };
        Self { row, target, headers, origin, permit: flow.permit() }
    }

    fn bucket(&self) -> &str {
        self.target.bucket().unwrap_or_default()
    }

    fn key(&self) -> &[u8] {
        self.target.key().unwrap_or_default()
    }

    /// A request for an object of the bucket by a caller without a key.
    fn call(&self, found: &FoundBucket, key: Vec<u8>, headers: HeaderMap) -> S3Result<S3Call> {
        Ok(S3Call {
            row: self.row,
            target: BucketAndKey::of(self.bucket().to_owned(), key)?,
            query: QueryParameters::default(),
            headers,
            caller: Caller::default(),
            origin: self.origin,
            found: found.clone(),
            payload: PayloadHash::Unsigned,
            chunks: None,
            body: None,
            permit: Arc::clone(&self.permit),
        })
    }
}

impl S3State {
    /// Answers a request to a website.
    ///
    /// # Errors
    /// Each is answered by [`error_page`].
    pub(super) async fn answer_page(&self, peer: &Peer, page: &PageRequest<'_>) -> S3Result<S3Answer> {
        let found = self.buckets.find_record(&self.store, page.bucket())?.unwrap_or_default();
        // A bucket without a website looks like one that does not exist.
        let website = found.website()?.ok_or(ErrorCode::NoSuchWebsiteConfiguration)?;
        let scheme = if self.security.is_encrypted() { "https" } else { "http" };
        let origin = (scheme, header(page.headers, HOST.as_str())?.unwrap_or_default());
        let key = String::from_utf8_lossy(page.key());
        if let Some((status, location)) = website.redirect(&key, None, origin) {
            return Ok(redirect(status, &location));
        }
        let error = match self.page(peer, page, &found, &website).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let status = error.code.status();
        if let Some((status, location)) = website.redirect(&key, Some(status.as_u16()), origin) {
            return Ok(redirect(status, &location));
        }
        let document = website.error.filter(|_| status.is_client_error());
        let Some(document) = document else { return Err(error) };
        let Ok(call) = page.call(&found, document.into_bytes(), HeaderMap::new()) else { return Err(error) };
        // Without a document, or if that may not be read, the error has the page that all have.
        if self.check(&call).await.is_err() {
            return Err(error);
        }
        let Ok(mut answer) = self.read(call).await else { return Err(error) };
        answer.status = status;
        add_error(&mut answer.headers, &error);
        Ok(answer)
    }

    /// The object that answers a request; a folder is named without its slash.
    async fn page(
        &self,
        peer: &Peer,
        page: &PageRequest<'_>,
        found: &FoundBucket,
        website: &Website,
    ) -> S3Result<S3Answer> {
        let call = page.call(found, website.key_for(page.key()), page.headers.clone())?;
        self.check(&call).await?;
        peer.set_authenticated();
        match self.read(call).await {
            Ok(answer) => Ok(match answer.headers.get(REDIRECT).and_then(|to| to.to_str().ok()) {
                Some(location) => redirect(301, location),
                None => answer,
            }),
            // A caller that may not list does not learn that the object is missing.
            Err(error) if matches!(error.code, ErrorCode::NoSuchKey | ErrorCode::AccessDenied) => {
                let folder = [page.key(), b"/"].concat();
                if !page.key().ends_with(b"/") && self.has_page(page, found, website.key_for(&folder)).await?
                {
                    return Ok(redirect(302, &path_of(&folder)));
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads an object that the caller may read.
    async fn read(&self, call: S3Call) -> S3Result<S3Answer> {
        match call.row.operation {
            S3Operation::HeadObject => get::head_object(self, call).await,
            _ => get::get_object(self, call).await,
        }
    }

    /// Returns true if an object exists that the caller may read.
    async fn has_page(&self, page: &PageRequest<'_>, found: &FoundBucket, key: Vec<u8>) -> S3Result<bool> {
        let Ok(call) = page.call(found, key, HeaderMap::new()) else { return Ok(false) };
        let key = ObjectKey::new(call.bucket(), call.key())?;
        Ok(self.check(&call).await.is_ok() && self.store.head(&key).await?.is_some())
    }
}

/// The path of a key. Two slashes at its start would be a host for browsers.
fn path_of(key: &[u8]) -> String {
    let (mut path, rest) = match key.strip_prefix(b"/") {
        Some(rest) => ("/%2F".to_owned(), rest),
        None => ("/".to_owned(), key),
    };
    percent_encode_path(&mut path, rest);
    path
}

/// A redirect. One whose location cannot be a header has none.
fn redirect(status: u16, location: &str) -> S3Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::MOVED_PERMANENTLY);
    let mut answer = S3Answer::empty(status);
    if let Ok(location) = HeaderValue::from_str(location) {
        answer.headers.insert(LOCATION, location);
    }
    answer
}

fn add_error(headers: &mut HeaderMap, error: &S3Error) {
    headers.insert(ERROR_CODE, HeaderValue::from_static(error.code.name()));
    if let Ok(message) = HeaderValue::from_str(&error.message) {
        headers.insert(ERROR_MESSAGE, message);
    }
}

/// The answer with a page for an error.
pub(super) fn error_page(error: &S3Error, id: &str) -> S3Answer {
    let mut answer = S3Answer::empty(error.code.status());
    answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    add_error(&mut answer.headers, error);
    answer.body = S3Body::of_document(html_of(error, id));
    answer
}

fn html_of(error: &S3Error, id: &str) -> Vec<u8> {
    let status = error.code.status();
    let title = format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut html = XmlWriter::default();
    html.raw("<!DOCTYPE html>\n").element("html", |html| {
        html.element("head", |html| html.leaf("title", &title));
        html.element("body", |html| {
            html.leaf("h1", &title);
            html.element("ul", |html| {
                let fields = [("Code", error.code.name()), ("Message", &error.message)].into_iter();
                let others = error.fields.iter().map(|(name, value)| (*name, value.as_str()));
                for (name, value) in fields.chain(others).chain([("RequestId", id)]) {
                    html.leaf("li", format!("{name}: {value}"));
                }
            });
        });
    });
    html.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_taken_for_a_host() {
        assert_eq!((&*path_of(b"a b/"), &*path_of(b"/evil/")), ("/a%20b/", "/%2Fevil/"));
        assert_eq!(path_of(b"//x"), "/%2F/x");
    }

    #[test]
    fn an_error_page_escapes_everything() {
        let error = S3Error::new(ErrorCode::NoSuchKey, "<m>").with("Key", "<script>&\"");
        let page = String::from_utf8(html_of(&error, "1F")).unwrap();
        let start = "<h1>404 Not Found</h1><ul><li>Code: NoSuchKey</li><li>Message: &lt;m&gt;</li>";
        assert!(page.contains(start), "{page}");
        assert!(page.contains("<li>Key: &lt;script&gt;&amp;&quot;</li><li>RequestId: 1F</li>"), "{page}");
        let S3Answer { status, headers, .. } = error_page(&error, "1F");
        assert_eq!((status.as_u16(), headers["x-amz-error-code"].as_bytes()), (404, &b"NoSuchKey"[..]));
    }
}
