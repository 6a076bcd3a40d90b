//! MULTI, EXEC, DISCARD, WATCH, UNWATCH: commands that are queued and then done as one write batch.
//!
//! EXEC loads the states of all keys of its commands and runs them, with the same code as outside, on a working set
//! (`working_set.rs`) in the decision of one transaction of the engine (`Store::transact`): so all reads are of one moment and
//! see its own writes, and its writes are applied all or none. A failed command does not undo the others. Commands about the
//! connection run when the transaction is complete; commands that walk over all keys are refused when they are queued.

use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use shoal_base::hash::hash64;
use shoal_engine::{
    Change, Decision, ObjectKey, Outcome as Transacted, ReadLevel, RequestId, Updated, Watch,
};

use super::call::{
    Call, Command, ConnectionState, Effect, Finished, Order, Outcome, Queued, Run, Scope, Task, Transaction,
    give_way_at, is, memory_of,
};
use super::write;
use crate::answer::{Answer, Failed};
use crate::frontend::FrontendRef;
use crate::stored_answer;
use crate::working_set::{WorkingSet, more_of};

/// Keys that a connection watches at a time.
pub(crate) const WATCHES_MAX: usize = 4_096;
/// Commands of one transaction.
const COMMANDS_MAX: usize = 65_536;
/// A word of fewer bytes is copied when it is queued: the memory that it was received into may be much larger.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Bytes of a queued command besides its words, roughly.
const CALL_BYTES: usize = 128;

/// The answer of EXEC if a command was refused when it was queued.
pub(crate) const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

impl Transaction {
    /// The commands that must be complete before it is executed.
    pub(crate) fn order(&self) -> Order {
        if self.is_about_all { Order::All } else { Order::Keys }
    }

    /// Queues a command; returns the answer for its client.
    pub(crate) fn queue(&mut self, words: Vec<Bytes>, command: &'static Command, bytes_max: usize) -> Answer {
        let refused = self.refuse(&words, command, bytes_max);
        if let Some(refused) = refused {
            self.is_spoiled = true;
            return Answer::Error(refused.0);
        }
        let copied = |word: Bytes| match word.len() {
            0..COPIED_BYTES_MAX => Bytes::copy_from_slice(&word),
            _ => word,
        };
        self.keys.extend(command.keys.of(&words).map(|key| hash64(key)));
        self.writes |= command.writes;
        self.is_about_all |= command.order == Order::All;
        let words: Vec<Bytes> = words.into_iter().map(copied).collect();
        self.bytes += CALL_BYTES + memory_of(&words);
        self.calls.push(Queued { words, command });
        Answer::line("QUEUED")
    }

    fn refuse(&self, words: &[Bytes], command: &'static Command, bytes_max: usize) -> Option<Failed> {
        let walks = command.order == Order::All && matches!(command.run, Run::Task(_));
        let is_short = matches!(command.name, "info" | "wait" | "waitaof");
        if walks && !is_short || command.name == "shoal.session" {
            let name = command.name.to_ascii_uppercase();
            return Some(format!("ERR {name} is not allowed inside a transaction").into());
        }
        // Half of EXEC's answer would be missing.
        if command.name == "client" && words.get(1).is_some_and(|part| is(part, "reply")) {
            return Some("ERR CLIENT REPLY is not allowed inside a transaction".into());
        }
        if self.calls.len() >= COMMANDS_MAX || self.bytes + CALL_BYTES + memory_of(words) > bytes_max {
            return Some(
                format!(
                    "ERR a transaction has at most {COMMANDS_MAX} commands of {bytes_max} bytes together"
                )
                .into(),
            );
        }
        None
    }
}

/// Returns true if a command is not queued between MULTI and EXEC.
pub(crate) fn is_immediate(words: &[Bytes], command: &Command) -> bool {
    matches!(command.name, "multi" | "exec" | "discard" | "watch" | "quit" | "reset")
        || has_request_id(words, command)
}

/// Returns true for an EXEC with a request id.
fn has_request_id(words: &[Bytes], command: &Command) -> bool {
    command.name == "shoal.session" && matches!(words, [_, _, _, name] if is(name, "exec"))
}

/// Returns true for an EXEC, with or without a request id.
pub(crate) fn is_exec(words: &[Bytes], command: &Command) -> bool {
    command.name == "exec" || has_request_id(words, command)
}

