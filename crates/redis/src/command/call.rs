//! A command and a call of it: what a command is, what it is given, and what it comes to.
//!
//! The families of commands use this; `table.rs` names all of their commands. The calls of the store are in `read.rs` and
//! `write.rs`.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use shoal_engine::{ObjectKey, ReceiveBuffer, RequestId, Ticket, Watch};
use shoal_resp::Protocol;
use smallvec::SmallVec;

use crate::answer::{Answer, Failed};
use crate::clients::Entered;
use crate::frontend::FrontendRef;
use crate::working_set::WorkingSet;

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len): a value has at most 4194304 bytes, and a \
                                   command 67108864; gRPC and `shoal put` take longer values";

/// The longest name of a command.
pub(super) const NAME_BYTES_MAX: usize = 16;

/// Keys that a command of many keys handles, or looks at, before the others of its thread have their turn.
pub(crate) const KEYS_A_TURN: usize = 512;

/// The scope that a call's writes belong to.
pub(crate) enum Scope {
    /// The call itself.
    Plain,
    /// Its writes are done once, however often they are sent (`SHOAL.SESSION`).
    Dedup(RequestId),
    /// A transaction: all that it does is done to the transaction's working set.
    Transaction(Rc<WorkingSet>),
}

/// A command with its words, the name among them.
pub(crate) struct Call {
    pub frontend: FrontendRef,
    pub scope: Scope,
    pub words: Vec<Bytes>,
    /// The value, where it is no word: of a SET with a long value and nothing behind it.
    pub received: Option<ReceiveBuffer>,
    pub command: &'static Command,
    /// Whether a read must see writes in flight: those of this connection, or all in the relaxed mode.
    pub newest: bool,
    /// A write that must be durable before a walk over the keys begins, so that the walk sees every acknowledged write.
    pub before: Option<Ticket>,
}

impl Call {
    /// The word at `index`; the table's arity says which there are.
    pub(crate) fn word(&self, index: usize) -> &Bytes {
        static NOTHING: Bytes = Bytes::new();
        self.words.get(index).unwrap_or(&NOTHING)
    }

    /// The words from `index` on.
    pub(crate) fn rest(&self, index: usize) -> &[Bytes] {
        self.words.get(index..).unwrap_or(&[])
    }

    /// The object whose key is the word at `index`.
    pub(crate) fn key(&self, index: usize) -> Result<ObjectKey, Failed> {
        self.frontend.key(self.word(index))
    }

    /// The integer at `index`.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, Failed> {
        integer(self.word(index))
    }

    /// Whether all that the command does must be one write batch: it is done once, or it is part of a transaction.
    pub(crate) fn is_one_batch(&self) -> bool {
        !matches!(self.scope, Scope::Plain)
    }

    /// The error that a wrong count of words gives.
    pub(crate) fn wrong_count(&self) -> Failed {
        wrong_count(self.command.name)
    }

    /// The error that a time to live gives which cannot be.
    pub(crate) fn invalid_expiry(&self) -> Failed {
        format!("ERR invalid expire time in '{}' command", self.command.name).into()
    }

    /// The name of the part that the words are of.
    ///
    /// # Errors
    /// As Redis, where there is no such part or it has another count of words.
    pub(crate) fn part(&self) -> Result<&'static str, Failed> {
        let name = self.command.name;
        let Some(part) = self.command.parts.iter().find(|part| is(self.word(1), part.name)) else {
            let part = String::from_utf8_lossy(self.word(1).get(..128).unwrap_or(self.word(1)));
            let name = name.to_ascii_uppercase();
            return Err(format!("ERR unknown subcommand '{part}'. Try {name} HELP.").into());
        };
        match part.words.contains(&self.rest(2).len()) {
            true => Ok(part.name),
            false => Err(wrong_count(&format!("{name}|{}", part.name))),
        }
    }

    /// The words of HELP about the command.
    pub(crate) fn help(&self) -> Answer {
        let name = self.command.name.to_ascii_uppercase();
        let line = |text: String| Answer::Line(text.into());
        let mut lines =
            vec![line(format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"))];
        for Part { name, arguments, about, .. } in self.command.parts {
            lines.push(line(format!("{} {arguments}", name.to_ascii_uppercase()).trim_end().to_owned()));
            lines.push(line(format!("    {about}")));
        }
        Answer::Array(lines)
    }
}

/// The error that a wrong count of words gives.
pub(crate) fn wrong_count(name: &str) -> Failed {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

/// The integer that a word is.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Failed> {
    shoal_resp::parse_integer(word).ok_or_else(|| NOT_AN_INTEGER.into())
}

/// Whether a word is this keyword, in whatever case.
pub(crate) fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}

