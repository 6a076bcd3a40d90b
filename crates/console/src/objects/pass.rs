//! `/s3/BUCKET/KEY`: requests of S3 by the party of the session. They have no signature; everything else is as for a client of S3.
//!
//! The bytes of an object are those of its writer, and they come from the origin of the console: a browser must not run them.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use hyper::body::Incoming;
use shoal_http::{ConnectionFlow, HttpAnswer, Peer};

use super::cut::cut_at;
use crate::answer::{ApiError, ApiResult};
use crate::guard::{check_origin, check_use};
use crate::session::signed_out;
use crate::state::ConsoleState;

/// The policy of an object that is opened: it runs nothing, and has no part of the console's origin.
const OBJECT_POLICY: HeaderValue = HeaderValue::from_static(
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'; frame-ancestors 'none'",
);

/// Answers a request whose path is below `/s3`.
///
/// # Errors
/// 401, 403; errors of S3 are answers of S3.
pub(crate) async fn pass(
    state: &ConsoleState,
    (peer, flow): (&Peer, Arc<ConnectionFlow>),
    (mut head, body): (http::request::Parts, Incoming),
) -> ApiResult<HttpAnswer> {
    check_origin(&head)?;
    check_use(&head.headers)?;
    let Some(admitted) = state.admit(peer, &head.headers) else {
        return signed_out(state, &flow.permit());
    };
    if !matches!(head.method, Method::GET | Method::HEAD) {
        admitted.check_word(&head.headers)?;
    }
    head.uri = uri_of_s3(&head.uri)?;
    head.headers.remove(COOKIE);
    let caller = (admitted.principal.clone(), &state.metrics);
    let mut answer = state.objects.serve_as(caller, (peer, flow), Request::from_parts(head, body)).await;
    let is_content = answer.status().is_success();
    protect(answer.headers_mut(), is_content);
    Ok(cut_at(answer, || admitted.over(state)))
}

/// The target without `/s3`.
fn uri_of_s3(uri: &Uri) -> ApiResult<Uri> {
    let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let target = target.strip_prefix("/s3").unwrap_or(target);
    target
        .parse()
        .map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, "the path is no path of S3: /s3/BUCKET/KEY"))
}

/// Sets the headers by which a browser treats the answer as bytes of somebody else.
fn protect(headers: &mut HeaderMap, is_content: bool) {
    headers.insert(CONTENT_SECURITY_POLICY, OBJECT_POLICY);
    // The rules of the object's writer are for other places.
    headers.remove(CACHE_CONTROL);
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_download = |given: &HeaderValue| given.as_bytes().to_ascii_lowercase().starts_with(b"attachment");
    if is_content && !is_shown(content_type) && !headers.get(CONTENT_DISPOSITION).is_some_and(is_download) {
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    }
}

/// Returns true if a browser may show content of this type: it has no script.
fn is_shown(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let Ok(essence) = str::from_utf8(essence) else { return false };
    let essence = essence.to_ascii_lowercase();
    match essence.split_once('/') {
        // An SVG is a document with scripts. As a part of a page it is shown in any case.
        Some(("image", kind)) => !kind.starts_with("svg"),
        Some(("audio" | "video", _)) => true,
        _ => matches!(&*essence, "text/plain" | "application/json" | "application/pdf"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_content_without_scripts_is_shown() {
        for (content_type, expected) in [
            ("image/png", true),
            ("Image/JPEG; q=1", true),
            ("image/svg+xml", false),
            ("IMAGE/SVG+XML; charset=utf-8", false),
            ("video/mp4", true),
            ("audio/ogg", true),
            ("text/plain; charset=utf-8", true),
            ("application/json", true),
            ("application/pdf", true),
            ("text/html", false),
            ("text/plain, text/html", false),
            ("application/xhtml+xml", false),
            ("application/xml", false),
            ("text/javascript", false),
            ("multipart/x-mixed-replace", false),
            ("image", false),
            ("", false),
        ] {
            assert_eq!(is_shown(content_type.as_bytes()), expected, "{content_type}");
        }
    }

    #[test]
    fn the_writer_of_an_object_does_not_decide_how_it_is_opened() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("inline; filename=\"a\""));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("script-src *"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=9"));
        protect(&mut headers, true);
        assert_eq!(headers[CONTENT_DISPOSITION], "attachment");
        assert_eq!(headers[CONTENT_SECURITY_POLICY], OBJECT_POLICY);
        assert!(!headers.contains_key(CACHE_CONTROL));
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("Attachment; filename=\"a\""));
        protect(&mut headers, true);
        assert_eq!(headers[CONTENT_DISPOSITION], "Attachment; filename=\"a\"");
    }

    #[test]
    fn the_target_loses_its_first_part_alone() {
        for (from, to) in
            [("/s3/", "/"), ("/s3/b/s3/x?list-type=2", "/b/s3/x?list-type=2"), ("/s3/b/%2e%2e", "/b/%2e%2e")]
        {
            assert_eq!(uri_of_s3(&from.parse().unwrap()).unwrap(), to, "{from}");
        }
    }
}
