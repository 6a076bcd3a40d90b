//! Time to live over gRPC: `ttl_ns`, which the server counts, and `expire_time_ns`, a moment of the wall clock.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::ManualClock;
use shoal_client::{
    ByteRange, Client, CreateOrGet, Expiry, GetItem, ListRequest, ObjectAttributes, PutItem, PutOptions,
};
use shoal_engine::Environment;
use shoal_server::ServerLimits;
use tonic::Code;

use crate::support::{Running, call, kit};

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1_800_000_000 * SECOND;

async fn start(clock: &Arc<ManualClock>) -> Running {
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let store = kit().with(environment).in_memory();
    Running::over(store, ServerLimits::default()).await
}

fn with(expiry: Expiry) -> PutOptions {
    PutOptions { expiry, ..PutOptions::default() }
}

/// The attributes of an object: head, get, listing, several gets and a stream agree.
async fn info(client: &Client, key: &'static str) -> Option<ObjectAttributes> {
    let head = client.head("b", key.as_bytes()).await.unwrap();
    let got = client.get("b", key.as_bytes(), ByteRange::ALL).await.unwrap();
    assert_eq!(got.map(|object| object.info), head, "{key}: get");
    let listed = client.list(&ListRequest { bucket: "b".into(), ..ListRequest::default() }).await.unwrap();
    let listed = listed.entries.into_iter().find(|entry| entry.key == key);
    assert_eq!(listed.map(|entry| entry.info), head, "{key}: list");
    let item = GetItem { key: Bytes::from_static(key.as_bytes()), range: ByteRange::ALL };
    let several = client.multi_get("b", &[item]).await.remove(0).unwrap();
    assert_eq!(several.map(|object| object.info), head, "{key}: several");
    let stream = client.get_stream("b", key.as_bytes(), ByteRange::ALL).await.unwrap();
    assert_eq!(stream.map(|stream| stream.info().clone()), head, "{key}: stream");
    head
}

#[tokio::test]
async fn ttl_is_elapsed_time_and_deadline_is_wall_clock() {
    let clock = Arc::new(ManualClock::new(BEGIN));
    let server = start(&clock).await;
    let client = server.client().await;
    clock.step_wall(86_400 * SECOND as i64);
    client.put("b", b"stays", "v".into(), PutOptions::default()).await.unwrap();
    clock.step_wall(-86_400 * SECOND as i64);
    let minute = Expiry::After(Duration::from_secs(60));
    let at = Expiry::At(BEGIN + 60 * SECOND);
    client.put("b", b"ttl", "v".into(), with(minute)).await.unwrap();
    client.put("b", b"at", "v".into(), with(at)).await.unwrap();
    let items = ["several ttl", "several at"].map(|key| PutItem {
        key: key.into(),
        value: "v".into(),
        options: with(if key.ends_with("ttl") { minute } else { at }),
    });
    for put in client.multi_put("b", &items).await {
        put.unwrap();
    }
    let mut stream = client.put_stream("b", b"stream ttl", with(minute));
    stream.write("v".into()).await.unwrap();
    stream.finish().await.unwrap();
    let created = client.create_or_get("b", b"created ttl", "v".into(), with(minute)).await.unwrap();
    assert!(matches!(created, CreateOrGet::Created(_)));
    let pipeline = client.operations("b");
    pipeline.put("operation ttl".into(), "v".into(), with(minute)).await.unwrap();
    let all = ["ttl", "at", "several ttl", "several at", "stream ttl", "created ttl", "operation ttl"];
    let said = |info: Option<ObjectAttributes>| {
        let info = info.unwrap();
        (info.ttl_ns.unwrap() / SECOND, (info.expire_time_ns.unwrap() - BEGIN) / SECOND)
    };
    for key in all {
        assert_eq!(said(info(&client, key).await), (60, 60), "{key}");
    }
    let stays = info(&client, "stays").await.unwrap();
    assert_eq!((stays.ttl_ns, stays.expire_time_ns), (None, None));
    clock.step_wall(30 * SECOND as i64);
    clock.advance(10 * SECOND);
    for key in all {
        let expected = if key.ends_with("ttl") { (50, 90) } else { (20, 60) };
        assert_eq!(said(info(&client, key).await), expected, "{key}");
    }
    clock.advance(20 * SECOND);
    for key in all {
        assert_eq!(info(&client, key).await.is_some(), key.ends_with("ttl"), "{key}");
    }
    clock.advance(30 * SECOND);
    for key in all {
        assert!(info(&client, key).await.is_none(), "{key}");
    }
    assert!(info(&client, "stays").await.is_some());
    server.stop().await;
}

#[tokio::test]
async fn impossible_ttl_is_rejected() {
    let server = start(&Arc::new(ManualClock::new(BEGIN))).await;
    let channel = server.channel().await;
    for (ttl_ns, expire_time_ns) in [(Some(0), None), (Some(5), Some(5))] {
        let request = v1::PutRequest { key: "k".into(), ttl_ns, expire_time_ns, ..Default::default() };
        let status = call::<v1::Put>(&channel, request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains("ttl_ns"), "{status}");
    }
    server.stop().await;
}
