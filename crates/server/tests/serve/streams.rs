//! Values that travel in pieces, whole and broken off.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use shoal_api::v1;
use shoal_api::v1::failure::Kind;
use shoal_client::{ByteRange, Client, Error, PutOptions, RejectRules};
use shoal_storekit::eventually;
use tokio::io::{AsyncRead, ReadBuf};
use tonic::Code;

use crate::support::{Running, chunk, end, figure, header, kind, receive, send, value};

const LARGE: usize = 20 << 20;

async fn nothing_stored(client: &Client, key: &[u8]) {
    // A stream that was broken off is over when nothing is under way any more.
    eventually("nothing in flight", || async { figure(client, "server.bytes_in_flight").await < 4096 }).await;
    assert_eq!(client.head("", key).await.unwrap(), None);
}

#[tokio::test]
async fn large_value_round_trips() {
    let server = Running::start().await;
    let client = server.client().await;
    let value = value(LARGE, 1);
    let version = client.put("b", b"k", value.clone(), PutOptions::default()).await.unwrap().version;
    let object = client.get("b", b"k", ByteRange::ALL).await.unwrap().unwrap();
    assert!(object.value == value);
    assert_eq!((object.info.bytes, object.info.version), (LARGE as u64, version));
    // A range that is long itself, and one that is not.
    for (first, bytes) in [(12_345, 3 << 20), (LARGE - 5, 100)] {
        let range = ByteRange { first: first as u64, bytes: Some(bytes as u64) };
        let part = client.get("b", b"k", range).await.unwrap().unwrap();
        assert!(part.value == value[first..(first + bytes).min(LARGE)]);
    }
    // Piece by piece.
    let mut stream = client.get_stream("b", b"k", ByteRange::ALL).await.unwrap().unwrap();
    assert_eq!(stream.info().version, version);
    let mut got = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        assert!(!piece.is_empty() && piece.len() <= 1 << 20);
        got.extend_from_slice(&piece);
    }
    assert!(got == value);
    assert!(stream.next().await.unwrap().is_none());
    assert!(client.get_stream("b", b"none", ByteRange::ALL).await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_stream_of_small_and_large_pieces() {
    let server = Running::start().await;
    let client = server.client().await;
    let value = value(5 << 20, 2);
    let mut stream = client.put_stream("b", b"k", PutOptions::default());
    let mut rest = value.clone();
    for bytes in [0, 1, 70_000, 3 << 20, 10, 65_536, 65_535, 1].into_iter().chain(std::iter::repeat(4_000)) {
        if rest.is_empty() {
            break;
        }
        stream.write(rest.split_to(bytes.min(rest.len()))).await.unwrap();
    }
    stream.finish().await.unwrap();
    assert!(client.get("b", b"k", ByteRange::ALL).await.unwrap().unwrap().value == value);
    // From a reader, and of no bytes at all.
    client.put_reader("b", b"r", &value[..], PutOptions::default()).await.unwrap();
    assert!(client.get("b", b"r", ByteRange::ALL).await.unwrap().unwrap().value == value);
    client.put_reader("b", b"e", &b""[..], PutOptions::default()).await.unwrap();
    assert_eq!(client.get("b", b"e", ByteRange::ALL).await.unwrap().unwrap().value, "");
    let mut empty = client.get_stream("b", b"e", ByteRange::ALL).await.unwrap().unwrap();
    assert!(empty.next().await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_stream_obeys_conditions() {
    let server = Running::start().await;
    let client = server.client().await;
    client.put("b", b"k", "v".into(), PutOptions::default()).await.unwrap();
    let rules = RejectRules { if_exists: true, ..Default::default() };
    let options = PutOptions { rules, ..PutOptions::default() };
    let error = client.put("b", b"k", value(3 << 20, 1), options).await.unwrap_err();
    assert!(matches!(error, Error::ConditionFailed { current: Some(_), .. }), "{error:?}");
    assert_eq!(client.get("b", b"k", ByteRange::ALL).await.unwrap().unwrap().value, "v");
    let error = client.put("B", b"k", value(LARGE, 1), PutOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    server.stop().await;
}

/// tonic takes a reset of a request for its regular end: a server that stored the bytes received until then would store half a value.
#[tokio::test]
async fn dropped_put_stream_stores_nothing() {
    let server = Running::start().await;
    let client = server.client().await;
    for _ in 0..10 {
        let mut stream = client.put_stream("", b"k", PutOptions::default());
        stream.write(value(2 << 20, 1)).await.unwrap();
        drop(stream);
    }
    nothing_stored(&client, b"k").await;
    // A call that is cancelled at any moment: all or nothing.
    let value = value(3 << 20, 1);
    for micros in (0..20).map(|i| i * 500) {
        let put = client.put("", b"c", value.clone(), PutOptions::default());
        let _ = tokio::time::timeout(std::time::Duration::from_micros(micros), put).await;
        if let Some(object) = client.get("", b"c", ByteRange::ALL).await.unwrap() {
            assert!(object.value == value);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn failing_source_stores_nothing() {
    struct Failing(usize);

    impl AsyncRead for Failing {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.0 == 0 {
                return Poll::Ready(Err(io::Error::other("unplugged")));
            }
            self.0 -= 1;
            buf.put_slice(&vec![7; buf.remaining()]);
            Poll::Ready(Ok(()))
        }
    }

    let server = Running::start().await;
    let client = server.client().await;
    let error = client.put_reader("", b"k", Failing(10), PutOptions::default()).await.unwrap_err();
    assert!(matches!(&error, Error::Source(why) if why.contains("unplugged")), "{error:?}");
    nothing_stored(&client, b"k").await;
    server.stop().await;
}

#[tokio::test]
async fn invalid_streams_store_nothing() {
    let server = Running::start().await;
    let client = server.client().await;
    let channel = server.channel().await;
    let part = || chunk(Bytes::from(vec![1; 1000]));
    let long = || chunk(Bytes::from(vec![1; (1 << 20) + 1]));
    for (what, parts, code, expected) in [
        ("no end", vec![header("k"), part()], Code::Cancelled, Kind::Incomplete),
        ("nothing at all", vec![], Code::InvalidArgument, Kind::Invalid),
        ("no header", vec![part(), end(1000)], Code::InvalidArgument, Kind::Invalid),
        ("two headers", vec![header("k"), header("k"), end(0)], Code::InvalidArgument, Kind::Invalid),
        ("too few bytes", vec![header("k"), part(), end(1001)], Code::InvalidArgument, Kind::Invalid),
        (
            "too many bytes",
            vec![header("k"), part(), part(), end(1000)],
            Code::InvalidArgument,
            Kind::Invalid,
        ),
        ("a long chunk", vec![header("k"), long(), end((1 << 20) + 1)], Code::InvalidArgument, Kind::Invalid),
        (
            "a chunk of 3 MiB",
            vec![header("k"), chunk(value(3 << 20, 1)), end(3 << 20)],
            Code::ResourceExhausted,
            Kind::Invalid,
        ),
        (
            "no part",
            vec![header("k"), v1::PutStreamRequest { part: None }],
            Code::InvalidArgument,
            Kind::Invalid,
        ),
        ("a wrong key", vec![header(""), end(0)], Code::InvalidArgument, Kind::Invalid),
    ] {
        let status = send::<v1::PutStream>(&channel, stream::iter(parts)).await.unwrap_err();
        assert_eq!((status.code(), kind(&status)), (code, expected), "{what}: {status:?}");
    }
    nothing_stored(&client, b"k").await;
    // A connection that breaks in the middle.
    let hanging = stream::iter([header("k"), part()]).chain(stream::pending());
    let call = send::<v1::PutStream>(&channel, hanging);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(100), call).await.is_err());
    drop(channel);
    nothing_stored(&client, b"k").await;
    server.stop().await;
}

#[tokio::test]
async fn overwrite_during_streamed_read() {
    let server = Running::start().await;
    let client = server.client().await;
    let version = client.put("b", b"k", value(LARGE, 1), PutOptions::default()).await.unwrap().version.0;
    let channel = server.channel().await;
    let request = v1::GetStreamRequest {
        bucket: "b".into(),
        key: "k".into(),
        version: Some(version),
        range: Some(v1::ByteRange { first: 1, bytes: Some(5) }),
    };
    let mut parts = receive::<v1::GetStream>(&channel, request.clone()).await.unwrap();
    let first = parts.message().await.unwrap().unwrap();
    assert_eq!((first.chunk.len(), first.info.unwrap().version), (5, version));
    assert!(parts.message().await.unwrap().is_none());
    client.put("b", b"k", value(LARGE, 2), PutOptions::default()).await.unwrap();
    let status = receive::<v1::GetStream>(&channel, request).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::Aborted, Kind::Changed));
    // Readers against a writer: always one version's bytes.
    let values = [value(3 << 20, 1), value(3 << 20, 2)];
    client.put("b", b"k", values[0].clone(), PutOptions::default()).await.unwrap();
    let writer = tokio::spawn({
        let (client, values) = (client.clone(), values.clone());
        async move {
            for i in 0..20 {
                client.put("b", b"k", values[i % 2].clone(), PutOptions::default()).await.unwrap();
            }
        }
    });
    while !writer.is_finished() {
        match client.get("b", b"k", ByteRange::ALL).await {
            Ok(object) => assert!(values.contains(&object.unwrap().value)),
            Err(error) => assert_eq!(error, Error::Changed),
        }
    }
    writer.await.unwrap();
    server.stop().await;
}
