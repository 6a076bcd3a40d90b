//! HTTP/2 to wear the server out (T20): resets, headers without an end or too long, pings and settings whose answers are never read,
//! and windows of nothing, all at once and again and again, on the real process. Each closes its connection or does nothing; memory is
//! bounded, nothing is left, and others are served.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prost::Message;
use shoal_api::v1;
use shoal_client::PutOptions;
use shoal_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PING, RESET, SETTINGS, call, frame,
    greeting, header, message, take_frame,
};
use shoal_testkit::lab;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Healthy, await_nothing_left, p99_ms};
use crate::harness::Frontends;
use crate::kill::CACHE_BYTES;
use crate::machine::{disk_folder, runtime};
use crate::memory::BESIDE_CACHE_BYTES;
use crate::process::{memory, memory_peak, mib, processor_seconds, sockets};

/// Connections of each kind at a time.
const CONNECTIONS: usize = 4;
/// Rounds of frames on one connection, at most.
const ROUNDS: usize = 400;
/// After this long without an answer or an end, a connection is given up and another one opened.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);

/// A way to be a burden.
#[derive(Clone, Copy, Debug)]
enum Kind {
    RapidReset,
    Continuation,
    LongHeaders,
    Pings,
    Settings,
    ZeroWindow,
}

const KINDS: [Kind; 6] =
    [Kind::RapidReset, Kind::Continuation, Kind::LongHeaders, Kind::Pings, Kind::Settings, Kind::ZeroWindow];

/// The outcome of one kind of attack.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    connections: u64,
    /// Frames sent.
    frames: u64,
    /// Connections that the server closed, and those of them that got a reason.
    closed: u64,
    told: u64,
    /// Requests that were answered or reset.
    answers: u64,
}

impl Kind {
    /// The bytes that are sent in a round, and the number of their frames; nothing if the kind is done.
    fn round(self, number: usize) -> (Vec<u8>, u64) {
        let put = call("/shoal.v1.ObjectStore/Put");
        let long = || header("x", &"y".repeat(120)).repeat(100);
        match self {
            Self::RapidReset => {
                let pair = |i: usize| {
                    let id = ((number * 50 + i) * 2 + 1) as u32;
                    [frame(HEADERS, END_HEADERS, id, &put), frame(RESET, 0, id, &[0, 0, 0, 8])].concat()
                };
                ((0..50).flat_map(pair).collect(), 100)
            }
            Self::Continuation if number == 0 => (frame(HEADERS, 0, 1, &put), 1),
            Self::Continuation => (frame(CONTINUATION, 0, 1, &long()), 1),
            // 1 MiB of them, and then they end.
            Self::LongHeaders => match number {
                0 => (frame(HEADERS, 0, 1, &put), 1),
                1..86 => (frame(CONTINUATION, 0, 1, &long()), 1),
                86 => (frame(CONTINUATION, END_HEADERS, 1, &[]), 1),
                _ => (Vec::new(), 0),
            },
            Self::Pings => (frame(PING, 0, 0, &[7; 8]).repeat(1_000), 1_000),
            Self::Settings => (frame(SETTINGS, 0, 0, &[]).repeat(1_000), 1_000),
            Self::ZeroWindow if number < 100 => {
                let get =
                    v1::GetRequest { bucket: "healthy".into(), key: "long".into(), ..Default::default() };
                let id = (number * 2 + 1) as u32;
                let open = frame(HEADERS, END_HEADERS, id, &call("/shoal.v1.ObjectStore/Get"));
                ([open, frame(DATA, END_STREAM, id, &message(&get.encode_to_vec()))].concat(), 2)
            }
            Self::ZeroWindow => (Vec::new(), 0),
        }
    }

