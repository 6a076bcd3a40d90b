//! The pages: files that `console/` builds, and that are part of the program. They are compressed once, at the start.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use ring::digest::{SHA256, digest};
use shoal_http::HttpAnswer;

use crate::answer::{empty, whole};
use crate::docs::PAGES;

/// The files: path, type, content.
const FILES: [(&str, &str, &[u8]); 4] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../assets/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../assets/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../assets/app.css")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../assets/favicon.svg")),
];

/// A file as it is sent.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    plain: Bytes,
    gzipped: Bytes,
    etag: HeaderValue,
}

/// All files.
pub(crate) struct Assets(Vec<Asset>);

impl Assets {
    pub(crate) fn new() -> Self {
        let pages = PAGES.into_iter().map(|(path, text)| (path, "text/markdown; charset=utf-8", text));
        let files = FILES.into_iter().chain(pages);
        Self(files.map(|(path, content_type, content)| asset(path, content_type, content)).collect())
    }

    /// The answer to a GET of `path`; `None` if there is no such file.
    pub(crate) fn get(&self, path: &str, headers: &HeaderMap) -> Option<HttpAnswer> {
        let path = if path == "/index.html" { "/" } else { path };
        let asset = self.0.iter().find(|asset| asset.path == path)?;
        let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|known| {
            let known = known.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
            known.into_iter().any(|known| known.strip_prefix(b"W/").unwrap_or(known) == asset.etag.as_bytes())
        });
        let mut answer = match (is_known, takes_gzip(headers)) {
            (true, _) => empty(StatusCode::NOT_MODIFIED),
            (false, false) => whole(StatusCode::OK, asset.content_type, asset.plain.clone(), None),
            (false, true) => {
                let mut answer = whole(StatusCode::OK, asset.content_type, asset.gzipped.clone(), None);
                answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                answer
            }
        };
        let headers = answer.headers_mut();
        headers.insert(ETAG, asset.etag.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        Some(answer)
    }
}

fn asset(path: &'static str, content_type: &'static str, content: &'static [u8]) -> Asset {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    // A write to memory does not fail; without the compressed form the plain one would be sent under a wrong name.
    let gzipped = gzip.write_all(content).and_then(|()| gzip.finish()).unwrap_or_default();
    let hash: String =
        digest(&SHA256, content).as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let etag =
        HeaderValue::try_from(format!("\"{hash}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""));
    Asset { path, content_type, plain: Bytes::from_static(content), gzipped: gzipped.into(), etag }
}

/// Returns true if the client takes gzip.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|accepted| accepted.to_str().ok());
    accepted.flat_map(|accepted| accepted.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight: String = weight.split_whitespace().collect();
        name.trim().eq_ignore_ascii_case("gzip")
            && !matches!(&*weight, "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        [(http::HeaderName::from_static(name), HeaderValue::from_static(value))].into_iter().collect()
    }

    #[test]
    fn gzip_is_for_clients_that_take_it() {
        for (accepted, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1, GZIP;q=0.5", true),
            ("gzip; q=0", false),
            ("identity", false),
            ("", false),
        ] {
            assert_eq!(takes_gzip(&headers("accept-encoding", accepted)), expected, "{accepted}");
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let assets = Assets::new();
        let answer = assets.get("/index.html", &HeaderMap::new()).unwrap();
        let etag = answer.headers()[ETAG].clone();
        let mut known = HeaderMap::new();
        known.insert(
            IF_NONE_MATCH,
            HeaderValue::try_from(format!("\"x\", W/{}", etag.to_str().unwrap())).unwrap(),
        );
        assert_eq!(assets.get("/", &known).unwrap().status(), 304);
        assert_eq!(assets.get("/app.js", &known).unwrap().status(), 200);
        assert!(assets.get("/app.js/", &HeaderMap::new()).is_none());
    }
}
