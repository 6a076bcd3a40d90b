//! Starts the commands that a connection received: by the fast path (`fast_path.rs`), at once if they need no task, or as tasks that its
//! queue drives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use shoal_engine::ReceiveBuffer;
use shoal_metrics::{Marks, Noted};
use shoal_resp::{Reply, Request};

use super::Connection;
use super::in_flight::{ANSWER_BYTES_GUESS, InFlight, Popped, Through};
use super::input::LONG_VALUE_BYTES_MIN;
use crate::answer::Answer;
use crate::command::call::{
    Call, Command, ConnectionState, Finished, Order, Outcome, Replies, Run, Scope, TOO_LONG, Task,
    Transaction, is, memory_of, wrong_count,
};
use crate::command::{request_id_of, table, transactions};
use crate::shared::Shared;
use crate::timing::{Timed, result_of};

impl Connection {
    /// Starts the received commands that may start; false if it must wait for one of them, or for the client.
    pub(super) fn start_commands(&mut self, shared: &mut Shared) -> bool {
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
                if !self.start_with_value(shared) {
                    return false;
                }
                continue;
            }
            if !self.input.is_holding() && self.try_start(shared, commands_max, answers_max) {
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
            if !self.may_start(&words, command) {
                self.input.hold(words, command);
                return false;
            }
            self.start(shared, words, command, None);
            self.session.replies.next();
        }
    }

    /// Starts the SET whose value is complete; false if it must wait for other commands.
    fn start_with_value(&mut self, shared: &mut Shared) -> bool {
        let may = |(words, _): (&[Bytes], usize)| self.queue.may_start(words, table::set());
        if !self.input.parser.last_word().is_some_and(may) {
            return false;
        }
        self.input.rate.forget();
        let words = self.input.parser.end_elsewhere(&mut self.input.received);
        if let (Some(words), Some(value)) = (words, self.input.close_buffer(shared)) {
            shared.commands += 1;
            // The key may have lost its grants since the first bytes of the value.
            if !self.session.may_everything(&shared.frontend)
                && let Some(refused) = self.refuse_caller(shared, &words, table::set())
            {
                drop(value);
                self.queue.now = self.timed(shared, &words, table::set());
                self.answer(refused);
                self.session.replies.next();
                return true;
            }
            self.start(shared, words, table::set(), Some(value));
            self.session.replies.next();
        }
        true
    }

    /// Returns true if a command may run beside the ones already started. EXEC uses the keys of the queued commands.
    fn may_start(&self, words: &[Bytes], command: &Command) -> bool {
        match &self.session.transaction {
            Some(transaction) if transactions::is_exec(words, command) => {
                let keys = transaction.keys.iter().copied();
                self.queue.may_start_keys(keys, transaction.order(), transaction.writes)
            }
            _ => self.queue.may_start(words, command),
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
            Some(command) if let Some(refused) = self.refuse_caller(shared, &words, command) => {
                self.queue.now = self.timed(shared, &words, command);
                refused
            }
            Some(command) => {
                if self.session.transaction.is_some() && shared.frontend.metrics().logs_requests() {
                    self.queue.now = self.timed(shared, &words, command);
                }
                match &mut self.session.transaction {
                    Some(transaction) if !transactions::is_immediate(&words, command) => {
                        transaction.queue(words, command, shared.frontend.options.limits.command_bytes_max)
                    }
                    Some(_) if command.name == "watch" => {
                        Answer::error("ERR WATCH inside MULTI is not allowed")
                    }
                    _ => return Some((words, command)),
                }
            }
        };
        self.answer(refused);
        None
    }

    /// The answer to a command that its caller may not run; `None` if it may.
    fn refuse_caller(&mut self, shared: &Shared, words: &[Bytes], command: &Command) -> Option<Answer> {
        self.session.renew_key(&shared.frontend);
        self.input.parser.set_authenticated(self.session.authenticated);
        if !self.session.authenticated {
            return (!command.is_for_strangers()).then(|| Answer::error("NOAUTH Authentication required."));
        }
        let key = self.session.key.as_ref().filter(|key| !key.principal().is_unrestricted())?;
        let refused = table::denial(key, shared.frontend.bucket.name(), command, words)?;
        self.session.spoil();
        Some(refused)
    }

    fn start(
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
            return self.start_transaction(shared, &words, *transaction);
        }
        if command.name == "watch" && self.session.watches.len() + words.len() > transactions::WATCHES_MAX {
            let most = transactions::WATCHES_MAX;
            let text = format!("ERR a connection watches at most {most} keys: UNWATCH forgets them");
            return self.answer(Answer::Error(text.into()));
        }
        let newest = self.queue.is_writing() || shared.frontend.is_relaxed();
        if !newest && std::ptr::eq(command, table::get()) && self.start_get(shared, &words) {
            return;
        }
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
        if shared.frontend.metrics().logs_requests() {
            let (bucket, caller) =
                (shared.frontend.bucket.name().to_owned(), self.session.caller(&shared.frontend));
            let mut keys = command.keys.of(words);
            let key = keys.next().map_or_else(Vec::new, |key| key.to_vec());
            let keys = u64::from(!key.is_empty()) + keys.count() as u64;
            timed.noted = Some(Arc::new(Noted { bucket, key, keys, caller }));
        }
        timed
    }

    /// Starts the commands queued since MULTI; `words` are EXEC's.
    fn start_transaction(&mut self, shared: &mut Shared, words: &[Bytes], transaction: Transaction) {
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
    pub(super) fn poll_first(
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
pub(super) fn timed(command: &'static Command, words: usize, came_ns: u64, now_ns: u64) -> Timed {
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
