//! Sign-in, the words of a session, and its end.

use std::time::Duration;

use shoal_storekit::in_time;

use crate::support::{Running, TOKEN};

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

#[tokio::test]
async fn a_key_or_a_token_signs_in() {
    let running = Running::start();
    let (id, secret) = running.key("read,list,admin *");
    let mut page = running.page().await;
    let out = page.get("/api/session").await;
    assert_eq!((out.status, out.text()), (401, r#"{"asks":true,"signed_in":false}"#.to_owned()));
    let reply = page.sign_in(&id, &secret).await;
    let cookie = reply.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("shoal_session=") && cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"),
        "{cookie}"
    );
    let session = page.get("/api/session").await;
    assert_eq!(session.json(), reply.json());
    let session = session.json();
    assert_eq!(session["identity"], format!("the key {id}"));
    assert_eq!((&session["may"]["admin"], &session["may"]["write"]), (&true.into(), &false.into()));
    assert_eq!(session["s3"], crate::support::S3_URL);
    let mut other = running.page().await;
    assert_eq!(other.sign_in("", TOKEN).await.field("identity"), "the token with number 1");
    let out = other.send("DELETE", "/api/session", &[], b"").await;
    assert!(out.status == 204 && out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(other.get("/api/session").await.status, 401);
    assert_eq!(page.get("/api/session").await.status, 200);
}

/// Guesses come four at a time, each of which takes half a second.
#[tokio::test]
async fn wrong_credentials_are_refused_slowly() {
    let running = Running::start();
    let (id, secret) = running.key("all *");
    let mut guesses = Vec::new();
    for _ in 0..8 {
        let mut page = running.page().await;
        let id = id.clone();
        guesses.push(tokio::spawn(async move { page.sign_in(&id, "wrong-secret-wrong").await.status }));
    }
    let start = tokio::time::Instant::now();
    for guess in guesses {
        assert_eq!(guess.await.unwrap(), 401);
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "eight guesses are two rounds");
    let mut page = running.page().await;
    for (id, secret) in [(&*id, ""), ("", &*secret), ("SHKNOBODY", &secret), (&format!("{id}.{secret}"), "")]
    {
        assert_eq!(page.sign_in(id, secret).await.status, 401, "{id}");
    }
    assert_eq!(page.sign_in(&id, &secret).await.status, 200);
}

/// A client that goes away early would guess as fast as it connects.
#[tokio::test]
async fn a_guess_takes_its_time_without_its_client() {
    let running = Running::start();
    let (id, secret) = running.key("all *");
    let mut guesses = Vec::new();
    for _ in 0..4 {
        let mut page = running.page().await;
        let body = br#"{"id":"","secret":"wrong-secret-wrong"}"#;
        page.send_head("POST", "/api/session", &[("content-type", "application/json")], body.len()).await;
        page.send_body(body).await;
        guesses.push(page);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(guesses);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = tokio::time::Instant::now();
    assert_eq!(running.page().await.sign_in(&id, &secret).await.status, 200);
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_sign_in_is_a_short_document_of_json() {
    let running = Running::start();
    let (id, secret) = running.key("all *");
    let document = format!(r#"{{"id":"{id}","secret":"{secret}"}}"#);
    let mut page = running.page().await;
    // A form of another site needs no permission of a browser.
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let reply =
            page.send("POST", "/api/session", &[("content-type", content_type)], document.as_bytes()).await;
        assert_eq!(reply.status, 400, "{content_type}");
    }
    assert_eq!(page.post("/api/session", "{").await.status, 400);
    assert_eq!(page.post("/api/session", r#"{"id":"","secret":"x","more":1}"#).await.status, 400);
    let long = format!("{document}{}", " ".repeat(4 << 10));
    assert_eq!(page.post("/api/session", &long).await.status, 413);
    let mut page = running.page().await;
    let chunked = [("content-type", "application/json"), ("transfer-encoding", "chunked")];
    page.send_chunks("/api/session", &chunked, &[document.as_bytes(), &[b' '; 4 << 10]]).await;
    assert_eq!(page.receive("POST").await.status, 413, "without a length");
    let mut page = running.page().await;
    page.send_head("POST", "/api/session", &[("content-type", "application/json")], 1 << 40).await;
    let reply = page.receive("POST").await;
    assert_eq!(reply.status, 413, "before the body comes");
}

/// A cookie that somebody else has set is no session, and a sign-in never takes it over.
#[tokio::test]
async fn a_sign_in_starts_a_new_session() {
    let running = Running::start();
    let (id, secret) = running.key("all *");
    let mut page = running.page().await;
    page.cookie = "shoal_session=0000".to_owned();
    page.sign_in(&id, &secret).await;
    assert!(page.cookie.len() > 60 && page.cookie != "shoal_session=0000");
    let mut old = page.again().await;
    page.sign_in(&id, &secret).await;
    assert_ne!(old.cookie, page.cookie);
    assert_eq!(old.get("/api/session").await.status, 401, "the former session of the page is over");
    assert_eq!(page.get("/api/session").await.status, 200);
}

#[tokio::test]
async fn a_request_that_changes_something_carries_the_word() {
    for running in [Running::start(), Running::open()] {
        let mut page = running.admin().await;
        assert_eq!(page.put("/s3/bkt", &[], b"").await.status, 200);
        let word = std::mem::take(&mut page.csrf);
        for given in ["", "0", &word[1..], &format!("{word}0")] {
            page.csrf = given.to_owned();
            assert_eq!(page.put("/s3/bkt/k", &[], b"v").await.status, 403, "{given}");
            assert_eq!(page.send("DELETE", "/s3/bkt", &[], b"").await.status, 403, "{given}");
            assert_eq!(page.post("/api/grants/explain", r#"{"grants":[]}"#).await.status, 403, "{given}");
        }
        page.csrf.clone_from(&word);
        assert_eq!(page.put("/s3/bkt/k", &[], b"v").await.status, 200);
        // The word of another session is none.
        if running.security.asks() {
            page.csrf = running.signed_in("all *").await.csrf;
            assert_eq!(page.put("/s3/bkt/k", &[], b"v").await.status, 403);
        }
    }
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    for running in [Running::start(), Running::open()] {
        let mut page = running.admin().await;
        let own = format!("http://{}", page.host);
        for (name, value, expected) in [
            ("origin", &*own, 200),
            ("origin", "http://evil.example", 403),
            ("origin", "null", 403),
            ("origin", "http://127.0.0.1:1", 403),
            ("sec-fetch-site", "same-origin", 200),
            ("sec-fetch-site", "cross-site", 403),
            ("sec-fetch-site", "same-site", 403),
        ] {
            let headers = [(name, value), ("content-type", "application/json")];
            let reply = page.send("POST", "/api/grants/explain", &headers, br#"{"grants":[]}"#).await;
            assert_eq!(reply.status, expected, "{value}");
            assert_eq!(page.send("GET", "/s3/", &[(name, value)], b"").await.status, expected, "{value}");
        }
        let ask = [("origin", "http://evil.example"), ("access-control-request-method", "PUT")];
        for target in ["/api/session", "/s3/bkt/k"] {
            let reply = page.send("OPTIONS", target, &ask, b"").await;
            assert!(reply.status == 403 && reply.header("access-control-allow-origin").is_none());
        }
    }
}

/// A name of another site may be pointed at this machine.
#[tokio::test]
async fn without_credentials_only_names_of_this_machine_are_answered() {
    let running = Running::open();
    let mut page = running.page().await;
    let port = running.address.port();
    for (host, expected) in [
        (format!("127.0.0.1:{port}"), 200),
        ("localhost".to_owned(), 200),
        (format!("[::1]:{port}"), 200),
        (format!("evil.example:{port}"), 421),
        ("127.0.0.1.evil.example".to_owned(), 421),
        (format!("10.0.0.1:{port}"), 421),
    ] {
        page.host.clone_from(&host);
        for target in ["/", "/api/session", "/s3/"] {
            assert_eq!(page.get(target).await.status, expected, "{host} {target}");
        }
    }
    let asking = Running::start();
    let mut page = asking.page().await;
    page.host = "shoal.example".to_owned();
    assert_eq!(page.get("/").await.status, 200, "with credentials it has other names, too");
}

#[tokio::test]
async fn a_session_ends_when_it_is_idle_for_long() {
    let running = Running::start();
    let mut page = running.signed_in("all *").await;
    for _ in 0..3 {
        running.clock.advance(11 * HOUR_NS);
        assert_eq!(page.get("/api/session").await.status, 200);
    }
    running.clock.advance(12 * HOUR_NS);
    assert_eq!(page.get("/api/session").await.status, 401);
    assert_eq!(page.get("/s3/").await.status, 401);
}

#[tokio::test]
async fn a_session_ends_with_its_key() {
    let running = Running::start();
    let mut page = running.signed_in("all *").await;
    let id = running.book.file.lock().entries[0].id.clone();
    running.book.file.lock().rotate(&id, 0, Duration::ZERO).unwrap();
    running.book.enforce();
    assert_eq!(page.get("/api/session").await.status, 401, "it was rotated away");
    let mut page = running.signed_in("all *").await;
    running.book.file.lock().entries.clear();
    running.book.enforce();
    assert_eq!(page.put("/s3/bkt", &[], b"").await.status, 401, "it was revoked");
    running.book.file.lock().entries.clear();
    let (id, secret) = running.key("all *");
    running.book.file.lock().entries[0].expires = Some("2100-01-01T00:00:00Z".parse().unwrap());
    running.book.enforce();
    let mut page = running.page().await;
    assert_eq!(page.sign_in(&id, &secret).await.json()["expires_ms"], 4_102_444_800_000_u64);
    running.clock.set_wall(4_102_444_799 * 1_000_000_000);
    assert_eq!(page.get("/api/session").await.status, 200);
    running.clock.set_wall(4_102_444_800 * 1_000_000_000);
    assert_eq!(page.get("/api/session").await.status, 401, "it has expired");
}

#[tokio::test]
async fn other_grants_count_at_once() {
    let running = Running::start();
    let mut page = running.signed_in("all *").await;
    assert_eq!(page.put("/s3/bkt", &[], b"").await.status, 200);
    running.book.file.lock().entries[0].allow = vec!["read,list bkt".to_owned()];
    running.book.enforce();
    assert_eq!(page.put("/s3/bkt/k", &[], b"v").await.status, 403);
    assert_eq!(page.get("/s3/bkt").await.status, 200);
}

#[tokio::test]
async fn the_session_that_was_not_used_for_longest_makes_room() {
    let running = Running::start();
    let (id, secret) = running.key("all *");
    let (mut first, mut second) = (running.page().await, running.page().await);
    first.sign_in(&id, &secret).await;
    running.clock.advance(1);
    second.sign_in(&id, &secret).await;
    running.clock.advance(1);
    first.get("/api/session").await;
    for _ in 0..255 {
        running.clock.advance(1);
        let mut page = running.page().await;
        assert_eq!(in_time("a session", page.sign_in(&id, &secret)).await.status, 200);
    }
    assert_eq!(second.get("/api/session").await.status, 401);
    assert_eq!(first.get("/api/session").await.status, 200);
}
