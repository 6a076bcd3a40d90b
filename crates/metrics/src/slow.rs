//! The parts of a request's time, for the log's line of a slow request.
//!
//! A frontend that runs a request as a future passes [`Marks`] along with it: while the future runs, they are in a cell of the
//! thread, and the code inside may [`mark`] the start of the next part. So a request does not grow, and the clock is read for a
//! mark only if one was set.

use std::cell::Cell;
use std::time::Duration;

/// Bytes of a key that the log shows.
const KEY_BYTES_SHOWN: usize = 256;

/// Moments in the life of a request, in nanoseconds of its frontend's clock; 0: not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The request had arrived.
    pub began_ns: u64,
    /// Its work started: all of its message was received, and no earlier request held it up.
    pub started_ns: u64,
    /// Its write had its place in the log's queue.
    pub placed_ns: u64,
    /// Its work was over: a write is durable.
    pub done_ns: u64,
    /// True if the log will show the key ([`note_key`]).
    pub wants_key: bool,
}

/// The value of a mark that is set and has no time yet.
const NOW: u64 = u64::MAX;

impl Marks {
    /// Sets marks without a time to `now_ns`, which is called only if there are any.
    pub fn settle(&mut self, now_ns: impl FnOnce() -> u64) {
        if self.started_ns == NOW || self.placed_ns == NOW {
            let now_ns = now_ns();
            [&mut self.started_ns, &mut self.placed_ns]
                .into_iter()
                .filter(|it| **it == NOW)
                .for_each(|it| *it = now_ns);
        }
    }
}

/// The start of a part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// [`Marks::started_ns`].
    Started,
    /// [`Marks::placed_ns`].
    Placed,
}

thread_local! {
    static MARKS: Cell<Option<Marks>> = const { Cell::new(None) };
    static KEY: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
}

/// Runs `work` with the marks of its request, which it may set; also returns the key that it noted.
pub fn with_marks<T>(marks: &mut Marks, work: impl FnOnce() -> T) -> (T, Option<Vec<u8>>) {
    // A request inside of another has separate marks: the outer one's are restored afterwards.
    let before = MARKS.replace(Some(*marks));
    let result = work();
    if let Some(set) = MARKS.replace(before) {
        *marks = set;
    }
    let key = if marks.wants_key { KEY.take() } else { None };
    (result, key)
}

/// Marks that the running request reached `part`; the first call of each counts. [`Marks::settle`] adds the time.
pub fn mark(part: Stage) {
    let Some(mut marks) = MARKS.get() else { return };
    let place = match part {
        Stage::Started => &mut marks.started_ns,
        Stage::Placed => &mut marks.placed_ns,
    };
    if *place == 0 {
        *place = NOW;
        MARKS.set(Some(marks));
    }
}

/// Notes the key of the running request; the last call counts.
pub fn note_key(key: &[u8]) {
    if MARKS.get().is_some_and(|marks| marks.wants_key) {
        KEY.set(Some(key.get(..KEY_BYTES_SHOWN).unwrap_or(key).to_vec()));
    }
}

/// A request for a line of the log.
#[derive(Clone, Copy)]
pub struct SlowRequest<'a> {
    /// The operation, in the words of its protocol.
    pub operation: &'a str,
    /// The key, or its beginning, if it is known.
    pub key: Option<&'a [u8]>,
    /// The number of requests with these times.
    pub times: u64,
    /// Its result.
    pub result: &'static str,
    /// The peer.
    pub peer: &'a dyn std::fmt::Display,
    /// Its moments.
    pub marks: Marks,
    /// The moment at which its answer had left, or waited only for its client.
    pub ended_ns: u64,
}

impl SlowRequest<'_> {
    /// Its parts: the wait for its start, the work in the store, the commit, and the sending of the answer.
    fn parts(&self) -> [Duration; 4] {
        let Marks { began_ns, started_ns, placed_ns, done_ns, .. } = self.marks;
        // A part without a mark belongs to the one before it.
        let mut at = began_ns;
        let mut part = |until_ns: u64| {
            let took_ns = until_ns.saturating_sub(at);
            at = at.max(until_ns);
            Duration::from_nanos(took_ns)
        };
        let queue = part(started_ns);
        let is_placed = placed_ns > 0;
        let done_ns = if done_ns > 0 { done_ns } else { self.ended_ns };
        let store = part(if is_placed { placed_ns } else { done_ns });
        let log = part(done_ns);
        [queue, store, log, part(self.ended_ns)]
    }

    pub(crate) fn took_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.marks.began_ns)
    }

    fn key(&self) -> String {
        self.key.map_or_else(String::new, |key| format!(" {}", key.escape_ascii()))
    }

    pub(crate) fn say_access(&self, frontend: &str) {
        let Self { operation, result, peer, .. } = self;
        tracing::info!(
            target: "shoal::access",
            frontend,
            peer = %peer,
            result,
            us = self.took_ns() / 1_000,
            "{operation}{}",
            self.key()
        );
    }

    pub(crate) fn say_slow(&self, frontend: &str) {
        let Self { operation, times, result, peer, .. } = self;
        // To the microsecond.
        let ms = |took: Duration| took.as_micros() as f64 / 1e3;
        let [queue_ms, store_ms, log_ms, answer_ms] = self.parts().map(ms);
        let count = if *times > 1 { format!(" ({times} of them)") } else { String::new() };
        tracing::warn!(
            target: "shoal::slow",
            frontend,
            peer = %peer,
            result,
            total_ms = ms(Duration::from_nanos(self.took_ns())),
            queue_ms,
            store_ms,
            log_ms,
            answer_ms,
            "slow request: {operation}{}{count}",
            self.key()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(marks: Marks, ended_ns: u64) -> [u64; 4] {
        let request = SlowRequest {
            operation: "get",
            key: None,
            times: 1,
            result: "ok",
            peer: &"someone",
            marks,
            ended_ns,
        };
        request.parts().map(|took| took.as_nanos() as u64)
    }

    #[test]
    fn stages_add_up_to_total() {
        let all = Marks { began_ns: 100, started_ns: 110, placed_ns: 130, done_ns: 170, wants_key: false };
        assert_eq!(parts(all, 180), [10, 20, 40, 10]);
        assert_eq!(parts(Marks { placed_ns: 0, ..all }, 180), [10, 60, 0, 10]);
        assert_eq!(parts(Marks { began_ns: 100, ..Marks::default() }, 180), [0, 80, 0, 0]);
        assert_eq!(parts(Marks { done_ns: 0, ..all }, 180), [10, 20, 50, 0]);
    }

    #[test]
    fn marks_belong_to_running_request() {
        mark(Stage::Started);
        note_key(b"of nobody");
        let (mut outer, mut inner) = (Marks { wants_key: true, ..Marks::default() }, Marks::default());
        let (_, key) = with_marks(&mut outer, || {
            with_marks(&mut inner, || {
                mark(Stage::Started);
                note_key(b"not wanted");
            });
            note_key(b"k");
            mark(Stage::Placed);
        });
        assert_eq!(key, Some(b"k".to_vec()));
        inner.settle(|| 5);
        outer.settle(|| 7);
        assert_eq!(inner, Marks { started_ns: 5, ..Marks::default() });
        assert_eq!(outer, Marks { placed_ns: 7, wants_key: true, ..Marks::default() });
        with_marks(&mut outer, || mark(Stage::Placed));
        outer.settle(|| unreachable!("the first one counts"));
    }
}
