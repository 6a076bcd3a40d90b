//! Requests that are too large, too many or too slow are refused, and hurt nobody else.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use shoal_api::v1;
use shoal_api::v1::failure::Kind;
use shoal_client::{ByteRange, Client, Error, GetItem, Metadata, PutOptions};
use shoal_server::{ListenError, MinRate, ServeError, Server, ServerLimits, ServerOptions};
use shoal_storekit::eventually;
use shoal_testkit::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, call as headers_of, frame, greeting, take_frame,
};
use shoal_testkit::wait::HANGS_AFTER;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;

use crate::support::{Running, call, chunk, figure, header, kind, receive, send, value};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn only_loopback_unless_insecure() {
    for listen in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let listen = listen.parse().unwrap();
        let refused = Server::bind(ServerOptions { listen, ..ServerOptions::default() }).await;
        assert!(
            matches!(&refused, Err(ServeError::Listen(ListenError::NotLoopback { address, .. })) if *address == listen)
        );
        let message = refused.err().unwrap().to_string();
        assert!(message.contains("--insecure") && message.contains("not authenticated"), "{message}");
    }
    let listen = "0.0.0.0:0".parse().unwrap();
    let options = ServerOptions { listen, insecure: true, ..ServerOptions::default() };
    assert_ne!(Server::bind(options).await.unwrap().address().port(), 0);
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let server = Running::start().await;
    let options = ServerOptions { listen: server.address, ..ServerOptions::default() };
    let error = Server::bind(options).await.err().unwrap();
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn messages_and_metadata_are_bounded() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let put = |bytes: usize| v1::PutRequest { key: "k".into(), value: value(bytes, 1), ..Default::default() };
    call::<v1::Put>(&channel, put(4 * MIB)).await.unwrap();
    let get = |range| v1::GetRequest { key: "k".into(), range, ..Default::default() };
    assert_eq!(call::<v1::Get>(&channel, get(None)).await.unwrap().value.len(), 4 * MIB);
    let status = call::<v1::Put>(&channel, put(4 * MIB + 1)).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::InvalidArgument, Kind::Invalid));
    let status = call::<v1::Put>(&channel, put(5 * MIB)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(kind(&status), Kind::Invalid, "sending it again is no use");
    // The code is the same for every reader of the message: tonic had a different one.
    let items = vec![v1::MultiDeleteItem { key: value(1024, 1), ..Default::default() }; 5_000];
    let status = call::<v1::MultiDelete>(&channel, v1::MultiDeleteRequest { items, ..Default::default() });
    let status = status.await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::ResourceExhausted, Kind::Invalid), "{status:?}");
    // The values of several puts have the limit of one.
    for atomic in [false, true] {
        let multi = |bytes: &[usize]| {
            let item = |&bytes: &usize| v1::MultiPutItem {
                key: "m".into(),
                value: value(bytes, 1),
                ..Default::default()
            };
            v1::MultiPutRequest { items: bytes.iter().map(item).collect(), atomic, ..Default::default() }
        };
        call::<v1::MultiPut>(&channel, multi(&[2 * MIB, 2 * MIB])).await.unwrap();
        let status = call::<v1::MultiPut>(&channel, multi(&[2 * MIB, 2 * MIB + 1])).await.unwrap_err();
        assert_eq!((status.code(), kind(&status)), (Code::InvalidArgument, Kind::Invalid), "{status:?}");
    }
    // The object is as it was, and the connection serves.
    assert_eq!(call::<v1::Get>(&channel, get(None)).await.unwrap().value.len(), 4 * MIB);

    let client = server.client().await;
    client.put("", b"k", value(5 * MIB, 1), PutOptions::default()).await.unwrap();
    let status = call::<v1::Get>(&channel, get(None)).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::InvalidArgument, Kind::Invalid));
    let part = Some(v1::ByteRange { first: 5, bytes: Some(4 * MIB as u64) });
    assert_eq!(call::<v1::Get>(&channel, get(part)).await.unwrap().value.len(), 4 * MIB);
    let some = v1::GetRequest { value_bytes_max: Some(7), ..get(None) };
    assert_eq!(call::<v1::Get>(&channel, some).await.unwrap().value, value(5 * MIB, 1)[..7]);

    let metadata = |content_type: usize, user: usize| PutOptions {
        metadata: Metadata {
            content_type: "x".repeat(content_type),
            user: vec![("n".into(), Bytes::from(vec![0; user]))],
            ..Metadata::default()
        },
        ..PutOptions::default()
    };
    for (bytes, options) in [(10, metadata(256, 0)), (10, metadata(0, 2048)), (2 * MIB, metadata(0, 2048))] {
        let error = client.put("", b"m", value(bytes, 1), options).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    }
    client.put("", b"m", "v".into(), metadata(255, 2047)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_page_of_much_metadata_is_cut() {
    let server = Running::start().await;
    let client = server.client().await;
    // Many short entries cost most on the wire.
    let user = (0..256).map(|_| ("name".into(), Bytes::from_static(b"data"))).collect();
    let metadata = Metadata { content_type: "x".repeat(255), user, ..Metadata::default() };
    for i in 0..900 {
        let key = format!("{i:0>1000}");
        let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
        client.put("", key.as_bytes(), "v".into(), options).await.unwrap();
    }
    let mut pages = client.list_all(Default::default());
    let mut sizes = Vec::new();
    while let Some(page) = pages.next_page().await.unwrap() {
        sizes.push(page.entries.len());
    }
    assert!(sizes.len() > 1, "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 900);
    // So are the answers for many keys.
    let gets: Vec<GetItem> =
        (0..900).map(|i| GetItem { key: format!("{i:0>1000}").into(), ..Default::default() }).collect();
    for object in client.multi_get("", &gets).await {
        assert_eq!(object.unwrap().unwrap().info.metadata, metadata);
    }
    server.stop().await;
}

#[tokio::test]
async fn bytes_in_flight_are_bounded() {
    let limits = ServerLimits {
        bytes_in_flight_max: 4 * MIB,
        connection_bytes_in_flight_max: 2 * MIB,
        ..ServerLimits::default()
    };
    let server = Running::with(limits).await;
    let client = server.impatient_client().await;
    let channel = server.channel().await;
    let put = |bytes: usize| v1::PutRequest { key: "k".into(), value: value(bytes, 1), ..Default::default() };
    let status = call::<v1::Put>(&channel, put(3 * MIB)).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::ResourceExhausted, Kind::Overloaded));
    call::<v1::Put>(&channel, put(MIB)).await.unwrap();
    // Streams that hold nothing yet take no room: the most that are allowed, on this connection, too.
    let hang = || stream::iter([header("s")]).chain(stream::pending());
    let before = figure(&client, "server.requests").await;
    let channels = [server.channel().await, server.channel().await, channel.clone()];
    let hanging: Vec<_> = (0..60)
        .map(|number| {
            let channel = channels[number % 3].clone();
            tokio::spawn(async move { send::<v1::PutStream>(&channel, hang()).await })
        })
        .collect();
    eventually("60 streams", || async { figure(&client, "server.requests").await >= before + 60 }).await;
    assert!(figure(&client, "server.bytes_in_flight").await < 10_000);
    call::<v1::Put>(&channel, put(MIB)).await.unwrap();
    client.put("", b"s", value(2 * MIB, 1), PutOptions::default()).await.unwrap();
    client.put("", b"small", "v".into(), PutOptions::default()).await.unwrap();
    hanging.iter().for_each(|task| task.abort());
    drop((hanging, channels));
    eventually("nothing is held", || async { figure(&client, "server.bytes_in_flight").await < 4096 }).await;
    client.put("", b"s", value(2 * MIB, 1), PutOptions::default()).await.unwrap();
    server.stop().await;
}