/// Memory that words take.
pub(crate) fn memory_of(words: &[Bytes]) -> usize {
    size_of_val(words) + words.iter().map(Bytes::len).sum::<usize>()
}

/// Lets everything else of the thread have its turn.
pub(crate) async fn give_way() {
    shoal_base::task::yield_now().await;
}

/// The same, of a command that handles many keys, now and then: before the key with this number.
pub(crate) async fn give_way_at(number: usize) {
    if number > 0 && number.is_multiple_of(KEYS_A_TURN) {
        give_way().await;
    }
}

/// A command is through but for what must be durable before its answer leaves.
pub(crate) struct Finished {
    pub answer: Answer,
    pub pending: SmallVec<[Ticket; 1]>,
    pub effect: Option<Effect>,
}

/// Runs when a task is through: changes its connection, and its answer.
pub(crate) type Effect = Box<dyn FnOnce(&mut ConnectionState, &mut Answer)>;

impl Finished {
    /// An answer that leaves when `pending` is durable.
    pub(crate) fn after(answer: Answer, pending: impl IntoIterator<Item = Ticket>) -> Self {
        Self { answer, pending: pending.into_iter().collect(), effect: None }
    }
}

impl From<Answer> for Finished {
    fn from(answer: Answer) -> Self {
        Self::after(answer, None)
    }
}

impl From<Failed> for Finished {
    fn from(failed: Failed) -> Self {
        Answer::from(failed).into()
    }
}

/// The result of a command.
pub(crate) type Outcome = Result<Finished, Failed>;

/// A command under way.
pub(crate) type Task = Pin<Box<dyn Future<Output = Outcome>>>;

/// A command that is about the connection, or about the server.
pub(crate) type RunNow = fn(&mut ConnectionState, &Call) -> Result<Answer, Failed>;

/// How a command runs.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// At once.
    Now(RunNow),
    /// As a task.
    Task(fn(Call) -> Task),
}

/// Which earlier commands of the connection must be through before a command begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    Free,
    /// Writes of its keys that have not found their place in the order of writes, and what is about all keys.
    Keys,
    /// Everything.
    All,
}

/// Where keys stand among the words: the first, the last (from the end where it is negative), one every so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub first: usize,
    pub last: isize,
    pub step: usize,
}

impl Keys {
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0 };
    pub(crate) const ONE: Self = Self { first: 1, last: 1, step: 1 };
    pub(crate) const TWO: Self = Self { first: 1, last: 2, step: 1 };
    pub(crate) const ALL: Self = Self { first: 1, last: -1, step: 1 };
    pub(crate) const PAIRS: Self = Self { first: 1, last: -1, step: 2 };

    /// The keys among `words`.
    pub(crate) fn of(self, words: &[Bytes]) -> impl Iterator<Item = &Bytes> {
        let end = match usize::try_from(self.last) {
            Ok(last) => last + 1,
            Err(_) => (words.len() + 1).saturating_sub(self.last.unsigned_abs()),
        };
        let keys = if self.first == 0 { None } else { words.get(self.first..end.min(words.len())) };
        keys.unwrap_or(&[]).iter().step_by(self.step.max(1))
    }
}

/// A part of a command that is a family of commands (CLIENT LIST, CONFIG GET).
pub(crate) struct Part {
    /// In small letters.
    pub name: &'static str,
    /// How many words follow it.
    pub words: RangeInclusive<usize>,
    /// The words that follow it, as HELP shows them.
    pub arguments: &'static str,
    pub about: &'static str,
}

impl Part {
    pub(crate) const HELP: Self = Self::new("help", 0..=0, "", "List the subcommands.");

