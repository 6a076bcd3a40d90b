//! Starts the commands that a connection received: at once if they need no task, or as tasks that its queue drives.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use shoal_base::hash::hash64;
use shoal_engine::{Lookup, ObjectKey, ReceiveBuffer, Ticket, TryGet};
use shoal_metrics::{Marks, RequestResult};
use shoal_resp::{Reply, Request};
use smallvec::smallvec;

use super::Connection;
use super::in_flight::{ANSWER_BYTES_GUESS, InFlight, Popped, Through};
use super::input::LONG_VALUE_BYTES_MIN;
use crate::answer::Answer;
use crate::command::call::{
    Call, Command, ConnectionState, Finished, Order, Outcome, Replies, Run, Scope, TOO_LONG, Task,
    Transaction, is, memory_of, wrong_count,
};
use crate::command::{read, write};
use crate::command::{request_id_of, table, transactions};
use crate::shared::Shared;
use crate::timing::{Timed, result_of, shown_key};

impl Connection {
    /// Starts the received commands that may start; false if it must wait for one of them, or for the client.
    pub(super) fn begin_commands(&mut self, shared: &mut Shared) -> bool {
        let limits = &shared.frontend.options.limits;
        let (commands_max, answers_max) = (limits.commands_in_flight_max, limits.answer_bytes_max);
        loop {
            if self.session.closing {
                return true;
            }
            self.queue.set_muted(self.session.replies != Replies::All);
            self.backlog.is_held_up = self.answer_bytes() >= answers_max;
            if self.backlog.is_held_up || self.queue.len() >= commands_max {
                return false;
            }
            if self.input.has_value() {
                if !self.begin_with_value(shared) {
                    return false;
                }
                continue;
            }
            if !self.input.is_holding() && self.try_begin(shared, commands_max, answers_max) {
                continue;
            }
            let (words, command) = match self.input.take_held() {
                Some(held) => held,
                None => match self.input.parser.next(&mut self.input.received) {
                    Ok(Some(request)) => match self.admit(shared, request) {
                        Some(admitted) => admitted,
                        None => {
                            self.session.replies.next();
                            continue;
                        }
                    },
                    Ok(None) => return true,
                    Err(error) => {
                        self.answer(Answer::Error(format!("ERR {error}").into()));
                        self.session.closing = true;
                        return true;
                    }
                },
            };
            if !self.may_begin(&words, command) {
                self.input.hold(words, command);
                return false;
            }
            self.begin(shared, words, command, None);
            self.session.replies.next();
        }
    }

    /// Starts the SET whose value is complete; false if it must wait for other commands.
    fn begin_with_value(&mut self, shared: &mut Shared) -> bool {
        let may = |(words, _): (&[Bytes], usize)| self.queue.may_begin(words, table::set());
        if !self.input.parser.last_word().is_some_and(may) {
            return false;
        }
        self.input.rate.forget();
        let words = self.input.parser.end_elsewhere(&mut self.input.received);
        if let (Some(words), Some(value)) = (words, self.input.close_buffer(shared)) {
            shared.commands += 1;
            self.begin(shared, words, table::set(), Some(value));
            self.session.replies.next();
        }
        true
    }

    /// Starts the short commands at the front of the received bytes that may start and need no task: GETs of short values that
    /// are in memory, and plain SETs of short values, whose answers wait together. Copies nothing except values, and allocates
    /// memory only for records. A GET that must wait is started last, and its task continues the search. Returns true if there
    /// were any.
    fn try_begin(&mut self, shared: &mut Shared, commands_max: usize, answers_max: usize) -> bool {
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
        shared.read_cache.settle();
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
        self.session.authenticated
            && self.session.replies == Replies::All
            && self.session.transaction.is_none()
            && !shared.frontend.is_relaxed()
            && !shared.frontend.metrics().logs_access()
            && !self.queue.is_running()
    }

    /// Returns true if a command may run beside the ones already started. EXEC uses the keys of the queued commands.
    fn may_begin(&self, words: &[Bytes], command: &Command) -> bool {
        match &self.session.transaction {
            Some(transaction) if transactions::is_exec(words, command) => {
                let keys = transaction.keys.iter().copied();
                self.queue.may_begin_keys(keys, transaction.order(), transaction.writes)
            }
            _ => self.queue.may_begin(words, command),
        }
    }

