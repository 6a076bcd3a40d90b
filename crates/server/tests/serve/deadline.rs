//! Calls whose time is over, and calls that are abandoned: they finish, and hold nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use shoal_api::v1;
use shoal_client::{ByteRange, PutOptions};
use shoal_device_sim::Latency;
use shoal_server::{MinRate, ServerLimits};
use shoal_storekit::slow_device;
use shoal_testkit::http2::message;
use shoal_testkit::wait::FOR_EVER;
use tokio::task::JoinSet;

use crate::support::{Running, call, header, kit, nothing_is_held, put_request, send, value};
use crate::web::Post;

/// A server on a device that takes `flush` for each flush.
async fn slow(flush: Duration) -> Running {
    let latency = Latency { flush_ns: flush.as_nanos() as u64, ..Latency::default() };
    let store = kit().create(&slow_device(kit().format.blocks_max, latency));
    Running::over(store, ServerLimits::default()).await
}

/// The server stops a call at its deadline; it was sent by hand, because a client would stop it itself.
#[tokio::test]
async fn call_past_deadline_fails() {
    let server = slow(Duration::from_millis(400)).await;
    // Without its deadline it would be answered once it is durable.
    let post = Post { timeout: Some("50m"), ..Post::new("/shoal.v1.ObjectStore/Put") };
    let answer = post.send(&server, &message(&put_request("k", value(100_000, 1)).encode_to_vec())).await;
    assert_eq!(answer.status(), Some(4), "{answer:?}");
    nothing_is_held(&server).await;
    // It is unknown if it was applied; it is whole if it was.
    if let Some(object) = server.client().await.get("", b"k", ByteRange::ALL).await.unwrap() {
        assert!(object.value == value(100_000, 1));
    }
    // In time, and with a deadline that makes no sense.
    let post = Post { timeout: Some("20S"), ..Post::new("/shoal.v1.ObjectStore/Put") };
    let answer = post.send(&server, &message(&put_request("k", value(10, 1)).encode_to_vec())).await;
    assert_eq!(answer.status(), Some(0), "{answer:?}");
    let post = Post { timeout: Some("soon"), ..Post::new("/shoal.v1.ObjectStore/Put") };
    let answer = post.send(&server, &message(&put_request("k", value(10, 1)).encode_to_vec())).await;
    assert_eq!(answer.status(), Some(3), "{answer:?}");
    server.stop().await;
}

/// A request of which a part is missing is waited for no longer than its deadline.
#[tokio::test]
async fn half_a_request_is_dropped_at_the_deadline() {
    // No other limit cuts it before this test times out.
    let limits = ServerLimits {
        min_rate: MinRate { silence_max: FOR_EVER, window: FOR_EVER, ..MinRate::default() },
        ..ServerLimits::default()
    };
    let server = Running::with(limits).await;
    let body = message(&put_request("k", value(1 << 20, 1)).encode_to_vec());
    let post =
        Post { timeout: Some("100m"), claimed: Some(body.len()), ..Post::new("/shoal.v1.ObjectStore/Put") };
    let answer = post.send(&server, &body[..body.len() / 2]).await;
    assert_eq!(answer.status(), Some(4), "{answer:?}");
    nothing_is_held(&server).await;
    assert_eq!(server.client().await.head("", b"k").await.unwrap(), None);
    server.stop().await;
}

/// A streamed answer stops at the deadline too: health is watched forever otherwise.
#[tokio::test]
async fn stream_past_deadline_fails() {
    let server = Running::start().await;
    let post = Post { timeout: Some("100m"), ..Post::new("/grpc.health.v1.Health/Watch") };
    let answer = post.send(&server, &message(b"")).await;
    assert_eq!(answer.status(), Some(4), "{answer:?}");
    assert!(answer.messages.len() == 1, "what it said before its time was over");
    nothing_is_held(&server).await;
    server.stop().await;
}

/// Puts that are abandoned at any moment are wholly there or wholly absent, and hold nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_put_is_all_or_nothing() {
    let server = Arc::new(slow(Duration::from_millis(3)).await);
    let channel = server.channel().await;
    let mut puts = JoinSet::new();
    const SIZES: [usize; 4] = [100, 9_000, 70_000, 1_500_000];
    for i in 0..160_u32 {
        let channel = channel.clone();
        puts.spawn(async move {
            let bytes = SIZES[i as usize % 4];
            let key = Bytes::from(i.to_be_bytes().to_vec());
            let request = v1::PutRequest { key, value: value(bytes, i as u8), ..Default::default() };
            let time = Duration::from_micros(u64::from(i / 4) * 200);
            tokio::time::timeout(time, call::<v1::Put>(&channel, request)).await.is_ok_and(|put| put.is_ok())
        });
        if i % 16 == 15 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // Streams that are abandoned in the middle leave nothing at all.
    for _ in 0..8 {
        let channel = channel.clone();
        puts.spawn(async move {
            let parts = stream::iter([header("stream"), crate::support::chunk(value(1 << 20, 1))]);
            let sending = send::<v1::PutStream>(&channel, parts.chain(stream::pending()));
            // A loaded server may refuse it before its time is over.
            let sent = tokio::time::timeout(Duration::from_millis(30), sending).await;
            assert!(!sent.is_ok_and(|sent| sent.is_ok()));
            false
        });
    }
    let done = puts.join_all().await.into_iter().filter(|&done| done).count();
    nothing_is_held(&server).await;
    let client = server.client().await;
    let mut there = 0;
    for i in 0..160_u32 {
        if let Some(object) = client.get("", &i.to_be_bytes(), ByteRange::ALL).await.unwrap() {
            assert!(object.value == value(SIZES[i as usize % 4], i as u8), "{i}");
            there += 1;
        }
    }
    assert!(done <= there && there < 160, "{done} were answered, {there} are there");
    assert_eq!(client.head("", b"stream").await.unwrap(), None);
    drop(channel);
    Arc::into_inner(server).unwrap().stop().await;
}

/// Gets that are abandoned release their pins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_get_releases_memory() {
    let server = Running::start().await;
    let client = server.client().await;
    for size in [70_000, 4 << 20] {
        client.put("", b"k", value(size, 1), PutOptions::default()).await.unwrap();
        let channel = server.channel().await;
        let mut gets = JoinSet::new();
        for i in 0..60 {
            let channel = channel.clone();
            gets.spawn(async move {
                let get = call::<v1::Get>(&channel, v1::GetRequest { key: "k".into(), ..Default::default() });
                tokio::time::timeout(Duration::from_micros(i * 150), get).await.is_ok()
            });
        }
        gets.join_all().await;
        nothing_is_held(&server).await;
    }
    server.stop().await;
}
