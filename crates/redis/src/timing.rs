//! Durations of commands, counted at the end of the turn in which they are answered.
//!
//! The clock is read at the start of a turn, and again when its answers have left: all commands of a turn share these two
//! readings. So a command costs an entry of a list, and consecutive commands of one kind share one. A command's time starts
//! when its last byte was received, not while the client still sends it.

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_metrics::{FrontendMetrics, Marks, Noted, Operation, RequestResult, SlowRequest};

use crate::answer::Answer;

/// The times of a command, from its arrival on.
#[derive(Clone, Default)]
pub(crate) struct Timed {
    /// The command's name in the table of commands; `None` if the request was not a command.
    pub name: Option<&'static str>,
    pub operation: Option<Operation>,
    pub marks: Marks,
    /// Its caller and its first key, for a log of all requests.
    pub noted: Option<Arc<Noted>>,
}

impl Timed {
    /// The command `name` of the table, which arrived at `came_ns` and starts now.
    pub(crate) fn new(name: &'static str, operation: Operation, came_ns: u64, now_ns: u64) -> Self {
        let marks = Marks { began_ns: came_ns, started_ns: now_ns, ..Marks::default() };
        Self { name: Some(name), operation: Some(operation), marks, noted: None }
    }

    /// Returns true if both are counted together.
    fn is_same(&self, other: &Self) -> bool {
        // A name is in the table once, so comparing its address is enough.
        let is_same_name = match (self.name, other.name) {
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same_name
            && self.operation == other.operation
            && self.marks == other.marks
            && self.noted.is_none()
            && other.noted.is_none()
    }
}

/// Commands of one kind answered in this turn.
pub(crate) struct Finished {
    timed: Timed,
    result: RequestResult,
    times: u64,
}

/// The commands of one connection, or of all of a thread, answered in this turn.
#[derive(Default)]
pub(crate) struct FinishedCommands(Vec<Finished>);

impl FinishedCommands {
    /// Adds `times` commands with this result.
    pub(crate) fn add(&mut self, timed: Timed, result: RequestResult, times: u64) {
        if let Some(last) = self.0.last_mut()
            && last.result == result
            && last.timed.is_same(&timed)
        {
            last.times += times;
            return;
        }
        self.0.push(Finished { timed, result, times });
    }
}

/// The figures of a thread's connections in this turn.
#[derive(Default)]
pub(crate) struct TurnFigures {
    finished: Vec<(SocketAddr, Finished)>,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

impl TurnFigures {
    /// Takes the commands of `peer`.
    pub(crate) fn take(&mut self, peer: SocketAddr, commands: &mut FinishedCommands) {
        self.finished.extend(commands.0.drain(..).map(|finished| (peer, finished)));
    }

    /// Counts the turn after its answers have left.
    pub(crate) fn settle(&mut self, metrics: &FrontendMetrics, now_ns: impl FnOnce() -> u64) {
        metrics.add_received(std::mem::take(&mut self.received_bytes));
        metrics.add_sent(std::mem::take(&mut self.sent_bytes));
        if self.finished.is_empty() || !metrics.is_timing() {
            return self.finished.clear();
        }
        let ended_ns = now_ns();
        for (peer, Finished { timed, result, times }) in self.finished.drain(..) {
            let operation = timed.operation.unwrap_or(Operation::Other);
            let took_ns = ended_ns.saturating_sub(timed.marks.began_ns);
            if metrics.add(operation, result, took_ns, times) || metrics.logs_requests() {
                say(metrics, peer, &timed, (result, times), ended_ns);
            }
        }
    }
}

/// Writes commands to the logs: slow ones, and every one with a log of all requests.
#[cold]
fn say(
    metrics: &FrontendMetrics,
    peer: SocketAddr,
    timed: &Timed,
    (result, times): (RequestResult, u64),
    ended_ns: u64,
) {
    let request = SlowRequest {
        operation: timed.name.unwrap_or("(unknown)"),
        noted: timed.noted.as_deref(),
        times,
        result: result.word(),
        peer,
        marks: timed.marks,
        ended_ns,
    };
    metrics.say(&request);
}

/// The result of a command, by its answer.
pub(crate) fn result_of(answer: &Answer, operation: Option<Operation>) -> RequestResult {
    match (answer, operation) {
        (Answer::Error(text), _) => result_of_error(text),
        (Answer::Null, Some(Operation::Get)) | (Answer::Integer(0), Some(Operation::Delete)) => {
            RequestResult::NotFound
        }
        (Answer::Null, Some(Operation::Put)) | (Answer::NullArray, Some(Operation::Transaction)) => {
            RequestResult::Rejected
        }
        _ => RequestResult::Ok,
    }
}

fn result_of_error(text: &str) -> RequestResult {
    match text.split(' ').next().unwrap_or_default() {
        "OOM" | "TRYAGAIN" | "LOADING" => RequestResult::Refused,
        "READONLY" | "UNKNOWN" | "DAMAGED" => RequestResult::Failed,
        "NOAUTH" | "NOPERM" | "WRONGPASS" => RequestResult::Denied,
        _ if text.starts_with("ERR device error") => RequestResult::Failed,
        _ => RequestResult::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use shoal_metrics::Metrics;

    use super::*;

    #[test]
    fn answers_map_to_results() {
        let error = |text| result_of(&Answer::error(text), Some(Operation::Get));
        assert_eq!(error("OOM the store is full"), RequestResult::Refused);
        assert_eq!(error("DAMAGED x"), RequestResult::Failed);
        assert_eq!(error("ERR device error: EIO"), RequestResult::Failed);
        assert_eq!(error("NOAUTH Authentication required."), RequestResult::Denied);
        assert_eq!(error("NOPERM No permissions to access a key"), RequestResult::Denied);
        assert_eq!(error("ERR syntax error"), RequestResult::Invalid);
        let null = |operation| result_of(&Answer::Null, Some(operation));
        assert_eq!(null(Operation::Get), RequestResult::NotFound);
        assert_eq!(null(Operation::Put), RequestResult::Rejected);
        assert_eq!(result_of(&Answer::Integer(0), Some(Operation::Delete)), RequestResult::NotFound);
        assert_eq!(result_of(&Answer::Integer(0), Some(Operation::Update)), RequestResult::Ok);
    }

    #[test]
    fn commands_of_one_kind_are_counted_together() {
        let (metrics, mut turn, mut commands) =
            (Metrics::default(), TurnFigures::default(), FinishedCommands::default());
        let get = |came_ns| Timed::new("get", Operation::Get, came_ns, 1_000);
        for _ in 0..3 {
            commands.add(get(500), RequestResult::Ok, 1);
        }
        commands.add(get(600), RequestResult::Ok, 1);
        commands.add(Timed::new("set", Operation::Put, 600, 1_000), RequestResult::Ok, 5);
        assert_eq!(commands.0.len(), 3);
        turn.take(([127, 0, 0, 1], 1).into(), &mut commands);
        turn.settle(metrics.redis(), || 2_500);
        let counts: Vec<_> = metrics
            .redis()
            .requests()
            .into_iter()
            .map(|counts| (counts.operation, counts.durations.count(), counts.durations.sum_ns))
            .collect();
        assert_eq!(counts, [(Operation::Get, 4, 3 * 2_000 + 1_900), (Operation::Put, 5, 9_500)]);
        turn.settle(metrics.redis(), || unreachable!("nothing was done"));
    }
}
