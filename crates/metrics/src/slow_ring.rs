//! The last slow requests of a server, for its console: the same requests as the slow log's lines.

use std::collections::VecDeque;
use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::slow::{SlowParts, SlowRequest};

/// Slow requests that are kept; the oldest goes first.
pub const SLOW_KEPT_MAX: usize = 256;

/// A slow request. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    /// The wall clock's time at its end, since the Unix epoch.
    pub at_ns: u64,
    /// Its frontend.
    pub frontend: &'static str,
    /// Its operation, in the words of its protocol.
    pub operation: String,
    /// Its bucket and its first key, which are known only with an access log or an audit log.
    pub object: Option<(String, Vec<u8>)>,
    /// Its result.
    pub result: &'static str,
    /// The number of requests with these times.
    pub times: u64,
    /// Its peer.
    pub peer: SocketAddr,
    /// The time from its arrival to the end of its answer.
    pub total_ns: u64,
    /// The parts of that time.
    pub parts: SlowParts,
}

/// The last slow requests.
#[derive(Debug, Default)]
pub(crate) struct SlowRing(Mutex<VecDeque<SlowEntry>>);

impl SlowRing {
    pub(crate) fn add(&self, frontend: &'static str, request: &SlowRequest<'_>, at_ns: u64) {
        let noted = request.noted.filter(|noted| !noted.bucket.is_empty() || !noted.key.is_empty());
        let entry = SlowEntry {
            at_ns,
            frontend,
            operation: request.operation.to_owned(),
            object: noted.map(|noted| (noted.bucket.clone(), request.shown_key().to_vec())),
            result: request.result,
            times: request.times,
            peer: request.peer,
            total_ns: request.took_ns(),
            parts: request.parts(),
        };
        let mut ring = self.0.lock();
        if ring.len() == SLOW_KEPT_MAX {
            ring.pop_front();
        }
        ring.push_back(entry);
    }

    /// The requests, the newest first.
    pub(crate) fn newest_first(&self) -> Vec<SlowEntry> {
        self.0.lock().iter().rev().cloned().collect()
    }
}
