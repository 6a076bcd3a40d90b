//! Signatures and grants.

use std::time::Duration;

use shoal_engine::{ObjectKey, PutOptions};

use crate::support::{Running, TestKey, now_s};

#[tokio::test(flavor = "multi_thread")]
async fn only_a_right_signature_is_let_in() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/k", b"1").await;
    let TestKey { id, secret } = running.key.clone();
    let wrong = TestKey { id: id.clone(), secret: secret.replace(&secret[..1], "_") };
    let unknown = TestKey { id: id.replace("SHK", "SHX"), secret: secret.clone() };
    for (key, code) in [(wrong, "SignatureDoesNotMatch"), (unknown, "InvalidAccessKeyId")] {
        let mut client = running.client_of(&key).await;
        for method in ["GET", "PUT", "DELETE"] {
            assert_eq!(client.send(method, "/bkt/k", &[], b"").await.error(), (403, code.to_owned()));
        }
        // Nothing is learned about buckets.
        assert_eq!(client.get("/none").await.error().1, code);
    }
    let mut nobody = running.client().await;
    nobody.key = None;
    for target in ["/", "/bkt", "/bkt/k"] {
        assert_eq!(nobody.get(target).await.error(), (403, "AccessDenied".to_owned()), "{target}");
    }
    // Only the record of a bucket lets such a caller in: without one the bucket does not exist for it.
    let key = ObjectKey::new("made", b"k").unwrap();
    running.store.put(&key, b"v".to_vec().into(), PutOptions::default()).await.unwrap();
    for target in ["/none", "/none/k", "/made/k"] {
        assert_eq!(nobody.get(target).await.error(), (404, "NoSuchBucket".to_owned()), "{target}");
        assert_eq!(nobody.delete(target).await.error(), (404, "NoSuchBucket".to_owned()), "{target}");
    }
    let post =
        nobody.send("POST", "/bkt?delete", &[], b"<Delete><Object><Key>k</Key></Object></Delete>").await;
    assert_eq!(post.error().1, "AccessDenied");
    assert_eq!(client.get("/bkt/k").await.body, b"1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_presigned_request_works_until_it_expires() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/k", b"1").await;
    let urls = [("GET", now_s(), 60), ("GET", now_s() - 100, 60), ("HEAD", now_s(), 60)]
        .map(|(method, date_s, life_s)| client.presigned(method, "/bkt/k", date_s, life_s));
    let put = client.presigned("PUT", "/bkt/new", now_s(), 60);
    client.key = None;
    assert_eq!(client.get(&urls[0]).await.body, b"1");
    let expired = client.get(&urls[1]).await;
    assert_eq!(expired.error(), (403, "AccessDenied".to_owned()));
    assert!(expired.text().contains("expired"));
    assert_eq!(client.get(&urls[2]).await.error().1, "SignatureDoesNotMatch", "of another method");
    let added = client.send("PUT", &put, &[("x-amz-acl", "public-read")], b"2").await;
    assert_eq!(added.error(), (403, "AccessDenied".to_owned()), "a header that is not signed");
    assert_eq!(client.send("PUT", &put, &[], b"2").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_do_what_its_grants_allow() {
    let mut running = Running::start().await;
    let mut client = running.with_bucket().await;
    for target in ["/bkt/in/k", "/bkt/out", "/other/k"] {
        client.put(&format!("/{}", target.split('/').nth(1).unwrap()), b"").await;
        client.put(target, b"1").await;
    }
    client.put("/other", b"").await;
    let clerk = running.add_key("read,write,list bkt/in/*");
    let mut clerk = running.client_of(&clerk).await;
    assert_eq!(clerk.get("/bkt/in/k").await.body, b"1");
    assert_eq!(clerk.put("/bkt/in/new", b"2").await.status, 200);
    assert_eq!(clerk.get("/bkt/in/none").await.error().1, "NoSuchKey");
    assert_eq!(clerk.get("/bkt?prefix=in%2F").await.all("Key"), ["in/k", "in/new"]);
    assert_eq!(clerk.head("/bkt").await.status, 200);
    assert_eq!(clerk.get("/").await.all("Name"), ["bkt"]);
    let copy = [("x-amz-copy-source", "/bkt/out")];
    for denied in [
        clerk.get("/bkt/out").await,
        clerk.put("/bkt/out", b"2").await,
        clerk.delete("/bkt/in/k").await,
        clerk.get("/bkt").await,
        clerk.get("/bkt?prefix=i").await,
        clerk.get("/other/k").await,
        clerk.put("/new-bucket", b"").await,
        clerk.delete("/bkt").await,
        clerk.send("PUT", "/bkt/in/copy", &copy, b"").await,
    ] {
        assert_eq!(denied.error(), (403, "AccessDenied".to_owned()), "{}", denied.text());
    }
    assert_eq!(clerk.get("/none/k").await.error(), (404, "NoSuchBucket".to_owned()));
    let both = "<Delete><Object><Key>in/new</Key></Object><Object><Key>out</Key></Object></Delete>";
    assert_eq!(clerk.send("POST", "/bkt?delete", &[], both.as_bytes()).await.all("Code").len(), 2);
    let reader = running.add_key("read bkt");
    let mut reader = running.client_of(&reader).await;
    assert_eq!(reader.get("/bkt/none").await.error().1, "AccessDenied", "it may not list");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_secrets_of_a_rotation_sign() {
    let mut running = Running::start().await;
    let old = running.key.clone();
    let entry = running.file.rotate(&old.id, now_s(), Duration::from_secs(3_600)).unwrap();
    let new = TestKey { id: old.id.clone(), secret: entry.secret.clone().unwrap() };
    let third = running.add_key("read bkt");
    for key in [&old, &new] {
        assert_eq!(running.client_of(key).await.get("/").await.status, 200);
    }
    running.file.remove(&old.id).unwrap();
    let _ = running.add_key("read bkt");
    assert_eq!(running.client_of(&new).await.get("/").await.error().1, "InvalidAccessKeyId");
    assert_eq!(running.client_of(&third).await.get("/").await.status, 200);
}