/// It was refused only when it had filled the room: a client that sent too much learned of that after it had sent most of it.
#[tokio::test]
async fn a_value_without_room_is_refused_before_it_is_sent() {
    let limits = ServerLimits { connection_bytes_in_flight_max: MIB, ..ServerLimits::default() };
    let server = Running::with(limits).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // Only the head of a message of 1 MiB, which its prefix makes too long.
    let head = [&[0][..], &(MIB as u32).to_be_bytes()].concat();
    let call = frame(HEADERS, END_HEADERS, 1, &headers_of("/shoal.v1.ObjectStore/Put"));
    stream.write_all(&[greeting(&[]), call, frame(DATA, 0, 1, &head)].concat()).await.unwrap();
    let mut said = Vec::new();
    let answer = timeout(HANGS_AFTER, async {
        loop {
            assert_ne!(stream.read_buf(&mut said).await.unwrap(), 0, "it was cut");
            while let Some(frame) = take_frame(&mut said) {
                if (frame.kind, frame.stream) == (HEADERS, 1) {
                    return frame;
                }
            }
        }
    });
    let answer = answer.await.expect("it does not wait for the rest");
    assert_ne!(answer.flags & END_STREAM, 0, "nothing but the failure");
    let client = server.client().await;
    eventually("nothing is held", || async { figure(&client, "server.bytes_in_flight").await < 4096 }).await;
    // The server would wait for its answer to the farewell.
    drop(stream);
    server.stop().await;
}

