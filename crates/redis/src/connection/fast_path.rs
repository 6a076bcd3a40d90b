//! The fast path: GETs of short values in memory, and plain SETs of short values, without a task and without splitting them into words.
//!
//! Next: a SET goes to `try_sets` (`command/write.rs`) and then waits in `in_flight.rs`; a GET is answered by `try_get`
//! (`command/read.rs`). All other commands start in `start.rs`.

use bytes::Bytes;
use shoal_base::hash::hash64;
use shoal_engine::{Lookup, ObjectKey, Ticket, TryGet};
use shoal_metrics::RequestResult;
use shoal_resp::Reply;
use smallvec::smallvec;

use super::Connection;
use super::in_flight::ANSWER_BYTES_GUESS;
use super::start::timed;
use crate::answer::Answer;
use crate::command::call::{Order, Replies, is};
use crate::command::{read, table, write};
use crate::shared::Shared;
use crate::timing::Timed;

impl Connection {
    /// Starts the short commands at the front of the received bytes that may start and need no task: GETs of short values that
    /// are in memory, and plain SETs of short values, whose answers wait together. Copies nothing except values, and allocates
    /// memory only for records. A GET that must wait is started last, and its task continues the search. Returns true if there
    /// were any.
    pub(super) fn try_start(&mut self, shared: &mut Shared, commands_max: usize, answers_max: usize) -> bool {
        if !self.may_try(shared) {
            return false;
        }
        let timed = |command, words| timed(command, words, self.came_ns, shared.now_ns);
        let (get, set) = (timed(table::get(), 2), timed(table::set(), 3));
        let (mut found, mut not_found) = (0, 0);
        let chunk = self.input.received.first_chunk();
        let (mut taken, mut commands) = (0, 0);
        let mut written: Option<(Ticket, usize)> = None;
        let mut missed = None;
        let mut reply = Reply::new(&mut self.out, self.session.protocol);
        while let Some(glance) = self.input.parser.glance(chunk.get(taken..).unwrap_or_default()) {
            let writes = written.as_ref().map_or(0, |(_, writes)| *writes);
            let (mut bytes, mut count) = (glance.bytes, 1);
            match glance.second {
                None if is(glance.name, "get") && writes == 0 && self.queue.is_empty() => {
                    let Ok(key) = shared.frontend.bucket.key(glance.argument) else { break };
                    let show = |value: Option<&[u8]>| match value {
                        Some(value) => {
                            found += 1;
                            reply.bulk(value)
                        }
                        None => {
                            not_found += 1;
                            reply.null()
                        }
                    };
                    self.last = Some((table::get(), 0));
                    if let TryGet::MustWait(lookup) = read::try_get(shared, &key, show) {
                        missed = Some((hash64(glance.argument), key, lookup));
                    }
                }
                Some(_) if is(glance.name, "set") && self.queue.len() + writes < commands_max => {
                    let most = commands_max - self.queue.len() - writes;
                    let behind = chunk.get(taken + glance.bytes..).unwrap_or_default();
                    let parser = &self.input.parser;
                    let placed = write::try_sets(&shared.frontend, parser, glance, behind, most);
                    let Some(placed) = placed else { break };
                    (bytes, count) = (placed.bytes, placed.sets);
                    written = Some((placed.last, writes + count));
                    self.last = Some((table::set(), 0));
                }
                _ => break,
            }
            taken += bytes;
            commands += count as u64;
            if missed.is_some() || reply.bytes() >= answers_max {
                break;
            }
        }
        if taken == 0 {
            return false;
        }
        self.input.received.truncate_front(taken);
        self.input.expects_value = false;
        self.input.rate.forget();
        self.count_gets(&get, found, not_found);
        if let Some((last, writes)) = written {
            self.queue.now = set;
            self.queue.wait_for_writes(last, writes);
        }
        shared.reader.settle();
        shared.commands += commands;
        if let Some((hash, key, lookup)) = missed {
            self.queue.now = get;
            self.resume_get(shared, hash, key, lookup);
        }
        true
    }

    /// Counts GETs that were answered at once.
    fn count_gets(&mut self, get: &Timed, found: u64, not_found: u64) {
        for (count, result) in [(found, RequestResult::Ok), (not_found, RequestResult::NotFound)] {
            if count > 0 {
                self.finished.add(get.clone(), result, count);
            }
        }
    }

    /// Starts a GET beside commands in flight: its answer waits for theirs. Returns false if its key is not valid.
    pub(super) fn start_get(&mut self, shared: &mut Shared, words: &[Bytes]) -> bool {
        let [_, name] = words else { return false };
        let Ok(key) = shared.frontend.bucket.key(name) else { return false };
        let copied = |value: &[u8]| Answer::Bulk(Bytes::copy_from_slice(value));
        let read = read::try_get(shared, &key, |value| value.map_or(Answer::Null, copied));
        shared.reader.settle();
        match read {
            TryGet::Shown(answer) => self.answer(answer),
            TryGet::MustWait(lookup) => self.resume_get(shared, hash64(name), key, lookup),
        }
        true
    }

    /// Runs a GET, whose key has this hash, as a task that continues its search.
    fn resume_get(&mut self, shared: &mut Shared, hash: u64, key: ObjectKey, lookup: Lookup) {
        let task = Box::pin(read::get_from(shared.frontend.clone(), key, lookup));
        self.poll_first(shared, task, false, |queue, task| {
            queue.run_as(task, smallvec![hash], (Order::Keys, false), ANSWER_BYTES_GUESS);
        });
    }

    /// Returns true if commands may start without being split into words.
    fn may_try(&self, shared: &Shared) -> bool {
        // In the relaxed mode, reads see writes in flight, and writes do not wait.
        self.session.replies == Replies::All
            && self.session.transaction.is_none()
            && !shared.frontend.is_relaxed()
            && !shared.frontend.metrics().logs_requests()
            && !self.queue.is_running()
            && self.session.may_everything(&shared.frontend)
    }
}
