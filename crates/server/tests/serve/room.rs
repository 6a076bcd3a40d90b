//! Streams that hold nothing take nothing from others, and messages that have arrived in half do not hold each other up.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream;
use prost::Message;
use shoal_api::v1;
use shoal_client::{ByteRange, ConnectOptions, PutOptions};
use shoal_engine::ObjectKey;
use shoal_server::ServerLimits;
use shoal_storekit::eventually;
use shoal_testkit::http2::{DATA, END_HEADERS, HEADERS, call, frame, greeting, message};
use shoal_testkit::wait::HANGS_AFTER;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Running, chunk, end, figure, header, send, value};

const MIB: usize = 1 << 20;

/// 131 silent streams of operations, or 85 of puts in pieces of which only the header came, took all room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_idle_streams_use_no_budget() {
    let server = Running::start().await;
    // Its calls are not repeated: one that is refused fails.
    let options = ConnectOptions { attempts: 1, connections: 2, ..server.options() };
    let client = shoal_client::Client::connect(options).await.unwrap();
    let before = figure(&client, "server.requests").await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let mut bytes = greeting(&[]);
        for number in 0..200 {
            let id = number * 2 + 1;
            if number % 2 == 0 {
                bytes.extend(frame(HEADERS, END_HEADERS, id, &call("/shoal.v1.ObjectStore/Operations")));
                continue;
            }
            bytes.extend(frame(HEADERS, END_HEADERS, id, &call("/shoal.v1.ObjectStore/PutStream")));
            bytes.extend(frame(DATA, 0, id, &message(&header("idle").encode_to_vec())));
        }
        stream.write_all(&bytes).await.unwrap();
        idle.push(stream);
    }
    eventually("a thousand streams", || async { figure(&client, "server.requests").await >= before + 1_000 })
        .await;
    for round in 0..5_u8 {
        let puts = (0..4_u8).map(|number| {
            let client = client.clone();
            async move {
                let key = [round, number];
                client.put("", &key, value(4 * MIB, number), PutOptions::default()).await.unwrap();
                let found =
                    client.get("", &key, ByteRange { first: 5, bytes: Some(9) }).await.unwrap().unwrap();
                assert_eq!(found.value, value(4 * MIB, number)[5..14]);
            }
        });
        join_all(puts).await;
    }
    assert!(figure(&client, "server.bytes_in_flight").await < 100_000);
    assert_eq!(figure(&client, "server.requests_refused").await, 0);
    drop(idle);
    server.stop().await;
}

/// More arrives in half than there is room for: the oldest one finishes, then the next one, and no connection holds up another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_received_messages_all_finish() {
    let limits = ServerLimits {
        bytes_in_flight_max: 2 * MIB,
        connection_bytes_in_flight_max: MIB,
        room_wait_max: Duration::from_secs(3600),
        ..ServerLimits::default()
    };
    let server = Running::with(limits).await;
    // The most that may wait on a connection.
    let mut all = Vec::new();
    for connection in 0..4 {
        let channel = server.channel().await;
        for number in 0..3 {
            let (channel, key) = (channel.clone(), [b"abcd"[connection], b"012"[number]]);
            let key: &'static str = String::from_utf8(key.to_vec()).unwrap().leak();
            all.push(async move {
                let parts = [chunk(value(MIB, number as u8)), chunk(value(MIB, 9)), end(2 * MIB as u64)];
                let parts = stream::iter([header(key)].into_iter().chain(parts));
                send::<v1::PutStream>(&channel, parts).await.map(|_| key)
            });
        }
    }
    let done = timeout(HANGS_AFTER, join_all(all)).await.expect("they hold each other up");
    for key in done {
        let key = ObjectKey::new("default", key.unwrap().as_bytes()).unwrap();
        assert_eq!(server.store.head(&key).await.unwrap().unwrap().bytes, 2 * MIB as u64);
    }
    let client = server.client().await;
    eventually("nothing is held", || async { figure(&client, "server.bytes_in_flight").await < 4096 }).await;
    server.stop().await;
}
