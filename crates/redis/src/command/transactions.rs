//! MULTI, EXEC, DISCARD, WATCH, UNWATCH: commands that are queued and then done as one step.
//!
//! EXEC loads the states of all keys of its commands and runs these, the same code as outside, on a working set (`working.rs`) in the
//! decision of one transaction of the engine (`Store::transact`): so all that it reads is of one moment, its own writes among it, and
//! what it writes is there as a whole or not at all. A command that fails does not undo the others. Commands about the connection run
//! when the transaction is through; those that walk over all keys are refused as they are queued.

use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use shoal_base::hash::hash64;
use shoal_engine::{Decision, Identity, Look, ObjectKey, Together, Transacted, Watch};
use smallvec::SmallVec;

use super::once::{FORGOTTEN, keep_all, kept_answer};
use super::{Call, Caller, Command, FaceRef, KEYS_A_TURN, Order, Run, Session, give_way, is};
use crate::answer::{Answer, Effect, Failed, Finished, Outcome};
use crate::working::{WorkingSet, more_of};

/// Keys that a connection watches at a time.
pub(crate) const WATCHES_MAX: usize = 4_096;
/// Commands of one transaction.
const COMMANDS_MAX: usize = 65_536;
/// Bytes of all answers of one transaction: they stay in memory until the client took them.
const ANSWERS_BYTES_MAX: usize = 64 << 20;
/// A word of fewer bytes is copied when it is queued: what it was received into may be much more.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// What a queued command takes besides its words, roughly.
const CALL_BYTES: usize = 128;

/// What EXEC says where a command was refused as it was queued.
pub(crate) const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
pub(crate) const NO_MULTI: &str = "ERR EXEC without MULTI";

/// A command that waits for EXEC.
pub(crate) struct Queued {
    words: Vec<Bytes>,
    command: &'static Command,
}

/// What was queued since MULTI.
#[derive(Default)]
pub(crate) struct Transaction {
    calls: Vec<Queued>,
    /// The hashes of their keys, and whether any of them writes.
    pub keys: Vec<u64>,
    pub writes: bool,
    /// Whether one of them is about more than keys.
    pub is_about_all: bool,
    /// A command was refused: EXEC is, too.
    pub is_spoiled: bool,
    bytes: usize,
}

impl Transaction {
    /// Commands that were queued.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What must be through before it is executed.
    pub(crate) fn order(&self) -> Order {
        if self.is_about_all { Order::All } else { Order::Keys }
    }

