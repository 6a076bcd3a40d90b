//! Bytes of all kinds on the port do not hurt clients that speak properly.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use shoal_client::{ByteRange, PutOptions};
use shoal_server::ServerLimits;
use shoal_storekit::{eventually, names};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, figure, value};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An HTTP/2 frame that may be wrong in every field.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    (
        payload,
        0..12_u8,
        any::<u8>(),
        prop_oneof![Just(0), Just(1), Just(3), any::<u32>()],
        prop::option::of(0..70_000_u32),
    )
        .prop_map(|(payload, kind, flags, stream, claimed)| {
            let length = claimed.unwrap_or(payload.len() as u32).to_be_bytes();
            let mut frame = vec![length[1], length[2], length[3], kind, flags];
            frame.extend_from_slice(&stream.to_be_bytes());
            frame.extend_from_slice(&payload);
            frame
        })
}

/// The bytes that an attacker sends on one connection.
fn attack() -> impl Strategy<Value = Vec<u8>> {
    let settings = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    let frames = prop::collection::vec(frame(), 1..20).prop_map(|frames| frames.concat());
    let after = |start: Vec<u8>| move |rest: Vec<u8>| [start.clone(), rest].concat();
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..2000),
        prop::collection::vec(any::<u8>(), 0..500).prop_map(after(PREFACE.to_vec())),
        frames.prop_map(after([PREFACE, &settings[..]].concat())),
        Just(b"GET / HTTP/1.1\r\nHost: shoal\r\n\r\n".to_vec()),
        (1..24_usize).prop_map(|bytes| PREFACE[..bytes].to_vec()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_does_not_affect_other_connections() {
    let limits = ServerLimits { greeting_max: Duration::from_millis(500), ..ServerLimits::default() };
    let server = Running::with(limits).await;
    let client = server.client().await;
    let good = tokio::spawn({
        let client = client.clone();
        async move {
            for i in 0..400_u32 {
                let (key, value) = (i.to_be_bytes(), value(100 * i as usize, i as u8));
                client.put("", &key, value.clone(), PutOptions::default()).await.unwrap();
                assert!(client.get("", &key, ByteRange::ALL).await.unwrap().unwrap().value == value);
            }
        }
    });
    let mut runner = TestRunner::deterministic();
    let strategy = attack();
    let mut attackers = tokio::task::JoinSet::new();
    for i in 0..600 {
        let bytes = strategy.new_tree(&mut runner).unwrap().current();
        let address = server.address;
        attackers.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The server may close at any moment.
            let _ = stream.write_all(&bytes).await;
            if i % 3 > 0 {
                // Let it answer, and wait for it to disconnect, or leave.
                let _ = tokio::time::timeout(Duration::from_millis(i % 7 * 20), stream.read(&mut [0; 4096]))
                    .await;
            }
        });
        if attackers.len() > 30 {
            attackers.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(attacker) = attackers.join_next().await {
        attacker.unwrap();
    }
    good.await.unwrap();
    assert_eq!(names(&server.store, "default").len(), 400);
    // Nothing of the attackers is left.
    eventually("only the client's connections", || async {
        figure(&client, "server.connections").await <= 2
    })
    .await;
    assert!(figure(&client, "server.bytes_in_flight").await < 4096);
    server.stop().await;
}