pub(super) fn multi(session: &mut ConnectionState, _call: &Call) -> Result<Answer, Failed> {
    if session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    session.transaction = Some(Box::default());
    Ok(Answer::Ok)
}

/// If there are queued commands, the connection executes them (`Connection::start`).
pub(super) fn exec(_session: &mut ConnectionState, _call: &Call) -> Result<Answer, Failed> {
    Err("ERR EXEC without MULTI".into())
}

pub(super) fn discard(session: &mut ConnectionState, _call: &Call) -> Result<Answer, Failed> {
    if session.transaction.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    session.watches.clear();
    Ok(Answer::Ok)
}

pub(super) fn unwatch(session: &mut ConnectionState, _call: &Call) -> Result<Answer, Failed> {
    session.watches.clear();
    Ok(Answer::Ok)
}

pub(super) async fn watch(call: Call) -> Outcome {
    let mut watches = Vec::with_capacity(call.words.len());
    for (number, word) in call.rest(1).iter().enumerate() {
        give_way_at(number).await;
        watches.push(call.watch(word).await?);
    }
    let effect: Effect = Box::new(|session, _| {
        for watch in watches {
            if !session.watches.iter().any(|known| known.key() == watch.key()) {
                session.watches.push(watch);
            }
        }
    });
    Ok(Finished { effect: Some(effect), ..Answer::Ok.into() })
}

/// The level at which a command will probably look at its keys; if it needs more, the transaction restarts.
fn guess(command: &Command, words: &[Bytes]) -> ReadLevel {
    match command.name {
        "set" if words.len() == 3 => ReadLevel::Nothing,
        "setex" | "psetex" | "mset" => ReadLevel::Nothing,
        "set" | "setnx" | "msetnx" | "del" | "unlink" | "exists" | "touch" | "type" | "strlen" | "ttl"
        | "pttl" | "expiretime" | "pexpiretime" => ReadLevel::Info,
        "shoal.cas" => ReadLevel::Version,
        "shoal.getv" => ReadLevel::Whole,
        _ => ReadLevel::Value,
    }
}

/// The keys of all commands, each once, with the level of the look.
fn keys_of(frontend: &FrontendRef, calls: &[Queued]) -> Vec<(ObjectKey, ReadLevel)> {
    let mut keys: Vec<(ObjectKey, ReadLevel)> = Vec::new();
    // By key: its number, and whether it was overwritten, so that later commands need not look at the old state.
    let mut known: HashMap<ObjectKey, (usize, bool)> = HashMap::new();
    for Queued { words, command } in calls {
        let look = guess(command, words);
        for word in command.keys.of(words) {
            // Its command refuses an invalid key.
            let Ok(key) = frontend.key(word) else { continue };
            let (number, overwritten) = known.entry(key.clone()).or_insert_with(|| {
                keys.push((key, ReadLevel::Nothing));
                (keys.len() - 1, false)
            });
            if let Some((_, needed)) = keys.get_mut(*number).filter(|_| !*overwritten) {
                *needed = more_of(*needed, look);
            }
            *overwritten |= look == ReadLevel::Nothing;
        }
    }
    keys
}

/// The outcome of a decision on the working set.
enum Ran {
    /// The answers; `None` for a command that runs after the transaction.
    Answers(Vec<Option<Answer>>),
    /// It needs more states.
    Lacks(Vec<(ObjectKey, ReadLevel)>),
    /// The answers are too many.
    TooMuch,
}

/// Executes the queued commands.
pub(crate) async fn execute(
    frontend: FrontendRef,
    transaction: Transaction,
    watches: Vec<Watch>,
    request_id: Option<RequestId>,
) -> Outcome {
    let calls = transaction.calls;
    let mut keys = keys_of(&frontend, &calls);
    let keep = |ran: &Ran| match ran {
        Ran::Answers(answers) => stored_answer::encode_all(answers),
        Ran::Lacks(_) | Ran::TooMuch => Vec::new(),
    };
    loop {
        let decide = |objects: &[Option<_>]| {
            let store = frontend.store.clone();
            let deadline_of = move |expiry| store.deadline_of(expiry);
            decide(&frontend, &calls, Rc::new(WorkingSet::new(&keys, objects, deadline_of)))
        };
        match write::transact(&frontend, (&keys, &watches), request_id, decide, keep).await? {
            Transacted::Done(Updated { answer: Ran::Answers(answers), pending }) => {
                drop(watches);
                return Ok(Finished { pending, ..end(&frontend, calls, answers).await? });
            }
            Transacted::Left(Ran::Lacks(lacks)) => {
                for (key, look) in lacks {
                    match keys.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => *known = more_of(*known, look),
                        None => keys.push((key, look)),
                    }
                }
            }
            Transacted::Changed => return Ok(Answer::NullArray.into()),
            Transacted::Before { version, answer } => {
                return Ok(stored_answer::answer_of(answer.as_ref(), version.0)?.into());
            }
            Transacted::Left(_) | Transacted::Done(_) => {
                let most = frontend.options.limits.reply_bytes_max;
                return Err(format!(
                    "EXECABORT Transaction discarded: its answers have more than {most} bytes together"
                )
                .into());
            }
        }
    }
}

