//! Clients of a byte a second (T19): in the handshake of TLS, in the first bytes of each protocol, in headers, in bodies and in a
//! command of the Redis protocol. Each is cut for it, and others are served meanwhile.
//!
//! `cargo test` leaves out the kinds that have half a minute; the servers' own tests cut these with shorter limits.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prost::Message;
use shoal_api::v1;
use shoal_storekit::{eventually, in_time};
use shoal_testkit::certificates::Identity;
use shoal_testkit::http2::{
    DATA, END_HEADERS, Frame, GO_AWAY, HEADERS, PING, PREFACE, RESET, call, frame, greeting, message,
    take_frame,
};
use shoal_testkit::lab;
use shoal_testkit::process::raise_open_files;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Healthy, await_nothing_left, p99_ms};
use crate::harness::Frontends;
use crate::machine::{disk_folder, runtime};
use crate::process::sockets;

/// Between two bytes.
const PAUSE: Duration = Duration::from_secs(1);
/// The time for which the healthy client is alone, for comparison.
const ALONE: Duration = Duration::from_secs(1);

/// The part of a call with which a client is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tls,
    Preface,
    Http1Head,
    Headers,
    /// Frames of a byte, of a stream.
    Stream,
    /// One frame, of a short put.
    Frame,
    Resp,
}

/// The kinds that have ten seconds come first.
const KINDS: [Kind; 7] =
    [Kind::Tls, Kind::Preface, Kind::Http1Head, Kind::Headers, Kind::Stream, Kind::Frame, Kind::Resp];
const SHORT_KINDS: usize = 4;

impl Kind {
    /// The bytes that are sent at once.
    fn opening(self) -> Vec<u8> {
        let open = |path: &str| [greeting(&[]), frame(HEADERS, END_HEADERS, 1, &call(path))].concat();
        match self {
            // A record that announces 512 bytes of a greeting.
            Self::Tls => vec![0x16, 3, 1, 2, 0, 1],
            Self::Preface => Vec::new(),
            Self::Http1Head => b"POST /shoal.v1.ObjectStore/Put HTTP/1.1\r\nx-slow: ".to_vec(),
            Self::Headers => {
                let mut long = frame(HEADERS, END_HEADERS, 1, &[]);
                long[..3].copy_from_slice(&[0, 0x20, 0]);
                [greeting(&[]), long].concat()
            }
            Self::Stream => {
                let header = v1::PutStreamHeader { key: "slow".into(), ..Default::default() };
                let part = Some(v1::put_stream_request::Part::Header(header));
                let first = message(&v1::PutStreamRequest { part }.encode_to_vec());
                // And the prefix of a message of a mebibyte.
                let begun = [&first[..], &[0, 0, 16, 0, 0]].concat();
                [open("/shoal.v1.ObjectStore/PutStream"), frame(DATA, 0, 1, &begun)].concat()
            }
            Self::Frame => {
                let mut long = frame(DATA, 0, 1, &[0, 0, 0, 16, 0]);
                long[..3].copy_from_slice(&[0, 0x20, 0]);
                [open("/shoal.v1.ObjectStore/Put"), long].concat()
            }
            Self::Resp => b"*3\r\n$3\r\nset\r\n$4\r\nslow\r\n$100000\r\n".to_vec(),
        }
    }

    /// The bytes that are sent one second after the other.
    fn next(self, number: usize) -> Vec<u8> {
        match self {
            Self::Preface => PREFACE.get(number..=number).unwrap_or(b"x").to_vec(),
            Self::Stream => frame(DATA, 0, 1, b"x"),
            _ => b"x".to_vec(),
        }
    }

    /// Returns true if `said` means that it is cut: its request is refused; others see the end of the connection.
    fn is_refused(self, said: &Frame) -> bool {
        let is_request = matches!(self, Self::Stream | Self::Frame);
        said.kind == GO_AWAY || is_request && matches!(said.kind, HEADERS | RESET)
    }