/// An answer longer than its request found no room, and an applied write was reported as refused: the client sent it again. The answers of
/// writes are now never refused.
#[tokio::test]
async fn applied_write_is_never_reported_rejected() {
    let server = Running::with(ServerLimits { bytes_in_flight_max: 100, ..ServerLimits::default() }).await;
    let channel = server.channel().await;
    let item = |key: u8, if_exists: bool| {
        let rules = if_exists.then(|| v1::RejectRules { if_exists, ..Default::default() });
        v1::MultiDeleteItem { key: vec![key].into(), rules }
    };
    for key in [b'a', b'b', b'c'] {
        let put = v1::PutRequest { key: vec![key].into(), ..Default::default() };
        call::<v1::Put>(&channel, put).await.unwrap();
    }
    // The rejections take room in the answer.
    let items = vec![item(b'a', false), item(b'b', true), item(b'c', true)];
    let request = v1::MultiDeleteRequest { items, ..Default::default() };
    let answer = call::<v1::MultiDelete>(&channel, request).await.unwrap();
    assert!(answer.encoded_len() > 100);
    let codes: Vec<i32> = answer.results.iter().map(|result| result.status.as_ref().unwrap().code).collect();
    assert_eq!(codes, [0, Code::FailedPrecondition as i32, Code::FailedPrecondition as i32]);
    // A read may be refused.
    let status = call::<v1::Stat>(&channel, v1::StatRequest {}).await.unwrap_err();
    assert_eq!(kind(&status), Kind::Overloaded);
    server.stop().await;
}

