//! Objects by the operations of S3, and URLs for others.

use shoal_storekit::in_time;

use crate::support::{Running, S3_URL, TOKEN};

#[tokio::test]
async fn objects_are_those_of_s3() {
    for running in [Running::start(), Running::open()] {
        let mut page = running.admin().await;
        assert_eq!(page.put("/s3/bkt", &[], b"").await.status, 200);
        let put = page.put(
            "/s3/bkt/a%20b/%C3%A9",
            &[("x-amz-meta-who", "me"), ("content-type", "text/plain")],
            b"0123456789",
        );
        assert_eq!(put.await.header("etag"), Some("\"781e5e245d69b566979b86e28d23f2c7\""));
        let part = page.send("GET", "/s3/bkt/a%20b/%C3%A9", &[("range", "bytes=2-4")], b"").await;
        assert_eq!((part.status, part.text()), (206, "234".to_owned()));
        assert_eq!(part.header("x-amz-meta-who"), Some("me"));
        let listed = page.get("/s3/bkt?list-type=2&delimiter=%2F").await;
        assert!(
            listed.text().contains("<CommonPrefixes><Prefix>a b/</Prefix></CommonPrefixes>"),
            "{}",
            listed.text()
        );
        assert!(page.get("/s3/").await.text().contains("<Name>bkt</Name>"));
        let copied = page.put("/s3/bkt/copy", &[("x-amz-copy-source", "/bkt/a%20b/%C3%A9")], b"").await;
        assert_eq!(copied.status, 200);
        let started = page.post("/s3/bkt/large?uploads", "").await.text();
        let upload = started.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        let sent = page.put(&format!("/s3/bkt/large?partNumber=1&uploadId={upload}"), &[], b"part").await;
        let document = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
            sent.header("etag").unwrap()
        );
        let done =
            page.send("POST", &format!("/s3/bkt/large?uploadId={upload}"), &[], document.as_bytes()).await;
        assert_eq!(done.status, 200, "{}", done.text());
        assert_eq!(page.get("/s3/bkt/large").await.text(), "part");
        assert_eq!(page.send("DELETE", "/s3/bkt/copy", &[], b"").await.status, 204);
        assert_eq!(page.get("/s3/bkt/copy").await.status, 404);
    }
}

#[tokio::test]
async fn the_grants_and_policies_of_s3_decide() {
    let running = Running::start();
    let mut admin = running.admin().await;
    admin.put("/s3/bkt", &[], b"").await;
    admin.put("/s3/bkt/in/a", &[], b"v").await;
    admin.put("/s3/bkt/out", &[], b"v").await;
    let mut clerk = running.signed_in("read,list bkt/in/*").await;
    assert_eq!(clerk.get("/s3/bkt/in/a").await.status, 200);
    assert_eq!(clerk.get("/s3/bkt/out").await.status, 403);
    assert_eq!(clerk.put("/s3/bkt/in/b", &[], b"v").await.status, 403);
    assert_eq!(clerk.get("/s3/bkt?list-type=2&prefix=in/").await.status, 200);
    assert_eq!(clerk.get("/s3/bkt?list-type=2").await.status, 403);
    // A signature in the request names nobody.
    let mut out = running.page().await;
    let signed = [(
        "authorization",
        "AWS4-HMAC-SHA256 Credential=a/b/c/s3/aws4_request, SignedHeaders=host, Signature=0",
    )];
    assert_eq!(out.send("GET", "/s3/bkt/in/a", &signed, b"").await.status, 401);
    let policy = r#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bkt/in/*"}}"#;
    assert_eq!(admin.put("/s3/bkt?policy", &[], policy.as_bytes()).await.status, 204);
    assert_eq!(clerk.get("/s3/bkt/in/a").await.status, 403);
    assert_eq!(admin.get("/s3/bkt/in/a").await.status, 403);
    let archive = admin.get("/api/archive?bucket=bkt&prefix=in/&format=tar").await;
    assert_eq!(archive.status, 403, "{}", archive.text());
    let whole = admin.get("/api/archive?bucket=bkt&format=tar").await;
    assert_eq!(whole.status, 403, "the first object is denied");
}

