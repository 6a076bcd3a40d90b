//! A command and a call of it: the properties of a command, its input and its outcome.
//!
//! The families of commands use this; `table.rs` names all of their commands. The calls of the store are in `read.rs` and
//! `write.rs`.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use shoal_engine::{ObjectKey, ReceiveBuffer, RequestId, Ticket, Watch};
use shoal_frontend::access::PrincipalId;
use shoal_resp::Protocol;
use smallvec::SmallVec;

use super::access::{Needs, ShownKey};
use crate::answer::{Answer, Failed};
use crate::clients::Entered;
use crate::frontend::{Frontend, FrontendRef};
use crate::working_set::WorkingSet;

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len): a value has at most 4194304 bytes, and a \
                                   command 67108864; gRPC and `shoal put` take longer values";

/// The longest name of a command.
pub(super) const NAME_BYTES_MAX: usize = 16;

/// Number of keys that a command of many keys handles, or looks at, before it yields to the rest of its thread.
pub(crate) const KEYS_A_TURN: usize = 512;

/// The scope that a call's writes belong to.
pub(crate) enum Scope {
    /// The call itself.
    Plain,
    /// Its writes are done once, even if they are sent several times (`SHOAL.SESSION`).
    Dedup(RequestId),
    /// A transaction: all changes are made to the transaction's working set.
    Transaction(Rc<WorkingSet>),
}

/// A command with its words, including the name.
pub(crate) struct Call {
    pub frontend: FrontendRef,
    pub scope: Scope,
    pub words: Vec<Bytes>,
    /// The value if it is not among the words: of a SET with a long value and no options after it.
    pub received: Option<ReceiveBuffer>,
    pub command: &'static Command,
    /// True if a read must see writes in flight: those of this connection, or all in the relaxed mode.
    pub newest: bool,
    /// A write that must be durable before a walk over the keys starts, so that the walk sees every acknowledged write.
    pub before: Option<Ticket>,
}

impl Call {
    /// The word at `index`; the table's arity guarantees that it exists.
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

    /// Returns true if all changes of the command must be one write batch: it is done once, or it is part of a transaction.
    pub(crate) fn is_one_batch(&self) -> bool {
        !matches!(self.scope, Scope::Plain)
    }

    /// The error for a wrong count of words.
    pub(crate) fn wrong_count(&self) -> Failed {
        wrong_count(self.command.name)
    }

    /// The error for an invalid time to live.
    pub(crate) fn invalid_expiry(&self) -> Failed {
        format!("ERR invalid expire time in '{}' command", self.command.name).into()
    }

    /// The name of the called subcommand.
    ///
    /// # Errors
    /// As in Redis, if there is no such subcommand or it has another count of words.
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

/// The error for a wrong count of words.
pub(crate) fn wrong_count(name: &str) -> Failed {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

/// The integer value of a word.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Failed> {
    shoal_resp::parse_integer(word).ok_or_else(|| NOT_AN_INTEGER.into())
}

/// Returns true if a word is this keyword, in any case.
pub(crate) fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}

/// Memory taken by words.
pub(crate) fn memory_of(words: &[Bytes]) -> usize {
    size_of_val(words) + words.iter().map(Bytes::len).sum::<usize>()
}

/// Yields to the rest of the thread.
pub(crate) async fn give_way() {
    shoal_base::task::yield_now().await;
}

/// The same at some keys of a command that handles many: called before the key with this number.
pub(crate) async fn give_way_at(number: usize) {
    if number > 0 && number.is_multiple_of(KEYS_A_TURN) {
        give_way().await;
    }
}

/// A complete command, except for writes that must be durable before its answer leaves.
pub(crate) struct Finished {
    pub answer: Answer,
    pub pending: SmallVec<[Ticket; 1]>,
    pub effect: Option<Effect>,
}

/// Runs when a task is complete: changes its connection, and its answer.
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

/// A running command.
pub(crate) type Task = Pin<Box<dyn Future<Output = Outcome>>>;

/// A command about the connection, or about the server.
pub(crate) type RunNow = fn(&mut ConnectionState, &Call) -> Result<Answer, Failed>;

/// How a command runs.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// At once.
    Now(RunNow),
    /// As a task.
    Task(fn(Call) -> Task),
}

/// The earlier commands of the connection that must be complete before a command starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    Free,
    /// Writes of its keys that have not found their place in the order of writes, and commands over all keys.
    Keys,
    /// Everything.
    All,
}

/// Positions of the keys among the words: the first, the last (from the end if negative), and the step between them.
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

/// A subcommand of a command that is a family of commands (CLIENT LIST, CONFIG GET).
pub(crate) struct Part {
    /// In small letters.
    pub name: &'static str,
    /// The number of words after it.
    pub words: RangeInclusive<usize>,
    /// The words after it, as HELP shows them.
    pub arguments: &'static str,
    pub about: &'static str,
    pub needs: Needs,
}

