//! Pages of browsers: questions without signatures, and the headers by which pages may read answers.

use crate::support::{Reply, Running};

const RULES: &str = "<CORSConfiguration>\
    <CORSRule><AllowedOrigin>https://*.example.org</AllowedOrigin><AllowedMethod>PUT</AllowedMethod><AllowedMethod>GET</AllowedMethod>\
    <AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule>\
    <CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";

fn allowed(reply: &Reply) -> Option<&str> {
    reply.header("access-control-allow-origin")
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_stored_answered_and_removed() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    assert_eq!(client.get("/bkt?cors").await.error(), (404, "NoSuchCORSConfiguration".to_owned()));
    assert_eq!(client.put("/bkt?cors", RULES.as_bytes()).await.status, 200);
    let stored = client.get("/bkt?cors").await;
    assert_eq!(stored.all("AllowedOrigin"), ["https://*.example.org", "*"]);
    assert_eq!(stored.all("AllowedMethod"), ["PUT", "GET", "GET"]);
    assert_eq!((&*stored.one("MaxAgeSeconds"), &*stored.one("AllowedHeader")), ("60", "x-amz-*"));
    for (document, code) in [
        ("<CORSConfiguration></CORSConfiguration>", "MalformedXML"),
        (
            "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>PATCH</AllowedMethod></CORSRule></CORSConfiguration>",
            "InvalidRequest",
        ),
    ] {
        assert_eq!(client.put("/bkt?cors", document.as_bytes()).await.error().1, code);
    }
    assert_eq!(client.get("/bkt?cors").await.all("CORSRule").len(), 2, "nothing was changed");
    assert_eq!(client.delete("/bkt?cors").await.status, 204);
    assert_eq!(client.get("/bkt?cors").await.error().0, 404);
    assert_eq!(client.delete("/bkt?cors").await.status, 204);
    assert_eq!(client.put("/none?cors", RULES.as_bytes()).await.error().1, "NoSuchBucket");
}

/// A bucket that another frontend filled gets a record.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_without_a_record_gets_one() {
    let running = Running::start().await;
    let key = shoal_engine::ObjectKey::new("made", b"k").unwrap();
    running.store.put(&key, b"v".to_vec().into(), shoal_engine::PutOptions::default()).await.unwrap();
    let mut client = running.client().await;
    assert_eq!(client.delete("/made?cors").await.status, 204);
    assert!(running.store.bucket("made").unwrap().is_none());
    assert_eq!(client.put("/made?cors", RULES.as_bytes()).await.status, 200);
    assert_eq!(client.get("/made?cors").await.all("CORSRule").len(), 2);
    assert_eq!(client.get("/made").await.all("Key"), ["k"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_are_answered_by_the_rules() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/k", b"1").await;
    let url = client.presigned("GET", "/bkt/k", crate::support::now_s(), 60);
    let upload = client.presigned("PUT", "/bkt/new", crate::support::now_s(), 60);
    let page = ("origin", "https://a.example.org");
    let asks =
        [page, ("access-control-request-method", "PUT"), ("access-control-request-headers", "x-amz-meta-a")];
    let ours = running.client().await.key;
    client.key = None;
    let closed = client.send("OPTIONS", &upload, &asks, b"").await;
    assert_eq!(closed.error(), (403, "AccessDenied".to_owned()), "no rules");
    let missing = client.send("OPTIONS", "/none/k", &asks, b"").await;
    assert_eq!((missing.error(), missing.one("Message")), (closed.error(), closed.one("Message")));
    let bare = client.send("OPTIONS", &upload, &[page], b"").await;
    assert_eq!(bare.error(), (400, "InvalidRequest".to_owned()), "the question is checked before the rules");
    client.key = ours;
    assert_eq!(client.put("/bkt?cors", RULES.as_bytes()).await.status, 200);
    client.key = None;
    let answer = client.send("OPTIONS", &upload, &asks, b"").await;
    assert_eq!((answer.status, allowed(&answer)), (200, Some("https://a.example.org")));
    assert_eq!(answer.header("access-control-allow-headers"), Some("x-amz-meta-a"));
    assert_eq!(answer.header("access-control-max-age"), Some("60"));
    let other = [("origin", "https://evil.org"), asks[1]];
    let refused = client.send("OPTIONS", &upload, &other, b"").await;
    assert_eq!((refused.status, allowed(&refused)), (403, None));
    let header = [("origin", "https://any.org"), ("access-control-request-method", "GET"), asks[2]];
    let refused = client.send("OPTIONS", &upload, &header, b"").await;
    assert_eq!((refused.status, allowed(&refused)), (403, None), "the rule without the header");
    assert_eq!(
        client.send("OPTIONS", "/bkt/k", &[asks[1]], b"").await.error(),
        (400, "InvalidRequest".to_owned())
    );
    let stored = client.send("PUT", &upload, &[page], b"2").await;
    assert_eq!((stored.status, allowed(&stored)), (200, Some("https://a.example.org")));
    assert_eq!(stored.header("access-control-expose-headers"), Some("ETag"));
    let read = client.get_with(&url, &[("origin", "https://any.org")]).await;
    assert_eq!((read.status, allowed(&read)), (200, Some("*")));
    assert_eq!(allowed(&client.get(&url).await), None, "no page asks");
    let [_, asked, _] = asks;
    let read = client.get_with(&url, &[page, asked]).await;
    assert_eq!(allowed(&read), Some("https://a.example.org"), "by the method that it asks for");
    let read = client.get_with(&url, &[("origin", "https://any.org"), asked]).await;
    assert_eq!(allowed(&read), None);
    // A page may read the reason of an error, too.
    let denied = client.get_with("/bkt/k", &[page]).await;
    assert_eq!((denied.status, allowed(&denied)), (403, Some("https://a.example.org")));
}
