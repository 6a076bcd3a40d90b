//! A put starts when its message is whole, and is answered when its request has ended.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use shoal_api::{Method, v1};
use shoal_engine::{ByteRange, ObjectKey};
use shoal_testkit::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, RESET, call, frame, greeting, message, take_frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Running, value};

/// A value that goes to extents, and fits in HTTP/2's initial window.
const VALUE_BYTES: usize = 60 << 10;

/// A client that sends frames of HTTP/2 one by one, all on one stream.
struct RawClient(TcpStream);

impl RawClient {
    /// Connects, and starts a put.
    async fn begin(server: &Running) -> Self {
        let mut client = Self(TcpStream::connect(server.address).await.unwrap());
        client.0.write_all(&greeting(&[])).await.unwrap();
        client.send(HEADERS, END_HEADERS, &call(v1::Put::PATH)).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        self.0.write_all(&frame(kind, flags, 1, payload)).await.unwrap();
    }

    /// Reads until a frame of the answer comes; returns its payload.
    async fn answer(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        loop {
            while let Some(frame) = take_frame(&mut received) {
                if frame.kind == HEADERS {
                    return frame.payload;
                }
            }
            assert!(self.0.read_buf(&mut received).await.unwrap() > 0, "the server closed the connection");
        }
    }
}

/// The frames of a put of `value` under `key`.
fn frames(key: &str, value: Bytes) -> Vec<Vec<u8>> {
    let put = v1::PutRequest { key: key.to_owned().into(), value, ..Default::default() };
    message(&put.encode_to_vec()).chunks(16 << 10).map(<[u8]>::to_vec).collect()
}

/// Waits until the store has this value.
async fn stored(server: &Running, key: &str, value: &Bytes) {
    let name = ObjectKey::new("default", key.as_bytes()).unwrap();
    loop {
        if let Some(object) = server.store.get(&name, ByteRange::ALL).await.unwrap() {
            assert!(object.value.to_vec() == value[..]);
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_put_begins_before_its_request_ends_and_is_answered_after() {
    let server = Running::start().await;
    let long = value(VALUE_BYTES, 3);
    let mut client = RawClient::begin(&server).await;
    for frame in frames("long", long.clone()) {
        client.send(DATA, 0, &frame).await;
    }
    timeout(Duration::from_secs(20), stored(&server, "long", &long)).await.expect("the put began");
    let early = timeout(Duration::from_millis(50), client.answer()).await;
    assert!(early.is_err(), "an answer in the middle of a request");
    client.send(DATA, END_STREAM, &[]).await;
    let headers = timeout(Duration::from_secs(20), client.answer()).await.expect("an answer");
    assert_eq!(headers[0], 0x88, "status 200, the eighth entry of HPACK's table");
    drop(client);
    server.stop().await;
}

/// A value that arrived as a whole is stored; an incomplete one is not, not even in part.
#[tokio::test]
async fn aborted_request_is_all_or_nothing() {
    let server = Running::start().await;
    let long = value(VALUE_BYTES, 5);
    let sent = frames("whole", long.clone());
    let mut whole = RawClient::begin(&server).await;
    for frame in &sent {
        whole.send(DATA, 0, frame).await;
    }
    timeout(Duration::from_secs(20), stored(&server, "whole", &long)).await.expect("the put began");
    whole.send(RESET, 0, &8_u32.to_be_bytes()).await;
    let mut part = RawClient::begin(&server).await;
    for frame in &frames("part", long.clone())[..3] {
        part.send(DATA, 0, frame).await;
    }
    part.send(RESET, 0, &8_u32.to_be_bytes()).await;
    // The server continues with others, and shuts down.
    let client = server.client().await;
    let head = client.get("", b"part", ByteRange::ALL).await.unwrap();
    assert!(head.is_none(), "a part of a value is no value");
    drop((whole, part, client));
    server.stop().await;
}
