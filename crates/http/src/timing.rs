//! Durations of requests: from the turn of the connection that received them until their answer is complete, which is, for a stream, after
//! its last message was sent.
//!
//! The clock is read once for all requests that start in a turn of their connection, and once for each answer.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use shoal_metrics::{
    FrontendMetrics, Marks, Noted, Operation, RefusalCause, RequestResult, SlowRequest, with_marks,
};

use crate::flow::ConnectionFlow;

/// The time of one request. A timer that is dropped before its end counts a cancelled request.
pub struct Timer {
    metrics: Arc<FrontendMetrics>,
    /// None if the request was counted already, or its parts are counted instead.
    operation: Option<Operation>,
    name: &'static str,
    peer: SocketAddr,
    marks: Marks,
    was_polled: bool,
    /// For a log of all requests.
    noted: Option<Box<Noted>>,
}

impl Timer {
    /// The timer of a request that starts now; `None` if requests are not timed. `operation` returns its operation and the name of that in the
    /// log: a word, or a path whose last part is written.
    pub fn begin(
        metrics: &Arc<FrontendMetrics>,
        flow: &ConnectionFlow,
        peer: SocketAddr,
        operation: impl FnOnce() -> (Operation, &'static str),
    ) -> Option<Self> {
        if !metrics.is_timing() {
            return None;
        }
        let marks = Marks {
            began_ns: flow.turn_ns(|| metrics.now_ns()),
            wants_notes: metrics.logs_requests(),
            ..Marks::default()
        };
        let (operation, name) = operation();
        Some(Self {
            metrics: Arc::clone(metrics),
            operation: Some(operation),
            name,
            peer,
            marks,
            was_polled: false,
            noted: None,
        })
    }

    /// Polls the handler of the request, which may set its marks.
    pub fn poll<F: Future>(&mut self, handler: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        let is_first = !std::mem::replace(&mut self.was_polled, true);
        let polled = with_marks(&mut self.marks, &mut self.noted, || handler.poll(context));
        // The first poll is in the turn in which the request came, so a part that starts in it has the request's start.
        let began_ns = self.marks.began_ns;
        self.marks.settle(|| if is_first { began_ns } else { self.metrics.now_ns() });
        polled
    }

    /// The name of the operation.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Does not count the request: its parts are counted instead.
    pub fn forget(&mut self) {
        self.operation = None;
    }

    /// Counts the request, which ended with this result.
    pub fn end(&mut self, result: RequestResult) {
        let Some(operation) = self.operation.take() else { return };
        let metrics = &*self.metrics;
        if result == RequestResult::Denied {
            metrics.add_refusal(RefusalCause::Credentials);
        }
        let ended_ns = metrics.now_ns();
        let took_ns = ended_ns.saturating_sub(self.marks.began_ns);
        if metrics.add(operation, result, took_ns, 1) || metrics.logs_requests() {
            self.say(result, ended_ns);
        }
    }

    #[cold]
    fn say(&self, result: RequestResult, ended_ns: u64) {
        self.metrics.say(&SlowRequest {
            operation: self.name.rsplit('/').next().unwrap_or_default(),
            noted: self.noted.as_deref(),
            times: 1,
            result: result.word(),
            peer: self.peer,
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
