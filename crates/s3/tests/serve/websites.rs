//! Websites of buckets: pages for browsers, which do not sign.

use crate::support::{Client, Reply, Running};

const SITE: &str = "<WebsiteConfiguration><IndexDocument><Suffix>index.html</Suffix></IndexDocument>\
    <ErrorDocument><Key>lost.html</Key></ErrorDocument></WebsiteConfiguration>";

const PUBLIC: &str = r#"{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"}}"#;

/// A browser at the website of a bucket.
async fn browser(running: &Running, host: &str) -> Client {
    let mut client = running.client().await;
    (client.key, client.host) = (None, host.to_owned());
    client
}

/// A bucket `bkt` with a website and these objects, which everybody may read.
async fn with_site(running: &Running, site: &str, keys: &[&str]) -> Client {
    let mut client = running.with_bucket().await;
    for key in keys {
        let page = [("content-type", "text/html")];
        let put = client.send("PUT", &format!("/bkt/{key}"), &page, key.as_bytes()).await;
        assert_eq!(put.status, 200, "{}", put.text());
    }
    assert_eq!(client.put("/bkt?website", site.as_bytes()).await.status, 200);
    assert_eq!(client.put("/bkt?policy", PUBLIC.as_bytes()).await.status, 204);
    client
}

fn location(reply: &Reply) -> (u16, &str) {
    (reply.status, reply.header("location").unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_website_is_stored_answered_and_removed() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    assert_eq!(client.get("/bkt?website").await.error(), (404, "NoSuchWebsiteConfiguration".to_owned()));
    assert_eq!(client.put("/bkt?website", SITE.as_bytes()).await.status, 200);
    let stored = client.get("/bkt?website").await;
    assert_eq!((&*stored.one("Suffix"), &*stored.one("Key")), ("index.html", "lost.html"));
    let wrong =
        "<WebsiteConfiguration><IndexDocument><Suffix>a/b</Suffix></IndexDocument></WebsiteConfiguration>";
    assert_eq!(client.put("/bkt?website", wrong.as_bytes()).await.error().1, "InvalidArgument");
    assert_eq!(client.get("/bkt?website").await.one("Suffix"), "index.html", "nothing was changed");
    for _ in 0..2 {
        assert_eq!(client.delete("/bkt?website").await.status, 204);
    }
    assert_eq!(client.get("/bkt?website").await.error().0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_have_an_index_and_errors_a_page() {
    let running = Running::start().await;
    let keys = ["index.html", "a/index.html", "a/b%20c.html", "lost.html", "x"];
    let mut owner = with_site(&running, SITE, &keys).await;
    let mut web = browser(&running, "bkt.web.test:80").await;
    for (target, body) in [
        ("/", "index.html"),
        ("/?q=1", "index.html"),
        ("/a/", "a/index.html"),
        ("/a/b%20c.html", "a/b%20c.html"),
        ("/x", "x"),
    ] {
        let page = web.get(target).await;
        assert_eq!((page.status, page.text()), (200, body.to_owned()), "{target}");
        assert_eq!(page.header("content-type"), Some("text/html"));
        let head = web.head(target).await;
        assert_eq!((head.status, head.header("content-length")), (200, Some(&*body.len().to_string())));
    }
    assert_eq!(location(&web.get("/a").await), (302, "/a/"));
    // The error document is for each error of a client, with the status of the error.
    for target in ["/none", "/none/", "/b/none.html"] {
        let lost = web.get(target).await;
        assert_eq!((lost.status, lost.text()), (403, "lost.html".to_owned()), "{target}");
        assert_eq!(lost.header("x-amz-error-code"), Some("AccessDenied"));
    }
    let lists = PUBLIC.replace(
        r#""s3:GetObject", "Resource": "arn:aws:s3:::bkt/*""#,
        r#"["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::bkt", "arn:aws:s3:::bkt/*"]"#,
    );
    assert_eq!(owner.put("/bkt?policy", lists.as_bytes()).await.status, 204);
    let lost = web.get("/none").await;
    assert_eq!((lost.status, lost.header("x-amz-error-code")), (404, Some("NoSuchKey")));
    assert_eq!((&*lost.text(), lost.header("content-type")), ("lost.html", Some("text/html")));
    assert_eq!(web.head("/none").await.status, 404);
    // Without its document, an error has a page of the server.
    assert_eq!(owner.delete("/bkt/lost.html").await.status, 204);
    let lost = web.get("/no%3Cne%3E").await;
    assert_eq!((lost.status, lost.header("content-type")), (404, Some("text/html; charset=utf-8")));
    assert!(lost.text().contains("<li>Key: no&lt;ne&gt;</li>"), "{}", lost.text());
    assert_eq!(web.send("PUT", "/x", &[], b"1").await.status, 405);
    assert_eq!(web.get("/%4").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_ranges_conditions_and_the_rules_for_browsers() {
    let running = Running::start().await;
    let mut owner = with_site(&running, SITE, &["index.html", "lost.html"]).await;
    let cors = "<CORSConfiguration><CORSRule><AllowedOrigin>https://p</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
    assert_eq!(owner.put("/bkt?cors", cors.as_bytes()).await.status, 200);
    let mut web = browser(&running, "bkt.web.test").await;
    let part = web.get_with("/", &[("range", "bytes=0-4")]).await;
    assert_eq!((part.status, part.text()), (206, "index".to_owned()));
    let page = web.get("/").await;
    let etag = page.header("etag").unwrap().to_owned();
    assert_eq!(web.get_with("/", &[("if-none-match", &etag)]).await.status, 304);
    let failed = web.get_with("/", &[("if-match", "\"x\"")]).await;
    assert_eq!((failed.status, failed.text()), (412, "lost.html".to_owned()), "without the condition");
    let of_page = web.get_with("/", &[("origin", "https://p")]).await;
    assert_eq!(of_page.header("access-control-allow-origin"), Some("https://p"));
    let asks = [("origin", "https://p"), ("access-control-request-method", "GET")];
    assert_eq!(web.send("OPTIONS", "/index.html", &asks, b"").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_readable_pages_are_shown() {
    let running = Running::start().await;
    let mut owner = with_site(&running, SITE, &["index.html", "a/index.html", "lost.html"]).await;
    assert_eq!(owner.delete("/bkt?policy").await.status, 204);
    let mut web = browser(&running, "bkt.web.test").await;
    for target in ["/", "/a", "/index.html", "/none"] {
        let denied = web.get(target).await;
        assert_eq!(
            (denied.status, denied.header("x-amz-error-code")),
            (403, Some("AccessDenied")),
            "{target}"
        );
        assert!(denied.text().contains("<h1>403 Forbidden</h1>"), "the document is not shown");
    }
    // The ACL of an object opens it; a signature does not.
    let public = [("x-amz-acl", "public-read")];
    assert_eq!(owner.send("PUT", "/bkt/index.html", &public, b"open").await.status, 200);
    assert_eq!(web.get("/").await.text(), "open");
    web.key = Some(running.key.clone());
    assert_eq!(web.get("/a/").await.status, 403);
    web.key = None;
    // A bucket that does not exist looks like one without a website.
    assert_eq!(owner.put("/plain", b"").await.status, 200);
    for host in ["plain.web.test", "none.web.test"] {
        let mut other = browser(&running, host).await;
        let missing = other.get("/").await;
        let code = missing.header("x-amz-error-code");
        assert_eq!((missing.status, code), (404, Some("NoSuchWebsiteConfiguration")), "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_objects_redirect() {
    let running = Running::start().await;
    let site = "<WebsiteConfiguration><IndexDocument><Suffix>index.html</Suffix></IndexDocument><RoutingRules>\
        <RoutingRule><Condition><KeyPrefixEquals>old/</KeyPrefixEquals></Condition><Redirect><ReplaceKeyPrefixWith>new/</ReplaceKeyPrefixWith></Redirect></RoutingRule>\
        <RoutingRule><Condition><HttpErrorCodeReturnedEquals>403</HttpErrorCodeReturnedEquals></Condition>\
        <Redirect><Protocol>https</Protocol><HostName>h</HostName><ReplaceKeyWith>e</ReplaceKeyWith><HttpRedirectCode>302</HttpRedirectCode></Redirect></RoutingRule>\
        </RoutingRules></WebsiteConfiguration>";
    let mut owner = with_site(&running, site, &["index.html"]).await;
    let to = [("x-amz-website-redirect-location", "/index.html")];
    assert_eq!(owner.send("PUT", "/bkt/moved", &to, b"").await.status, 200);
    let mut web = browser(&running, "bkt.web.test:8080").await;
    assert_eq!(location(&web.get("/old/a%20b").await), (301, "http://bkt.web.test:8080/new/a%20b"));
    assert_eq!(location(&web.head("/none").await), (302, "https://h/e"));
    assert_eq!(location(&web.get("/moved").await), (301, "/index.html"));
    assert_eq!(web.get("/").await.status, 200);
    let all = "<WebsiteConfiguration><RedirectAllRequestsTo><HostName>other</HostName></RedirectAllRequestsTo></WebsiteConfiguration>";
    assert_eq!(owner.put("/bkt?website", all.as_bytes()).await.status, 200);
    assert_eq!(location(&web.get("/a/b").await), (301, "http://other/a/b"));
    assert_eq!(location(&web.get("/").await), (301, "http://other/"));
}
