//! The counts of one frontend, and of both together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shoal_base::{Clock, SystemClock};
use shoal_frontend::Security;

use crate::archive::ArchiveFigures;
use crate::audit::AuditLog;
use crate::request::{Operation, RefusalCause, RequestResult};
use crate::requests::{RequestCounts, Requests, Sum};
use crate::slow::SlowRequest;
use crate::slow_ring::{SlowEntry, SlowRing};

/// The connections of a frontend at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Open connections.
    pub open: u64,
    /// All connections since the start.
    pub opened: u64,
    /// Refused for want of room ([`RefusalCause::Connections`]).
    pub refused: u64,
    /// Closed to make room ([`RefusalCause::Evicted`]).
    pub evicted: u64,
    /// Closed without credentials in time ([`RefusalCause::Overdue`]).
    pub overdue: u64,
    /// Requests refused for want of memory ([`RefusalCause::Memory`]).
    pub memory_refusals: u64,
    /// Bytes of requests and answers in memory.
    pub memory_bytes: u64,
}

/// Reads the current figures of the archive.
type ArchiveNow = Box<dyn Fn() -> ArchiveFigures + Send + Sync>;

/// Reads the current connections.
type ConnectionsNow = Box<dyn Fn() -> Connections + Send + Sync>;

/// Redis commands that wait for the archive as long as their client asks for: they are never slow.
const WAITS: [&str; 2] = ["wait", "waitaof"];

/// The counts of one frontend.
pub struct FrontendMetrics {
    /// `grpc`, `redis`, `s3` or `console`.
    name: &'static str,
    is_on: bool,
    /// A request of this duration or longer is slow and gets a line in the log; `u64::MAX`: none is.
    slow_ns: u64,
    logs: RequestLogs,
    slow: Arc<SlowRing>,
    clock: SystemClock,
    requests: Requests,
    received_bytes: Sum,
    sent_bytes: Sum,
    refusals: [AtomicU64; RefusalCause::ALL.len()],
    connections: OnceLock<ConnectionsNow>,
    bucket: OnceLock<String>,
}

impl std::fmt::Debug for FrontendMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrontendMetrics({})", self.name)
    }
}

impl FrontendMetrics {
    fn new(
        name: &'static str,
        is_on: bool,
        (slow_ns, slow): (u64, Arc<SlowRing>),
        logs: RequestLogs,
    ) -> Self {
        Self {
            name,
            is_on,
            slow_ns,
            logs,
            slow,
            clock: SystemClock::default(),
            requests: Requests::default(),
            received_bytes: Sum::default(),
            sent_bytes: Sum::default(),
            refusals: [const { AtomicU64::new(0) }; RefusalCause::ALL.len()],
            connections: OnceLock::new(),
            bucket: OnceLock::new(),
        }
    }

    /// Its word in a label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if requests are timed: without counts, slow requests and a log of all requests, no clock is read.
    #[must_use]
    pub fn is_timing(&self) -> bool {
        self.is_on || self.slow_ns < u64::MAX || self.logs_requests()
    }

    /// Returns true if each request is written to a log.
    #[must_use]
    pub fn logs_requests(&self) -> bool {
        self.logs.access || self.logs.audit.is_some()
    }

    /// Now, on the clock of this frontend's durations.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Counts `times` requests that took `ns` each. Returns true if they are slow: the caller then calls [`Self::say`].
    #[must_use]
    pub fn add(&self, operation: Operation, result: RequestResult, ns: u64, times: u64) -> bool {
        if self.is_on {
            self.requests.add(operation, result, ns, times);
        }
        ns >= self.slow_ns
    }

    /// Writes a request to the logs: every one with an access log or an audit log, and slow ones.
    pub fn say(&self, request: &SlowRequest<'_>) {
        if self.logs.access {
            request.say_access(self.name);
        }
        if let Some(audit) = &self.logs.audit {
            audit.add(self.name, request);
        }
        if request.took_ns() >= self.slow_ns && !WAITS.contains(&request.operation) {
            request.say_slow(self.name);
            self.slow.add(self.name, request, self.clock.wall_ns());
        }
    }

    /// Counts bytes of requests, without those of TLS.
    pub fn add_received(&self, bytes: u64) {
        if self.is_on && bytes > 0 {
            self.received_bytes.add(bytes);
        }
    }

    /// Counts bytes of answers, without those of TLS.
    pub fn add_sent(&self, bytes: u64) {
        if self.is_on && bytes > 0 {
            self.sent_bytes.add(bytes);
        }
    }

