//! Counts and logs a deletion of the sweeper as the requests of clients are.

use std::net::{Ipv4Addr, SocketAddr};

use shoal_engine::Error;
use shoal_frontend::access::PrincipalId;
use shoal_metrics::{FrontendMetrics, Marks, Noted, Operation, RequestResult, SlowRequest};

/// The server itself has no address.
const NO_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A deletion that runs.
pub(super) struct Noting<'a> {
    metrics: &'a FrontendMetrics,
    operation: &'static str,
    began_ns: u64,
}

impl<'a> Noting<'a> {
    pub(super) fn begin(metrics: &'a FrontendMetrics, operation: &'static str) -> Self {
        let began_ns = if metrics.is_timing() { metrics.now_ns() } else { 0 };
        Self { metrics, operation, began_ns }
    }

    /// Notes the end; with the reason if nothing was deleted.
    pub(super) fn end(self, bucket: &str, key: &[u8], failed: Option<&Error>) {
        let Self { metrics, operation, began_ns } = self;
        if !metrics.is_timing() {
            return;
        }
        let result = match failed {
            None => RequestResult::Ok,
            Some(Error::ConditionFailed { .. }) => RequestResult::Rejected,
            Some(_) => RequestResult::Failed,
        };
        let ended_ns = metrics.now_ns();
        let is_slow = metrics.add(Operation::Delete, result, ended_ns.saturating_sub(began_ns), 1);
        if !is_slow && !metrics.logs_requests() {
            return;
        }
        let caller = Some(PrincipalId::Lifecycle);
        let noted = Noted { bucket: bucket.to_owned(), key: key.to_vec(), keys: 1, caller };
        metrics.say(&SlowRequest {
            operation,
            noted: Some(&noted),
            times: 1,
            result: result.word(),
            peer: NO_PEER,
            marks: Marks { began_ns, ..Marks::default() },
            ended_ns,
        });
    }
}