    pub(crate) const fn new(
        name: &'static str,
        words: RangeInclusive<usize>,
        arguments: &'static str,
        about: &'static str,
    ) -> Self {
        Self { name, words, arguments, about }
    }
}

/// A command.
pub(crate) struct Command {
    /// In small letters.
    pub name: &'static str,
    /// How many words it has, with its name; at least so many where it is negative.
    pub arity: i32,
    pub order: Order,
    pub writes: bool,
    pub keys: Keys,
    /// In the order of their names.
    pub parts: &'static [Part],
    pub run: Run,
}

impl Command {
    /// The command of a name in whatever case; `commands` are in the order of their names.
    pub(crate) fn find(commands: &'static [Self], name: &[u8]) -> Option<&'static Self> {
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        let small = &*small;
        let found = commands.binary_search_by(|command| command.name.as_bytes().cmp(small));
        found.ok().and_then(|index| commands.get(index))
    }

    /// Whether a command of so many words may be this one.
    pub(crate) fn takes(&self, words: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { words >= wanted } else { words == wanted }
    }

    /// Whether a client that has not said who it is may use it.
    pub(crate) fn is_for_strangers(&self) -> bool {
        matches!(self.name, "auth" | "hello" | "quit" | "reset")
    }

    /// The part that a word names: its place, from 1; 0 where there is none.
    pub(crate) fn part_of(&self, word: Option<&[u8]>) -> usize {
        let Some(word) = word else { return 0 };
        self.parts.iter().position(|part| is(word, part.name)).map_or(0, |place| place + 1)
    }

    /// `get`, `client|list`.
    pub(crate) fn full_name(&self, part: Option<&Part>) -> String {
        part.map_or_else(|| self.name.to_owned(), |part| format!("{}|{}", self.name, part.name))
    }
}

/// A command that waits for EXEC.
pub(crate) struct Queued {
    pub words: Vec<Bytes>,
    pub command: &'static Command,
}

/// The commands between MULTI and EXEC.
#[derive(Default)]
pub(crate) struct Transaction {
    pub calls: Vec<Queued>,
    /// The hashes of their keys, and whether any of them writes.
    pub keys: Vec<u64>,
    pub writes: bool,
    /// Whether one of them is about more than keys.
    pub is_about_all: bool,
    /// A command was refused: EXEC is, too.
    pub is_spoiled: bool,
    /// Memory that it takes.
    pub bytes: usize,
}

/// The state of a connection that its commands see and change.
pub(crate) struct ConnectionState {
    pub client: Entered,
    pub protocol: Protocol,
    pub authenticated: bool,
    /// The connection understands nothing more, and ends when its answers have left.
    pub closing: bool,
    /// Which commands are answered.
    pub replies: Replies,
    /// The commands queued since MULTI.
    pub transaction: Option<Box<Transaction>>,
    /// The keys that it watches, each once.
    pub watches: Vec<Watch>,
}

/// Which commands of a connection are answered (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    All,
    None,
    /// The next ones are not, so many of them.
    NotOf(u8),
}

impl Replies {
    /// Another command is through.
    pub(crate) fn next(&mut self) {
        if let Self::NotOf(left) = self {
            *self = if *left > 1 { Self::NotOf(*left - 1) } else { Self::All };
        }
    }
}

impl ConnectionState {
    pub(crate) fn new(client: Entered, authenticated: bool) -> Self {
        Self {
            client,
            protocol: Protocol::V2,
            authenticated,
            closing: false,
            replies: Replies::All,
            transaction: None,
            watches: Vec::new(),
        }
    }

    /// A command was refused as it came: the transaction that it was to be part of is, too.
    pub(crate) fn spoil(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_spoiled = true;
        }
    }

    /// Memory of what was queued and of what is watched.
    pub(crate) fn held_bytes(&self) -> usize {
        /// Memory of a watch besides its key, roughly.
        const WATCH_BYTES: usize = 256;
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes);
        let watched = |watch: &Watch| WATCH_BYTES + watch.key().encoded().len();
        queued + self.watches.iter().map(watched).sum::<usize>()
    }
}
