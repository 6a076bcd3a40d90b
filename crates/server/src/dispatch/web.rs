//! gRPC-Web: gRPC for browsers, which know no trailers. The same messages over HTTP/1.1 or HTTP/2, the trailers as a last message, as bytes
//! or as base64; and the rules by which a browser lets a page of one origin call a server of another.
//!
//! A page may call only if the operator allowed its origin. A client that sends no origin is no page.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE,
    ORIGIN, VARY,
};
use http::{HeaderValue, Method, Request, StatusCode, Version};

use crate::answer::web::Encoder;
use crate::call::HttpResponse;

/// The time for which a browser may remember that it may call, in seconds.
const REMEMBER_S: &str = "7200";

/// The headers that a page may send, and see of an answer.
const REQUEST_HEADERS: &str = "content-type,x-grpc-web,x-user-agent,grpc-timeout,authorization,grpc-encoding,\
                               shoal-session,shoal-sequence";
const ANSWER_HEADERS: &str = "grpc-status,grpc-message,grpc-status-details-bin,grpc-accept-encoding";

/// The dialect of gRPC of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Plain, over HTTP/2.
    Grpc,
    /// As gRPC-Web.
    Web {
        /// In base64.
        text: bool,
    },
}

impl Dialect {
    /// The dialect of `request`; `None` if it is not gRPC.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        let content_type = request.headers().get(CONTENT_TYPE)?.as_bytes();
        let is_post = request.method() == Method::POST;
        // The messages are protobuf: a client that encodes them otherwise ("+json") gets an error, and is not misread.
        let named = |name: &[u8]| {
            let rest = content_type.strip_prefix(name)?;
            let rest = rest.strip_prefix(b"+proto").unwrap_or(rest);
            matches!(rest.trim_ascii_start().first(), None | Some(b';')).then_some(())
        };
        let dialect = named(b"application/grpc").map(|()| Self::Grpc);
        let dialect = dialect.or_else(|| named(b"application/grpc-web").map(|()| Self::Web { text: false }));
        let dialect =
            dialect.or_else(|| named(b"application/grpc-web-text").map(|()| Self::Web { text: true }));
        // Without trailers, plain gRPC cannot be answered.
        let can_answer = dialect != Some(Self::Grpc) || request.version() == Version::HTTP_2;
        dialect.filter(|_| is_post && can_answer)
    }

    /// Returns true if requests are in base64.
    pub(crate) fn is_text(self) -> bool {
        self == Self::Web { text: true }
    }

    /// Encodes an answer in this dialect.
    pub(crate) fn dress(self, response: HttpResponse) -> HttpResponse {
        let Self::Web { text } = self else { return response };
        let mut response = response.map(|body| body.for_web(Encoder { text }));
        let content_type =
            if text { "application/grpc-web-text+proto" } else { "application/grpc-web+proto" };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }
}

/// The origins whose pages may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// As `https://example.com`; `*` means all.
    pub(crate) allowed: Vec<String>,
}

impl Origins {
    /// The origin of a request's page, if it may call; `None` if no page called.
    ///
    /// # Errors
    /// The status for a page that may not call.
    pub(crate) fn admit<B>(&self, request: &Request<B>) -> Result<Option<HeaderValue>, StatusCode> {
        let Some(origin) = request.headers().get(ORIGIN) else { return Ok(None) };
        let admitted = |allowed: &String| allowed == "*" || allowed.as_bytes() == origin.as_bytes();
        if self.allowed.iter().any(admitted) { Ok(Some(origin.clone())) } else { Err(StatusCode::FORBIDDEN) }
    }

    /// The answer to a browser that asks if a page may call; `None` if `request` is not such a question.
    pub(crate) fn preflight<B>(&self, request: &Request<B>) -> Option<HttpResponse> {
        let asks = request.method() == Method::OPTIONS
            && request.headers().contains_key(ORIGIN)
            && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        asks.then(|| {
            let origin = match self.admit(request) {
                Ok(origin) => origin,
                Err(status) => return empty(status),
            };
            let mut response = allow(empty(StatusCode::NO_CONTENT), origin);
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST"));
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBER_S));
            response
        })
    }
}

/// Lets the page of `origin` see `response`.
pub(crate) fn allow(mut response: HttpResponse, origin: Option<HeaderValue>) -> HttpResponse {
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANSWER_HEADERS));
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> HttpResponse {
    let mut response = HttpResponse::default();
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, version: Version, content_type: &str) -> Request<()> {
        let request = Request::builder().method(method).version(version);
        request.header(CONTENT_TYPE, content_type).body(()).unwrap()
    }

    #[test]
    fn dialects() {
        let (old, new) = (Version::HTTP_11, Version::HTTP_2);
        for (method, version, content_type, expected) in [
            ("POST", new, "application/grpc", Some(Dialect::Grpc)),
            ("POST", new, "application/grpc+proto", Some(Dialect::Grpc)),
            ("POST", new, "application/grpc;charset=utf-8", Some(Dialect::Grpc)),
            ("POST", old, "application/grpc", None),
            ("GET", new, "application/grpc", None),
            ("POST", new, "application/grpc+proto; charset=utf-8", Some(Dialect::Grpc)),
            ("POST", new, "application/grpc+json", None),
            ("POST", new, "application/grpc+protobuf", None),
            ("POST", new, "application/grpc+", None),
            ("POST", new, "application/grpc-web+json", None),
            ("POST", new, "application/grpc-web-text+json", None),
            ("POST", new, "application/grpcx", None),
            ("POST", new, "application/json", None),
            ("POST", old, "application/grpc-web", Some(Dialect::Web { text: false })),
            ("POST", new, "application/grpc-web+proto", Some(Dialect::Web { text: false })),
            ("POST", old, "application/grpc-web-text", Some(Dialect::Web { text: true })),
            ("POST", old, "application/grpc-web-text+proto", Some(Dialect::Web { text: true })),
        ] {
            assert_eq!(Dialect::of(&request(method, version, content_type)), expected, "{content_type}");
        }
    }

    #[test]
    fn only_pages_of_named_origins_may_call() {
        let origins = |allowed: &[&str]| Origins { allowed: allowed.iter().map(|&o| o.into()).collect() };
        let mut page = request("POST", Version::HTTP_11, "application/grpc-web");
        assert!(matches!(origins(&[]).admit(&page), Ok(None)));
        page.headers_mut().insert(ORIGIN, HeaderValue::from_static("https://a.example"));
        for (allowed, admitted) in [
            (&[][..], false),
            (&["https://b.example"], false),
            (&["https://a.example"], true),
            (&["*"], true),
        ] {
            assert_eq!(origins(allowed).admit(&page).is_ok(), admitted, "{allowed:?}");
        }
    }
}
