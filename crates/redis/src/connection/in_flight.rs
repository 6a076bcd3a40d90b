//! The commands of a connection that were started and are not answered, in their order. An answer leaves here when the log has made its
//! writes durable, which wakes this thread through `mailbox.rs`.
//!
//! Several run at a time, but two commands that use the same key, one of them writing, do not: the later one starts when the
//! earlier one has its place in the order of writes, or has read. While a command over all keys runs, no command that uses keys
//! starts. Commands are answered in order. The memory that they hold is counted, so that the connection does not start more
//! than its limit.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll};

use shoal_base::hash::hash64;
use shoal_engine::{Lsn, Ticket};
use smallvec::SmallVec;

use bytes::Bytes;

use crate::answer::{Answer, Failed};
use crate::command::call::{Command, Order, Outcome, Task};
use crate::timing::Timed;

/// A running command counts as an answer of this size for each of its keys: the real size is not known yet.
pub(super) const ANSWER_BYTES_GUESS: usize = 64 << 10;

/// Bytes of the answer of one of [`InFlightCommand::Written`].
const OK_BYTES: usize = 5;

/// One started command, or several.
enum InFlightCommand {
    Running {
        task: Task,
        keys: SmallVec<[u64; 2]>,
        order: Order,
        writes: bool,
        /// Bytes counted for it.
        bytes: usize,
    },
    /// Complete, except for writes that must be durable first, or for earlier commands.
    Waiting { through: Through, bytes: usize },
    /// A number of writes that answer `OK`, started one after the other; the log is in order, so the last ticket covers all of
    /// them.
    Written { last: Ticket, writes: usize },
}

/// A complete command, except for writes that must be durable before its answer leaves.
pub(super) struct Through {
    pub answer: Answer,
    pub pending: SmallVec<[Ticket; 1]>,
    /// True for a write that is not known to be durable.
    pub writes: bool,
}

impl From<Answer> for Through {
    /// An answer that waits for nothing.
    fn from(answer: Answer) -> Self {
        Self { answer, pending: SmallVec::new(), writes: false }
    }
}

/// A command in the queue.
struct Entry {
    command: InFlightCommand,
    is_answered: bool,
    timed: Timed,
}

/// A command whose answer may leave, or several.
pub(super) struct Popped {
    pub answer: Answer,
    /// The number of commands with this answer.
    pub times: usize,
    pub is_answered: bool,
    pub timed: Timed,
}

/// The number of running commands that read a key, and that write it.
#[derive(Clone, Copy, Default)]
struct Uses {
    reading: u32,
    writing: u32,
}