#[tokio::test]
async fn silent_client_gets_a_status() {
    let server = Running::with(ServerLimits {
        min_rate: MinRate { silence_max: Duration::from_secs(2), ..MinRate::default() },
        ..ServerLimits::default()
    })
    .await;
    let channel = server.channel().await;
    let parts = stream::iter([header("k"), chunk("abc".into())]).chain(stream::pending());
    let status = send::<v1::PutStream>(&channel, parts).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::DeadlineExceeded, Kind::TooSlow));
    // A stream that is slow but not silent passes.
    let parts = stream::unfold(0, |i| async move {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let part = match i {
            0 => header("k"),
            1..8 => chunk("abc".into()),
            8 => crate::support::end(21),
            _ => return None,
        };
        Some((part, i + 1))
    });
    send::<v1::PutStream>(&channel, parts).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn client_not_reading_is_closed_and_others_continue() {
    let server = Running::with(ServerLimits {
        min_rate: MinRate { silence_max: Duration::from_secs(1), ..MinRate::default() },
        ..ServerLimits::default()
    })
    .await;
    let client = server.client().await;
    let whole = value(20 * MIB, 1);
    client.put("", b"k", whole.clone(), PutOptions::default()).await.unwrap();
    let slow = server.channel().await;
    let mut parts =
        receive::<v1::GetStream>(&slow, v1::GetStreamRequest { key: "k".into(), ..Default::default() })
            .await
            .unwrap();
    assert!(figure(&client, "server.bytes_in_flight").await >= MIB as u64);
    eventually("the memory permit is back", || async {
        assert!(client.get("", b"k", ByteRange { first: 3, bytes: Some(4) }).await.unwrap().is_some());
        figure(&client, "server.bytes_in_flight").await < 4096
    })
    .await;
    let mut bytes = 0;
    let broken = loop {
        match parts.message().await {
            Ok(Some(part)) => bytes += part.chunk.len(),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(broken && bytes < whole.len(), "{bytes}");
    // Our client continues from the cut of its stream.
    let mut stream = client.get_stream("", b"k", ByteRange::ALL).await.unwrap().unwrap();
    let mut got = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        if got.is_empty() {
            tokio::time::sleep(Duration::from_millis(3_000)).await;
        }
        got.extend_from_slice(&piece);
    }
    assert!(got == whole);
    server.stop().await;
}

#[tokio::test]
async fn connections_are_bounded() {
    let limits =
        ServerLimits { connections_max: 2, greeting_max: Duration::from_secs(1), ..ServerLimits::default() };
    let server = Running::with(limits).await;
    let client = server.impatient_client().await;
    client.stat().await.unwrap();
    // A silent one takes the second place, until another client comes.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    eventually("two connections", || async { figure(&client, "server.connections").await == 2 }).await;
    let second = server.impatient_client().await;
    second.stat().await.unwrap();
    assert_eq!(silent.read(&mut [0; 10]).await.unwrap_or(0), 0, "it made room");
    let refused = server.impatient_client().await;
    assert!(matches!(refused.stat().await, Err(Error::Unavailable { .. })));
    assert!(figure(&client, "server.connections_refused").await >= 1);
    assert_eq!(figure(&client, "server.connections_evicted").await, 1);
    drop(second);
    eventually("one connection", || async { figure(&client, "server.connections").await == 1 }).await;
    // And for a while only.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    assert_eq!(silent.read(&mut [0; 10]).await.unwrap_or(0), 0, "the server ended it");
    eventually("one connection", || async { figure(&client, "server.connections").await == 1 }).await;
    server.impatient_client().await.stat().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn unreachable_server_is_named() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Client::connect(free.to_string()).await.unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::Unavailable { .. }));
    assert!(message.contains(&free.to_string()) && message.contains("`shoal serve`"), "{message}");
    assert!(message.to_lowercase().contains("refused"), "{message}");
}

/// Each backup holds a snapshot. Callers that start one and never read it keep out a third one, only while they are connected, and no other
/// call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_backups_at_a_time() {
    let server = Running::start().await;
    let client = server.impatient_client().await;
    // More than the connection takes while nobody reads.
    let put = async |which: u8| client.put("b", &[which], value(400_000, which), PutOptions::default()).await;
    for which in 0..60 {
        put(which).await.unwrap();
    }
    let unread = client.backup().await.unwrap();
    let _unread_too = client.backup().await.unwrap();
    let refused = client.backup().await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::Busy(_)), "{refused:?}");
    put(60).await.unwrap();
    drop(unread);
    let free = async || client.backup().await.is_ok();
    eventually("the place of a caller that has gone is free", free).await;
}