    /// Counts a refusal. The causes that [`Connections`] has are counted there.
    pub fn add_refusal(&self, cause: RefusalCause) {
        if let Some(count) = self.refusals.get(cause as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the reader of the connections; a second call has no effect.
    pub fn watch_connections(&self, now: impl Fn() -> Connections + Send + Sync + 'static) {
        let _ = self.connections.set(Box::new(now));
    }

    /// Sets the bucket used by all its clients; a second call has no effect.
    pub fn set_bucket(&self, bucket: &str) {
        let _ = self.bucket.set(bucket.to_owned());
    }

    /// The bucket used by all its clients; `None` if each request names one.
    #[must_use]
    pub fn bucket(&self) -> Option<&str> {
        self.bucket.get().map(String::as_str)
    }

    /// The connections; none before the frontend serves.
    #[must_use]
    pub fn connections(&self) -> Option<Connections> {
        self.connections.get().map(|now| now())
    }

    /// Requests since the start.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestCounts> {
        self.requests.read()
    }

    /// Bytes of requests and of answers since the start.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.received_bytes.get(), self.sent_bytes.get())
    }

    /// Refusals since the start, by cause.
    #[must_use]
    pub fn refusals(&self) -> Vec<(RefusalCause, u64)> {
        let connections = self.connections().unwrap_or_default();
        let of_connections = |cause| match cause {
            RefusalCause::Connections => connections.refused,
            RefusalCause::Evicted => connections.evicted,
            RefusalCause::Overdue => connections.overdue,
            RefusalCause::Memory => connections.memory_refusals,
            _ => 0,
        };
        let counted = |&cause: &RefusalCause| {
            let own = self.refusals.get(cause as usize).map_or(0, |count| count.load(Ordering::Relaxed));
            (cause, own + of_connections(cause))
        };
        RefusalCause::ALL.iter().map(counted).collect()
    }
}

/// The counts of a server: one set for each frontend.
pub struct Metrics {
    is_on: bool,
    frontends: [Arc<FrontendMetrics>; 4],
    audit: Option<Arc<AuditLog>>,
    memory: OnceLock<MemoryParts>,
    security: OnceLock<Security>,
    archive: OnceLock<ArchiveNow>,
    slow_ns: u64,
    slow: Arc<SlowRing>,
}

/// The logs that have a line for each request.
#[derive(Clone, Debug, Default)]
pub struct RequestLogs {
    /// A line in the server's log.
    pub access: bool,
    /// A line in the audit log.
    pub audit: Option<Arc<AuditLog>>,
}

/// The division of a server's memory: all that it may take, and the most of each part, in bytes.
#[derive(Clone, Debug, Default)]
pub struct MemoryParts {
    /// All of it.
    pub total: u64,
    /// The names of the parts, with their bytes: together at most the total.
    pub parts: Vec<(String, u64)>,
}

impl Default for Metrics {
    /// Everything is counted, and nothing is logged.
    fn default() -> Self {
        Self::new(true, None, RequestLogs::default())
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metrics({:?})", self.frontends)
    }
}

