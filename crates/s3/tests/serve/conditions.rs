//! Conditions: exactly one of many racers wins.

use shoal_testkit::bytes::patterned;

use crate::support::Running;

const RACERS: usize = 32;

async fn race(
    running: &Running,
    target: &'static str,
    header: (&'static str, String),
    bytes: usize,
) -> Vec<u16> {
    let mut tasks = Vec::new();
    for number in 0..RACERS {
        let (mut client, header) = (running.client().await, header.clone());
        tasks.push(tokio::spawn(async move {
            let value = patterned(bytes, number);
            client.send("PUT", target, &[(header.0, &header.1)], &value).await.status
        }));
    }
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.unwrap());
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_creators_wins() {
    let running = Running::start().await;
    let _bucket = running.with_bucket().await;
    for (target, bytes) in [("/bkt/short", 10), ("/bkt/middle", 64 << 10)] {
        let statuses = race(&running, target, ("if-none-match", "*".to_owned()), bytes).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 412).count(), RACERS - 1, "{statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_who_replace_a_version_wins() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for (target, bytes) in [("/bkt/short", 10), ("/bkt/middle", 64 << 10), ("/bkt/long", (4 << 20) + 1)] {
        let etag = client.put(target, &patterned(bytes, 99)).await.header("etag").unwrap().to_owned();
        let statuses = race(&running, target, ("if-match", etag), bytes).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{target} {statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 412).count(), RACERS - 1, "{statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_deletes_are_judged_by_the_present_object() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let missing = client.send("PUT", "/bkt/k", &[("if-match", "\"x\"")], b"1").await;
    assert_eq!(missing.error(), (404, "NoSuchKey".to_owned()));
    assert_eq!(client.send("PUT", "/bkt/k", &[("if-match", "*")], b"1").await.status, 404);
    let etag = client.put("/bkt/k", b"1").await.header("etag").unwrap().to_owned();
    assert_eq!(client.send("PUT", "/bkt/k", &[("if-none-match", &etag)], b"2").await.status, 412);
    assert_eq!(client.send("PUT", "/bkt/k", &[("if-match", "*")], b"1").await.status, 200);
    assert_eq!(client.send("PUT", "/bkt/k", &[("if-none-match", "\"x\"")], b"1").await.status, 200);
    let delete = async |client: &mut crate::support::Client, name: &str, value: &str| {
        client.send("DELETE", "/bkt/k", &[(name, value)], b"").await.status
    };
    assert_eq!(delete(&mut client, "if-match", "\"x\"").await, 412);
    assert_eq!(delete(&mut client, "x-amz-if-match-size", "2").await, 412);
    assert_eq!(client.get("/bkt/k").await.status, 200);
    assert_eq!(delete(&mut client, "if-match", &etag).await, 204);
    assert_eq!(delete(&mut client, "if-match", "*").await, 204, "nothing is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_judged_before_their_values_are_read() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for bytes in [10, 100_000, (5 << 20)] {
        let etag = client.put("/bkt/k", &patterned(bytes, 1)).await.header("etag").unwrap().to_owned();
        let same = client.get_with("/bkt/k", &[("if-none-match", &etag)]).await;
        assert_eq!((same.status, same.header("etag")), (304, Some(&*etag)));
        let other = client.get_with("/bkt/k", &[("if-match", "\"x\"")]).await;
        assert_eq!(other.error(), (412, "PreconditionFailed".to_owned()));
        let matched = client.get_with("/bkt/k", &[("if-match", &etag), ("range", "bytes=0-4")]).await;
        assert_eq!((matched.status, matched.body.len()), (206, 5));
    }
}
