//! A put begins when its message is whole, and is answered when its request has ended.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use shoal_api::{Method, v1};
use shoal_engine::{ByteRange, ObjectKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Running, value};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A value that goes to extents, and fits in the window with which HTTP/2 begins.
const VALUE_BYTES: usize = 60 << 10;

/// A client that sends frames of HTTP/2 one by one, all on one stream.
struct RawClient(TcpStream);

impl RawClient {
    /// Connects, and begins a request of `M`.
    async fn begin<M: Method>(server: &Running) -> Self {
        let mut client = Self(TcpStream::connect(server.address).await.unwrap());
        client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.send(SETTINGS, 0, &[]).await;
        // RFC 7541: two indexed fields, one with an indexed name, and two with new names.
        let mut headers = vec![0x83, 0x86];
        let mut literal = |start: &[u8], texts: &[&str]| {
            headers.extend_from_slice(start);
            for text in texts {
                headers.push(text.len() as u8);
                headers.extend_from_slice(text.as_bytes());
            }
        };
        literal(&[0x04], &[M::PATH]);
        literal(&[0x00], &["content-type", "application/grpc"]);
        literal(&[0x00], &["te", "trailers"]);
        client.send(HEADERS, END_HEADERS, &headers).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        let length = (payload.len() as u32).to_be_bytes();
        let stream = u8::from(kind != SETTINGS);
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
        self.0.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// Reads until a frame of the answer comes; gives its payload.
    async fn answer(&mut self) -> Vec<u8> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            if head[3] == HEADERS {
                return payload;
            }
        }
    }
}

/// The frames of a put of `value` under `key`.
fn frames(key: &str, value: Bytes) -> Vec<Vec<u8>> {
    let put = v1::PutRequest { key: key.to_owned().into(), value, ..Default::default() };
    let message = put.encode_to_vec();
    let sent = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    sent.chunks(16 << 10).map(<[u8]>::to_vec).collect()
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
    let mut client = RawClient::begin::<v1::Put>(&server).await;
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

/// What a client that goes away had sent as a whole is stored; of anything less nothing is.
#[tokio::test]
async fn a_request_that_breaks_off_is_stored_as_a_whole_or_not_at_all() {
    let server = Running::start().await;
    let long = value(VALUE_BYTES, 5);
    let sent = frames("whole", long.clone());
    let mut whole = RawClient::begin::<v1::Put>(&server).await;
    for frame in &sent {
        whole.send(DATA, 0, frame).await;
    }
    timeout(Duration::from_secs(20), stored(&server, "whole", &long)).await.expect("the put began");
    whole.send(RESET, 0, &8_u32.to_be_bytes()).await;
    let mut part = RawClient::begin::<v1::Put>(&server).await;
    for frame in &frames("part", long.clone())[..3] {
        part.send(DATA, 0, frame).await;
    }
    part.send(RESET, 0, &8_u32.to_be_bytes()).await;
    // The server goes on with others, and ends.
    let client = server.client().await;
    let head = client.get("", b"part", shoal_client::ByteRange::ALL).await.unwrap();
    assert!(head.is_none(), "a part of a value is no value");
    drop((whole, part, client));
    server.stop().await;
}
