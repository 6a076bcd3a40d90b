//! The parts of a request's time, for the log's line of a slow request.
//!
//! A frontend that runs a request as a future passes [`Marks`] along with it: while the future runs, they are in a cell of the
//! thread, and the code inside may [`mark`] the start of the next part. So a request does not grow, and the clock is read for a
//! mark only if one was set.

use std::cell::Cell;
use std::net::SocketAddr;

use shoal_frontend::access::PrincipalId;

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
    /// True if a log of all requests will show the key and the caller ([`note_key`], [`note_caller`]).
    pub wants_notes: bool,
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
    static NOTED: Cell<Option<Box<Noted>>> = const { Cell::new(None) };
}

/// The parts of a request that only a log of all requests has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The bucket; empty if the request names none.
    pub bucket: String,
    /// The first key; empty if the request names none.
    pub key: Vec<u8>,
    /// The number of keys.
    pub keys: u64,
    /// The caller, if it was let in.
    pub caller: Option<PrincipalId>,
}

/// Runs `work` with the marks of its request, which it may set, and adds its notes to `noted`.
pub fn with_marks<T>(marks: &mut Marks, noted: &mut Option<Box<Noted>>, work: impl FnOnce() -> T) -> T {
    // A request inside of another has separate marks: the outer one's are restored afterwards.
    let before = MARKS.replace(Some(*marks));
    let noted_before = if marks.wants_notes { NOTED.replace(noted.take()) } else { None };
    let result = work();
    if let Some(set) = MARKS.replace(before) {
        *marks = set;
    }
    if marks.wants_notes {
        *noted = NOTED.replace(noted_before);
    }
    result
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

fn note(set: impl FnOnce(&mut Noted)) {
    if MARKS.get().is_some_and(|marks| marks.wants_notes) {
        let mut noted = NOTED.take().unwrap_or_default();
        set(&mut noted);
        NOTED.set(Some(noted));
    }
}

/// Notes the bucket and a key of the running request; the key is empty in a request about the bucket.
pub fn note_key(bucket: &str, key: &[u8]) {
    note(|noted| {
        if noted.keys == 0 {
            (noted.bucket, noted.key) = (bucket.to_owned(), key.to_vec());
        }
        noted.keys += u64::from(!key.is_empty() && (noted.keys == 0 || noted.key != key));
    });
}

/// Notes the caller of the running request.
pub fn note_caller(caller: &PrincipalId) {
    note(|noted| noted.caller = Some(caller.clone()));
}

/// The parts of a request's time, in nanoseconds: together its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowParts {
    /// The wait for its start.
    pub queue_ns: u64,
    /// The work in the store.
    pub store_ns: u64,
    /// The commit.
    pub log_ns: u64,
    /// The sending of the answer.
    pub answer_ns: u64,
}

/// A request for a line of the log.
#[derive(Clone, Copy)]
pub struct SlowRequest<'a> {
    /// The operation, in the words of its protocol.
    pub operation: &'a str,
    /// Its notes, if there is a log of all requests.
    pub noted: Option<&'a Noted>,
    /// The number of requests with these times.
    pub times: u64,
    /// Its result.
    pub result: &'static str,
    /// The peer.
    pub peer: SocketAddr,
    /// Its moments.
    pub marks: Marks,
    /// The moment at which its answer had left, or waited only for its client.
    pub ended_ns: u64,
}

impl SlowRequest<'_> {
    pub(crate) fn parts(&self) -> SlowParts {
        let Marks { began_ns, started_ns, placed_ns, done_ns, .. } = self.marks;
        // A part without a mark belongs to the one before it.
        let mut at = began_ns;
        let mut part = |until_ns: u64| {
            let took_ns = until_ns.saturating_sub(at);
            at = at.max(until_ns);
            took_ns
        };
        let queue_ns = part(started_ns);
        let is_placed = placed_ns > 0;
        let done_ns = if done_ns > 0 { done_ns } else { self.ended_ns };
        let store_ns = part(if is_placed { placed_ns } else { done_ns });
        let log_ns = part(done_ns);
        SlowParts { queue_ns, store_ns, log_ns, answer_ns: part(self.ended_ns) }
    }

    pub(crate) fn took_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.marks.began_ns)
    }

    /// The start of its key.
    pub(crate) fn shown_key(&self) -> &[u8] {
        let key = self.noted.map_or(&[][..], |noted| &noted.key);
        key.get(..KEY_BYTES_SHOWN).unwrap_or(key)
    }

    fn key(&self) -> String {
        let shown = self.shown_key();
        if shown.is_empty() { String::new() } else { format!(" {}", shown.escape_ascii()) }
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
        let ms = |ns: u64| (ns / 1_000) as f64 / 1e3;
        let parts = self.parts();
        let count = if *times > 1 { format!(" ({times} of them)") } else { String::new() };
        tracing::warn!(
            target: "shoal::slow",
            frontend,
            peer = %peer,
            result,
            total_ms = ms(self.took_ns()),
            queue_ms = ms(parts.queue_ns),
            store_ms = ms(parts.store_ns),
            log_ms = ms(parts.log_ns),
            answer_ms = ms(parts.answer_ns),
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
            noted: None,
            times: 1,
            result: "ok",
            peer: ([127, 0, 0, 1], 1).into(),
            marks,
            ended_ns,
        };
        let SlowParts { queue_ns, store_ns, log_ns, answer_ns } = request.parts();
        [queue_ns, store_ns, log_ns, answer_ns]
    }

    #[test]
    fn stages_add_up_to_total() {
        let all = Marks { began_ns: 100, started_ns: 110, placed_ns: 130, done_ns: 170, wants_notes: false };
        assert_eq!(parts(all, 180), [10, 20, 40, 10]);
        assert_eq!(parts(Marks { placed_ns: 0, ..all }, 180), [10, 60, 0, 10]);
        assert_eq!(parts(Marks { began_ns: 100, ..Marks::default() }, 180), [0, 80, 0, 0]);
        assert_eq!(parts(Marks { done_ns: 0, ..all }, 180), [10, 20, 50, 0]);
    }

    #[test]
    fn marks_belong_to_running_request() {
        mark(Stage::Started);
        note_key("b", b"of nobody");
        let (mut outer, mut inner) = (Marks { wants_notes: true, ..Marks::default() }, Marks::default());
        let (mut noted, mut unwanted) = (None, None);
        with_marks(&mut outer, &mut noted, || {
            note_caller(&PrincipalId::Password);
            with_marks(&mut inner, &mut unwanted, || {
                mark(Stage::Started);
                note_key("b", b"not wanted");
            });
            mark(Stage::Placed);
        });
        with_marks(&mut outer, &mut noted, || [b"k", b"k", b"l"].map(|key| note_key("b", key)));
        let caller = Some(PrincipalId::Password);
        let expected = Noted { bucket: "b".into(), key: b"k".to_vec(), keys: 2, caller };
        assert_eq!((noted, unwanted), (Some(Box::new(expected)), None));
        inner.settle(|| 5);
        outer.settle(|| 7);
        assert_eq!(inner, Marks { started_ns: 5, ..Marks::default() });
        assert_eq!(outer, Marks { placed_ns: 7, wants_notes: true, ..Marks::default() });
        with_marks(&mut outer, &mut None, || mark(Stage::Placed));
        outer.settle(|| unreachable!("the first one counts"));
    }
}
