//! Clients that send a byte now and then: each is cut, with the reason of its slowness.

use std::time::Duration;

use futures_util::stream;
use shoal_api::v1;
use shoal_api::v1::failure::Kind;
use shoal_server::{MinRate, ServerLimits};
use shoal_testkit::http2::{HEADERS, PING, call as headers_of, frame, greeting, take_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;

use crate::support::{Running, chunk, header, kind, send};

/// A test that takes this long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(20);

/// Sends `bytes` at once, then one byte after the other, until the server closes; returns the bytes that it sent.
async fn trickle(server: &Running, bytes: &[u8], slowly: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let (mut read, mut write) = stream.split();
    let mut said = Vec::new();
    let sending = async {
        for byte in slowly.iter().cycle() {
            tokio::time::sleep(PAUSE).await;
            if write.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        // The other half sees the end, with the bytes before it.
        std::future::pending::<()>().await;
    };
    let receiving = async { while read.read_buf(&mut said).await.is_ok_and(|count| count > 0) {} };
    let cut = async {
        tokio::select! {
            () = sending => {}
            () = receiving => {}
        }
    };
    timeout(HANGS_AFTER, cut).await.expect("it is cut");
    said
}

/// Every byte counted as a sign of life, so that a stream of a byte a second was served for ever.
#[tokio::test]
async fn trickling_body_is_closed() {
    let min_rate = MinRate { window: Duration::from_millis(500), ..MinRate::default() };
    let server = Running::with(ServerLimits { min_rate, ..ServerLimits::default() }).await;
    let channel = server.channel().await;
    let parts = stream::unfold(0, |i| async move {
        tokio::time::sleep(PAUSE).await;
        Some((if i == 0 { header("k") } else { chunk("a".into()) }, i + 1))
    });
    let sent = timeout(HANGS_AFTER, send::<v1::PutStream>(&channel, parts)).await.expect("it is cut");
    let status = sent.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::DeadlineExceeded, Kind::TooSlow), "{status:?}");
    assert!(status.message().contains("bytes were received in"), "{status:?}");
    server.stop().await;
}

/// HTTP/2 waits for the rest of headers until it misses the answer to a ping, which it sends after 20 s.
#[tokio::test]
async fn trickling_headers_are_closed() {
    let server =
        Running::with(ServerLimits { greeting_max: Duration::from_millis(500), ..ServerLimits::default() })
            .await;
    let block = headers_of("/shoal.v1.ObjectStore/Put");
    let head = |length: usize| {
        let mut bytes = frame(HEADERS, 0, 1, &block);
        bytes[..3].copy_from_slice(&[0, (length >> 8) as u8, length as u8]);
        bytes
    };
    for (what, sent) in [
        ("no settings", greeting(&[])[..24].to_vec()),
        ("half a frame", [greeting(&[]), head(10_000)].concat()),
        ("no end", [greeting(&[]), frame(HEADERS, 0, 1, &block)].concat()),
    ] {
        // Of a frame of unknown kind, so that no byte of it is wrong; if a frame is under way, they are its bytes.
        let mut said = trickle(&server, &sent, &[0]).await;
        let frames: Vec<_> = std::iter::from_fn(|| take_frame(&mut said)).collect();
        assert!(frames.iter().all(|frame| frame.kind != PING), "{what}: it was cut for something else");
        assert!(!frames.is_empty(), "{what}: it was served");
    }
    server.stop().await;
}

/// Between calls a client may be silent, and a body may take longer than headers.
#[tokio::test]
async fn idle_connection_stays_open() {
    let greeting_max = Duration::from_millis(300);
    let server = Running::with(ServerLimits { greeting_max, ..ServerLimits::default() }).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&greeting(&[])).await.unwrap();
    tokio::time::sleep(greeting_max * 3).await;
    let ping = frame(PING, 0, 0, &[9; 8]);
    stream.write_all(&ping).await.unwrap();
    let mut said = Vec::new();
    let answered = async {
        loop {
            assert_ne!(stream.read_buf(&mut said).await.unwrap(), 0, "it was cut");
            if said.windows(8).any(|bytes| bytes == [9; 8]) {
                break;
            }
        }
    };
    timeout(HANGS_AFTER, answered).await.expect("an answer");
    // The server would wait for its answer to the farewell.
    drop(stream);
    server.stop().await;
}

#[tokio::test]
async fn trickling_http1_head_is_closed() {
    let greeting_max = Duration::from_millis(500);
    let min_rate = MinRate { silence_max: HANGS_AFTER * 2, ..MinRate::default() };
    let server = Running::with(ServerLimits { greeting_max, min_rate, ..ServerLimits::default() }).await;
    trickle(&server, b"POST /shoal.v1.ObjectStore/Put HTTP/1.1\r\nx-slow: ", b"y").await;
    server.stop().await;
}