impl Part {
    pub(crate) const HELP: Self = Self::new("help", 0..=0, "", "List the subcommands.", Needs::Nothing);

    pub(crate) const fn new(
        name: &'static str,
        words: RangeInclusive<usize>,
        arguments: &'static str,
        about: &'static str,
        needs: Needs,
    ) -> Self {
        Self { name, words, arguments, about, needs }
    }
}

/// A command.
pub(crate) struct Command {
    /// In small letters.
    pub name: &'static str,
    /// The number of its words, with its name; a minimum if negative.
    pub arity: i32,
    pub order: Order,
    pub writes: bool,
    /// The grants that its caller needs.
    pub needs: Needs,
    pub keys: Keys,
    /// In the order of their names.
    pub parts: &'static [Part],
    pub run: Run,
}

impl Command {
    /// The command of a name in any case; `commands` are in the order of their names.
    pub(crate) fn find(commands: &'static [Self], name: &[u8]) -> Option<&'static Self> {
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        let small = &*small;
        let found = commands.binary_search_by(|command| command.name.as_bytes().cmp(small));
        found.ok().and_then(|index| commands.get(index))
    }

    /// Returns true if this command accepts this number of words.
    pub(crate) fn takes(&self, words: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { words >= wanted } else { words == wanted }
    }

    /// Returns true if an unauthenticated client may use it.
    pub(crate) fn is_for_strangers(&self) -> bool {
        matches!(self.name, "auth" | "hello" | "quit" | "reset")
    }

    /// The place of the subcommand named by a word, from 1; 0 if there is none.
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
    /// True if a command in it is not limited to keys.
    pub is_about_all: bool,
    /// A command was refused: EXEC is also refused.
    pub is_spoiled: bool,
    /// Memory taken by it.
    pub bytes: usize,
}

/// The state of a connection that its commands see and change.
pub(crate) struct ConnectionState {
    pub client: Entered,
    pub protocol: Protocol,
    pub authenticated: bool,
    /// The key by which it is; none: it may do everything.
    pub key: Option<Box<ShownKey>>,
    /// No more commands are parsed, and the connection closes when its answers have left.
    pub closing: bool,
    /// Selects the commands that are answered.
    pub replies: Replies,
    /// The commands queued since MULTI.
    pub transaction: Option<Box<Transaction>>,
    /// Its watched keys, each once.
    pub watches: Vec<Watch>,
}

/// The commands of a connection that are answered (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    All,
    None,
    /// The next ones are not answered, up to this number.
    NotOf(u8),
}

impl Replies {
    /// Counts a complete command.
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
            key: None,
            closing: false,
            replies: Replies::All,
            transaction: None,
            watches: Vec::new(),
        }
    }

    /// The caller, if it is known.
    pub(crate) fn caller(&self, frontend: &Frontend) -> Option<PrincipalId> {
        match &self.key {
            Some(key) => Some(key.principal().identity().clone()),
            None if !frontend.options.asks() => Some(PrincipalId::Local),
            None => self.authenticated.then_some(PrincipalId::Password),
        }
    }

    /// Returns true if all commands are allowed.
    pub(crate) fn may_everything(&self, frontend: &Frontend) -> bool {
        let is_free = |key: &ShownKey| key.principal().is_unrestricted() && key.is_current(frontend);
        self.authenticated && self.key.as_ref().is_none_or(|key| is_free(key))
    }

    /// Checks the client's key again if other credentials are in force, or its time is over. A transaction that was queued with other
    /// grants is refused.
    pub(crate) fn renew_key(&mut self, frontend: &Frontend) {
        let Some(key) = self.key.as_mut().filter(|key| !key.is_current(frontend)) else { return };
        match key.renew(frontend) {
            Ok(false) => {}
            Ok(true) => self.spoil(),
            Err(reason) => {
                tracing::warn!(peer = %self.client.addresses.peer, "connection {}: {reason}", self.client.id);
                (self.authenticated, self.key, self.transaction) = (false, None, None);
                self.watches.clear();
                self.client.says.lock().user.clear();
            }
        }
    }

    /// A command was refused on arrival: its transaction is also refused.
    pub(crate) fn spoil(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_spoiled = true;
        }
    }

    /// Memory of queued commands and watched keys.
    pub(crate) fn held_bytes(&self) -> usize {
        /// Memory of a watch besides its key, roughly.
        const WATCH_BYTES: usize = 256;
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes);
        let watched = |watch: &Watch| WATCH_BYTES + watch.key().encoded().len();
        queued + self.watches.iter().map(watched).sum::<usize>()
    }
}
