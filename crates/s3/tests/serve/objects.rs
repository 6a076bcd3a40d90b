//! Objects: put, get, head, delete, copy, tags.

use std::time::Duration;

use shoal_engine::{ByteRange, ObjectKey, PutOptions};
use shoal_metrics::Operation;
use shoal_testkit::bytes::patterned;

use crate::support::Running;

/// Values in the leaf, in the log, in extents, and above one message.
const SIZES: [usize; 7] = [0, 10, 4 << 10, 64 << 10, (1 << 20) + 1, 4 << 20, (9 << 20) + 77];

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_any_length_comes_back() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for (number, bytes) in SIZES.into_iter().enumerate() {
        let (target, value) = (format!("/bkt/k{number}"), patterned(bytes, number));
        let put = client
            .send(
                "PUT",
                &target,
                &[("content-type", "a/bkt"), ("x-amz-meta-name", "=?UTF-8?B?w6k=?=")],
                &value,
            )
            .await;
        assert_eq!(put.status, 200, "{bytes}: {}", put.text());
        let etag = put.header("etag").unwrap().to_owned();
        assert_eq!((etag.len(), etag.contains('-')), (34, false), "an MD5");
        let got = client.get(&target).await;
        assert_eq!(got.status, 200, "{bytes}: {}", got.text());
        assert!(got.body == value, "{bytes} bytes");
        assert_eq!(got.header("etag"), Some(&*etag));
        assert_eq!(got.header("content-type"), Some("a/bkt"));
        assert_eq!(got.header("x-amz-meta-name"), Some("=?UTF-8?B?w6k=?="));
        let head = client.head(&target).await;
        assert_eq!((head.status, head.header("content-length")), (200, Some(&*bytes.to_string())));
        assert!(head.header("last-modified").is_some() && head.header("date").is_some());
        assert_ne!(head.header("x-amz-request-id"), got.header("x-amz-request-id"));
        assert_eq!(client.delete(&target).await.status, 204);
        assert_eq!(client.get(&target).await.error(), (404, "NoSuchKey".to_owned()));
        let missing = client.head(&target).await;
        assert_eq!((missing.status, missing.body.len()), (404, 0));
    }
    assert_eq!(client.delete("/bkt/k0").await.status, 204, "a delete of nothing succeeds");
}

/// Symptom: every request of a connection that was older than a second was logged as slow, and counted with the age of its connection.
/// Cause: the start of a turn was read once a connection, because only HTTP/2 has turns of several requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_timed_from_its_arrival() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let pause = Duration::from_secs(3);
    tokio::time::sleep(pause).await;
    assert_eq!(client.get("/bkt/none").await.status, 404);
    let gets =
        running.metrics.s3().requests().into_iter().filter(|counts| counts.operation == Operation::Get);
    let sum: Vec<_> = gets.map(|counts| (counts.durations.count(), counts.durations.sum_ns)).collect();
    assert!(matches!(sum[..], [(1, ns)] if ns < pause.as_nanos() as u64), "{sum:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_short_and_long_values() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for (number, bytes) in SIZES.into_iter().enumerate().skip(1) {
        let (target, value) = (format!("/bkt/k{number}"), patterned(bytes, 3));
        assert_eq!(client.put(&target, &value).await.status, 200);
        let last = bytes - 1;
        for (range, first, end) in [
            ("bytes=0-0".to_owned(), 0, 1),
            ("bytes=3-".to_owned(), 3, bytes),
            ("bytes=-7".to_owned(), bytes - 7, bytes),
            (format!("bytes=1-{last}"), 1, bytes),
            (format!("bytes=2-{}", bytes * 2), 2, bytes),
        ] {
            let got = client.get_with(&target, &[("range", &range)]).await;
            assert_eq!(got.status, 206, "{bytes} {range}: {}", got.text());
            assert!(got.body == value[first..end], "{bytes} {range}");
            let expected = format!("bytes {first}-{}/{bytes}", end - 1);
            assert_eq!(got.header("content-range"), Some(&*expected));
        }
        let outside = client.get_with(&target, &[("range", &format!("bytes={bytes}-"))]).await;
        assert_eq!(outside.error(), (416, "InvalidRange".to_owned()));
    }
}

