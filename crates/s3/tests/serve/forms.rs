//! Forms that browsers post.

use crate::support::{Running, form_body};

#[tokio::test(flavor = "multi_thread")]
async fn a_form_with_a_signed_policy_stores_its_file() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
    let fields =
        [("key", "in/${filename}"), ("Content-Type", "a/b"), ("x-amz-meta-m", "x"), ("tagging", tags)];
    for bytes in [0, 100, 300_000, 6 << 20] {
        let file: Vec<u8> = (0..bytes).map(|number: u32| (number % 251) as u8).collect();
        let stored = client.post_form("/bkt", &fields, &[], &file).await;
        assert_eq!(stored.status, 204, "{}", stored.text());
        assert_eq!(
            stored.header("location").unwrap(),
            format!("http://{}/bkt/in/a%20b.txt", running.address)
        );
        let got = client.get("/bkt/in/a%20b.txt").await;
        assert_eq!(got.body, file, "{bytes}");
        assert_eq!(got.header("etag"), stored.header("etag"));
        let found = ["content-type", "x-amz-meta-m", "x-amz-tagging-count"].map(|name| got.header(name));
        assert_eq!(found, [Some("a/b"), Some("x"), Some("1")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_chooses_its_answer() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let created =
        client.post_form("/bkt", &[("key", "k"), ("success_action_status", "201")], &[], b"1").await;
    assert_eq!(
        (created.status, created.one("Key").as_str(), created.one("Bucket").as_str()),
        (201, "k", "bkt")
    );
    assert_eq!(created.one("Location"), created.header("location").unwrap());
    let place = [("key", "k"), ("success_action_redirect", "http://h/p")];
    let redirected = client.post_form("/bkt", &place, &[], b"1").await;
    assert_eq!(redirected.status, 303);
    assert!(redirected.header("location").unwrap().starts_with("http://h/p?bucket=bkt&key=k&etag=%22"));
    client.host = "bkt.s3.test".to_owned();
    let hosted = client.post_form("/", &[("key", "k")], &[], b"1").await;
    assert_eq!((hosted.status, hosted.header("location")), (204, Some("http://bkt.s3.test/k")));
}

/// Nothing is stored.
#[tokio::test(flavor = "multi_thread")]
async fn forms_that_are_not_allowed_are_refused() {
    let mut running = Running::start().await;
    let mut client = running.with_bucket().await;
    let key = [("key", "k")];
    let range = "[\"content-length-range\", 2, 3]";
    for (target, fields, conditions, file, status, code) in [
        ("/bkt", &key[..], &["{\"key\": \"other\"}"][..], &b"12"[..], 403, "AccessDenied"),
        ("/bkt", &key, &[range], b"1", 400, "EntityTooSmall"),
        ("/bkt", &key, &[range], &[7; 300_000], 400, "EntityTooLarge"),
        ("/bkt", &[], &[], b"12", 400, "UserKeyMustBeSpecified"),
        ("/bkt", &[("key", "k"), ("acl", "log-delivery-write")], &[], b"12", 501, "NotImplemented"),
        (
            "/bkt",
            &[("key", "k"), ("x-amz-object-lock-mode", "GOVERNANCE")],
            &[],
            b"12",
            501,
            "NotImplemented",
        ),
        ("/bkt", &[("key", "k"), ("x-amz-checksum-crc32", "AAAAAA==")], &[], b"12", 400, "BadDigest"),
        ("/bkt", &[("key", "k"), ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")], &[], b"12", 400, "BadDigest"),
        ("/none", &key, &[], b"12", 404, "NoSuchBucket"),
    ] {
        let reply = client.post_form(target, fields, conditions, file).await;
        assert_eq!(reply.error(), (status, code.to_owned()), "{fields:?} {conditions:?}");
    }
    let cut = client.form(&key, &[], b"12");
    assert_eq!(client.send_form("/bkt", &cut[..cut.len() - 20]).await.error().1, "MalformedPOSTRequest");
    let typed = [("content-type", "text/plain")];
    assert_eq!(client.send("POST", "/bkt", &typed, b"12").await.error().1, "InvalidRequest", "a signature");
    let bare = client.send_form("/bkt", &form_body(&key, b"12")).await;
    assert_eq!(bare.error(), (403, "AccessDenied".to_owned()), "no policy");
    client.key.as_mut().unwrap().secret.push('x');
    let wrong = client.post_form("/bkt", &key, &[], b"12").await;
    assert_eq!(wrong.error(), (403, "SignatureDoesNotMatch".to_owned()));
    let clerk = running.add_key("write bkt/in/*");
    let mut clerk = running.client_of(&clerk).await;
    assert_eq!(clerk.post_form("/bkt", &key, &[], b"12").await.error().1, "AccessDenied");
    assert_eq!(clerk.post_form("/bkt", &[("key", "in/k")], &[], b"12").await.status, 204);
    let mut client = running.client().await;
    assert_eq!(client.get("/bkt").await.all("Key"), ["in/k"]);
}
