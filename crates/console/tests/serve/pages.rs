//! The pages, and the headers of every answer.

use std::time::Duration;

use shoal_frontend::MinRate;
use shoal_http::ServerLimits;

use crate::support::{Running, Setup};

const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
    media-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

#[tokio::test]
async fn pages_are_part_of_the_program() {
    let running = Running::start();
    let mut page = running.page().await;
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/index.html", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/app.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml"),
    ] {
        let reply = page.get(path).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(content_type)), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-cache"));
        let etag = reply.header("etag").unwrap();
        assert_eq!(page.send("GET", path, &[("if-none-match", etag)], b"").await.status, 304);
        let zipped = page.send("GET", path, &[("accept-encoding", "gzip")], b"").await;
        assert_eq!(zipped.header("content-encoding"), Some("gzip"));
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*zipped.body), &mut plain).unwrap();
        assert_eq!(plain, reply.body);
        let head = page.send("HEAD", path, &[], b"").await;
        assert_eq!(head.header("content-length"), reply.header("content-length"));
    }
    for path in ["/none", "/app.js/", "//", "/../app.js", "/%2e%2e/app.js", "/api", "/s3", "/apix"] {
        assert_eq!(page.get(path).await.status, 404, "{path}");
    }
    assert_eq!(page.put("/", &[], b"x").await.status, 405);
}

#[tokio::test]
async fn every_answer_has_the_headers_that_protect_it() {
    let running = Running::start();
    let mut page = running.admin().await;
    let mut out = running.page().await;
    page.put("/s3/bkt", &[], b"").await;
    page.put("/s3/bkt/k", &[], b"v").await;
    let mut replies = Vec::new();
    for target in [
        "/",
        "/none",
        "/app.js",
        "/api/session",
        "/api/none",
        "/api/keys",
        "/s3/",
        "/s3/bkt/k",
        "/s3/bkt/none",
    ] {
        replies.push((target, page.get(target).await));
        replies.push((target, out.get(target).await));
    }
    for (target, reply) in replies {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{target}");
        }
        let policy = reply.header("content-security-policy").unwrap();
        let is_object = target.starts_with("/s3/") && reply.status != 401;
        assert_eq!(policy == PAGE_POLICY, !is_object, "{target}: {policy}");
        let cache = reply.header("cache-control");
        let is_asset = matches!(target, "/" | "/app.js");
        assert_eq!(cache, Some(if is_asset { "no-cache" } else { "no-store" }), "{target}");
    }
}

#[tokio::test]
async fn unknown_routes_are_named() {
    let running = Running::start();
    let mut page = running.admin().await;
    let reply = page.get("/api/none").await;
    assert_eq!((reply.status, reply.field("error")), (404, "there is no /api/none".to_owned()));
    let reply = page.post("/api/archive", "{}").await;
    assert_eq!((reply.status, reply.field("error")), (405, "POST is no method of /api/archive".to_owned()));
    for path in ["/api/", "/api/keys/", "/api/keys//rotate", "/api/keys/%zz", "/api//keys", "/api/keys/a/b"] {
        assert_eq!(page.post(path, "{}").await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let min_rate = MinRate { silence_max: Duration::from_millis(200), ..MinRate::default() };
    let running = Running::with(Setup {
        limits: ServerLimits { min_rate, ..ServerLimits::default() },
        ..Setup::default()
    });
    let mut page = running.page().await;
    page.send_head("POST", "/api/session", &[("content-type", "application/json")], 100).await;
    assert_eq!(page.receive("POST").await.status, 408);
}

/// Requests of the console are counted as its own.
#[tokio::test]
async fn requests_are_counted() {
    let running = Running::start();
    let mut page = running.admin().await;
    page.put("/s3/bkt", &[], b"").await;
    page.put("/s3/bkt/k", &[], b"v").await;
    let counted = running.metrics.console().requests();
    let puts = counted.iter().find(|counts| counts.operation == shoal_metrics::Operation::Put).unwrap();
    assert_eq!(puts.durations.count(), 1);
    assert!(running.metrics.s3().requests().is_empty());
}
