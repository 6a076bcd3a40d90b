//! The operations and results of calls, for the metrics; and the times of the operations of a stream.

use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderMap;
use shoal_api::{Method, key_value as kv, v1};
use shoal_engine::ObjectKey;
use shoal_frontend::access::{Principal, PrincipalId};
use shoal_http::Timer;
use shoal_metrics::{Marks, Metrics, Noted, Operation, RequestResult, SlowRequest};
use tonic::Status;

/// The metrics' operation of the method at `path`, and the path as a constant.
pub(crate) fn operation_of(path: &str) -> (Operation, &'static str) {
    const KNOWN: [(Operation, &str); 20] = [
        (Operation::Get, v1::Get::PATH),
        (Operation::Put, v1::Put::PATH),
        (Operation::Other, v1::Operations::PATH),
        (Operation::Head, v1::Head::PATH),
        (Operation::Delete, v1::Delete::PATH),
        (Operation::Get, v1::GetStream::PATH),
        (Operation::Put, v1::PutStream::PATH),
        (Operation::List, v1::List::PATH),
        (Operation::List, v1::ListBuckets::PATH),
        (Operation::MultiGet, v1::MultiGet::PATH),
        (Operation::MultiPut, v1::MultiPut::PATH),
        (Operation::MultiDelete, v1::MultiDelete::PATH),
        (Operation::Get, kv::Retrieve::PATH),
        (Operation::Put, kv::Create::PATH),
        (Operation::Update, kv::Update::PATH),
        (Operation::Delete, kv::Delete::PATH),
        (Operation::Other, v1::Stat::PATH),
        (Operation::Other, v1::FreeSpace::PATH),
        (Operation::Other, v1::Backup::PATH),
        (Operation::Other, v1::Grow::PATH),
    ];
    KNOWN.into_iter().find(|(_, known)| *known == path).unwrap_or((Operation::Other, "(another method)"))
}

/// The result of a call with this status code.
pub(crate) fn result_of_code(code: i32) -> RequestResult {
    match code {
        0 => RequestResult::Ok,
        1 | 4 => RequestResult::Cancelled,
        3 | 11 | 12 => RequestResult::Invalid,
        5 => RequestResult::NotFound,
        6 | 9 | 10 => RequestResult::Rejected,
        7 | 16 => RequestResult::Denied,
        8 | 14 => RequestResult::Refused,
        _ => RequestResult::Failed,
    }
}

/// The result of a call with these headers or trailers: without a status it succeeded.
pub(crate) fn result_of(headers: &HeaderMap) -> RequestResult {
    let status = headers.get(Status::GRPC_STATUS).and_then(|value| value.to_str().ok());
    result_of_code(status.map_or(0, |status| status.parse().unwrap_or(i32::MAX)))
}

/// Notes the head of the answer of the request of `timer`. Returns the timer if the request is counted only at the end of the answer's body,
/// which is a stream if `is_stream`. A stream of operations is not counted itself: its [`StreamTimer`] counts each of them.
pub(crate) fn answered(mut timer: Timer, head: &HeaderMap, is_stream: bool) -> Option<Timer> {
    let result = result_of(head);
    if result == RequestResult::Ok && timer.name() == v1::Operations::PATH {
        timer.forget();
    } else if result == RequestResult::Ok && is_stream {
        return Some(timer);
    }
    timer.end(result);
    None
}

/// Operations of one kind that came and ended together.
struct EndedOperations {
    operation: Operation,
    result: RequestResult,
    came_ns: u64,
    times: u64,
    /// Those of a single one, if there is a log of all requests.
    noted: Option<Box<Noted>>,
}

impl EndedOperations {
    /// Returns true if both are counted together.
    fn is_same(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.operation, it.result, it.came_ns, it.noted.is_none());
        of(self) == of(other) && self.noted.is_none()
    }
}

/// The times of the operations of one stream.
pub(crate) struct StreamTimer {
    metrics: Arc<Metrics>,
    peer: SocketAddr,
    /// The caller, if there is a log of all requests.
    caller: Option<PrincipalId>,
    /// The arrival of the current message.
    pub(crate) message_ns: u64,
    /// Operations that ended in this turn.
    ended: Vec<EndedOperations>,
}

impl StreamTimer {
    pub(crate) fn new(metrics: Arc<Metrics>, peer: SocketAddr, caller: &Principal) -> Self {
        let caller = metrics.grpc().logs_requests().then(|| caller.identity().clone());
        Self { metrics, peer, caller, message_ns: 0, ended: Vec::new() }
    }

    /// The notes of an operation on this key, if there is a log of all requests.
    pub(crate) fn noted(&self, key: &ObjectKey) -> Option<Box<Noted>> {
        self.caller.as_ref()?;
        let (bucket, key) = (key.bucket().to_owned(), key.key().to_vec());
        Some(Box::new(Noted { bucket, key, keys: 1, caller: self.caller.clone() }))
    }

    /// Notes the arrival of a message.
    pub(crate) fn message(&mut self) {
        let grpc = self.metrics.grpc();
        if grpc.is_timing() {
            self.message_ns = grpc.now_ns();
        }
    }

    /// Notes the result of an operation that came at `came_ns`.
    pub(crate) fn ended(
        &mut self,
        operation: Operation,
        result: RequestResult,
        came_ns: u64,
        noted: Option<Box<Noted>>,
    ) {
        let ended = EndedOperations { operation, result, came_ns, times: 1, noted };
        match self.ended.last_mut() {
            Some(last) if last.is_same(&ended) => last.times += 1,
            _ => self.ended.push(ended),
        }
    }

    /// Counts the operations that ended in this turn.
    pub(crate) fn settle(&mut self) {
        let grpc = self.metrics.grpc();
        if self.ended.is_empty() || !grpc.is_timing() {
            return self.ended.clear();
        }
        let ended_ns = grpc.now_ns();
        for EndedOperations { operation, result, came_ns, times, noted } in self.ended.drain(..) {
            if grpc.add(operation, result, ended_ns.saturating_sub(came_ns), times) || grpc.logs_requests() {
                grpc.say(&SlowRequest {
                    operation: operation.word(),
                    noted: noted.as_deref(),
                    times,
                    result: result.word(),
                    peer: self.peer,
                    marks: Marks { began_ns: came_ns, ..Marks::default() },
                    ended_ns,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_statuses_have_labels() {
        assert_eq!(operation_of(v1::MultiPut::PATH), (Operation::MultiPut, v1::MultiPut::PATH));
        assert_eq!(operation_of("/nonsense").0, Operation::Other);
        assert_eq!(result_of(&HeaderMap::new()), RequestResult::Ok);
        for (code, result) in [
            ("0", RequestResult::Ok),
            ("5", RequestResult::NotFound),
            ("16", RequestResult::Denied),
            ("8", RequestResult::Refused),
            ("15", RequestResult::Failed),
            ("x", RequestResult::Failed),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static(code));
            assert_eq!(result_of(&headers), result, "{code}");
        }
    }
}