/// Runs the queued commands on the working set, and returns the writes of the transaction.
fn decide(frontend: &FrontendRef, calls: &[Queued], working: Rc<WorkingSet>) -> Decision<Ran> {
    let mut answers = run_all(frontend, calls, &working);
    let lacks = working.take_lacks();
    if !lacks.is_empty() {
        return Decision::Leave(Ran::Lacks(lacks));
    }
    if answers.iter().flatten().map(Answer::bytes).sum::<usize>() > frontend.options.limits.reply_bytes_max {
        return Decision::Leave(Ran::TooMuch);
    }
    let changes = working.take_changes();
    // The versions of a batch's writes are consecutive: each is the last one's minus the number of writes after it.
    let mut behind = vec![0; changes.len()];
    let mut writes = 0;
    for (change, behind) in changes.iter().zip(&mut behind).rev() {
        *behind = writes;
        writes += u64::from(!matches!(change, Change::NoChange));
    }
    answers.iter_mut().flatten().for_each(|answer| answer.place(&behind));
    Decision::Do(changes.into(), Ran::Answers(answers))
}

/// The answers of the commands on keys, in their order.
fn run_all(frontend: &FrontendRef, calls: &[Queued], working: &Rc<WorkingSet>) -> Vec<Option<Answer>> {
    let run = |queued: &Queued| {
        let Run::Task(run) = queued.command.run else { return None };
        if queued.command.order == Order::All {
            return None;
        }
        let call = call(frontend, Scope::Transaction(working.clone()), queued);
        let key = call.key(queued.command.keys.first);
        Some(match (try_run(run(call), queued.words.len()), key) {
            (Ok(Finished { answer: Answer::Version, .. }), Ok(key)) => working.own_version(&key),
            (outcome, _) => answer_of(outcome),
        })
    };
    calls.iter().map(run).collect()
}

fn answer_of(outcome: Outcome) -> Answer {
    outcome.map_or_else(Answer::from, |finished| finished.answer)
}

fn call(frontend: &FrontendRef, scope: Scope, Queued { words, command }: &Queued) -> Call {
    Call {
        frontend: frontend.clone(),
        scope,
        words: words.clone(),
        received: None,
        command,
        newest: true,
        before: None,
    }
}

/// The outcome of a command that never blocks: it only yields now and then.
fn try_run(mut task: Task, words: usize) -> Outcome {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..=words {
        if let Poll::Ready(outcome) = task.as_mut().poll(&mut context) {
            return outcome;
        }
    }
    Err("ERR this command cannot be part of a transaction".into())
}

/// The rest of the work after the transaction: commands about the server, and commands about the connection, which run when it
/// has the answers.
async fn end(
    frontend: &FrontendRef,
    calls: Vec<Queued>,
    answers: Vec<Option<Answer>>,
) -> Result<Finished, Failed> {
    let (mut all, mut later) = (Vec::with_capacity(answers.len()), Vec::new());
    for (at, (queued, answer)) in calls.iter().zip(answers).enumerate() {
        let call = || call(frontend, Scope::Plain, queued);
        all.push(match (answer, queued.command.run) {
            (Some(answer), _) => answer,
            (None, Run::Task(run)) => answer_of(run(call()).await),
            (None, Run::Now(run)) => {
                later.push((at, run, call()));
                Answer::Null
            }
        });
    }
    let mut finished = Finished::from(Answer::Transaction(all));
    if !later.is_empty() {
        finished.effect = Some(Box::new(move |session, answer| {
            let Answer::Transaction(answers) = answer else { return };
            for (at, run, call) in later {
                if let Some(answer) = answers.get_mut(at) {
                    *answer = run(session, &call).unwrap_or_else(Answer::from);
                }
            }
        }));
    }
    Ok(finished)
}
