//! The commands: the one table of them, and what each needs to run. One file per family.

mod bitfield;
mod bits;
mod client;
mod cluster;
mod expiry;
mod keys;
mod listing;
mod numbers;
mod once;
mod parts;
mod scan;
mod server;
mod session;
mod strings;
pub(crate) mod transactions;
mod versions;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use shoal_engine::{Pending, Room};

use crate::answer::{Answer, Failed, Outcome};
use crate::face::Face;

pub(crate) use once::{Caller, identity_of};
pub(crate) use session::{Replies, Session};

/// The face, as the tasks of one thread share it.
pub(crate) type FaceRef = Rc<Arc<Face>>;

/// A command with its words, the name among them.
pub(crate) struct Call {
    pub face: Caller,
    pub words: Vec<Bytes>,
    /// The value, where it is no word: of a SET with a long value and nothing behind it.
    pub room: Option<Room>,
    pub command: &'static Command,
    /// Whether a read must see writes in flight: those of this connection, or all in the relaxed mode.
    pub newest: bool,
    /// What must be durable before a walk over the keys begins, so that it sees what was acknowledged.
    pub before: Option<Pending>,
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

    /// The integer at `index`.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, Failed> {
        integer(self.word(index))
    }

    /// The error that a wrong count of words gives.
    pub(crate) fn wrong_count(&self) -> Failed {
        format!("ERR wrong number of arguments for '{}' command", self.command.name).into()
    }

    /// The error that a time to live gives which cannot be.
    pub(crate) fn invalid_expiry(&self) -> Failed {
        format!("ERR invalid expire time in '{}' command", self.command.name).into()
    }
}

/// The integer that a word is.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Failed> {
    shoal_resp::parse_integer(word).ok_or_else(|| NOT_AN_INTEGER.into())
}

/// Whether a word is this keyword, in whatever case.
pub(crate) fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// Keys that a command of many keys handles, or looks at, before the others of its thread have their turn.
pub(crate) const KEYS_A_TURN: usize = 512;

/// Lets everything else of the thread have its turn.
pub(crate) async fn give_way() {
    let mut gave = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A command under way.
pub(crate) type Task = Pin<Box<dyn Future<Output = Outcome>>>;

/// How a command runs.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// At once: it is about the connection, or about the server.
    Now(fn(&mut Session, &Call) -> Result<Answer, Failed>),
    /// As a task.
    Task(fn(Call) -> Task),
}

/// What must be through before a command of the same connection begins.
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
    const NONE: Self = Self { first: 0, last: 0, step: 0 };
    const ONE: Self = Self { first: 1, last: 1, step: 1 };
    const TWO: Self = Self { first: 1, last: 2, step: 1 };
    const ALL: Self = Self { first: 1, last: -1, step: 1 };
    const PAIRS: Self = Self { first: 1, last: -1, step: 2 };

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

/// A command.
pub(crate) struct Command {
    /// In small letters.
    pub name: &'static str,
    /// How many words it has, with its name; at least so many where it is negative.
    pub arity: i32,
    pub order: Order,
    pub writes: bool,
    pub keys: Keys,
    pub run: Run,
}

impl Command {
    /// Whether a command of so many words may be this one.
    pub(crate) fn takes(&self, words: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { words >= wanted } else { words == wanted }
    }

    /// Its place in the table of commands.
    pub(crate) fn index(&'static self) -> usize {
        let from_start = std::ptr::from_ref(self).addr() - COMMANDS.as_ptr().addr();
        from_start / size_of::<Self>()
    }

    /// Whether somebody who has not said who they are may use it.
    pub(crate) fn is_for_strangers(&self) -> bool {
        matches!(self.name, "auth" | "hello" | "quit" | "reset")
    }
}

const fn read(name: &'static str, arity: i32, keys: Keys, run: fn(Call) -> Task) -> Command {
    Command { name, arity, order: Order::Keys, writes: false, keys, run: Run::Task(run) }
}