impl Metrics {
    /// Counts if `is_on`. Requests of `slow` or longer get a line in the log.
    #[must_use]
    pub fn new(is_on: bool, slow: Option<Duration>, logs: RequestLogs) -> Self {
        let slow_ns = slow.map_or(u64::MAX, |slow| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX));
        let slow = Arc::<SlowRing>::default();
        let frontend = |name| {
            let slow = (slow_ns, Arc::clone(&slow));
            Arc::new(FrontendMetrics::new(name, is_on, slow, logs.clone()))
        };
        let frontends = ["grpc", "redis", "s3", "console"].map(frontend);
        Self {
            is_on,
            frontends,
            audit: logs.audit,
            memory: OnceLock::new(),
            security: OnceLock::new(),
            archive: OnceLock::new(),
            slow_ns,
            slow,
        }
    }

    /// The duration from which on a request is slow; none if none is.
    #[must_use]
    pub fn slow(&self) -> Option<Duration> {
        (self.slow_ns < u64::MAX).then(|| Duration::from_nanos(self.slow_ns))
    }

    /// The last slow requests, the newest first; at most [`SLOW_KEPT_MAX`](crate::SLOW_KEPT_MAX).
    #[must_use]
    pub fn slow_requests(&self) -> Vec<SlowEntry> {
        self.slow.newest_first()
    }

    /// Returns true if anything is counted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The audit log, if there is one.
    #[must_use]
    pub fn audit(&self) -> Option<&AuditLog> {
        self.audit.as_deref()
    }

    /// Sets the division of the server's memory, once.
    pub fn set_memory(&self, parts: MemoryParts) {
        let _ = self.memory.set(parts);
    }

    /// The division of the server's memory, if it is known.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryParts> {
        self.memory.get()
    }

    /// Sets the reader of the archive's figures, once.
    pub fn set_archive(&self, now: impl Fn() -> ArchiveFigures + Send + Sync + 'static) {
        let _ = self.archive.set(Box::new(now));
    }

    /// The figures of the archive; `None` if there is none.
    #[must_use]
    pub fn archive(&self) -> Option<ArchiveFigures> {
        self.archive.get().map(|now| now())
    }

    /// Sets the credentials of the server, once.
    pub fn set_security(&self, security: Security) {
        let _ = self.security.set(security);
    }

    /// The second of the Unix epoch up to which the server's TLS certificates in force are valid; `None` without TLS.
    #[must_use]
    pub fn certificate_end_s(&self) -> Option<u64> {
        self.security.get()?.certificate_end_s()
    }

    /// The gRPC frontend.
    #[must_use]
    pub fn grpc(&self) -> &Arc<FrontendMetrics> {
        &self.frontends[0]
    }

    /// The Redis frontend.
    #[must_use]
    pub fn redis(&self) -> &Arc<FrontendMetrics> {
        &self.frontends[1]
    }

    /// The S3 frontend.
    #[must_use]
    pub fn s3(&self) -> &Arc<FrontendMetrics> {
        &self.frontends[2]
    }

    /// The console.
    #[must_use]
    pub fn console(&self) -> &Arc<FrontendMetrics> {
        &self.frontends[3]
    }

    /// The frontends that serve.
    pub fn serving(&self) -> impl Iterator<Item = &FrontendMetrics> {
        self.frontends.iter().map(Arc::as_ref).filter(|frontend| frontend.connections().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow::{Marks, Noted, SlowParts};
    use crate::slow_ring::SLOW_KEPT_MAX;

    #[test]
    fn switched_off_metrics_count_nothing() {
        let off = Metrics::new(false, None, RequestLogs::default());
        let frontend = off.redis();
        assert!(!frontend.is_timing());
        assert!(!frontend.add(Operation::Get, RequestResult::Ok, u64::MAX - 1, 1));
        frontend.add_received(5);
        assert!(frontend.requests().is_empty() && frontend.bytes() == (0, 0));
        let slow = Metrics::new(false, Some(Duration::from_millis(5)), RequestLogs::default());
        assert!(slow.grpc().is_timing());
        assert!(slow.grpc().add(Operation::Get, RequestResult::Ok, 5_000_000, 1));
        assert!(!slow.grpc().add(Operation::Get, RequestResult::Ok, 4_999_999, 1));
    }

    #[test]
    fn last_slow_requests_are_kept() {
        let metrics = Metrics::new(true, Some(Duration::from_millis(5)), RequestLogs::default());
        let noted = Noted { bucket: "b".into(), key: vec![b'k'; 999], keys: 1, caller: None };
        for ended_ns in 4_999_999..=5_000_000 + SLOW_KEPT_MAX as u64 {
            metrics.s3().say(&SlowRequest {
                operation: "PutObject",
                noted: (ended_ns % 2 == 0).then_some(&noted),
                times: 1,
                result: "ok",
                peer: ([127, 0, 0, 1], 1).into(),
                marks: Marks { placed_ns: 1_000_000, done_ns: 4_000_000, ..Marks::default() },
                ended_ns,
            });
        }
        assert_eq!(metrics.slow(), Some(Duration::from_millis(5)));
        let kept = metrics.slow_requests();
        assert_eq!(kept.len(), SLOW_KEPT_MAX);
        let totals = [kept[0].total_ns, kept[SLOW_KEPT_MAX - 1].total_ns];
        assert_eq!(totals, [5_000_256, 5_000_001], "the one below the limit, and the oldest one, are gone");
        let parts = SlowParts { queue_ns: 0, store_ns: 1_000_000, log_ns: 3_000_000, answer_ns: 1_000_256 };
        assert_eq!((kept[0].parts, kept[0].frontend), (parts, "s3"));
        let (bucket, key) = kept[0].object.as_ref().unwrap();
        assert_eq!((bucket.as_str(), key.len(), kept[1].object.is_none()), ("b", 256, true));
        assert!(kept[0].at_ns > 1_600_000_000_000_000_000);
        assert_eq!((Metrics::default().slow(), Metrics::default().slow_requests()), (None, vec![]));
    }

    #[test]
    fn waits_for_the_archive_are_not_slow() {
        let metrics = Metrics::new(true, Some(Duration::from_millis(5)), RequestLogs::default());
        for operation in ["wait", "waitaof", "get"] {
            metrics.redis().say(&SlowRequest {
                operation,
                noted: None,
                times: 1,
                result: "ok",
                peer: ([127, 0, 0, 1], 1).into(),
                marks: Marks::default(),
                ended_ns: 9_000_000,
            });
        }
        let kept: Vec<_> = metrics.slow_requests().iter().map(|slow| slow.operation.to_string()).collect();
        assert_eq!(kept, ["get"]);
    }

    #[test]
    fn refusals_of_connections_come_from_the_frontend() {
        let metrics = Metrics::default();
        assert_eq!(metrics.serving().count(), 0);
        metrics.redis().watch_connections(|| Connections { overdue: 3, ..Connections::default() });
        metrics.redis().add_refusal(RefusalCause::Slow);
        let refusals: Vec<_> =
            metrics.redis().refusals().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(refusals, [(RefusalCause::Overdue, 3), (RefusalCause::Slow, 1)]);
        assert_eq!(metrics.serving().map(FrontendMetrics::name).collect::<Vec<_>>(), ["redis"]);
    }
}
