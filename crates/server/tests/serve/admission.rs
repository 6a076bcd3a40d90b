//! Connections that show no credentials: they have little time, and lock nobody out.

use std::time::Duration;

use prost::Message;
use shoal_api::v1;
use shoal_client::{Client, ConnectOptions};
use shoal_server::{Security, ServerLimits, ServerOptions};
use shoal_storekit::eventually;
use shoal_testkit::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PING, call, frame, greeting, header, message, take_frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, credentials_of, figure};

const TOKEN: &str = "correct-horse-battery";

async fn serve(limits: ServerLimits) -> Running {
    let security = Security::new(credentials_of(TOKEN));
    Running::told(ServerOptions { security, limits, ..ServerOptions::default() }).await
}

/// A client with the token, and one connection.
async fn client(server: &Running) -> Client {
    let options = ConnectOptions { token: Some(TOKEN.into()), connections: 1, ..server.options() };
    Client::connect(options).await.unwrap()
}

/// A raw connection, which the client's library would silently reopen.
struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
    next: u32,
}

impl Raw {
    async fn open(server: &Running) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&greeting(&[])).await.unwrap();
        Self { stream, received: Vec::new(), next: 1 }
    }

    /// Sends a request with this token; returns true if it was answered.
    async fn asks(&mut self, token: &str) -> bool {
        let id = self.next;
        self.next += 2;
        let headers =
            [call("/shoal.v1.ObjectStore/Stat"), header("authorization", &format!("Bearer {token}"))];
        let open = frame(HEADERS, END_HEADERS, id, &headers.concat());
        let body = frame(DATA, END_STREAM, id, &message(&v1::StatRequest {}.encode_to_vec()));
        if self.stream.write_all(&[open, body].concat()).await.is_err() {
            return false;
        }
        loop {
            while let Some(frame) = take_frame(&mut self.received) {
                if (frame.kind, frame.stream) == (HEADERS, id) && frame.flags & END_STREAM != 0 {
                    // Refused: only headers.
                    return true;
                }
                if (frame.kind, frame.stream) == (DATA, id) {
                    return true;
                }
            }
            if !matches!(self.stream.read_buf(&mut self.received).await, Ok(1..)) {
                return false;
            }
        }
    }
}

/// A caller with a token gets in at once even if all places are taken, and connected clients stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_unauthenticated_connections_do_not_block_callers() {
    const PLACES: usize = 60;
    // They would stay for ever.
    let limits = ServerLimits {
        connections_max: PLACES,
        unauthenticated_max: Duration::from_secs(3600),
        ..ServerLimits::default()
    };
    let server = serve(limits).await;
    let mut known = Raw::open(&server).await;
    assert!(known.asks(TOKEN).await);
    let watcher = client(&server).await;
    let mut idle = Vec::new();
    for number in 0..PLACES - 2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let ping = frame(PING, 0, 0, &[7; 8]);
        let said = [Vec::new(), greeting(&[])[..9].to_vec(), greeting(&[]), [greeting(&[]), ping].concat()];
        stream.write_all(&said[number % said.len()]).await.unwrap();
        idle.push(stream);
    }
    eventually("all places are taken", || async {
        figure(&watcher, "server.connections").await == PLACES as u64
    })
    .await;
    // A wrong token is no credential.
    let mut stranger = Raw::open(&server).await;
    assert!(stranger.asks("incorrect-horse-battery").await);
    for _ in 0..PLACES {
        let late = client(&server).await;
        late.stat().await.unwrap();
    }
    // More connections than there are places, all without credentials.
    for _ in 0..3 * PLACES {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let late = client(&server).await;
    assert!(figure(&late, "server.connections_evicted").await >= 2 * PLACES as u64);
    assert_eq!(figure(&late, "server.connections_refused").await, 0);
    assert!(known.asks(TOKEN).await, "who has shown a token is never closed for another one");
    assert_eq!(idle[0].read(&mut [0; 100]).await.unwrap_or(0), 0, "the oldest one was closed");
    drop((idle, known, stranger, watcher, late));
    server.stop().await;
}

/// In any way of spending its time: idle, with half a greeting, pings, or requests that are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_shows_no_credentials_in_time_is_closed() {
    let limits = ServerLimits { unauthenticated_max: Duration::from_millis(500), ..ServerLimits::default() };
    let server = serve(limits).await;
    let mut known = Raw::open(&server).await;
    assert!(known.asks(TOKEN).await);
    let (silent, half) = (
        TcpStream::connect(server.address).await.unwrap(),
        TcpStream::connect(server.address).await.unwrap(),
    );
    let mut refused = Raw::open(&server).await;
    let pings = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&greeting(&[])).await.unwrap();
        while stream.write_all(&frame(PING, 0, 0, &[7; 8])).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let asks = async {
        while refused.asks("incorrect-horse-battery").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let closed = async |mut stream: TcpStream, said: &[u8]| {
        stream.write_all(said).await.unwrap();
        let mut bytes = Vec::new();
        while matches!(stream.read_buf(&mut bytes).await, Ok(1..)) {}
    };
    let half_of_it = greeting(&[])[..9].to_vec();
    let all = async {
        tokio::join!(pings, asks, closed(silent, b""), closed(half, &half_of_it));
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all of them are closed");
    assert!(known.asks(TOKEN).await, "who has shown a token may be idle");
    let late = client(&server).await;
    assert_eq!(figure(&late, "server.connections_overdue").await, 4);
    drop((known, late));
    server.stop().await;
}