const fn write(name: &'static str, arity: i32, keys: Keys, run: fn(Call) -> Task) -> Command {
    Command { name, arity, order: Order::Keys, writes: true, keys, run: Run::Task(run) }
}

const fn whole(name: &'static str, arity: i32, writes: bool, run: fn(Call) -> Task) -> Command {
    Command { name, arity, order: Order::All, writes, keys: Keys::NONE, run: Run::Task(run) }
}

const fn now(
    name: &'static str,
    arity: i32,
    order: Order,
    run: fn(&mut Session, &Call) -> Result<Answer, Failed>,
) -> Command {
    Command { name, arity, order, writes: false, keys: Keys::NONE, run: Run::Now(run) }
}

/// All commands, in the order of their names.
pub(crate) static COMMANDS: &[Command] = &[
    write("append", 3, Keys::ONE, |call| Box::pin(strings::append(call))),
    now("asking", 1, Order::Free, |_, _| Ok(Answer::Ok)),
    now("auth", -2, Order::All, session::auth),
    read("bitcount", -2, Keys::ONE, |call| Box::pin(bits::bitcount(call))),
    write("bitfield", -2, Keys::ONE, |call| Box::pin(bitfield::bitfield(call))),
    read("bitfield_ro", -2, Keys::ONE, |call| Box::pin(bitfield::bitfield_ro(call))),
    write("bitop", -4, Keys { first: 2, last: -1, step: 1 }, |call| Box::pin(bits::bitop(call))),
    read("bitpos", -3, Keys::ONE, |call| Box::pin(bits::bitpos(call))),
    now("client", -2, Order::All, client::client),
    now("cluster", -2, Order::Free, cluster::cluster),
    now("command", -1, Order::Free, listing::command),
    now("config", -2, Order::Free, server::config),
    write("copy", -3, Keys::TWO, |call| Box::pin(keys::copy(call))),
    whole("dbsize", 1, false, |call| Box::pin(scan::dbsize(call))),
    write("decr", 2, Keys::ONE, |call| Box::pin(numbers::decr(call))),
    write("decrby", 3, Keys::ONE, |call| Box::pin(numbers::decrby(call))),
    write("del", -2, Keys::ALL, |call| Box::pin(keys::del(call))),
    now("discard", 1, Order::All, transactions::discard),
    now("echo", 2, Order::Free, server::echo),
    now("exec", 1, Order::All, transactions::exec),
    read("exists", -2, Keys::ALL, |call| Box::pin(keys::exists(call))),
    write("expire", -3, Keys::ONE, |call| Box::pin(expiry::expire(call))),
    write("expireat", -3, Keys::ONE, |call| Box::pin(expiry::expireat(call))),
    read("expiretime", 2, Keys::ONE, |call| Box::pin(expiry::expiretime(call))),
    whole("flushall", -1, true, |call| Box::pin(scan::flush(call))),
    whole("flushdb", -1, true, |call| Box::pin(scan::flush(call))),
    now("function", -2, Order::Free, server::function),
    read("get", 2, Keys::ONE, |call| Box::pin(strings::get(call))),
    read("getbit", 3, Keys::ONE, |call| Box::pin(bits::getbit(call))),
    write("getdel", 2, Keys::ONE, |call| Box::pin(strings::getdel(call))),
    write("getex", -2, Keys::ONE, |call| Box::pin(strings::getex(call))),
    read("getrange", 4, Keys::ONE, |call| Box::pin(strings::getrange(call))),
    write("getset", 3, Keys::ONE, |call| Box::pin(strings::getset(call))),
    now("hello", -1, Order::All, session::hello),
    write("incr", 2, Keys::ONE, |call| Box::pin(numbers::incr(call))),
    write("incrby", 3, Keys::ONE, |call| Box::pin(numbers::incrby(call))),
    write("incrbyfloat", 3, Keys::ONE, |call| Box::pin(numbers::incrbyfloat(call))),
    whole("info", -1, false, |call| Box::pin(server::info(call))),
    whole("keys", 2, false, |call| Box::pin(scan::keys(call))),
    read("mget", -2, Keys::ALL, |call| Box::pin(strings::mget(call))),
    write("mset", -3, Keys::PAIRS, |call| Box::pin(strings::mset(call))),
    write("msetnx", -3, Keys::PAIRS, |call| Box::pin(strings::msetnx(call))),
    now("multi", 1, Order::Free, transactions::multi),
    read("object", -2, Keys { first: 2, last: 2, step: 1 }, |call| Box::pin(keys::object(call))),
    write("persist", 2, Keys::ONE, |call| Box::pin(expiry::persist(call))),
    write("pexpire", -3, Keys::ONE, |call| Box::pin(expiry::pexpire(call))),
    write("pexpireat", -3, Keys::ONE, |call| Box::pin(expiry::pexpireat(call))),
    read("pexpiretime", 2, Keys::ONE, |call| Box::pin(expiry::pexpiretime(call))),
    now("ping", -1, Order::Free, server::ping),
    write("psetex", 4, Keys::ONE, |call| Box::pin(strings::psetex(call))),
    read("pttl", 2, Keys::ONE, |call| Box::pin(expiry::pttl(call))),
    now("quit", -1, Order::All, session::quit),
    whole("randomkey", 1, false, |call| Box::pin(scan::randomkey(call))),
    now("readonly", 1, Order::Free, |_, _| Ok(Answer::Ok)),
    now("readwrite", 1, Order::Free, |_, _| Ok(Answer::Ok)),
    write("rename", 3, Keys::TWO, |call| Box::pin(keys::rename(call))),
    write("renamenx", 3, Keys::TWO, |call| Box::pin(keys::renamenx(call))),
    now("reset", 1, Order::All, session::reset),
    whole("scan", -2, false, |call| Box::pin(scan::scan(call))),
    now("select", 2, Order::Free, server::select),
    write("set", -3, Keys::ONE, |call| Box::pin(strings::set(call))),
    write("setbit", 4, Keys::ONE, |call| Box::pin(bits::setbit(call))),
    write("setex", 4, Keys::ONE, |call| Box::pin(strings::setex(call))),
    write("setnx", 3, Keys::ONE, |call| Box::pin(strings::setnx(call))),
    write("setrange", 4, Keys::ONE, |call| Box::pin(strings::setrange(call))),
    write("shoal.cas", -4, Keys::ONE, |call| Box::pin(versions::cas(call))),
    whole("shoal.damage", 1, false, |call| Box::pin(scan::damage(call))),
    read("shoal.getv", 2, Keys::ONE, |call| Box::pin(versions::getv(call))),
    write("shoal.session", -2, Keys { first: 4, last: -1, step: 1 }, |call| Box::pin(once::session(call))),
    read("strlen", 2, Keys::ONE, |call| Box::pin(strings::strlen(call))),
    read("substr", 4, Keys::ONE, |call| Box::pin(strings::getrange(call))),
    now("time", 1, Order::Free, server::time),
    read("touch", -2, Keys::ALL, |call| Box::pin(keys::exists(call))),
    read("ttl", 2, Keys::ONE, |call| Box::pin(expiry::ttl(call))),
    read("type", 2, Keys::ONE, |call| Box::pin(keys::kind(call))),
    write("unlink", -2, Keys::ALL, |call| Box::pin(keys::del(call))),
    now("unwatch", 1, Order::All, transactions::unwatch),
    now("wait", 3, Order::All, server::wait),
    Command {
        name: "watch",
        arity: -2,
        order: Order::All,
        writes: false,
        keys: Keys::ALL,
        run: Run::Task(|call| Box::pin(transactions::watch(call))),
    },
];

