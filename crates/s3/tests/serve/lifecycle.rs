//! Lifecycle rules: they are stored and answered, name the end of objects, and end them when the clock has moved.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::{Clock, ManualClock, SystemClock};
use shoal_engine::Environment;
use shoal_frontend::access::KeyFile;
use shoal_metrics::{Operation, RequestResult};
use shoal_s3::S3Options;
use shoal_storekit::{StoreKit, in_time};

use crate::support::{Client, Reply, Running};

const HOUR_NS: u64 = 3_600_000_000_000;
const DAY_NS: u64 = 24 * HOUR_NS;

fn rule(id: &str, filter: &str, actions: &str) -> String {
    format!("<Rule><ID>{id}</ID><Filter>{filter}</Filter><Status>Enabled</Status>{actions}</Rule>")
}

fn days(days: u32) -> String {
    format!("<Expiration><Days>{days}</Days></Expiration>")
}

async fn set(client: &mut Client, rules: &[String]) -> Reply {
    let document = format!("<LifecycleConfiguration>{}</LifecycleConfiguration>", rules.concat());
    client.put("/bkt?lifecycle", document.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_stored_answered_and_removed() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    assert_eq!(client.get("/bkt?lifecycle").await.error(), (404, "NoSuchLifecycleConfiguration".to_owned()));
    let rules = [
        rule("r1", "<Prefix>tmp/</Prefix>", &days(3)),
        "<Rule><Prefix>old</Prefix><Status>Disabled</Status><Expiration><Date>2031-01-01T00:00:00.000Z</Date></Expiration></Rule>"
            .to_owned(),
        rule(
            "r3",
            "",
            "<AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation></AbortIncompleteMultipartUpload>",
        ),
    ];
    let stored = set(&mut client, &rules).await;
    assert_eq!((stored.status, stored.text()), (200, String::new()));
    let again = Running::over(running.store.clone()).await;
    for running in [&running, &again] {
        let stored = running.client().await.get("/bkt?lifecycle").await;
        assert_eq!(stored.all("ID"), ["r1", "rule-1", "r3"]);
        assert_eq!(stored.all("Prefix"), ["tmp/", "old", ""]);
        assert_eq!(stored.all("Status"), ["Enabled", "Disabled", "Enabled"]);
        assert_eq!((&*stored.one("Days"), &*stored.one("Date")), ("3", "2031-01-01T00:00:00.000Z"));
        assert_eq!(stored.one("DaysAfterInitiation"), "2");
    }
    for (actions, name) in [
        ("<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>", "Transition"),
        (
            "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>",
            "Noncurrent",
        ),
        (
            "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>",
            "ExpiredObjectDeleteMarker",
        ),
    ] {
        let refused = set(&mut client, &[rule("r", "", actions)]).await;
        assert_eq!(refused.error(), (501, "NotImplemented".to_owned()));
        assert!(refused.one("Message").starts_with(name), "{}", refused.text());
    }
    assert_eq!(set(&mut client, &[]).await.error().1, "MalformedXML");
    assert_eq!(client.get("/bkt?lifecycle").await.all("ID").len(), 3, "nothing was changed");
    for _ in 0..2 {
        assert_eq!(client.delete("/bkt?lifecycle").await.status, 204);
    }
    assert_eq!(client.get("/bkt?lifecycle").await.error().0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_end_of_an_object() {
    let clock = Arc::new(ManualClock::new(SystemClock::default().wall_ns()));
    let running = moved(&clock);
    let mut client = running.with_bucket().await;
    let tagged = [("x-amz-tagging", "kind=short")];
    let rules = [
        rule("a b", "<Prefix>tmp/</Prefix>", &days(3)),
        rule("tag", "<Tag><Key>kind</Key><Value>short</Value></Tag>", &days(1)),
    ];
    assert_eq!(set(&mut client, &rules).await.status, 200);
    let day = |days: u64| {
        let midnight = (clock.wall_ns() + days * DAY_NS).next_multiple_of(DAY_NS);
        shoal_s3::time::http_date_of(midnight / 1_000_000_000)
    };
    let expected = |days, id: &str| Some(format!("expiry-date=\"{}\", rule-id=\"{id}\"", day(days)));
    let named = |reply: &Reply| {
        assert!(reply.status < 300, "{}", reply.text());
        reply.header("x-amz-expiration").map(ToOwned::to_owned)
    };
    // A midnight that passes meanwhile would be another day.
    let (plain, short) = (expected(3, "a%20b"), expected(1, "tag"));
    assert_eq!(named(&client.put("/bkt/tmp/k", b"12").await), plain);
    assert_eq!(named(&client.send("PUT", "/bkt/tmp/t", &tagged, b"1").await), short);
    assert_eq!(named(&client.put("/bkt/other", b"1").await), None);
    for (target, end) in [("/bkt/tmp/k", &plain), ("/bkt/tmp/t", &short), ("/bkt/other", &None)] {
        assert_eq!(named(&client.get(target).await), *end, "{target}");
        assert_eq!(named(&client.head(target).await), *end, "{target}");
        assert_eq!(named(&client.get_with(target, &[("range", "bytes=0-0")]).await), *end, "{target}");
    }
    let copied = client.send("PUT", "/bkt/tmp/c", &[("x-amz-copy-source", "/bkt/other")], b"").await;
    assert_eq!(named(&copied), plain);
    let upload = client.begin_upload("/bkt/tmp/u", &tagged).await;
    let part = client.send_part("/bkt/tmp/u", &upload, 1, b"1").await;
    let parts = [(1, part.header("etag").unwrap())];
    for _ in 0..2 {
        assert_eq!(named(&client.complete_upload("/bkt/tmp/u", &upload, &parts, &[]).await), short);
    }
    assert_eq!(named(&client.head("/bkt/tmp/u").await), short);
    client.put("/bkt/tmp/u", b"another object").await;
    assert_eq!(named(&client.complete_upload("/bkt/tmp/u", &upload, &parts, &[]).await), None);
    client.delete("/bkt?lifecycle").await;
    assert_eq!(named(&client.head("/bkt/tmp/k").await), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_end_of_an_upload() {
    let clock = Arc::new(ManualClock::new(SystemClock::default().wall_ns()));
    let running = moved(&clock);
    let mut client = running.with_bucket().await;
    let abort = |days: u32| {
        format!(
            "<AbortIncompleteMultipartUpload><DaysAfterInitiation>{days}</DaysAfterInitiation></AbortIncompleteMultipartUpload>"
        )
    };
    let off = rule("off", "", &abort(1)).replace("Enabled", "Disabled");
    let rules = [
        rule("late", "", &abort(9)),
        rule("a b", "<Prefix>tmp/</Prefix>", &abort(3)),
        rule("né", "<Prefix>tmp/x</Prefix>", &abort(2)),
        off,
        rule("objects", "", &days(1)),
    ];
    assert_eq!(set(&mut client, &rules).await.status, 200);
    let named = |reply: &Reply| {
        assert_eq!(reply.status, 200, "{}", reply.text());
        ["x-amz-abort-date", "x-amz-abort-rule-id"].map(|name| reply.header(name).map(ToOwned::to_owned))
    };
    for (key, end, id) in [("other", 9, "late"), ("tmp/k", 3, "a b"), ("tmp/x", 2, "n%C3%A9")] {
        let midnight = (clock.wall_ns() + end * DAY_NS).next_multiple_of(DAY_NS);
        let expected = [Some(shoal_s3::time::http_date_of(midnight / 1_000_000_000)), Some(id.to_owned())];
        let started = client.send("POST", &format!("/bkt/{key}?uploads"), &[], b"").await;
        assert_eq!(named(&started), expected, "{key}");
        let listed = format!("/bkt/{key}?uploadId={}", started.one("UploadId"));
        assert_eq!(named(&client.get(&listed).await), expected, "{key}");
    }
    client.delete("/bkt?lifecycle").await;
    let started = client.send("POST", "/bkt/tmp/k?uploads", &[], b"").await;
    assert_eq!(named(&started), [None, None]);
}

/// A frontend whose sweeper looks at this clock ten times a second.
fn moved(clock: &Arc<ManualClock>) -> Running {
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let options =
        S3Options { upload_life: Some(Duration::from_secs(1)), environment, ..S3Options::default() };
    Running::by(StoreKit::new(64 << 10).in_memory(), KeyFile::default(), options)
}

/// Lets hours pass until `keys` are left.
async fn until_left(clock: &ManualClock, client: &mut Client, keys: &[&str]) {
    in_time("the end of objects", async {
        while client.get("/bkt").await.all("Key") != keys {
            clock.advance(HOUR_NS);
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_and_uploads_end_by_rules_when_the_clock_has_moved() {
    let clock = Arc::new(ManualClock::new(SystemClock::default().wall_ns()));
    let running = moved(&clock);
    let mut client = running.with_bucket().await;
    for key in ["keep", "tmp/a", "tmp/b"] {
        assert_eq!(client.put(&format!("/bkt/{key}"), b"1").await.status, 200);
    }
    assert_eq!(client.put("/bkt/tmp/long", &[7; 100]).await.status, 200);
    let upload = client.begin_upload("/bkt/tmp/up", &[]).await;
    let large = "<And><Prefix>tmp/</Prefix><ObjectSizeGreaterThan>50</ObjectSizeGreaterThan></And>";
    let small = "<And><Prefix>tmp/</Prefix><ObjectSizeLessThan>50</ObjectSizeLessThan></And>";
    let abort = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>40</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
    let rules = [
        rule("large", large, &days(10)),
        rule("small", small, &days(30)),
        rule("up", "<Prefix>tmp/</Prefix>", abort),
    ];
    assert_eq!(set(&mut client, &rules).await.status, 200);
    // A wrong date that is mended within the hour deletes nothing.
    clock.step_wall(1_000 * DAY_NS as i64);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(client.get("/bkt").await.all("Key").len(), 4);
        clock.advance(HOUR_NS / 6);
    }
    clock.step_wall(-1_000 * DAY_NS as i64);
    clock.advance(9 * DAY_NS);
    clock.advance(2 * DAY_NS);
    until_left(&clock, &mut client, &["keep", "tmp/a", "tmp/b"]).await;
    clock.advance(20 * DAY_NS);
    until_left(&clock, &mut client, &["keep"]).await;
    assert_eq!(
        client.get("/bkt?uploads").await.all("UploadId"),
        std::slice::from_ref(&upload),
        "its rule outlives the option"
    );
    clock.advance(11 * DAY_NS);
    in_time("the end of the upload", async {
        while !client.get("/bkt?uploads").await.all("UploadId").is_empty() {
            clock.advance(HOUR_NS);
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    })
    .await;
    let counted = running.metrics.s3().requests();
    let deletes = counted.iter().filter(|counts| counts.operation == Operation::Delete);
    let deletes: Vec<_> = deletes.map(|counts| (counts.result, counts.durations.count())).collect();
    assert_eq!(deletes, [(RequestResult::Ok, 4)], "three objects and an upload");
}
