//! Buckets: with a record, or made by objects.

use shoal_engine::{ObjectKey, PutOptions};

use crate::support::Running;

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_created_found_and_deleted() {
    let mut running = Running::start().await;
    let mut client = running.client().await;
    assert_eq!(client.put("/bkt/k", b"1").await.error(), (404, "NoSuchBucket".to_owned()));
    assert_eq!(client.head("/bkt").await.status, 404);
    // S3's rule for names.
    assert_eq!(client.put("/b_", b"").await.error(), (400, "InvalidBucketName".to_owned()));
    let made = client.put("/bucket", b"").await;
    assert_eq!((made.status, made.header("location")), (200, Some("/bucket")));
    assert_eq!(client.put("/bucket", b"").await.status, 200, "its owner may create it again");
    let public = [("x-amz-acl", "public-read")];
    let enforced = [("x-amz-object-ownership", "BucketOwnerEnforced")];
    for other in [public, enforced] {
        let again = client.send("PUT", "/bucket", &other, b"").await;
        assert_eq!(again.error(), (409, "BucketAlreadyExists".to_owned()), "nothing would change: {other:?}");
    }
    assert_eq!(client.send("PUT", "/bucket?acl", &public, b"").await.status, 200);
    assert_eq!(client.put("/bucket", b"").await.error().0, 409, "it would not be private");
    assert_eq!(client.send("PUT", "/bucket", &public, b"").await.status, 200);
    let head = client.head("/bucket").await;
    assert_eq!((head.status, head.header("x-amz-bucket-region")), (200, Some("us-east-1")));
    assert_eq!(client.get("/bucket?location").await.status, 200);
    assert_eq!(client.get("/bucket?list-type=2").await.one("KeyCount"), "0");
    assert_eq!(client.put("/bucket/k", b"1").await.status, 200);
    assert_eq!(client.delete("/bucket").await.error(), (409, "BucketNotEmpty".to_owned()));
    let other = running.add_key("all *");
    let mut other = running.client_of(&other).await;
    assert_eq!(other.put("/bucket", b"").await.error().0, 409);
    assert_eq!(client.delete("/bucket/k").await.status, 204);
    assert_eq!(client.delete("/bucket").await.status, 204);
    assert_eq!(client.head("/bucket").await.status, 404);
    assert_eq!(client.delete("/bucket").await.error(), (404, "NoSuchBucket".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_of_objects_and_of_records_are_listed_together() {
    let running = Running::start().await;
    let mut client = running.client().await;
    for bucket in ["abc", "xyz"] {
        assert_eq!(client.put(&format!("/{bucket}"), b"").await.status, 200);
    }
    let key = ObjectKey::new("implicit", b"k").unwrap();
    running.store.put(&key, b"v".to_vec().into(), PutOptions::default()).await.unwrap();
    assert_eq!(client.get("/").await.all("Name"), ["abc", "implicit", "xyz"]);
    assert_eq!(client.get("/implicit/k").await.body, b"v");
    let page = client.get("/?max-buckets=2").await;
    assert_eq!(page.all("Name"), ["abc", "implicit"]);
    let next =
        client.get(&format!("/?max-buckets=2&continuation-token={}", page.one("ContinuationToken"))).await;
    assert_eq!((next.all("Name"), next.all("ContinuationToken").len()), (vec!["xyz".to_owned()], 0));
    // Records survive a new frontend.
    let again = Running::over(running.store.clone()).await;
    let mut client = again.client().await;
    assert_eq!(client.head("/abc").await.status, 200);
    assert_eq!(client.get("/.shoal/bucket/abc").await.error(), (400, "InvalidBucketName".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_that_are_missing_say_so() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for (method, target, name) in
        [("PUT", "/bkt?versioning", "Versioning"), ("GET", "/bkt/k?torrent", "Torrents")]
    {
        let refused = client.send(method, target, &[], b"").await;
        assert_eq!(refused.error(), (501, "NotImplemented".to_owned()), "{method} {target}");
        assert!(refused.one("Message").starts_with(name), "{}", refused.text());
    }
    assert_eq!(client.get("/bkt?versioning").await.status, 200);
    assert_eq!(client.get("/bkt?encryption").await.error().0, 404);
    let unknown = client.send("PUT", "/bkt/k", &[("x-amz-acl", "aws-exec-read")], b"1").await;
    assert_eq!(unknown.error().0, 501);
    assert_eq!(client.send("PATCH", "/bkt/k", &[], b"").await.error().0, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_has_up_to_fifty_tags() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let document = |count: usize| {
        let tag = |number| format!("<Tag><Key>k{number:02}</Key><Value>v&amp;</Value></Tag>");
        let tags: String = (0..count).map(tag).collect();
        format!("<Tagging><TagSet>{tags}</TagSet></Tagging>").into_bytes()
    };
    assert_eq!(client.get("/bkt?tagging").await.error(), (404, "NoSuchTagSet".to_owned()));
    assert_eq!(client.put("/bkt?tagging", &document(50)).await.status, 204);
    let stored = client.get("/bkt?tagging").await;
    assert_eq!((stored.all("Key").len(), &*stored.one("Value")), (50, "v&amp;"));
    assert_eq!(client.put("/bkt?tagging", &document(51)).await.error().1, "InvalidTag");
    assert_eq!(client.get("/bkt?tagging").await.all("Key").len(), 50);
    assert_eq!(client.delete("/bkt?tagging").await.status, 204);
    assert_eq!(client.get("/bkt?tagging").await.error().0, 404);
    client.put("/bkt?tagging", &document(1)).await;
    assert_eq!(client.put("/bkt?tagging", &document(0)).await.status, 204);
    assert_eq!(client.get("/bkt?tagging").await.error().0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bucket_may_be_in_the_host_name() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.host = "bkt.s3.test".to_owned();
    assert_eq!(client.put("/k/l", b"1").await.status, 200);
    assert_eq!(client.get("/").await.all("Key"), ["k/l"]);
    client.host = "s3.test".to_owned();
    assert_eq!(client.get("/bkt/k/l").await.body, b"1");
}