/// GET, and SET, which nearly all commands are.
pub(crate) fn get() -> &'static Command {
    &COMMANDS[GET]
}

pub(crate) fn set() -> &'static Command {
    &COMMANDS[SET]
}

const GET: usize = index_of("get");
const SET: usize = index_of("set");

/// Where a command stands in the table; for names that are in it.
const fn index_of(name: &str) -> usize {
    let mut at = 0;
    while !same(COMMANDS[at].name.as_bytes(), name.as_bytes()) {
        at += 1;
    }
    at
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The longest name of a command.
const NAME_BYTES_MAX: usize = 16;

/// The command of a name in whatever case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    let mut small = [0; NAME_BYTES_MAX];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    let small = &*small;
    COMMANDS
        .binary_search_by(|command| command.name.as_bytes().cmp(small))
        .ok()
        .and_then(|index| COMMANDS.get(index))
}

/// What Redis says to a name that it does not know.
pub(crate) fn unknown(words: &[Bytes]) -> Answer {
    const ARGUMENT_BYTES_MAX: usize = 128;
    let name = words.first().map_or(&b""[..], |name| name.get(..ARGUMENT_BYTES_MAX).unwrap_or(name));
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        let Some(room) = ARGUMENT_BYTES_MAX.checked_sub(arguments.len()).filter(|&room| room > 0) else {
            break;
        };
        arguments.push('\'');
        arguments.push_str(&String::from_utf8_lossy(word.get(..room).unwrap_or(word)));
        arguments.push_str("' ");
    }
    let name = String::from_utf8_lossy(name);
    Answer::Error(format!("ERR unknown command '{name}', with args beginning with: {arguments}").into())
}

