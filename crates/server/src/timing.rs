//! Durations of requests: from the turn of the connection that received them until their answer is complete, which is, for a stream, after
//! its last message was sent.
//!
//! The clock is read once for all requests that start in a turn of their connection, and once for each answer.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::HeaderMap;
use shoal_api::{Method, key_value as kv, v1};
use shoal_metrics::{
    FrontendMetrics, Marks, Metrics, Operation, RefusalCause, RequestResult, SlowRequest, with_marks,
};
use tonic::Status;

use crate::flow::ConnectionFlow;

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

/// The time of one request. A timer that is dropped before its end counts a cancelled request.
pub(crate) struct Timer {
    metrics: Arc<Metrics>,
    /// None if the request was counted already, or its parts are counted instead.
    operation: Option<Operation>,
    /// The method's path.
    path: &'static str,
    peer: SocketAddr,
    marks: Marks,
    was_polled: bool,
    key: Option<Box<[u8]>>,
}

impl Timer {
    /// The timer of a request that starts now; `None` if requests are not timed.
    pub(crate) fn begin(
        metrics: &Arc<Metrics>,
        flow: &ConnectionFlow,
        path: &http::Uri,
        peer: SocketAddr,
    ) -> Option<Self> {
        let grpc = metrics.grpc();
        if !grpc.is_timing() {
            return None;
        }
        let marks = Marks {
            began_ns: flow.turn_ns(|| grpc.now_ns()),
            wants_key: grpc.logs_access(),
            ..Marks::default()
        };
        let (operation, path) = operation_of(path.path());
        Some(Self {
            metrics: Arc::clone(metrics),
            operation: Some(operation),
            path,
            peer,
            marks,
            was_polled: false,
            key: None,
        })
    }

    /// Polls the handler of the request, which may set its marks.
    pub(crate) fn poll<F: Future>(
        &mut self,
        handler: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let is_first = !std::mem::replace(&mut self.was_polled, true);
        let (polled, key) = with_marks(&mut self.marks, || handler.poll(context));
        // The first poll is in the turn in which the request came, so a part that starts in it has the request's start.
        let began_ns = self.marks.began_ns;
        self.marks.settle(|| if is_first { began_ns } else { self.metrics.grpc().now_ns() });
        if let Some(key) = key {
            self.key = Some(key.into());
        }
        polled
    }

    /// Notes the head of the answer. Returns the timer if the request is counted only at the end of the answer's body, which is a stream if
    /// `is_stream`. A stream of operations is not counted itself: its [`StreamTimer`] counts each of them.
    pub(crate) fn answered(mut self, head: &HeaderMap, is_stream: bool) -> Option<Self> {
        let result = result_of(head);
        if result == RequestResult::Ok && self.path == v1::Operations::PATH {
            self.operation = None;
        } else if result == RequestResult::Ok && is_stream {
            return Some(self);
        }
        self.end(result);
        None
    }

    /// Counts the request, which ended with this result.
    pub(crate) fn end(&mut self, result: RequestResult) {
        let Some(operation) = self.operation.take() else { return };
        let grpc = self.metrics.grpc();
        count_refusal(grpc, result);
        let ended_ns = grpc.now_ns();
        let took_ns = ended_ns.saturating_sub(self.marks.began_ns);
        if grpc.add(operation, result, took_ns, 1) || grpc.logs_access() {
            self.say(result, ended_ns);
        }
    }

    #[cold]
    fn say(&self, result: RequestResult, ended_ns: u64) {
        let method = self.path.rsplit('/').next().unwrap_or_default();
        self.metrics.grpc().say(&SlowRequest {
            operation: method,
            key: self.key.as_deref(),
            times: 1,
            result: result.word(),
            peer: &self.peer,
            marks: self.marks,
            ended_ns,
        });
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.end(RequestResult::Cancelled);
    }
}

fn count_refusal(grpc: &FrontendMetrics, result: RequestResult) {
    if result == RequestResult::Denied {
        grpc.add_refusal(RefusalCause::Credentials);
    }
}

/// The times of the operations of one stream.
pub(crate) struct StreamTimer {
    metrics: Arc<Metrics>,
    peer: SocketAddr,
    /// The arrival of the current message.
    pub(crate) message_ns: u64,
    /// Operations that ended in this turn: kind, result, arrival and number.
    ended: Vec<(Operation, RequestResult, u64, u64)>,
}

impl StreamTimer {
    pub(crate) fn new(metrics: Arc<Metrics>, peer: SocketAddr) -> Self {
        Self { metrics, peer, message_ns: 0, ended: Vec::new() }
    }

    /// Notes the arrival of a message.
    pub(crate) fn message(&mut self) {
        let grpc = self.metrics.grpc();
        if grpc.is_timing() {
            self.message_ns = grpc.now_ns();
        }
    }

    /// Notes the result of an operation that came at `came_ns`.
    pub(crate) fn ended(&mut self, operation: Operation, result: RequestResult, came_ns: u64) {
        match self.ended.last_mut() {
            Some((last, its, came, times)) if (*last, *its, *came) == (operation, result, came_ns) => {
                *times += 1
            }
            _ => self.ended.push((operation, result, came_ns, 1)),
        }
    }

    /// Counts the operations that ended in this turn.
    pub(crate) fn settle(&mut self) {
        let grpc = self.metrics.grpc();
        if self.ended.is_empty() || !grpc.is_timing() {
            return self.ended.clear();
        }
        let ended_ns = grpc.now_ns();
        for (operation, result, came_ns, times) in self.ended.drain(..) {
            if grpc.add(operation, result, ended_ns.saturating_sub(came_ns), times) || grpc.logs_access() {
                grpc.say(&SlowRequest {
                    operation: operation.word(),
                    key: None,
                    times,
                    result: result.word(),
                    peer: &self.peer,
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
