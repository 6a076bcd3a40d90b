//! Lists of uploads and parts, and the end of uploads that nobody completes.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::{Clock, ManualClock, SystemClock};
use shoal_engine::Environment;
use shoal_frontend::access::KeyFile;
use shoal_s3::S3Options;
use shoal_storekit::{StoreKit, in_time};

use crate::support::{Reply, Running};

const NONE: [&str; 0] = [];

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_listed_in_pages() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let mut started = Vec::new();
    for key in ["a", "a", "b/1", "b/2", "b/2", "c", "é x"] {
        let path = format!("/bkt/{}", key.replace('é', "%C3%A9").replace(' ', "%20"));
        started.push((key.to_owned(), client.begin_upload(&path, &[]).await));
    }
    started.sort();
    let pairs = |reply: &Reply| -> Vec<(String, String)> {
        reply.all("Key").into_iter().zip(reply.all("UploadId")).collect()
    };
    let all = client.get("/bkt?uploads").await;
    assert_eq!((pairs(&all), &*all.one("IsTruncated")), (started.clone(), "false"));
    assert_eq!(all.one("Initiator"), all.one("Owner"));
    for size in [1, 2, 3, 6, 7] {
        let (mut found, mut marker) = (Vec::new(), String::new());
        for _ in 0..=started.len() {
            let page =
                client.get(&format!("/bkt?uploads&encoding-type=url&max-uploads={size}{marker}")).await;
            assert!(page.all("Key").len() <= size);
            found.extend(page.all("UploadId"));
            if page.one("IsTruncated") != "true" {
                break;
            }
            let (key, id) = (page.one("NextKeyMarker"), page.one("NextUploadIdMarker"));
            marker = format!("&key-marker={}&upload-id-marker={id}", key.replace('/', "%2F"));
        }
        assert_eq!(found, started.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>(), "{size}");
    }
    let after = client.get("/bkt?uploads&key-marker=b%2F1").await;
    assert_eq!(after.all("Key"), ["b/2", "b/2", "c", "é x"]);
    assert_eq!(client.get("/bkt?uploads&prefix=b%2F").await.all("Key"), ["b/1", "b/2", "b/2"]);
    assert_eq!(client.get("/bkt?uploads&max-uploads=0").await.one("IsTruncated"), "false");
    let rolled = client.get("/bkt?uploads&delimiter=%2F").await;
    assert_eq!(rolled.all("Key"), ["a", "a", "c", "é x"]);
    assert_eq!(rolled.all("CommonPrefixes"), ["<Prefix>b/</Prefix>"]);
    let cut = client.get("/bkt?uploads&delimiter=%2F&max-uploads=3").await;
    assert_eq!((&*cut.one("NextKeyMarker"), &*cut.one("IsTruncated")), ("b/", "true"));
    let rest = client.get("/bkt?uploads&delimiter=%2F&key-marker=b%2F").await;
    assert_eq!((rest.all("Key"), rest.all("CommonPrefixes").len()), (vec!["c".into(), "é x".into()], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_listed_in_pages() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let upload = client.begin_upload("/bkt/k", &[("x-amz-checksum-algorithm", "CRC32")]).await;
    let numbers = [1, 2, 7, 300, 10_000];
    for number in numbers {
        let sent = client.send_part("/bkt/k", &upload, number, &[7; 10][..(number % 10) as usize]).await;
        assert_eq!(sent.status, 200, "{}", sent.text());
    }
    let target = format!("/bkt/k?uploadId={upload}");
    let all = client.get(&target).await;
    assert_eq!(all.all("PartNumber"), numbers.map(|number| number.to_string()));
    assert_eq!(all.all("Size"), numbers.map(|number| (number % 10).to_string()));
    assert_eq!((all.all("ChecksumCRC32").len(), &*all.one("ChecksumAlgorithm")), (5, "CRC32"));
    for size in [1, 2, 4, 5] {
        let (mut found, mut marker) = (Vec::new(), "0".to_owned());
        loop {
            let page = client.get(&format!("{target}&max-parts={size}&part-number-marker={marker}")).await;
            found.extend(page.all("PartNumber"));
            if page.one("IsTruncated") != "true" {
                break;
            }
            marker = page.one("NextPartNumberMarker");
        }
        assert_eq!(found, numbers.map(|number| number.to_string()), "{size}");
    }
    assert_eq!(client.get(&format!("{target}&part-number-marker=10000")).await.all("PartNumber"), NONE);
    assert_eq!(client.get(&format!("{target}&max-parts=x")).await.error().1, "InvalidArgument");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_ends_after_its_life() {
    let clock = Arc::new(ManualClock::new(SystemClock::default().wall_ns()));
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let options =
        S3Options { upload_life: Some(Duration::from_secs(1)), environment, ..S3Options::default() };
    let running = Running::by(StoreKit::new(64 << 10).in_memory(), KeyFile::default(), options);
    let mut client = running.with_bucket().await;
    let upload = client.begin_upload("/bkt/k", &[]).await;
    assert_eq!(client.send_part("/bkt/k", &upload, 1, b"1").await.status, 200);
    in_time("the end of the upload", async {
        while client.get("/bkt?uploads").await.all("UploadId") != NONE {
            // The sweeper looks at its clock ten times a second, and trusts it after an hour.
            clock.advance(3_600_000_000_000);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(client.send_part("/bkt/k", &upload, 2, b"1").await.error().1, "NoSuchUpload");
}
