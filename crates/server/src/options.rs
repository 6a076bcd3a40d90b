//! The options of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use shoal_engine::DEFAULT_BUCKET;
use shoal_frontend::{MinRate, Security};
use shoal_metrics::Metrics;

use crate::operations::report::ReportSource;
use crate::wire::CONNECTION_WINDOW_BYTES;

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of the same name, which get the same port.
    pub listen_also: Vec<SocketAddr>,
    /// True if callers from other machines may come in without credentials, or without encryption.
    pub insecure: bool,
    /// TLS, and the credentials that callers have to show.
    pub security: Security,
    /// The bucket of `io.grpc.KeyValueService`.
    pub kv_bucket: String,
    /// True if requests may be compressed (gzip).
    pub gzip: bool,
    /// True if answers are compressed for clients that announce that they unpack gzip.
    pub gzip_answers: bool,
    /// The origins, as `https://example.com`, whose pages may call by gRPC-Web; `*` means all.
    pub web_origins: Vec<String>,
    /// The counts of the requests.
    pub metrics: Arc<Metrics>,
    /// The texts of a report for a support case.
    pub report: ReportSource,
    /// True if health checks need no credentials.
    pub open_health: bool,
    /// Bounds.
    pub limits: ServerLimits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7411).into(),
            listen_also: Vec::new(),
            insecure: false,
            security: Security::default(),
            kv_bucket: DEFAULT_BUCKET.into(),
            gzip: false,
            gzip_answers: false,
            web_origins: Vec::new(),
            metrics: Arc::default(),
            report: ReportSource::default(),
            open_health: false,
            limits: ServerLimits::default(),
        }
    }
}

/// Bounds on requests in flight. They bound the server's memory besides the store's own: `bytes_in_flight_max`, plus for each connection
/// its HTTP/2 window (256 KiB of each request that has not arrived as a whole, 32 MiB at most), and HTTP/2's buffers of answers (128 KiB a
/// stream). Bytes in flight are counted once; long values are in memory both as received and in the form for the device, and the allocator
/// keeps some freed memory: up to three times the counted bytes were measured with values of 4 MiB (T16 of `docs/reliability.md`).
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// The most connections. For a further one the oldest without valid credentials makes room; if there is none, the new one is closed at
    /// once.
    pub connections_max: usize,
    /// The longest time of a connection from its start, TLS included, to its first request that is let in. Without credentials a connection
    /// may be idle.
    pub unauthenticated_max: Duration,
    /// Requests at the same time on one connection; a client waits with further ones.
    pub streams_max: u32,
    /// Bytes of requests and answers in memory. Further long requests wait for room, short ones and answers are refused with
    /// RESOURCE_EXHAUSTED.
    pub bytes_in_flight_max: usize,
    /// The part of [`Self::bytes_in_flight_max`] that one connection may hold, so that a slow client cannot stop others.
    pub connection_bytes_in_flight_max: usize,
    /// HTTP/2's window of one connection, in bytes, 6 MiB to 32 MiB: the bytes of its requests that may arrive before the server reads
    /// them. All but 4 MiB of it may be of messages that wait for room.
    pub connection_window_bytes: u32,
    /// Bytes that HTTP/2 may hold of the messages of all connections that wait for room. Further long requests are refused with
    /// RESOURCE_EXHAUSTED at once.
    pub waiting_bytes_max: usize,
    /// The time for which a message of more than 4 KiB waits in all, separate or of a stream that its caller sends, if there is no room for
    /// the rest of it; then the call is refused with RESOURCE_EXHAUSTED.
    pub room_wait_max: Duration,
    /// The least bytes of a started request that must arrive while the server waits for more. A peer that takes nothing of its answers may
    /// be silent for the same time, too.
    pub min_rate: MinRate,
    /// The time for a new connection to agree on TLS, and again to start to speak HTTP; and the time for the headers of a request.
    pub greeting_max: Duration,
    /// The time for requests to finish when the server stops; then they are cut.
    pub drain_max: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            unauthenticated_max: Duration::from_secs(10),
            streams_max: 256,
            bytes_in_flight_max: 512 << 20,
            connection_bytes_in_flight_max: 128 << 20,
            connection_window_bytes: CONNECTION_WINDOW_BYTES,
            waiting_bytes_max: 384 << 20,
            room_wait_max: Duration::from_secs(30),
            min_rate: MinRate::default(),
            greeting_max: Duration::from_secs(10),
            drain_max: Duration::from_secs(10),
        }
    }
}