/// An object with scripts is a download, and has no part of the console's origin.
#[tokio::test]
async fn an_object_that_is_opened_runs_nothing() {
    let running = Running::start();
    let mut page = running.admin().await;
    page.put("/s3/bkt", &[], b"").await;
    for (content_type, is_shown) in [
        ("text/html", false),
        ("image/svg+xml", false),
        ("application/xml", false),
        ("image/png", true),
        ("text/plain", true),
    ] {
        let headers =
            [("content-type", content_type), ("content-disposition", "inline"), ("cache-control", "public")];
        page.put("/s3/bkt/k", &headers, b"<script>alert(1)</script>").await;
        for target in ["/s3/bkt/k", "/s3/bkt/k?response-content-disposition=inline"] {
            let reply = page.get(target).await;
            assert_eq!(reply.status, 200);
            assert_eq!(
                reply.header("content-disposition") == Some("attachment"),
                !is_shown,
                "{content_type}"
            );
            assert!(
                reply.header("content-security-policy").unwrap().starts_with("sandbox; default-src 'none'")
            );
            assert_eq!(reply.header("cache-control"), Some("no-store"));
        }
    }
    let lie = page.get("/s3/bkt/k?response-content-type=text%2Fhtml").await;
    assert_eq!(
        (lie.header("content-type"), lie.header("content-disposition")),
        (Some("text/html"), Some("attachment"))
    );
    for destination in ["script", "style", "serviceworker", "iframe", "object"] {
        let reply = page.send("GET", "/s3/bkt/k", &[("sec-fetch-dest", destination)], b"").await;
        assert_eq!(reply.status, 403, "{destination}");
    }
}

/// An object of 64 MiB is not read to its end by the holder of a key that is gone.
#[tokio::test]
async fn a_long_download_of_a_revoked_key_is_cut() {
    let running = Running::start();
    let mut page = running.admin().await;
    page.put("/s3/bkt", &[], b"").await;
    assert_eq!(page.put("/s3/bkt/long", &[], &vec![7; 64 << 20]).await.status, 200);
    let page = running.signed_in("read bkt").await;
    let mut slow = page.again().await;
    slow.send_head("GET", "/s3/bkt/long", &[("cookie", &page.cookie)], 0).await;
    assert_eq!(slow.receive_head().await.header("content-length"), Some("67108864"));
    running.book.file.lock().entries.clear();
    running.book.enforce();
    let read = in_time("the end", slow.receive_rest()).await.len();
    assert!(read < 64 << 20, "{read}");
}

/// The rules of a bucket for pages are those of the S3 frontend.
#[tokio::test]
async fn no_bucket_opens_the_console_to_other_origins() {
    let running = Running::open();
    let mut page = running.admin().await;
    page.put("/s3/bkt", &[], b"").await;
    page.put("/s3/bkt/k", &[], b"v").await;
    let rules = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod>\
        <AllowedMethod>PUT</AllowedMethod><AllowedHeader>*</AllowedHeader></CORSRule></CORSConfiguration>";
    assert_eq!(page.put("/s3/bkt?cors", &[], rules.as_bytes()).await.status, 200);
    let own = format!("http://{}", page.host);
    let reply = page.send("GET", "/s3/bkt/k", &[("origin", &own)], b"").await;
    assert!(reply.status == 200 && reply.header("access-control-allow-origin").is_none());
    let evil = [("origin", "http://evil.example"), ("access-control-request-method", "GET")];
    for method in ["GET", "OPTIONS"] {
        let reply = page.send(method, "/s3/bkt/k", &evil, b"").await;
        assert!(reply.status == 403 && reply.header("access-control-allow-origin").is_none(), "{method}");
    }
}

#[tokio::test]
async fn a_url_is_signed_by_the_key_of_the_session() {
    let running = Running::start();
    let mut page = running.signed_in("read bkt/in/*").await;
    let wanted = |key: &str, seconds: u64| format!(r#"{{"bucket":"bkt","key":"{key}","seconds":{seconds}}}"#);
    let url = page.post("/api/presign", &wanted("in/a b", 60)).await.field("url");
    let id = running.book.file.lock().entries[0].id.clone();
    assert!(url.starts_with(&format!(
        "{S3_URL}/bkt/in/a%20b?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={id}%2F"
    )));
    assert_eq!(page.post("/api/presign", &wanted("out", 60)).await.status, 403);
    for seconds in [0, 604_801] {
        assert_eq!(page.post("/api/presign", &wanted("in/a", seconds)).await.status, 400);
    }
    let mut token = running.page().await;
    token.sign_in("", TOKEN).await;
    assert_eq!(token.post("/api/presign", &wanted("in/a", 60)).await.status, 409);
    // Without credentials the first key signs that may read the object.
    let open = Running::open();
    let mut page = open.admin().await;
    assert_eq!(page.post("/api/presign", &wanted("in/a", 60)).await.status, 409);
    open.key("read other");
    let (id, _) = open.key("read bkt");
    assert!(page.post("/api/presign", &wanted("in/a", 60)).await.field("url").contains(&id));
}
