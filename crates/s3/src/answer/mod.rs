//! Answers: XML documents, headers, and the bodies that send them.

pub(crate) mod body;
pub mod list;
pub mod object;
pub mod result;
pub mod xml;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use self::body::S3Body;
use self::object::error_headers;
use crate::request::error::S3Error;

/// An answer, before the headers that all answers have.
pub(crate) struct S3Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: S3Body,
}

impl S3Answer {
    /// Without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: S3Body::default() }
    }

    /// A document.
    pub(crate) fn xml(document: Vec<u8>) -> Self {
        let mut answer = Self::empty(StatusCode::OK);
        answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        answer.body = S3Body::of_document(document);
        answer
    }

    /// An error.
    pub(crate) fn error(error: &S3Error, resource: &str, id: &str) -> Self {
        Self {
            status: error.code.status(),
            headers: error_headers(error),
            body: S3Body::of_document(error.document(resource, id)),
        }
    }

    /// The answer as it is sent. One to HEAD has the length of a body, and none.
    pub(crate) fn into_response(mut self, is_head: bool) -> Response<S3Body> {
        let has_length = !matches!(self.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if has_length && !self.headers.contains_key(CONTENT_LENGTH) {
            self.headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.bytes()));
        }
        let body = if is_head { S3Body::default() } else { self.body };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