/// The started commands.
#[derive(Default)]
pub(super) struct InFlight {
    /// In the order of their answers.
    entries: VecDeque<Entry>,
    /// Commands in it.
    commands: usize,
    /// Running commands.
    running: usize,
    /// Writing commands that are not known to be durable.
    writing: usize,
    /// The keys of running commands, by their hashes.
    uses: HashMap<u64, Uses, foldhash::fast::FixedState>,
    /// A command over all keys runs; it was started alone, so there is at most one.
    all_runs: bool,
    bytes: usize,
    /// Cache memory pinned by answers that wait for earlier ones.
    pinned: usize,
    /// Commands started from now on are not answered.
    is_muted: bool,
    /// The command being started.
    pub now: Timed,
    /// The start of the thread's turn.
    pub turn_ns: u64,
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        self.commands
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Memory of waiting answers, and of commands with their future answers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cache memory pinned by waiting answers.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.pinned
    }

    /// Copies the parts of waiting answers that are in the cache.
    pub(super) fn own_answers(&mut self) {
        if std::mem::take(&mut self.pinned) == 0 {
            return;
        }
        for entry in &mut self.entries {
            if let InFlightCommand::Waiting { through, .. } = &mut entry.command {
                through.answer.own();
            }
        }
    }

    /// Returns true if a running command has not found its place in the order of writes, or has not read.
    pub(super) fn is_running(&self) -> bool {
        self.running > 0
    }

    /// Returns true if writes of this connection may be in flight.
    pub(super) fn is_writing(&self) -> bool {
        self.writing > 0
    }

    /// Returns true if a command may run beside the ones already started.
    pub(super) fn may_start(&self, words: &[Bytes], command: &Command) -> bool {
        self.may_start_keys(command.keys.of(words).map(|key| hash64(key)), command.order, command.writes)
    }

    /// The same for keys by their hashes.
    pub(super) fn may_start_keys(
        &self,
        mut keys: impl Iterator<Item = u64>,
        order: Order,
        writes: bool,
    ) -> bool {
        match order {
            Order::Free => true,
            Order::All => self.entries.is_empty(),
            Order::Keys if self.all_runs => false,
            Order::Keys if self.running == 0 => true,
            Order::Keys => !keys.any(|key| {
                let uses = self.uses.get(&key).copied().unwrap_or_default();
                uses.writing > 0 || writes && uses.reading > 0
            }),
        }
    }

    /// The keys of a command, as [`Self::run`] wants them.
    pub(super) fn keys(words: &[Bytes], command: &Command) -> SmallVec<[u64; 2]> {
        command.keys.of(words).map(|key| hash64(key)).collect()
    }

    /// Sets whether commands started from now on are answered.
    pub(super) fn set_muted(&mut self, is_muted: bool) {
        self.is_muted = is_muted;
    }

    fn push(&mut self, command: InFlightCommand) {
        let mut timed = self.now.clone();
        if !matches!(command, InFlightCommand::Running { .. }) {
            timed.marks.placed_ns = self.turn_ns;
        }
        self.entries.push_back(Entry { command, is_answered: !self.is_muted, timed });
    }

    /// Continues a command as a task. `bytes`: of its words.
    pub(super) fn run(&mut self, task: Task, keys: SmallVec<[u64; 2]>, command: &Command, bytes: usize) {
        let bytes = bytes.saturating_add(ANSWER_BYTES_GUESS.saturating_mul(keys.len().max(1)));
        self.run_as(task, keys, (command.order, command.writes), bytes);
    }

    /// The same for a task that is not a single command. `bytes`: of its words and its answer.
    pub(super) fn run_as(
        &mut self,
        task: Task,
        keys: SmallVec<[u64; 2]>,
        (order, writes): (Order, bool),
        bytes: usize,
    ) {
        for &key in &keys {
            let uses = self.uses.entry(key).or_default();
            *(if writes { &mut uses.writing } else { &mut uses.reading }) += 1;
        }
        self.all_runs |= order == Order::All;
        self.running += 1;
        self.writing += usize::from(writes);
        self.bytes += bytes;
        self.commands += 1;
        self.push(InFlightCommand::Running { task, keys, order, writes, bytes });
    }

    /// Queues the answer of a complete command.
    pub(super) fn wait(&mut self, through: Through) {
        self.writing += usize::from(through.writes);
        let bytes = through.answer.bytes();
        self.bytes += bytes;
        self.pinned += through.answer.pinned_bytes();
        self.commands += 1;
        self.push(InFlightCommand::Waiting { through, bytes });
    }

    /// Queues `writes` complete writes, which answer `OK` when they are durable; `last` is the last of them.
    pub(super) fn wait_for_writes(&mut self, last: Ticket, writes: usize) {
        self.writing += writes;
        self.commands += writes;
        self.bytes += writes * OK_BYTES;
        self.push(InFlightCommand::Written { last, writes });
    }

    /// Polls the running commands; `finish` turns the outcome of a complete one into its answer.
    pub(super) fn poll_running(
        &mut self,
        context: &mut Context<'_>,
        mut finish: impl FnMut(Outcome, bool) -> Through,
    ) {
        if self.running == 0 {
            return;
        }
        for Entry { command, timed, .. } in &mut self.entries {
            let InFlightCommand::Running { task, keys, order, writes, bytes } = command else { continue };
            let Poll::Ready(outcome) = task.as_mut().poll(context) else { continue };
            for key in &*keys {
                if let Some(uses) = self.uses.get_mut(key) {
                    let count = if *writes { &mut uses.writing } else { &mut uses.reading };
                    *count -= 1;
                    if uses.reading == 0 && uses.writing == 0 {
                        self.uses.remove(key);
                    }
                }
            }
            self.all_runs &= *order != Order::All;
            self.running -= 1;
            self.writing -= usize::from(*writes);
            self.bytes -= *bytes;
            let through = finish(outcome, *writes);
            timed.marks.placed_ns = self.turn_ns;
            let bytes = through.answer.bytes();
            self.writing += usize::from(through.writes);
            self.bytes += bytes;
            self.pinned += through.answer.pinned_bytes();
            *command = InFlightCommand::Waiting { through, bytes };
        }
    }

    /// Takes the first answer if it may leave. Only the first one waits: later commands cannot be answered before it, and the
    /// log is in order.
    pub(super) fn pop(&mut self, context: &mut Context<'_>) -> Option<Popped> {
        let Entry { command, is_answered, .. } = self.entries.front_mut()?;
        let is_answered = *is_answered;
        let (answer, bytes, times) = match command {
            InFlightCommand::Running { .. } => return None,
            InFlightCommand::Written { last, writes } => {
                let Poll::Ready(durable) = last.poll_durable(context) else { return None };
                self.writing -= *writes;
                let answer = durable.map_or_else(|error| Failed::from(error).into(), |_| Answer::Ok);
                (answer, *writes * OK_BYTES, *writes)
            }
            InFlightCommand::Waiting { through: Through { answer, pending, writes }, bytes } => {
                let Poll::Ready(durable) = poll_durable(pending, context) else { return None };
                self.writing -= usize::from(*writes);
                self.pinned -= answer.pinned_bytes();
                let mut answer = std::mem::replace(answer, Answer::Null);
                match durable {
                    Ok(Some(version)) => answer.set_version(version.0),
                    Ok(None) => {}
                    Err(failed) => answer = failed.into(),
                }
                (answer, *bytes, 1)
            }
        };
        let mut timed = self.entries.pop_front()?.timed;
        timed.marks.done_ns = self.turn_ns;
        self.commands -= times;
        self.bytes -= bytes;
        Some(Popped { answer, times, is_answered, timed })
    }
}

