//! The figures of the archive at a scrape.

/// The words of [`ArchiveFigures::state`].
pub const ARCHIVE_STATES: [&str; 7] =
    ["connecting", "shipping", "waiting", "gap", "fenced", "refused", "stopped"];

/// The figures of an archive at one moment.
#[derive(Clone, Debug, Default)]
pub struct ArchiveFigures {
    /// One of [`ARCHIVE_STATES`].
    pub state: &'static str,
    /// The state in words, with the advice if there is some.
    pub words: String,
    /// Age of the oldest durable write that is not archived.
    pub lag_seconds: f64,
    /// Bytes of segments that are not archived.
    pub lag_bytes: u64,
    /// Every write up to this version is archived.
    pub version: u64,
    /// Bytes of the spool.
    pub spool_bytes: u64,
    /// Bytes that the spool may have.
    pub spool_bytes_max: u64,
    /// Gaps since the start.
    pub gaps: u64,
    /// Segments since the start, by kind.
    pub segments: [(&'static str, u64); 3],
    /// Bytes of these segments.
    pub segment_bytes: u64,
    /// Requests since the start, by operation.
    pub requests: [(&'static str, u64); 4],
    /// Requests that failed.
    pub failures: u64,
    /// Ambiguous answers: the object was ours.
    pub ambiguous_ours: u64,
    /// Ambiguous answers: the object was not ours.
    pub ambiguous_foreign: u64,
    /// The wall clock of the newest base, in seconds.
    pub base_taken_seconds: Option<f64>,
    /// Bytes of the base on its way that the bucket has.
    pub base_bytes: u64,
    /// About all bytes of that base.
    pub base_bytes_expected: u64,
    /// Bytes of segments since the newest base.
    pub log_bytes_since_base: u64,
    /// The wall clock of the oldest moment that can be restored, in seconds.
    pub oldest_seconds: Option<f64>,
}