    /// Queues a command; what its client is told.
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
        self.bytes += memory_of(&words);
        self.calls.push(Queued { words, command });
        Answer::Simple("QUEUED")
    }

    fn refuse(&self, words: &[Bytes], command: &'static Command, bytes_max: usize) -> Option<Failed> {
        let walks = command.order == Order::All && matches!(command.run, Run::Task(_));
        if walks && command.name != "info" || command.name == "shoal.session" {
            let name = command.name.to_ascii_uppercase();
            return Some(format!("ERR {name} is not allowed inside a transaction").into());
        }
        // Half of EXEC's answer would be missing.
        if command.name == "client" && words.get(1).is_some_and(|part| is(part, "reply")) {
            return Some("ERR CLIENT REPLY is not allowed inside a transaction".into());
        }
        if self.calls.len() >= COMMANDS_MAX || self.bytes + memory_of(words) > bytes_max {
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

fn memory_of(words: &[Bytes]) -> usize {
    CALL_BYTES + size_of_val(words) + words.iter().map(Bytes::len).sum::<usize>()
}

/// Whether a command is not queued between MULTI and EXEC.
pub(crate) fn is_at_once(words: &[Bytes], command: &Command) -> bool {
    matches!(command.name, "multi" | "exec" | "discard" | "watch" | "quit" | "reset")
        || is_once(words, command)
}

/// Whether this is an EXEC with an identity.
fn is_once(words: &[Bytes], command: &Command) -> bool {
    command.name == "shoal.session" && matches!(words, [_, _, _, name] if is(name, "exec"))
}

/// Whether this is an EXEC, with or without an identity.
pub(crate) fn is_exec(words: &[Bytes], command: &Command) -> bool {
    command.name == "exec" || is_once(words, command)
}

pub(super) fn multi(session: &mut Session, _call: &Call) -> Result<Answer, Failed> {
    if session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    session.transaction = Some(Box::default());
    Ok(Answer::Ok)
}

/// Where there is something to execute the connection does it (`Connection::begin`).
pub(super) fn exec(_session: &mut Session, _call: &Call) -> Result<Answer, Failed> {
    Err(NO_MULTI.into())
}

pub(super) fn discard(session: &mut Session, _call: &Call) -> Result<Answer, Failed> {
    if session.transaction.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    session.watches.clear();
    Ok(Answer::Ok)
}

pub(super) fn unwatch(session: &mut Session, _call: &Call) -> Result<Answer, Failed> {
    session.watches.clear();
    Ok(Answer::Ok)
}

pub(super) async fn watch(call: Call) -> Outcome {
    let mut watches = Vec::with_capacity(call.words.len());
    for (index, word) in call.rest(1).iter().enumerate() {
        if index > 0 && index.is_multiple_of(KEYS_A_TURN) {
            give_way().await;
        }
        watches.push(call.face.store.watch(&call.face.key(word)?).await?);
    }
    Ok(Finished { effect: Some(Box::new(Effect::Watch(watches))), ..Answer::Ok.into() })
}

/// What a command will probably look at; where it is more, the transaction begins again.
fn guess(command: &Command, words: &[Bytes]) -> Look {
    match command.name {
        "set" if words.len() == 3 => Look::Nothing,
        "setex" | "psetex" | "mset" => Look::Nothing,
        "set" | "setnx" | "msetnx" | "del" | "unlink" | "exists" | "touch" | "type" | "strlen" | "ttl"
        | "pttl" | "expiretime" | "pexpiretime" => Look::Info,
        "shoal.cas" => Look::Version,
        "shoal.getv" => Look::Whole,
        _ => Look::Value,
    }
}

/// The keys of all commands, each once, with what is looked at.
fn keys_of(face: &FaceRef, calls: &[Queued]) -> Vec<(ObjectKey, Look)> {
    let mut keys: Vec<(ObjectKey, Look)> = Vec::new();
    // By key: its number, and whether it was overwritten, so that nobody looks at what was there.
    let mut known: HashMap<ObjectKey, (usize, bool)> = HashMap::new();
    for Queued { words, command } in calls {
        let look = guess(command, words);
        for word in command.keys.of(words) {
            // One that cannot be is refused by its command.
            let Ok(key) = face.key(word) else { continue };
            let (number, overwritten) = known.entry(key.clone()).or_insert_with(|| {
                keys.push((key, Look::Nothing));
                (keys.len() - 1, false)
            });
            if let Some((_, needed)) = keys.get_mut(*number).filter(|_| !*overwritten) {
                *needed = more_of(*needed, look);
            }
            *overwritten |= look == Look::Nothing;
        }
    }
    keys
}

/// What a decision on the working set gave.
enum Ran {
    /// The answers; none where a command runs behind the transaction.
    Answers(Vec<Option<Answer>>),
    /// It must look at more.
    Lacks(Vec<(ObjectKey, Look)>),
    /// The answers are too many.
    TooMuch,
}

/// Does what was queued.
pub(crate) async fn execute(
    face: FaceRef,
    transaction: Transaction,
    watches: Vec<Watch>,
    identity: Option<Identity>,
) -> Outcome {
    let calls = transaction.calls;
    let mut keys = keys_of(&face, &calls);
    loop {
        let decide = |objects: &[Option<_>]| {
            let store = face.store.clone();
            let deadline_of = move |expiry| store.deadline_of(expiry);
            let working = Rc::new(WorkingSet::new(&keys, objects, deadline_of));
            let answers = run_all(&face, &calls, &working);
            let lacks = working.take_lacks();
            if !lacks.is_empty() {
                return Decision::Leave(Ran::Lacks(lacks));
            }
            if answers.iter().flatten().map(Answer::bytes).sum::<usize>() > ANSWERS_BYTES_MAX {
                return Decision::Leave(Ran::TooMuch);
            }
            let changes = working.take_changes();
            // The versions of a step's writes follow each other: each is the last one's less the writes behind it.
            let mut behind = vec![0; changes.len()];
            let mut writes = 0;
            for (change, behind) in changes.iter().zip(&mut behind).rev() {
                *behind = writes;
                writes += u64::from(!matches!(change, shoal_engine::Change::Keep));
            }
            let placed = answers.into_iter().map(|answer| answer.map(|answer| answer.placed(&behind)));
            Decision::Do(changes, Ran::Answers(placed.collect()))
        };
        let transacted = match identity {
            None => face.store.transact(&keys, &watches, decide).await,
            Some(identity) => {
                let keep = |ran: &Ran| match ran {
                    Ran::Answers(answers) => keep_all(answers),
                    Ran::Lacks(_) | Ran::TooMuch => Vec::new(),
                };
                face.store.transact_once(identity, &keys, &watches, decide, keep).await
            }
        };
        match transacted? {
            Transacted::Done(Together { answer: Ran::Answers(answers), pending }) => {
                drop(watches);
                return Ok(Finished {
                    pending: pending.into_iter().collect(),
                    ..end(&face, calls, answers).await?
                });
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
                let kept = answer.ok_or(FORGOTTEN)?;
                return Ok(kept_answer(&kept, version.0).ok_or(FORGOTTEN)?.into());
            }
            Transacted::Left(_) | Transacted::Done(_) => {
                return Err(format!(
                    "EXECABORT Transaction discarded: its answers have more than {ANSWERS_BYTES_MAX} bytes together"
                )
                .into());
            }
        }
    }
}

/// The answers of the commands that are about keys, in their order.
fn run_all(face: &FaceRef, calls: &[Queued], working: &Rc<WorkingSet>) -> Vec<Option<Answer>> {
    let run = |queued: &Queued| {
        let Run::Task(run) = queued.command.run else { return None };
        if queued.command.order == Order::All {
            return None;
        }
        let call = call(Caller::within(face.clone(), working.clone()), queued);
        Some(match run_at_once(run(call), queued.words.len()) {
            Ok(Finished { answer: Answer::Version, .. }) => {
                let key = queued.command.keys.of(&queued.words).next().map(|word| face.key(word));
                key.and_then(Result::ok).map_or(Answer::Null, |key| working.own_version(&key))
            }
            Ok(finished) => finished.answer,
            Err(Failed(text)) => Answer::Error(text),
        })
    };
    calls.iter().map(run).collect()
}

fn call(face: Caller, queued: &Queued) -> Call {
    let Queued { words, command } = queued;
    Call { face, words: words.clone(), room: None, command, newest: true, before: None }
}

/// The outcome of a command that waits for nothing: it only lets others have their turns now and then.
fn run_at_once(mut task: super::Task, words: usize) -> Outcome {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..=words {
        if let Poll::Ready(outcome) = task.as_mut().poll(&mut context) {
            return outcome;
        }
    }
    Err("ERR this command cannot be part of a transaction".into())
}

/// What is left to do when the transaction is through: commands about the server, and those about the connection, which it runs
/// itself.
async fn end(face: &FaceRef, calls: Vec<Queued>, answers: Vec<Option<Answer>>) -> Result<Finished, Failed> {
    let (mut all, mut later) = (Vec::with_capacity(answers.len()), Vec::new());
    for (at, (queued, answer)) in calls.iter().zip(answers).enumerate() {
        let answer = match (answer, queued.command.run) {
            (Some(answer), _) => answer,
            (None, Run::Task(run)) => match run(call(face.clone().into(), queued)).await {
                Ok(finished) => finished.answer,
                Err(Failed(text)) => Answer::Error(text),
            },
            (None, Run::Now(_)) => {
                later.push((at, call(face.clone().into(), queued)));
                Answer::Null
            }
        };
        all.push(answer);
    }
    let effect = if later.is_empty() { None } else { Some(Box::new(Effect::Run(later))) };
    Ok(Finished { answer: Answer::Transaction(all), pending: SmallVec::new(), effect })
}