/// Waits for all of them; returns the version of the last.
fn poll_durable(
    pending: &mut SmallVec<[Ticket; 1]>,
    context: &mut Context<'_>,
) -> Poll<Result<Option<Lsn>, Failed>> {
    let mut version = None;
    // From the back: if the last is durable, the others are.
    while let Some(last) = pending.last() {
        match last.poll_durable(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(lsn)) => version = version.or(Some(lsn)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
        }
        pending.pop();
    }
    Poll::Ready(Ok(version))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;
    use crate::command::table::find;

    fn words(text: &str) -> Vec<Bytes> {
        text.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
    }

    /// Starts a command that runs until the flag is set.
    fn begin(queue: &mut InFlight, text: &str) -> Rc<Cell<bool>> {
        let (words, through) = (words(text), Rc::new(Cell::new(false)));
        let command = find(&words[0]).unwrap();
        let flag = through.clone();
        let task = std::future::poll_fn(move |_| match flag.get() {
            true => Poll::Ready(Ok(Answer::Integer(1).into())),
            false => Poll::Pending,
        });
        queue.run(Box::pin(task), InFlight::keys(&words, command), command, 0);
        through
    }

    fn may(queue: &InFlight, text: &str) -> bool {
        let words = words(text);
        queue.may_start(&words, find(&words[0]).unwrap())
    }

    fn poll(queue: &mut InFlight) -> Vec<Answer> {
        let mut context = Context::from_waker(Waker::noop());
        queue.poll_running(&mut context, |outcome, _| outcome.unwrap().answer.into());
        std::iter::from_fn(|| queue.pop(&mut context)).map(|popped| popped.answer).collect()
    }

    #[test]
    fn writer_of_a_key_excludes_others() {
        let mut queue = InFlight::default();
        let read = begin(&mut queue, "get a");
        let again = begin(&mut queue, "mget a b");
        assert!(may(&queue, "get a") && !may(&queue, "set a 1") && !may(&queue, "mset c 1 b 2"));
        assert!(may(&queue, "set c 1") && may(&queue, "ping") && !may(&queue, "dbsize"));
        again.set(true);
        assert!(poll(&mut queue).is_empty(), "the first is not through");
        assert!(may(&queue, "set b 1") && !may(&queue, "set a 1"));
        read.set(true);
        assert_eq!(poll(&mut queue).len(), 2);
        let write = begin(&mut queue, "mset a 1 b 1");
        assert!(
            queue.is_writing() && !may(&queue, "get a") && !may(&queue, "set b 1") && may(&queue, "get c")
        );
        write.set(true);
        assert_eq!(poll(&mut queue).len(), 1);
        assert!(!queue.is_writing() && queue.uses.is_empty() && queue.is_empty() && may(&queue, "dbsize"));
    }

    #[test]
    fn a_command_about_all_keys_runs_alone() {
        for walk in ["flushall", "dbsize"] {
            let mut queue = InFlight::default();
            let through = begin(&mut queue, walk);
            assert!(!may(&queue, "set z 1") && !may(&queue, "get a") && !may(&queue, "dbsize"));
            assert!(may(&queue, "ping"));
            queue.wait(Answer::Ok.into());
            assert!(poll(&mut queue).is_empty() && !may(&queue, "get a"));
            through.set(true);
            assert_eq!(poll(&mut queue).len(), 2);
            assert!(may(&queue, "set z 1") && may(&queue, "get a") && may(&queue, "dbsize"));
        }
    }

    #[test]
    fn memory_is_counted_and_given_back() {
        let mut queue = InFlight::default();
        queue.wait(Answer::Bulk(Bytes::from(vec![0; 1000])).into());
        let one = queue.bytes();
        assert!((1000..2000).contains(&one));
        let running = begin(&mut queue, "mget a b c");
        assert_eq!(queue.bytes(), one + 3 * ANSWER_BYTES_GUESS);
        running.set(true);
        assert_eq!(poll(&mut queue).len(), 2);
        assert_eq!(queue.bytes(), 0);
    }
}