    /// One connection; returns the time until it was cut.
    async fn connection(self, address: SocketAddr) -> Duration {
        let began = Instant::now();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut read, mut write) = stream.split();
        let sending = async {
            let mut sent = write.write_all(&self.opening()).await;
            for number in 0.. {
                if sent.is_err() {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
                sent = write.write_all(&self.next(number)).await;
            }
        };
        let (mut said, mut frames) = (Vec::new(), Vec::new());
        let receiving = async {
            while read.read_buf(&mut said).await.is_ok_and(|count| count > 0) {
                if !matches!(self, Self::Headers | Self::Stream | Self::Frame) {
                    continue;
                }
                frames.extend(std::iter::from_fn(|| take_frame(&mut said)));
                if frames.iter().any(|frame| self.is_refused(frame)) {
                    break;
                }
            }
        };
        tokio::select! {
            () = sending => {}
            () = receiving => {}
        }
        // HTTP/2 itself would notice that a ping is not answered, after 40 s. A farewell comes with another ping.
        let before_farewell = || frames.iter().take_while(|frame| frame.kind != GO_AWAY);
        let was_asked = before_farewell().any(|frame| frame.kind == PING);
        assert!(self != Self::Headers || !was_asked, "headers were waited for until a ping was due");
        if matches!(self, Self::Stream | Self::Frame) {
            assert!(
                frames.iter().any(|frame| self.is_refused(frame)),
                "{self:?}: its request was not refused"
            );
        }
        began.elapsed()
    }
}

#[test]
fn a_client_that_sends_a_byte_a_second_is_cut() {
    let in_laboratory = std::env::var_os("LAB_LORIS").is_some();
    let kinds = if in_laboratory { &KINDS[..] } else { &KINDS[..SHORT_KINDS] };
    let room = raise_open_files().saturating_sub(500);
    let each = (lab::number("LORIS", 80) as usize).min(room).div_ceil(kinds.len());
    let folder = disk_folder();
    let data = |name: &str| folder.path().join(name);
    let server = Frontends::start(Frontends::command(&data("plain"), "1G"));
    Identity::self_signed().write_to(folder.path()).unwrap();
    let mut encrypted = Frontends::command(&data("encrypted"), "1G");
    encrypted.arg("--tls-cert").arg(data("cert.pem")).arg("--tls-key").arg(data("key.pem"));
    let encrypted = Frontends::start(encrypted);
    runtime().block_on(async {
        let alone = Healthy::start(&server).await;
        tokio::time::sleep(ALONE).await;
        let alone = alone.end().await;
        let healthy = Healthy::start(&server).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = [sockets(server.pid()), sockets(encrypted.pid())];
        let slow = kinds.iter().map(|&kind| {
            let address = match kind {
                Kind::Tls => encrypted.grpc_address(),
                Kind::Resp => server.resp_address(),
                _ => server.grpc_address(),
            };
            let all = (0..each).map(|_| tokio::spawn(kind.connection(address)));
            (kind, all.collect::<Vec<_>>())
        });
        let slow: Vec<_> = slow.collect();
        let mut cut = Vec::new();
        for (kind, connections) in slow {
            let mut times = Vec::new();
            for connection in connections {
                times.push(in_time(&format!("{kind:?}"), connection).await.unwrap().as_secs_f64());
            }
            let (first, last) = times.iter().fold((f64::MAX, 0.0_f64), |(a, b), &time| (a.min(time), b.max(time)));
            cut.push(format!("{kind:?} {each} after {first:.1} to {last:.1} s"));
        }
        let client = healthy.client.clone();
        let served = healthy.end().await;
        await_nothing_left(&server, &client, before[0]).await;
        let is_left = || async { sockets(encrypted.pid()) <= before[1] };
        eventually("nothing is left of TLS", is_left).await;
        println!(
            "loris: a byte a second, cut: {}; a healthy client was served {} times, p99 {:.2} ms ({:.2} alone)",
            cut.join(", "),
            served.count(),
            p99_ms(&served),
            p99_ms(&alone),
        );
    });
    server.stop();
    encrypted.stop();
}
