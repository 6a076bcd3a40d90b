//! The limits of a frontend, and the sizes of HTTP/2.

use std::time::Duration;

use shoal_frontend::MinRate;

/// HTTP/2 window of one stream, in bytes: a value of 64 KiB is never stopped for a round trip, and one stream carries 256 MiB a second if a
/// round trip takes 1 ms. HTTP/2 holds this much of a message that waits for room (`flow/wait_queue.rs`), so a larger window means that fewer may wait.
/// Fixed windows, as adaptive ones cost pings and only pay on long fat networks.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// HTTP/2 window of one connection if memory allows it, in bytes: 112 long messages may wait for room on it, and 4 MiB are left for the
/// others.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// The longest HTTP/2 frame that is accepted, in bytes: a message with a value of 64 KiB. Clients send the frames of their calls by turns,
/// so values in several frames are all complete at the same time, and the device has nothing to do until then.
pub(crate) const FRAME_BYTES_MAX: u32 = 72 << 10;

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
    /// Bytes of requests and answers in memory. Further long requests wait for room, short ones and answers are refused.
    pub bytes_in_flight_max: usize,
    /// The part of [`Self::bytes_in_flight_max`] that one connection may hold, so that a slow client cannot stop others.
    pub connection_bytes_in_flight_max: usize,
    /// HTTP/2's window of one connection, in bytes, 6 MiB to 32 MiB: the bytes of its requests that may arrive before the server reads
    /// them. All but 4 MiB of it may be of messages that wait for room.
    pub connection_window_bytes: u32,
    /// Bytes that HTTP/2 may hold of the messages of all connections that wait for room. Further long requests are refused
    /// at once.
    pub waiting_bytes_max: usize,
    /// The time for which a message of more than 4 KiB waits in all, separate or of a stream that its caller sends, if there is no room for
    /// the rest of it; then the request is refused.
    pub room_wait_max: Duration,
    /// The least bytes of a started request that must arrive while the server waits for more. A peer that takes nothing of its answers may
    /// be silent for the same time, too.
    pub min_rate: MinRate,
    /// Bounds on requests over HTTP/1.1.
    pub http1: Http1Limits,
    /// The time for a new connection to agree on TLS, and again to start to speak HTTP; and the time for the headers of a request.
    pub greeting_max: Duration,
    /// The time for requests to finish when the server stops; then they are cut.
    pub drain_max: Duration,
}

/// Bounds on requests over HTTP/1.1.
#[derive(Clone, Debug)]
pub struct Http1Limits {
    /// Headers of a request; one with more gets 431.
    pub headers_max: usize,
    /// Bytes of their names and values together; more get 431.
    pub header_bytes_max: usize,
    /// Bytes of a path with its query; more get 414.
    pub target_bytes_max: usize,
    /// The silence between two requests, after which the connection is closed: clients keep connections for minutes.
    pub idle_max: Duration,
}

impl Default for Http1Limits {
    fn default() -> Self {
        Self {
            headers_max: 100,
            header_bytes_max: 32 << 10,
            target_bytes_max: 16 << 10,
            idle_max: Duration::from_secs(75),
        }
    }
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
            http1: Http1Limits::default(),
            greeting_max: Duration::from_secs(10),
            drain_max: Duration::from_secs(10),
        }
    }
}