    /// One connection, until the server closes it or nothing happens any more.
    async fn connection(self, address: SocketAddr, came: &mut Came) {
        let Ok(mut stream) = TcpStream::connect(address).await else { return };
        came.connections += 1;
        // SETTINGS_INITIAL_WINDOW_SIZE = 0.
        let settings: &[u8] = if matches!(self, Self::ZeroWindow) { &[0, 4, 0, 0, 0, 0] } else { &[] };
        let (mut read, mut write) = stream.split();
        let mut frames = 0;
        let sending = async {
            let mut sent = write.write_all(&greeting(settings)).await;
            for number in 0..ROUNDS {
                let (bytes, count) = self.round(number);
                if sent.is_err() || bytes.is_empty() {
                    break;
                }
                sent = write.write_all(&bytes).await;
                frames += count;
            }
            // The other half sees the end of it.
            std::future::pending::<()>().await;
        };
        let (mut received, mut closed) = (Vec::new(), false);
        let receiving = async {
            // A client that floods takes no answers.
            if matches!(self, Self::Pings | Self::Settings) {
                tokio::time::sleep(ANSWER_TIMEOUT).await;
                return;
            }
            while let Ok(read) = timeout(ANSWER_TIMEOUT, read.read_buf(&mut received)).await {
                closed = !read.is_ok_and(|count| count > 0);
                if closed {
                    break;
                }
            }
        };
        tokio::select! {
            () = sending => {}
            () = receiving => {}
        }
        came.frames += frames;
        came.closed += u64::from(closed);
        while let Some(frame) = take_frame(&mut received) {
            came.told += u64::from(frame.kind == GO_AWAY);
            came.answers += u64::from(matches!(frame.kind, HEADERS | RESET));
        }
    }
}

#[test]
fn http2_floods_are_closed_or_harmless() {
    let time = Duration::from_secs(lab::number("HTTP2_S", 3));
    let folder = disk_folder();
    let data = folder.path().join("data");
    let server = Frontends::start(Frontends::command(&data, "1G"));
    let (pid, address) = (server.pid(), server.grpc_address());
    runtime().block_on(async {
        let healthy = Healthy::start(&server).await;
        let long = vec![7; 100_000].into();
        healthy.client.put("healthy", b"long", long, PutOptions::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (connected, before, used, began) = (sockets(pid), memory(pid), processor_seconds(pid), Instant::now());
        let attackers = KINDS.into_iter().flat_map(|kind| (0..CONNECTIONS).map(move |_| kind));
        let attackers = attackers.map(|kind| {
            tokio::spawn(async move {
                let mut came = Came::default();
                while came.connections == 0 || began.elapsed() < time {
                    kind.connection(address, &mut came).await;
                }
                came
            })
        });
        let attackers: Vec<_> = attackers.collect();
        let mut all = [Came::default(); KINDS.len()];
        for (index, attacker) in attackers.into_iter().enumerate() {
            let (came, sum) = (attacker.await.unwrap(), &mut all[index / CONNECTIONS]);
            sum.connections += came.connections;
            sum.frames += came.frames;
            sum.closed += came.closed;
            sum.told += came.told;
            sum.answers += came.answers;
        }
        let cores = (processor_seconds(pid) - used) / began.elapsed().as_secs_f64();
        let client = healthy.client.clone();
        let served = healthy.end().await;
        await_nothing_left(&server, &client, connected).await;
        let (peak, after) = (memory_peak(pid), memory(pid));
        let kinds = KINDS.iter().zip(&all).map(|(kind, came)| {
            let Came { connections, frames, closed, told, answers } = came;
            format!("{kind:?} {connections} connections, {frames} frames, {closed} closed, {told} GOAWAY, {answers} answers")
        });
        // HTTP/2 may hold this much of a connection besides: its window, and answers that it took over.
        let limit = CACHE_BYTES + BESIDE_CACHE_BYTES + (KINDS.len() * CONNECTIONS) as u64 * (4 << 20);
        println!(
            "http2: {}; memory {:.0} MiB before, {:.0} at most (bound {:.0}), {:.0} after; {:.0} % of a core; others were served {} times, p99 \
             {:.1} ms; nothing is left",
            kinds.collect::<Vec<_>>().join("; "),
            mib(before),
            mib(peak),
            mib(limit),
            mib(after),
            cores * 100.0,
            served.count(),
            p99_ms(&served),
        );
        for (kind, came) in KINDS.iter().zip(&all) {
            assert!(came.frames > 0, "{kind:?}: nothing was sent");
            match kind {
                Kind::RapidReset | Kind::Continuation => {
                    assert!(came.closed > 0, "{kind:?}: no connection was ended: {came:?}");
                }
                Kind::LongHeaders => assert!(came.closed + came.answers > 0, "{kind:?} were taken: {came:?}"),
                Kind::Pings | Kind::Settings | Kind::ZeroWindow => {}
            }
        }
        assert!(peak <= limit, "{peak} bytes of memory, {limit} are its bound");
    });
    server.stop();
}
