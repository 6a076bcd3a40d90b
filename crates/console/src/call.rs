//! A request to the API that was let in, and the table entry of its route.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use shoal_frontend::access::Principal;
use shoal_http::{HttpAnswer, MemoryPermit, Peer, WatchedBody};
use shoal_s3::text::percent_decode;

use crate::answer::{ApiError, ApiResult};
use crate::session::Admitted;
use crate::state::ConsoleState;

/// The answer to a request of a route.
pub(crate) type Answering<'a> = BoxFuture<'a, ApiResult<HttpAnswer>>;

/// An entry of the table of routes.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The path below `/api/`; `*` is one part, [`ApiCall::part`].
    pub(crate) path: &'static str,
    /// The name of the operation in logs.
    pub(crate) name: &'static str,
    pub(crate) answer: for<'a> fn(&'a ConsoleState, ApiCall<'a>) -> Answering<'a>,
}

/// A request to the API whose caller was let in.
pub(crate) struct ApiCall<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) head: &'a http::request::Parts,
    /// The party that asks.
    pub(crate) admitted: Admitted,
    /// The part of the path for which the route has a `*`, decoded.
    pub(crate) part: String,
    pub(crate) body: Incoming,
    /// Counts the memory of the request and its answer.
    pub(crate) permit: Arc<MemoryPermit>,
}

impl ApiCall<'_> {
    pub(crate) fn principal(&self) -> &Principal {
        &self.admitted.principal
    }

    /// The value of a parameter of the query.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        query_of(self.head.uri.query().unwrap_or_default(), name)
    }

    /// Reads a document of JSON of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// 400, 408, 413.
    pub(crate) async fn document<T: DeserializeOwned>(
        self,
        state: &ConsoleState,
        bytes_max: usize,
    ) -> ApiResult<T> {
        document((self.head, self.body), &self.permit, state, bytes_max).await
    }
}

/// Reads a document of JSON of at most `bytes_max` bytes.
///
/// # Errors
/// 400, 408, 413.
pub(crate) async fn document<T: DeserializeOwned>(
    (head, body): (&http::request::Parts, Incoming),
    permit: &MemoryPermit,
    state: &ConsoleState,
    bytes_max: usize,
) -> ApiResult<T> {
    let given = head.headers.get(CONTENT_TYPE).and_then(|given| given.to_str().ok()).unwrap_or_default();
    let given = given.split(';').next().unwrap_or_default().trim();
    if !given.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::bad("the body must be JSON, with the header content-type: application/json"));
    }
    let too_long = || {
        let problem = format!("the body has more than {bytes_max} bytes; send a shorter one");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, problem)
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_long());
    }
    let mut body = WatchedBody::new(body, state.min_rate);
    let mut content = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(piece) = frame?.into_data() else { continue };
        if content.len() + piece.len() > bytes_max {
            return Err(too_long());
        }
        permit.grow(piece.len())?;
        content.extend_from_slice(&piece);
    }
    serde_json::from_slice(&content).map_err(|error| ApiError::bad(format!("the body is wrong: {error}")))
}

/// The value of the parameter `name` of a query, decoded.
pub(crate) fn query_of(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let value = pairs.into_iter().find(|(found, _)| decoded(found).as_deref() == Some(name))?.1;
    decoded(&value.replace('+', " "))
}

/// The text of a percent-encoded one; `None` if it is none.
pub(crate) fn decoded(text: &str) -> Option<String> {
    String::from_utf8(percent_decode(text.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = "bucket=b&prefix=a%2Fb+c%25&empty=&prefix=other&wrong=%zz";
        assert_eq!(query_of(query, "prefix").as_deref(), Some("a/b c%"));
        assert_eq!(query_of(query, "empty").as_deref(), Some(""));
        assert_eq!((query_of(query, "none"), query_of(query, "wrong")), (None, None));
        for wrong in ["%", "%4", "%4g", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