    /// The command of a request; `None` if it was answered already: refused, or queued in a transaction.
    fn admit(&mut self, shared: &mut Shared, request: Request) -> Option<(Vec<Bytes>, &'static Command)> {
        let Request::Words(words) = request else {
            self.session.spoil();
            self.answer(Answer::error(TOO_LONG));
            return None;
        };
        shared.commands += 1;
        self.input.rate.forget();
        self.queue.now = Timed {
            marks: Marks { began_ns: self.came_ns, started_ns: shared.now_ns, ..Marks::default() },
            ..Timed::default()
        };
        let name = words.first().map_or(&[][..], |name| name);
        let refused = match table::find(name) {
            None if is(name, "post") || is(name, "host:") => {
                // A web page made a browser send this (cross-protocol scripting).
                self.session.closing = true;
                return None;
            }
            None => {
                self.session.spoil();
                table::unknown(&words)
            }
            Some(command) if !command.takes(words.len()) => {
                self.queue.now = self.timed(shared, &words, command);
                self.session.spoil();
                wrong_count(command.name).into()
            }
            Some(command) if !self.session.authenticated && !command.is_for_strangers() => {
                self.queue.now = self.timed(shared, &words, command);
                Answer::error("NOAUTH Authentication required.")
            }
            Some(command) => match &mut self.session.transaction {
                Some(transaction) if !transactions::is_immediate(&words, command) => {
                    transaction.queue(words, command, shared.frontend.options.limits.command_bytes_max)
                }
                Some(_) if command.name == "watch" => Answer::error("ERR WATCH inside MULTI is not allowed"),
                _ => return Some((words, command)),
            },
        };
        self.answer(refused);
        None
    }

    fn begin(
        &mut self,
        shared: &mut Shared,
        words: Vec<Bytes>,
        command: &'static Command,
        received: Option<ReceiveBuffer>,
    ) {
        let part = command.part_of(words.get(1).map(|word| &word[..]));
        self.last = Some((command, part));
        self.queue.now = self.timed(shared, &words, command);
        self.input.expects_value = received.is_some() || is_set_of_long(&words, command);
        self.input.gave_up_buffer = false;
        if transactions::is_exec(&words, command)
            && let Some(transaction) = self.session.transaction.take()
        {
            self.show_command();
            return self.begin_transaction(shared, &words, *transaction);
        }
        if command.name == "watch" && self.session.watches.len() + words.len() > transactions::WATCHES_MAX {
            let most = transactions::WATCHES_MAX;
            let text = format!("ERR a connection watches at most {most} keys: UNWATCH forgets them");
            return self.answer(Answer::Error(text.into()));
        }
        let newest = self.queue.is_writing() || shared.frontend.is_relaxed();
        let keys = InFlight::keys(&words, command);
        let word_bytes = memory_of(&words) + received.as_ref().map_or(0, ReceiveBuffer::byte_count);
        // A walk over all keys sees durable objects: so every write acknowledged by this thread must be durable first.
        let before = if command.order == Order::All { shared.acknowledged() } else { None };
        let frontend = shared.frontend.clone();
        let call = Call { frontend, scope: Scope::Plain, words, received, command, newest, before };
        match command.run {
            Run::Now(run) => {
                self.show_command();
                let answer = run(&mut self.session, &call).unwrap_or_else(Answer::from);
                self.input.parser.set_authenticated(self.session.authenticated);
                self.answer(answer);
            }
            Run::Task(run) => self.poll_first(shared, run(call), command.writes, |queue, task| {
                queue.run(task, keys, command, word_bytes);
            }),
        }
    }

    /// The times of a command that starts now.
    fn timed(&self, shared: &Shared, words: &[Bytes], command: &'static Command) -> Timed {
        let mut timed = timed(command, words.len(), self.came_ns, shared.now_ns);
        if shared.frontend.metrics().logs_access() {
            timed.key = command.keys.of(words).next().map(|key| shown_key(key));
        }
        timed
    }

