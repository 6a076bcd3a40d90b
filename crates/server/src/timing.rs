//! How long requests take: from when a connection's turn found them to when their answer is there, or was sent where it is a
//! stream.
//!
//! The clock is read once for all requests that begin in a turn of their connection, and once for each answer.

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

use crate::call::HttpResponse;
use crate::flow::ConnectionFlow;

/// What the metrics call a method, and its path.
pub(crate) fn operation_of(path: &str) -> (Operation, &'static str) {
    const KNOWN: [(Operation, &str); 17] = [
        (Operation::Get, v1::Get::PATH),
        (Operation::Put, v1::Put::PATH),
        (Operation::Other, v1::Operations::PATH),
        (Operation::Head, v1::Head::PATH),
        (Operation::Delete, v1::Delete::PATH),
        (Operation::Get, v1::GetStream::PATH),
        (Operation::Put, v1::PutStream::PATH),
        (Operation::List, v1::List::PATH),
        (Operation::MultiGet, v1::MultiGet::PATH),
        (Operation::MultiPut, v1::MultiPut::PATH),
        (Operation::MultiDelete, v1::MultiDelete::PATH),
        (Operation::Get, kv::Retrieve::PATH),
        (Operation::Put, kv::Create::PATH),
        (Operation::Update, kv::Update::PATH),
        (Operation::Delete, kv::Delete::PATH),
        (Operation::Other, v1::Stat::PATH),
        (Operation::Other, v1::FreeSpace::PATH),
    ];
    KNOWN.into_iter().find(|(_, known)| *known == path).unwrap_or((Operation::Other, "(another method)"))
}

/// How a call with this status ended.
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

/// How a call with these headers or trailers ended: it succeeded where they have no status.
pub(crate) fn result_of(headers: &HeaderMap) -> RequestResult {
    let status = headers.get(Status::GRPC_STATUS).and_then(|value| value.to_str().ok());
    result_of_code(status.map_or(0, |status| status.parse().unwrap_or(i32::MAX)))
}

/// The time of one request. Where it is dropped before its end, the request was cancelled.
pub(crate) struct Timer {
    metrics: Arc<Metrics>,
    /// None where it was counted, or is counted by its parts.
    operation: Option<Operation>,
    /// The method's path.
    path: &'static str,
    peer: SocketAddr,
    marks: Marks,
    was_polled: bool,
    key: Option<Box<[u8]>>,
}

impl Timer {
    /// Of a request that begins now; none where nobody wants to know.
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

    /// Goes on with the handler of the request, which may set its marks.
    pub(crate) fn poll<F: Future>(
        &mut self,
        handler: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let is_first = !std::mem::replace(&mut self.was_polled, true);
        let (polled, key) = with_marks(&mut self.marks, || handler.poll(context));
        // A part that begins in the turn in which the request came begins with it.
        let began_ns = self.marks.began_ns;
        self.marks.settle(|| if is_first { began_ns } else { self.metrics.grpc().now_ns() });
        if let Some(key) = key {
            self.key = Some(key.into());
        }
        polled
    }

    /// The answer is there; a stream takes the timer along to its end. Operations of a stream count each for itself.
    pub(crate) fn answered(mut self, answer: HttpResponse) -> HttpResponse {
        let result = result_of(answer.headers());
        if self.path == v1::Operations::PATH && result == RequestResult::Ok {
            self.operation = None;
        } else if result == RequestResult::Ok && answer.body().is_stream() {
            return answer.map(|body| body.timed(self));
        }
        self.end(result);
        answer
    }

    /// The request ended so.
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
    /// When the message in work came.
    pub(crate) message_ns: u64,
    /// Operations that ended in this turn, with when they came and how many of a kind.
    ended: Vec<(Operation, RequestResult, u64, u64)>,
}

impl StreamTimer {
    pub(crate) fn new(metrics: Arc<Metrics>, peer: SocketAddr) -> Self {
        Self { metrics, peer, message_ns: 0, ended: Vec::new() }
    }

    /// A message came.
    pub(crate) fn message(&mut self) {
        let grpc = self.metrics.grpc();
        if grpc.is_timing() {
            self.message_ns = grpc.now_ns();
        }
    }

    /// An operation that came at `came_ns` has its result.
    pub(crate) fn ended(&mut self, operation: Operation, result: RequestResult, came_ns: u64) {
        match self.ended.last_mut() {
            Some((last, its, came, times)) if (*last, *its, *came) == (operation, result, came_ns) => {
                *times += 1
            }
            _ => self.ended.push((operation, result, came_ns, 1)),
        }
    }

    /// The turn is over: counts what ended in it.
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
    fn methods_and_statuses_have_words() {
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
