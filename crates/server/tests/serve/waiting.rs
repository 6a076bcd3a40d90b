//! Long unary requests wait if there is no room for them, in any number, and hold up nobody else meanwhile.

use std::time::Duration;

use futures_util::future::join_all;
use prost::Message;
use shoal_api::v1;
use shoal_api::v1::failure::Kind;
use shoal_server::{MinRate, ServerLimits};
use shoal_storekit::eventually;
use shoal_testkit::http2::{
    ACK, DATA, END_HEADERS, HEADERS, SETTINGS, WINDOW_UPDATE, call as headers_of, frame, greeting, message,
    take_frame,
};
use shoal_testkit::wait::{FOR_EVER, HANGS_AFTER};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::{Running, call, figure, kind, nothing_is_held, put_request, value};
use crate::web::Post;

const MIB: usize = 1 << 20;
const PUT: &str = "/shoal.v1.ObjectStore/Put";

fn put(key: u8, bytes: usize) -> v1::PutRequest {
    put_request(vec![key], value(bytes, key))
}

async fn get(channel: &Channel, key: u8) -> v1::GetResponse {
    let request = v1::GetRequest { key: vec![key].into(), ..Default::default() };
    call::<v1::Get>(channel, request).await.unwrap()
}

/// A hundred puts of 4 MiB at once over `connections` connections, with room for seven of them; gets run beside them.
async fn a_hundred_puts_succeed(connections: usize) {
    let limits = ServerLimits {
        bytes_in_flight_max: 32 * MIB,
        connection_bytes_in_flight_max: 32 * MIB,
        room_wait_max: FOR_EVER,
        ..ServerLimits::default()
    };
    let server = Running::with(limits).await;
    let mut channels = Vec::new();
    for _ in 0..connections {
        channels.push(server.channel().await);
    }
    call::<v1::Put>(&channels[0], put(b's', 9)).await.unwrap();
    let requests: Vec<_> = (0..10).map(|key| put(key, 4 * MIB)).collect();
    let puts = (0..100).map(|number| {
        let (channel, request) = (channels[number % connections].clone(), requests[number % 10].clone());
        tokio::spawn(async move { call::<v1::Put>(&channel, request).await.unwrap() })
    });
    let puts = timeout(HANGS_AFTER, join_all(puts.collect::<Vec<_>>()));
    let gets = async {
        loop {
            for channel in &channels {
                let got = timeout(HANGS_AFTER, get(channel, b's')).await.expect("a get waits for puts");
                assert_eq!(got.value, value(9, b's'));
            }
        }
    };
    let done = tokio::select! {
        done = puts => done.expect("they hold each other up"),
        () = gets => unreachable!("they go on for ever"),
    };
    done.into_iter().for_each(|put| drop(put.unwrap()));
    for key in 0..10 {
        assert!(get(&channels[0], key).await.value == value(4 * MIB, key));
    }
    nothing_is_held(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_long_puts_succeed_on_one_connection() {
    a_hundred_puts_succeed(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_long_puts_succeed_on_twenty_connections() {
    a_hundred_puts_succeed(20).await;
}

/// The part that [`Full`] sends of each of its messages: nearly all of it, within HTTP/2's window of a stream.
const HALF_BYTES: usize = 200 << 10;
const HALVES: usize = 5;

/// A server with room for four messages, and a client that has sent nearly all of five and stops: the last one is the one that may continue
/// without room.
struct Full {
    server: Running,
    channel: Channel,
    silent: TcpStream,
}

impl Full {
    async fn with(room_wait_max: Duration) -> Self {
        let limits = ServerLimits {
            bytes_in_flight_max: MIB,
            room_wait_max,
            min_rate: MinRate { silence_max: FOR_EVER, window: FOR_EVER, ..MinRate::default() },
            ..ServerLimits::default()
        };
        let server = Running::with(limits).await;
        let channel = server.channel().await;
        call::<v1::Put>(&channel, put(b's', 9)).await.unwrap();
        let client = server.client().await;
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        silent.write_all(&greeting(&[])).await.unwrap();
        let mut said = Vec::new();
        // Both, the windows of streams and of the connection, before it may send more than 64 KiB.
        for awaited in [SETTINGS, WINDOW_UPDATE] {
            loop {
                match take_frame(&mut said) {
                    Some(frame) if (frame.kind, frame.flags) == (awaited, 0) => break,
                    Some(_) => {}
                    None => assert!(silent.read_buf(&mut said).await.unwrap() > 0, "it is cut"),
                }
            }
        }
        silent.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
        for number in 0..HALVES {
            let id = number as u32 * 2 + 1;
            silent.write_all(&frame(HEADERS, END_HEADERS, id, &headers_of(PUT))).await.unwrap();
            let half = message(&vec![0; HALF_BYTES]);
            for part in half[..HALF_BYTES].chunks(16 << 10) {
                silent.write_all(&frame(DATA, 0, id, part)).await.unwrap();
            }
            let held = ((number + 1) * HALF_BYTES) as u64;
            eventually("it has come", || async { figure(&client, "server.bytes_in_flight").await >= held })
                .await;
        }
        Self { server, channel, silent }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gets_are_answered_while_puts_wait() {
    let Full { server, channel, silent } = Full::with(FOR_EVER).await;
    let puts: Vec<_> = (0..10)
        .map(|key| {
            let channel = channel.clone();
            tokio::spawn(async move { call::<v1::Put>(&channel, put(key, 200_000)).await })
        })
        .collect();
    let client = server.client().await;
    let held = (HALVES * HALF_BYTES + 10 * (8 << 10)) as u64;
    eventually("all of them wait", || async { figure(&client, "server.bytes_in_flight").await >= held })
        .await;
    for _ in 0..100 {
        let got = timeout(HANGS_AFTER, get(&channel, b's')).await.expect("it waits for the puts");
        assert_eq!(got.value, value(9, b's'));
    }
    call::<v1::Put>(&channel, put(b't', 9)).await.unwrap();
    assert!(puts.iter().all(|put| !put.is_finished()), "there was no room for them");
    drop(silent);
    for put in timeout(HANGS_AFTER, join_all(puts)).await.expect("there is room") {
        put.unwrap().unwrap();
    }
    nothing_is_held(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_for_room_times_out() {
    let Full { server, channel, silent } = Full::with(Duration::from_millis(300)).await;
    let status = call::<v1::Put>(&channel, put(1, 200_000)).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::ResourceExhausted, Kind::Overloaded));
    drop(silent);
    nothing_is_held(&server).await;
    call::<v1::Put>(&channel, put(1, 200_000)).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_wait_for_room() {
    let Full { server, channel, silent } = Full::with(FOR_EVER).await;
    let post = Post { timeout: Some("200m"), ..Post::new(PUT) };
    let body = message(&put(1, 200_000).encode_to_vec());
    let answer = timeout(HANGS_AFTER, post.send(&server, &body)).await.expect("its deadline is over");
    assert_eq!(answer.status(), Some(Code::DeadlineExceeded as u32), "{answer:?}");
    let client = server.client().await;
    eventually("it holds nothing", || async {
        figure(&client, "server.bytes_in_flight").await < (HALVES * HALF_BYTES + 4096) as u64
    })
    .await;
    drop(silent);
    nothing_is_held(&server).await;
    call::<v1::Put>(&channel, put(1, 200_000)).await.unwrap();
    server.stop().await;
}