    /// Starts the commands queued since MULTI; `words` are EXEC's.
    fn begin_transaction(&mut self, shared: &mut Shared, words: &[Bytes], transaction: Transaction) {
        let watches = std::mem::take(&mut self.session.watches);
        let request_id = match request_id_of(words) {
            _ if transaction.is_spoiled => return self.answer(Answer::error(transactions::ABORTED)),
            Ok(request_id) => request_id,
            Err(failed) => return self.answer(failed.into()),
        };
        let (order, writes) = (transaction.order(), transaction.writes);
        let bytes = transaction.bytes + ANSWER_BYTES_GUESS;
        let keys = transaction.keys.iter().copied().collect();
        let task = transactions::execute(shared.frontend.clone(), transaction, watches, request_id);
        self.poll_first(shared, Box::pin(task), writes, |queue, task| {
            queue.run_as(task, keys, (order, writes), bytes);
        });
    }

    /// Polls a new task once: it is complete at once, or continues in the queue.
    fn poll_first(
        &mut self,
        shared: &mut Shared,
        mut task: Task,
        writes: bool,
        run: impl FnOnce(&mut InFlight, Task),
    ) {
        let waker = Waker::from(self.waker.clone());
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => {
                let through = finish(shared, &mut self.session, outcome, writes);
                if through.pending.is_empty() {
                    self.answer(through.answer);
                } else {
                    self.queue.wait(through);
                }
            }
            Poll::Pending => run(&mut self.queue, task),
        }
        self.input.parser.set_authenticated(self.session.authenticated);
    }

    /// Polls running and waiting commands, and writes the answers that are ready.
    pub(super) fn poll_in_flight(&mut self, shared: &mut Shared) {
        // Cleared first, even if nothing waits: a command that is woken from now on is polled again.
        self.waker.queued.store(false, Ordering::SeqCst);
        if self.queue.is_empty() {
            return;
        }
        let waker = Waker::from(self.waker.clone());
        let mut context = Context::from_waker(&waker);
        let session = &mut self.session;
        self.queue.poll_running(&mut context, |outcome, writes| finish(shared, session, outcome, writes));
        self.input.parser.set_authenticated(self.session.authenticated);
        while let Some(Popped { answer, times, is_answered, timed }) = self.queue.pop(&mut context) {
            let result = result_of(&answer, timed.operation);
            self.finished.add(timed, result, times as u64);
            if is_answered {
                answer.write_times(times, &mut Reply::new(&mut self.out, self.session.protocol));
            }
        }
    }

    /// Adds an answer after the answers of the commands started before.
    pub(super) fn answer(&mut self, answer: Answer) {
        let is_muted = self.session.replies != Replies::All;
        if is_muted || self.queue.is_empty() {
            let timed = self.queue.now.clone();
            let result = result_of(&answer, timed.operation);
            self.finished.add(timed, result, 1);
        }
        if is_muted {
            return;
        }
        if self.queue.is_empty() {
            answer.write(&mut Reply::new(&mut self.out, self.session.protocol));
        } else {
            self.queue.wait(answer.into());
        }
    }
}

/// The times of a command with `words` words, which arrived at `came_ns` and starts now.
fn timed(command: &'static Command, words: usize, came_ns: u64, now_ns: u64) -> Timed {
    Timed::new(command.name, table::operation_of(command, words), came_ns, now_ns)
}

/// Returns true for a SET whose value could have been received into the memory that is written to the device.
fn is_set_of_long(words: &[Bytes], command: &'static Command) -> bool {
    let long = matches!(words, [_, _, value] if value.len() >= LONG_VALUE_BYTES_MIN);
    long && std::ptr::eq(command, table::set())
}

/// The answer of a completed task, with the writes that it waits for.
fn finish(shared: &mut Shared, session: &mut ConnectionState, outcome: Outcome, writes: bool) -> Through {
    let Finished { mut answer, mut pending, effect } = outcome.unwrap_or_else(Finished::from);
    if let Some(effect) = effect {
        effect(session, &mut answer);
    }
    let wants_version = answer.wants_version();
    pending.retain(|pending| wants_version || !pending.is_durable());
    if pending.is_empty() || (!wants_version && shared.relax(&mut pending)) {
        return answer.into();
    }
    Through { answer, pending, writes }
}
