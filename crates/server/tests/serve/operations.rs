//! The stream of operations, by our client and by others.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use shoal_api::v1::failure::Kind;
use shoal_api::v1::operation::Action;
use shoal_api::{Described, Method, v1};
use shoal_client::{ByteRange, ConnectOptions, Error, PutOptions, RejectRules};
use shoal_server::ServerLimits;
use shoal_storekit::eventually;
use shoal_testkit::wait::FOR_EVER;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::support::{Running, figure, grpc_over, key, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_operations_have_separate_outcomes() {
    let server = Running::start().await;
    for dedup in [false, true] {
        let options = ConnectOptions { dedup, ..server.options() };
        let client = shoal_client::Client::connect(options).await.unwrap();
        let stream = client.operations(if dedup { "once" } else { "b" });
        let puts = (0..3000).map(|number| {
            let stream = stream.clone();
            async move { stream.put(key(number), value(number % 300, 1), PutOptions::default()).await }
        });
        let versions = join_all(puts).await;
        let gets = join_all((0..3000).map(|number| stream.get(key(number), ByteRange::ALL))).await;
        for (number, (put, got)) in versions.iter().zip(gets).enumerate() {
            let object = got.unwrap().unwrap();
            assert_eq!(object.value, value(number % 300, 1));
            assert_eq!(object.info.version, put.as_ref().unwrap().version);
        }
        let new =
            PutOptions { rules: RejectRules { if_exists: true, ..Default::default() }, ..Default::default() };
        let error = stream.put(key(1), "x".into(), new).await.unwrap_err();
        assert!(matches!(error, Error::ConditionFailed { current: Some(_), .. }), "{error:?}");
        let version = versions[1].as_ref().unwrap().version;
        let this = RejectRules { if_version_not: Some(version), ..Default::default() };
        assert_eq!(stream.delete(key(1), this).await.unwrap().deleted, Some(version));
        assert!(matches!(
            stream.delete(key(1), this).await.unwrap_err(),
            Error::ConditionFailed { current: None, .. }
        ));
        stream.delete(key(2), RejectRules::default()).await.unwrap();
        for gone in [1, 2] {
            assert_eq!(stream.get(key(gone), ByteRange::ALL).await.unwrap(), None);
        }
        let part = stream.get(key(299), ByteRange { first: 5, bytes: Some(7) }).await.unwrap().unwrap();
        assert_eq!(part.value, value(299, 1).slice(5..12));
        // A value that is too long for the stream is sent beside it.
        stream.put("long".into(), value(300_000, 2), PutOptions::default()).await.unwrap();
        assert_eq!(
            stream.get("long".into(), ByteRange::ALL).await.unwrap().unwrap().value,
            value(300_000, 2)
        );
        assert!(matches!(stream.get(Bytes::new(), ByteRange::ALL).await, Err(Error::Invalid(_))));
    }
    let client = server.client().await;
    eventually("the streams have ended", || async { figure(&client, "server.bytes_in_flight").await < 4096 })
        .await;
    server.stop().await;
}

/// A stream whose messages the test makes itself.
struct Raw {
    send: mpsc::Sender<v1::OperationsRequest>,
    answers: Streaming<v1::OperationsResponse>,
}

impl Raw {
    async fn open(channel: &Channel) -> Self {
        let (send, mut queue) = mpsc::channel(4);
        let messages = stream::poll_fn(move |context| queue.poll_recv(context));
        let codec = ProstCodec::<v1::OperationsRequest, v1::OperationsResponse>::default();
        let path = PathAndQuery::from_static(v1::Operations::PATH);
        let answers = grpc_over(channel).await.streaming(Request::new(messages), path, codec).await;
        Self { send, answers: answers.unwrap().into_inner() }
    }

    async fn send(&self, operations: Vec<v1::Operation>) {
        self.send.send(v1::OperationsRequest { bucket: String::new(), operations }).await.unwrap();
    }
}

fn operation(number: u64, action: Action, key: &'static str, value: &'static str) -> v1::Operation {
    let (key, value) = (key.into(), value.into());
    v1::Operation { number, action: action.into(), key, value, ..v1::Operation::default() }
}

#[tokio::test]
async fn operation_error_does_not_affect_others() {
    let server = Running::start().await;
    let mut raw = Raw::open(&server.channel().await).await;
    let long = v1::Operation { value: value(65_537, 1), ..operation(4, Action::Put, "k", "") };
    raw.send(vec![
        operation(1, Action::Put, "k", "v"),
        operation(2, Action::Get, "none", ""),
        operation(3, Action::Unspecified, "k", ""),
        long,
        operation(5, Action::Put, "", "v"),
    ])
    .await;
    let mut results = Vec::new();
    while results.len() < 5 {
        results.extend(raw.answers.message().await.unwrap().unwrap().results);
    }
    results.sort_by_key(|result| result.number);
    let kinds: Vec<Kind> = results
        .iter()
        .map(|result| {
            let failure = result.status.as_ref().and_then(|status| status.failure.as_ref());
            failure.map_or(Kind::Unspecified, v1::Failure::kind)
        })
        .collect();
    assert_eq!(kinds, [Kind::Unspecified, Kind::NotFound, Kind::Invalid, Kind::Invalid, Kind::Invalid]);
    assert!(results[0].version > 0);
    raw.send(vec![operation(6, Action::Head, "k", "")]).await;
    let head = raw.answers.message().await.unwrap().unwrap().results.remove(0);
    assert_eq!((head.number, head.info.unwrap().version), (6, results[0].version));
    // The end of the requests is the end of the answers, after the last of them.
    raw.send(vec![operation(7, Action::Delete, "k", "")]).await;
    drop(raw.send);
    assert_eq!(raw.answers.message().await.unwrap().unwrap().results[0].number, 7);
    assert!(raw.answers.message().await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn invalid_message_ends_stream_after_started_operations() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let mut raw = Raw::open(&channel).await;
    raw.send(vec![operation(1, Action::Put, "k", "v")]).await;
    raw.send((0..1001).map(|number| operation(number, Action::Put, "k", "v")).collect()).await;
    assert_eq!(raw.answers.message().await.unwrap().unwrap().results[0].number, 1);
    let status = raw.answers.message().await.unwrap_err();
    assert_eq!(Described::from_status(&status).failure.kind(), Kind::Invalid);
    let mut raw = Raw::open(&channel).await;
    let long = v1::Operation { value: value(300 << 10, 1), ..operation(1, Action::Put, "k", "") };
    raw.send(vec![long]).await;
    let status = raw.answers.message().await.unwrap_err();
    assert_eq!(Described::from_status(&status).failure.kind(), Kind::Invalid);
    server.stop().await;
}

/// A client that takes no answers is not read from either, and holds no more than a stream may.
#[tokio::test]
async fn client_not_reading_is_throttled() {
    let server = Running::start().await;
    let client = server.client().await;
    client.put("", b"k", value(60_000, 1), PutOptions::default()).await.unwrap();
    let mut raw = Raw::open(&server.channel().await).await;
    let sender = raw.send.clone();
    let sending = tokio::spawn(async move {
        for batch in 0..400 {
            let gets = (0..10).map(|number| operation(batch * 10 + number, Action::Get, "k", "")).collect();
            sender.send(v1::OperationsRequest { bucket: String::new(), operations: gets }).await.unwrap();
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(figure(&client, "server.bytes_in_flight").await < 6 << 20);
    let mut numbers = Vec::new();
    while numbers.len() < 4000 {
        let message = raw.answers.message().await.unwrap().unwrap();
        numbers.extend(message.results.into_iter().map(|result| {
            assert_eq!(result.value.len(), 60_000);
            result.number
        }));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..4000).collect::<Vec<_>>());
    sending.await.unwrap();
    drop(raw);
    server.stop().await;
}

/// A shutdown of the server closes a stream at once, in order: operations that were answered were executed, and the others were not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_answers_exactly_the_applied_operations() {
    // An open stream that delayed the shutdown would delay it for good.
    let server = Running::with(ServerLimits { drain_max: FOR_EVER, ..ServerLimits::default() }).await;
    let client = server.impatient_client().await;
    let operations = client.operations("b");
    let store = server.store.clone();
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writer = {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let mut puts = stream::iter(0..)
                .map(|number| {
                    let put = operations.put(key(number), "v".into(), PutOptions::default());
                    async move { (number, put.await) }
                })
                .buffer_unordered(50);
            while let Some((number, result)) = puts.next().await {
                let over = result.is_err();
                done.lock().unwrap().push((number, result));
                if over {
                    // The others that are under way finish too.
                    let rest: Vec<_> = puts.by_ref().take(49).collect().await;
                    done.lock().unwrap().extend(rest);
                    return;
                }
            }
        })
    };
    eventually("some puts", || async { done.lock().unwrap().len() > 100 }).await;
    server.stop().await;
    writer.await.unwrap();
    let done = std::mem::take(&mut *done.lock().unwrap());
    assert!(done.iter().filter(|(_, result)| result.is_ok()).count() > 100);
    for (number, result) in done {
        let name = shoal_engine::ObjectKey::new("b", &key(number)).unwrap();
        let is_there = store.head(&name).await.unwrap().is_some();
        match result {
            Ok(_) => assert!(is_there, "{number}"),
            Err(Error::Unavailable { .. }) => assert!(!is_there, "{number}"),
            Err(Error::Unknown(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