/// What Redis says to the part of a command that it does not know.
pub(crate) fn unknown_part(call: &Call) -> Failed {
    let part = String::from_utf8_lossy(call.word(1).get(..128).unwrap_or(call.word(1))).into_owned();
    let name = call.command.name.to_ascii_uppercase();
    format!("ERR unknown subcommand '{part}'. Try {name} HELP.").into()
}

/// The error of a part of a command that has the wrong count of words.
pub(crate) fn wrong_count_of_part(call: &Call) -> Failed {
    let part = String::from_utf8_lossy(call.word(1)).to_ascii_lowercase();
    format!("ERR wrong number of arguments for '{}|{part}' command", call.command.name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_names_are_short() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(COMMANDS.iter().all(|command| command.name.len() <= NAME_BYTES_MAX));
        for command in COMMANDS {
            assert!(std::ptr::eq(find(command.name.to_ascii_uppercase().as_bytes()).unwrap(), command));
            assert!(std::ptr::eq(&COMMANDS[command.index()], command));
        }
        assert!(find(b"nothing").is_none());
        assert!(find(&[b'x'; 1000]).is_none());
        assert!(find(b"").is_none());
    }

    #[test]
    fn keys_are_found_where_they_stand() {
        let words: Vec<Bytes> =
            ["mset", "a", "1", "b", "2"].iter().map(|word| Bytes::from_static(word.as_bytes())).collect();
        let of = |keys: Keys, words: &[Bytes]| keys.of(words).cloned().collect::<Vec<_>>();
        assert_eq!(of(Keys::PAIRS, &words), ["a", "b"]);
        assert_eq!(of(Keys::ALL, &words), ["a", "1", "b", "2"]);
        assert_eq!(of(Keys::ONE, &words), ["a"]);
        assert_eq!(of(Keys::TWO, &words), ["a", "1"]);
        assert!(of(Keys::NONE, &words).is_empty());
        assert!(of(Keys::TWO, &words[..1]).is_empty());
    }

    #[test]
    fn unknown_names_are_answered_as_redis_does() {
        let words = [Bytes::from_static(b"foo"), Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let Answer::Error(text) = unknown(&words) else { panic!("an error") };
        assert_eq!(text, "ERR unknown command 'foo', with args beginning with: 'a' 'b' ");
        let Answer::Error(text) = unknown(&vec![Bytes::from(vec![b'x'; 1000]); 3]) else {
            panic!("an error")
        };
        assert!(text.len() < 400);
    }
}
