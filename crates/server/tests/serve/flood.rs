//! Clients that follow HTTP/2 to the letter, or nearly, in order to be a burden: each is stopped or has no effect, the server holds no more
//! for it than its limits allow, and others are served meanwhile.

use std::time::Duration;

use shoal_client::{ByteRange, Client, PutOptions};
use shoal_server::{Limits, MinRate};
use shoal_storekit::eventually;
use shoal_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PING, RESET, SETTINGS, call, frame,
    greeting, header, message, take_frame,
};
use shoal_testkit::wait::HANGS_AFTER;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, figure, value};

/// A client that burdens the server, and one that is served meanwhile.
struct Scene {
    server: Running,
    client: Client,
}

impl Scene {
    async fn new(limits: Limits) -> Self {
        let server = Running::with(limits).await;
        let client = server.client().await;
        client.put("", b"k", value(100_000, 1), PutOptions::default()).await.unwrap();
        Self { server, client }
    }

    async fn connect(&self, settings: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.address).await.unwrap();
        stream.write_all(&greeting(settings)).await.unwrap();
        stream
    }

    /// Others are served while `attack` runs, and at its end nothing is left of it.
    async fn survives<T>(self, attack: impl Future<Output = T>) -> T {
        let good = async {
            for i in 0..150_u32 {
                let key = i.to_be_bytes();
                let put = self.client.put("", &key, value(1000, i as u8), PutOptions::default());
                tokio::time::timeout(HANGS_AFTER, put).await.expect("in time").unwrap();
                assert!(self.client.get("", &key, ByteRange::ALL).await.unwrap().is_some());
            }
        };
        let attack = async { tokio::time::timeout(HANGS_AFTER, attack).await.expect("an end") };
        let ((), result) = tokio::join!(good, attack);
        eventually("nothing is left of it", || async {
            figure(&self.client, "server.bytes_in_flight").await < 4096
                && figure(&self.client, "server.connections").await <= 2
        })
        .await;
        self.server.stop().await;
        result
    }
}

/// Sends until the other side closes, or `count` times; returns true if it was closed.
async fn flood(stream: &mut TcpStream, count: usize, bytes: impl Fn(usize) -> Vec<u8>) -> bool {
    let (mut read, mut write) = stream.split();
    let sending = async {
        for i in 0..count {
            if write.write_all(&bytes(i)).await.is_err() {
                return true;
            }
        }
        std::future::pending().await
    };
    let mut received = Vec::new();
    let receiving = async {
        loop {
            match tokio::time::timeout(Duration::from_secs(2), read.read_buf(&mut received)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    };
    tokio::select! {
        closed = sending => closed,
        closed = receiving => closed,
    }
}

/// Streams that are opened and reset at once, as fast as they can be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset() {
    let scene = Scene::new(Limits::default()).await;
    let mut stream = scene.connect(&[]).await;
    let attack = flood(&mut stream, 400, |round| {
        let pair = |i: usize| {
            let id = ((round * 50 + i) * 2 + 1) as u32;
            let open = frame(HEADERS, END_HEADERS, id, &call("/shoal.v1.ObjectStore/Put"));
            [open, frame(RESET, 0, id, &[0, 0, 0, 8])].concat()
        };
        (0..50).flat_map(pair).collect()
    });
    let closed = scene.survives(attack).await;
    assert!(closed, "20,000 resets were taken");
}

/// Headers without an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuation_flood() {
    let scene = Scene::new(Limits::default()).await;
    let mut stream = scene.connect(&[]).await;
    stream.write_all(&frame(HEADERS, 0, 1, &call("/shoal.v1.ObjectStore/Put"))).await.unwrap();
    let long = header("x", &"y".repeat(120)).repeat(100);
    let attack = flood(&mut stream, 20_000, |_| frame(CONTINUATION, 0, 1, &long));
    let closed = scene.survives(attack).await;
    assert!(closed, "240 MiB of headers were taken");
}

/// Pings and settings that want an answer each, which nobody reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_flood() {
    let limits = Limits {
        min_rate: MinRate { silence_max: Duration::from_secs(1), ..MinRate::default() },
        ..Limits::default()
    };
    let scene = Scene::new(limits).await;
    let mut stream = scene.connect(&[]).await;
    let attack = async move {
        let ask = [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[])].concat().repeat(500);
        // The server stops reading when its answers are not taken: the write blocks.
        let mut sent = 0;
        while let Ok(result) = tokio::time::timeout(Duration::from_millis(500), stream.write_all(&ask)).await
        {
            sent += ask.len();
            if result.is_err() || sent > 256 << 20 {
                break;
            }
        }
        sent
    };
    let sent = scene.survives(attack).await;
    assert!(sent < 256 << 20, "the server answered {sent} bytes of pings into its own memory");
}

/// A client that wants answers and grants no window for them: it is cut, and the memory of its answers is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_window() {
    let limits = Limits {
        min_rate: MinRate { silence_max: Duration::from_millis(600), ..MinRate::default() },
        ..Limits::default()
    };
    let scene = Scene::new(limits).await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 0.
    let mut stream = scene.connect(&[0, 4, 0, 0, 0, 0]).await;
    let get =
        prost::Message::encode_to_vec(&shoal_api::v1::GetRequest { key: "k".into(), ..Default::default() });
    let message = message(&get);
    for i in 0..100 {
        let id = i * 2 + 1;
        let open = frame(HEADERS, END_HEADERS, id, &call("/shoal.v1.ObjectStore/Get"));
        stream.write_all(&[open, frame(DATA, END_STREAM, id, &message)].concat()).await.unwrap();
    }
    let attack = async move {
        let mut bytes = Vec::new();
        // The end of the connection, not of the timeout.
        while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {}
        bytes.len()
    };
    let answered = scene.survives(attack).await;
    assert!(answered < 100_000, "{answered} bytes came through a window of zero");
}

/// More streams than the server allows: the ones too many are refused, and the others answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_streams() {
    let scene = Scene::new(Limits { streams_max: 10, ..Limits::default() }).await;
    let mut stream = scene.connect(&[]).await;
    for i in 0..40 {
        let open = frame(HEADERS, END_HEADERS, i * 2 + 1, &call("/shoal.v1.ObjectStore/Put"));
        stream.write_all(&open).await.unwrap();
    }
    let attack = async move {
        let (mut bytes, mut refused) = (Vec::new(), 0);
        while refused < 30 {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{refused} were refused");
            while let Some(frame) = take_frame(&mut bytes) {
                assert_ne!(frame.kind, GO_AWAY);
                // REFUSED_STREAM, with which a client may send its call again.
                if frame.kind == RESET && frame.payload == [0, 0, 0, 7] {
                    refused += 1;
                }
            }
        }
        refused
    };
    assert_eq!(scene.survives(attack).await, 30);
}
