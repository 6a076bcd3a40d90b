//! The counts of the server: every call once, by operation and result; and health checks without credentials.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_client::{ByteRange, ListRequest, PutOptions};
use shoal_metrics::{Metrics, RefusalCause};
use shoal_server::{ReportSource, Security, ServerOptions};
use shoal_storekit::eventually;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{Running, credentials_of, value};

fn counts(metrics: &Metrics) -> BTreeMap<(&'static str, &'static str), u64> {
    let requests = metrics.grpc().requests();
    requests.iter().map(|it| ((it.operation.word(), it.result.word()), it.durations.count())).collect()
}

#[tokio::test]
async fn each_call_is_counted_once() {
    let metrics = Arc::new(Metrics::default());
    let report = ReportSource::new(|| vec![("a.txt".into(), "text".into())]);
    let options = ServerOptions { metrics: Arc::clone(&metrics), report, ..ServerOptions::default() };
    let server = Running::told(options).await;
    let client = server.client().await;
    for _ in 0..3 {
        client.put("", b"k", "v".into(), PutOptions::default()).await.unwrap();
    }
    assert!(client.get("", b"k", ByteRange::ALL).await.unwrap().is_some());
    assert!(client.get("", b"none", ByteRange::ALL).await.unwrap().is_none());
    client.head("", b"k").await.unwrap();
    // Longer than one call carries: it is a stream in both directions.
    let long = value(5 << 20, 1);
    client.put("", b"long", long.clone(), PutOptions::default()).await.unwrap();
    assert_eq!(client.get("", b"long", ByteRange::ALL).await.unwrap().unwrap().value.len(), long.len());
    let stream = client.operations("");
    stream.put("s".into(), "v".into(), PutOptions::default()).await.unwrap();
    assert!(stream.get("s".into(), ByteRange::ALL).await.unwrap().is_some());
    assert!(stream.get("none".into(), ByteRange::ALL).await.unwrap().is_none());
    assert_eq!(client.report().await.unwrap(), [("a.txt".to_owned(), "text".to_owned())]);
    let stat = client.stat().await.unwrap();
    let grpc = stat.frontends.iter().find(|frontend| frontend.name == "grpc").unwrap();
    assert!(grpc.requests.iter().any(|it| it.operation == "get" && it.durations.count() > 0), "{grpc:?}");
    assert_eq!(stat.figure("grpc.connections"), stat.figure("server.connections"));
    // A stream is counted when its end was sent.
    eventually("all is counted", || async {
        let counts = counts(&metrics);
        let of = |operation, result| counts.get(&(operation, result)).copied().unwrap_or(0);
        of("put", "ok") == 3 + 1 + 1 && of("get", "ok") > 2 && of("get", "not_found") == 2
    })
    .await;
    assert_eq!(counts(&metrics).get(&("head", "ok")), Some(&1));
    let (received, sent) = metrics.grpc().bytes();
    assert!(received > long.len() as u64 && sent > long.len() as u64, "{received} {sent}");
}

/// Two pages are requested ahead of the caller, and no further one: not when the listing is dropped either.
#[tokio::test]
async fn list_all_requests_two_pages_ahead() {
    let metrics = Arc::new(Metrics::default());
    let server =
        Running::told(ServerOptions { metrics: Arc::clone(&metrics), ..ServerOptions::default() }).await;
    let client = server.client().await;
    for number in 0..80_u8 {
        client.put("b", &[number], "v".into(), PutOptions::default()).await.unwrap();
    }
    let mut pages = client.list_all(ListRequest { bucket: "b".into(), limit: 10, ..ListRequest::default() });
    let lists = || counts(&metrics).get(&("list", "ok")).copied().unwrap_or(0);
    for number in 0..3 {
        let page = pages.next_page().await.unwrap().unwrap();
        assert_eq!((page.entries.len(), &page.entries[0].key[..]), (10, &[number * 10][..]));
        eventually("two more are requested", || async { lists() == u64::from(number) + 3 }).await;
    }
    // The pages ahead are dropped, and others requested.
    pages.skip_to(vec![65]);
    let page = pages.next_page().await.unwrap().unwrap();
    assert_eq!(page.entries[0].key[..], [66]);
    eventually("one more page is the last", || async { lists() == 7 }).await;
    drop(pages);
    client.head("b", b"none").await.unwrap();
    assert_eq!(lists(), 7);
}

#[tokio::test]
async fn open_health_needs_no_credentials() {
    for open_health in [false, true] {
        let metrics = Arc::new(Metrics::default());
        let security = Security::new(credentials_of("correct-horse-battery"));
        let options = ServerOptions {
            metrics: Arc::clone(&metrics),
            security,
            open_health,
            ..ServerOptions::default()
        };
        let server = Running::told(options).await;
        let mut health = HealthClient::new(server.channel().await);
        let answer = health.check(HealthCheckRequest::default()).await;
        assert_eq!(answer.is_ok(), open_health, "{answer:?}");
        // Only the check itself is open: a stream holds a connection, and all other methods need the gate.
        let watch = health.watch(HealthCheckRequest::default()).await.unwrap_err();
        assert_eq!(watch.code(), Code::Unauthenticated);
        let denied = 1 + u64::from(!open_health);
        eventually("they are counted", || async {
            metrics.grpc().refusals().contains(&(RefusalCause::Credentials, denied))
        })
        .await;
    }
}