/// The library reads objects of S3, and the reverse.
#[tokio::test(flavor = "multi_thread")]
async fn one_namespace_with_other_frontends() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/a%20b/%C3%A9", b"from S3").await;
    let key = ObjectKey::new("bkt", "a b/é".as_bytes()).unwrap();
    let object = running.store.get(&key, ByteRange::ALL).await.unwrap().unwrap();
    assert_eq!(object.value.to_vec(), b"from S3");
    running.store.put(&key, b"from the library".to_vec().into(), PutOptions::default()).await.unwrap();
    let got = client.get("/bkt/a%20b/%C3%A9").await;
    assert_eq!(got.body, b"from the library");
    assert!(got.header("etag").unwrap().ends_with("-0\""), "no MD5: {:?}", got.header("etag"));
    assert_eq!(
        client.get_with("/bkt/a%20b/%C3%A9", &[("if-match", got.header("etag").unwrap())]).await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_the_metadata_of_its_source_or_of_the_request() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for bytes in [100, (5 << 20) + 3] {
        let value = patterned(bytes, 5);
        let headers = [("x-amz-meta-a", "1"), ("content-type", "a/bkt"), ("x-amz-tagging", "t=1")];
        let put = client.send("PUT", "/bkt/from", &headers, &value).await;
        let copied = client.send("PUT", "/bkt/to", &[("x-amz-copy-source", "/bkt/from")], b"").await;
        assert_eq!(copied.status, 200, "{}", copied.text());
        assert_eq!(copied.one("ETag").replace("&quot;", "\""), put.header("etag").unwrap());
        let got = client.get("/bkt/to").await;
        assert!(got.body == value);
        assert_eq!((got.header("x-amz-meta-a"), got.header("content-type")), (Some("1"), Some("a/bkt")));
        assert_eq!(got.header("x-amz-tagging-count"), Some("1"));
        let replace = [
            ("x-amz-copy-source", "/bkt/to"),
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-meta-c", "2"),
        ];
        let onto = client.send("PUT", "/bkt/to", &replace, b"").await;
        assert_eq!(onto.status, 200, "{}", onto.text());
        let got = client.get("/bkt/to").await;
        assert!(got.body == value);
        assert_eq!((got.header("x-amz-meta-a"), got.header("x-amz-meta-c")), (None, Some("2")));
    }
    let onto = client.send("PUT", "/bkt/to", &[("x-amz-copy-source", "/bkt/to")], b"").await;
    assert_eq!(onto.error(), (400, "InvalidRequest".to_owned()));
    let missing = client.send("PUT", "/bkt/to", &[("x-amz-copy-source", "/bkt/none")], b"").await;
    assert_eq!(missing.error(), (404, "NoSuchKey".to_owned()));
    let other = [("x-amz-copy-source", "/bkt/from"), ("x-amz-copy-source-if-match", "\"x\"")];
    assert_eq!(client.send("PUT", "/bkt/to", &other, b"").await.status, 412);
}

/// RustFS 2819 and s3s 585: a copy onto itself cut the object that it was still reading.
#[tokio::test(flavor = "multi_thread")]
async fn copies_onto_itself_keep_the_value() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let value = patterned((9 << 20) + 5, 4);
    assert_eq!(client.put("/bkt/k", &value).await.status, 200);
    let mut tasks = Vec::new();
    for number in 0..6 {
        let mut client = running.client().await;
        tasks.push(tokio::spawn(async move {
            let number = number.to_string();
            let replace = [
                ("x-amz-copy-source", "/bkt/k"),
                ("x-amz-metadata-directive", "REPLACE"),
                ("x-amz-meta-n", number.as_str()),
            ];
            client.send("PUT", "/bkt/k", &replace, b"").await.status
        }));
    }
    for task in tasks {
        let status = task.await.unwrap();
        assert!([200, 409].contains(&status), "{status}");
    }
    let refused = [
        ("x-amz-copy-source", "/bkt/k"),
        ("x-amz-metadata-directive", "REPLACE"),
        ("x-amz-copy-source-if-match", "\"x\""),
    ];
    assert_eq!(client.send("PUT", "/bkt/k", &refused, b"").await.status, 412);
    let got = client.get("/bkt/k").await;
    assert!(got.body == value && got.header("x-amz-meta-n").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_change_without_the_value() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for bytes in [10, (5 << 20) + 3] {
        let value = patterned(bytes, 9);
        let put = client.put("/bkt/k", &value).await;
        let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
        let set = client.put("/bkt/k?tagging", tags.as_bytes()).await;
        assert_eq!(set.status, 200, "{}", set.text());
        assert_eq!(client.get("/bkt/k?tagging").await.one("Key"), "a");
        let got = client.get("/bkt/k").await;
        assert!(got.body == value);
        assert_eq!(got.header("etag"), put.header("etag"));
        assert_eq!(client.delete("/bkt/k?tagging").await.status, 204);
        assert!(client.get("/bkt/k?tagging").await.all("Key").is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_are_answered_on_demand() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let put = client.send("PUT", "/bkt/k", &[("x-amz-checksum-crc32c", "4waSgw==")], b"123456789").await;
    assert_eq!(put.header("x-amz-checksum-crc32c"), Some("4waSgw=="));
    assert_eq!(client.get("/bkt/k").await.header("x-amz-checksum-crc32c"), None);
    let got = client.get_with("/bkt/k", &[("x-amz-checksum-mode", "ENABLED")]).await;
    assert_eq!(got.header("x-amz-checksum-crc32c"), Some("4waSgw=="));
    let wanted = [("x-amz-object-attributes", "ETag,Checksum,ObjectSize")];
    let attributes = client.get_with("/bkt/k?attributes", &wanted).await;
    assert_eq!(
        (attributes.one("ChecksumCRC32C"), attributes.one("ObjectSize")),
        ("4waSgw==".into(), "9".into())
    );
}
