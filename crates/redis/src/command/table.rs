//! The one table of the commands: the name of each, its requirements, and the function that runs it.
//!
//! Places to change for a new command, as GETRANGE has them (a test checks the list):
//!
//! - `crates/redis/src/command/table.rs`: a line of [`COMMANDS`] in the order of names, with the grants that its caller needs, and the metrics' operation in [`operation_of`];
//! - `crates/redis/src/command/strings.rs`: the function, in the file of its family; a new family also in `mod.rs`;
//! - `crates/redis/tests/serve/commands.rs`: calls with their replies;
//! - `crates/redis/tests/serve/transactions.rs`: the command between MULTI and EXEC;
//! - `docs/format/resp.md`: the command in its family, and each difference from Redis;
//! - `docs/operate/metrics.md`: the command at its operation.

use std::sync::LazyLock;

use bytes::Bytes;
use shoal_engine::ReadLevel;
use shoal_frontend::access::{Action, Actions};
use shoal_metrics::Operation;

use super::access::{self, Needs, ShownKey};
use super::call::{Call, Command, Keys, Order, Part, Run, RunNow, Task};
use super::expiry::Unit;
use super::{
    bitfield, bits, client, cluster, command_info, dedup, expiry, keys, numbers, scan, server, session,
    strings, transactions, versions,
};
use crate::answer::Answer;

const fn command(name: &'static str, arity: i32, keys: Keys, needs: Needs, run: fn(Call) -> Task) -> Command {
    Command { name, arity, order: Order::Keys, writes: false, needs, keys, parts: &[], run: Run::Task(run) }
}

const fn read(name: &'static str, arity: i32, keys: Keys, run: fn(Call) -> Task) -> Command {
    command(name, arity, keys, Needs::READ, run)
}

const fn write(name: &'static str, arity: i32, keys: Keys, needs: Needs, run: fn(Call) -> Task) -> Command {
    Command { writes: true, ..command(name, arity, keys, needs, run) }
}

/// A command over all keys.
const fn whole(name: &'static str, arity: i32, needs: Needs, run: fn(Call) -> Task) -> Command {
    Command { order: Order::All, ..command(name, arity, Keys::NONE, needs, run) }
}

/// A command about the connection or the protocol.
const fn now(name: &'static str, arity: i32, order: Order, run: RunNow) -> Command {
    let (keys, needs) = (Keys::NONE, Needs::Nothing);
    Command { name, arity, order, writes: false, needs, keys, parts: &[], run: Run::Now(run) }
}

const fn family(name: &'static str, order: Order, parts: &'static [Part], run: RunNow) -> Command {
    Command { parts, needs: Needs::Part, ..now(name, -2, order, run) }
}

const COPY: Needs = Needs::two(&[Action::Read], &[Action::Write]);
const RENAME: Needs = Needs::two(&[Action::Read, Action::Delete], &[Action::Write]);
/// The destination is the first key.
const BITOP: Needs = Needs::two(&[Action::Write], &[Action::Read]);
const TAKE: Needs = Needs::each(&[Action::Read, Action::Delete]);
const GETEX: Needs = Needs::each(&[Action::Read, Action::Write, Action::Delete]);
const SET: Needs = Needs::KeyAndOption { actions: Actions::of(&[Action::Write]), reads_with: "get" };

/// All commands, in the order of their names.
pub(crate) static COMMANDS: &[Command] = &[
    write("append", 3, Keys::ONE, Needs::WRITE, |call| Box::pin(strings::append(call))),
    now("asking", 1, Order::Free, cluster::accept),
    now("auth", -2, Order::All, session::auth),
    read("bitcount", -2, Keys::ONE, |call| Box::pin(bits::bitcount(call))),
    write("bitfield", -2, Keys::ONE, Needs::CHANGE, |call| Box::pin(bitfield::bitfield(call))),
    read("bitfield_ro", -2, Keys::ONE, |call| Box::pin(bitfield::bitfield_ro(call))),
    write("bitop", -4, Keys { first: 2, last: -1, step: 1 }, BITOP, |call| Box::pin(bits::bitop(call))),
    read("bitpos", -3, Keys::ONE, |call| Box::pin(bits::bitpos(call))),
    family("client", Order::All, client::PARTS, |session, call| client::client(session, call, name_of)),
    family("cluster", Order::Free, cluster::PARTS, cluster::cluster),
    Command {
        arity: -1,
        ..family("command", Order::Free, command_info::PARTS, |_, call| command_info::command(call, COMMANDS))
    },
    family("config", Order::Free, server::CONFIG_PARTS, server::config),
    write("copy", -3, Keys::TWO, COPY, |call| Box::pin(keys::copy(call))),
    whole("dbsize", 1, Needs::LIST, |call| Box::pin(scan::dbsize(call))),
    write("decr", 2, Keys::ONE, Needs::CHANGE, |call| Box::pin(numbers::count(call, -1))),
    write("decrby", 3, Keys::ONE, Needs::CHANGE, |call| Box::pin(numbers::decrby(call))),
    write("del", -2, Keys::ALL, Needs::DELETE, |call| Box::pin(keys::del(call))),
    now("discard", 1, Order::All, transactions::discard),
    now("echo", 2, Order::Free, server::echo),
    now("exec", 1, Order::All, transactions::exec),
    read("exists", -2, Keys::ALL, |call| Box::pin(keys::exists(call))),
    write("expire", -3, Keys::ONE, Needs::EXPIRE, |call| Box::pin(expiry::expire(call, Unit::Seconds))),
    write("expireat", -3, Keys::ONE, Needs::EXPIRE, |call| Box::pin(expiry::expire(call, Unit::AtSeconds))),
    read("expiretime", 2, Keys::ONE, |call| Box::pin(expiry::tell(call, Unit::AtSeconds))),
    Command { writes: true, ..whole("flushall", -1, Needs::EMPTY, |call| Box::pin(scan::flush(call))) },
    Command { writes: true, ..whole("flushdb", -1, Needs::EMPTY, |call| Box::pin(scan::flush(call))) },
    family("function", Order::Free, server::FUNCTION_PARTS, server::function),
    read("get", 2, Keys::ONE, |call| Box::pin(strings::get(call))),
    read("getbit", 3, Keys::ONE, |call| Box::pin(bits::getbit(call))),
    write("getdel", 2, Keys::ONE, TAKE, |call| Box::pin(strings::getdel(call))),
    write("getex", -2, Keys::ONE, GETEX, |call| Box::pin(strings::getex(call))),
    read("getrange", 4, Keys::ONE, |call| Box::pin(strings::getrange(call))),
    write("getset", 3, Keys::ONE, Needs::CHANGE, |call| Box::pin(strings::getset(call))),
    now("hello", -1, Order::All, session::hello),
    write("incr", 2, Keys::ONE, Needs::CHANGE, |call| Box::pin(numbers::count(call, 1))),
    write("incrby", 3, Keys::ONE, Needs::CHANGE, |call| Box::pin(numbers::incrby(call))),
    write("incrbyfloat", 3, Keys::ONE, Needs::CHANGE, |call| Box::pin(numbers::incrbyfloat(call))),
    whole("info", -1, Needs::LIST, |call| Box::pin(server::info(call))),
    whole("keys", 2, Needs::LIST, |call| Box::pin(scan::keys(call))),
    read("mget", -2, Keys::ALL, |call| Box::pin(strings::mget(call))),
    write("mset", -3, Keys::PAIRS, Needs::WRITE, |call| Box::pin(strings::mset(call, ReadLevel::Nothing))),
    write("msetnx", -3, Keys::PAIRS, Needs::WRITE, |call| Box::pin(strings::mset(call, ReadLevel::Info))),
    now("multi", 1, Order::Free, transactions::multi),
    Command {
        parts: keys::OBJECT_PARTS,
        needs: Needs::Part,
        ..read("object", -2, Keys { first: 2, last: 2, step: 1 }, |call| Box::pin(keys::object(call)))
    },
    write("persist", 2, Keys::ONE, Needs::WRITE, |call| Box::pin(expiry::persist(call))),
    write("pexpire", -3, Keys::ONE, Needs::EXPIRE, |call| Box::pin(expiry::expire(call, Unit::Milliseconds))),
    write("pexpireat", -3, Keys::ONE, Needs::EXPIRE, |call| {
        Box::pin(expiry::expire(call, Unit::AtMilliseconds))
    }),
    read("pexpiretime", 2, Keys::ONE, |call| Box::pin(expiry::tell(call, Unit::AtMilliseconds))),
    now("ping", -1, Order::Free, server::ping),
    write("psetex", 4, Keys::ONE, Needs::WRITE, |call| Box::pin(strings::setex(call, Unit::Milliseconds))),
    read("pttl", 2, Keys::ONE, |call| Box::pin(expiry::tell(call, Unit::Milliseconds))),
    now("quit", -1, Order::All, session::quit),
    whole("randomkey", 1, Needs::LIST, |call| Box::pin(scan::randomkey(call))),
    now("readonly", 1, Order::Free, cluster::accept),
    now("readwrite", 1, Order::Free, cluster::accept),
    write("rename", 3, Keys::TWO, RENAME, |call| Box::pin(keys::rename(call, true))),
    write("renamenx", 3, Keys::TWO, RENAME, |call| Box::pin(keys::rename(call, false))),
    now("reset", 1, Order::All, session::reset),
    whole("scan", -2, Needs::LIST, |call| Box::pin(scan::scan(call))),
    now("select", 2, Order::Free, server::select),
    write("set", -3, Keys::ONE, SET, |call| Box::pin(strings::set(call))),
    write("setbit", 4, Keys::ONE, Needs::CHANGE, |call| Box::pin(bits::setbit(call))),
    write("setex", 4, Keys::ONE, Needs::WRITE, |call| Box::pin(strings::setex(call, Unit::Seconds))),
    write("setnx", 3, Keys::ONE, Needs::WRITE, |call| Box::pin(strings::setnx(call))),
    write("setrange", 4, Keys::ONE, Needs::WRITE, |call| Box::pin(strings::setrange(call))),
    write("shoal.cas", -4, Keys::ONE, Needs::WRITE, |call| Box::pin(versions::cas(call))),
    whole("shoal.damage", 1, Needs::LIST, |call| Box::pin(scan::damage(call))),
    read("shoal.getv", 2, Keys::ONE, |call| Box::pin(versions::getv(call))),
    write("shoal.session", -2, Keys { first: 4, last: -1, step: 1 }, Needs::Inner(3), |call| {
        Box::pin(dedup::session(call, COMMANDS))
    }),
    read("strlen", 2, Keys::ONE, |call| Box::pin(strings::strlen(call))),
    read("substr", 4, Keys::ONE, |call| Box::pin(strings::getrange(call))),
    now("time", 1, Order::Free, server::time),
    read("touch", -2, Keys::ALL, |call| Box::pin(keys::exists(call))),
    read("ttl", 2, Keys::ONE, |call| Box::pin(expiry::tell(call, Unit::Seconds))),
    read("type", 2, Keys::ONE, |call| Box::pin(keys::kind(call))),
    write("unlink", -2, Keys::ALL, Needs::DELETE, |call| Box::pin(keys::del(call))),
    now("unwatch", 1, Order::All, transactions::unwatch),
    whole("wait", 3, Needs::Nothing, |call| Box::pin(server::wait(call))),
    whole("waitaof", 4, Needs::Nothing, |call| Box::pin(server::waitaof(call))),
    Command { order: Order::All, ..read("watch", -2, Keys::ALL, |call| Box::pin(transactions::watch(call))) },
];

/// GET and SET, the vast majority of commands.
pub(crate) fn get() -> &'static Command {
    const GET: usize = index_of("get");
    &COMMANDS[GET]
}

pub(crate) fn set() -> &'static Command {
    const SET: usize = index_of("set");
    &COMMANDS[SET]
}

/// The position of a command in the table; for names that are in it.
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

/// The position of the subcommand in the number of a command.
const PART_SHIFT: u32 = 16;

/// A number for a command and its subcommand (from 1; 0: none): never 0.
pub(crate) fn number_of(command: &'static Command, part: usize) -> usize {
    let from_start = std::ptr::from_ref(command).addr() - COMMANDS.as_ptr().addr();
    (from_start / size_of::<Command>() + 1) | (part << PART_SHIFT)
}

/// The metrics' operation of a command with this number of words.
pub(crate) fn operation_of(command: &'static Command, words: usize) -> Operation {
    static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| COMMANDS.iter().map(look_up).collect());
    match OPERATIONS.get(number_of(command, 0) - 1) {
        Some(Operation::Delete) if words > 2 => Operation::MultiDelete,
        Some(&operation) => operation,
        None => Operation::Other,
    }
}

/// The operation of a command with one key, by its name.
fn look_up(command: &Command) -> Operation {
    match command.name {
        "get" | "getrange" | "substr" | "getbit" | "bitcount" | "bitpos" | "bitfield_ro" | "shoal.getv" => {
            Operation::Get
        }
        "exists" | "expiretime" | "pexpiretime" | "pttl" | "strlen" | "touch" | "ttl" | "type" => {
            Operation::Head
        }
        "psetex" | "set" | "setex" | "setnx" => Operation::Put,
        "del" | "unlink" => Operation::Delete,
        "flushall" | "flushdb" => Operation::MultiDelete,
        "dbsize" | "keys" | "randomkey" | "scan" | "shoal.damage" => Operation::List,
        "mget" => Operation::MultiGet,
        "mset" | "msetnx" => Operation::MultiPut,
        "exec" => Operation::Transaction,
        _ if command.writes => Operation::Update,
        _ => Operation::Other,
    }
}

/// The name of the command with a number, `client|list`; `NULL` for 0.
fn name_of(number: usize) -> String {
    let index = (number & ((1 << PART_SHIFT) - 1)).checked_sub(1);
    let Some(command) = index.and_then(|index| COMMANDS.get(index)) else { return "NULL".to_owned() };
    let part = (number >> PART_SHIFT).checked_sub(1).and_then(|index| command.parts.get(index));
    command.full_name(part)
}

/// The command of a name in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    Command::find(COMMANDS, name)
}

/// The answer to a command that the holder of `key` may not run on the keys of `bucket`; `None` if it may.
pub(crate) fn denial(key: &ShownKey, bucket: &str, command: &Command, words: &[Bytes]) -> Option<Answer> {
    let denied = access::check(key.principal(), bucket, (command, words), COMMANDS).err()?;
    Some(access::refusal(&denied, &key.user(), (command, words)))
}

/// The answer of Redis to an unknown name.
pub(crate) fn unknown(words: &[Bytes]) -> Answer {
    const ARGUMENT_BYTES_MAX: usize = 128;
    let name = words.first().map_or(&b""[..], |name| name.get(..ARGUMENT_BYTES_MAX).unwrap_or(name));
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        let Some(left) = ARGUMENT_BYTES_MAX.checked_sub(arguments.len()).filter(|&left| left > 0) else {
            break;
        };
        arguments.push('\'');
        arguments.push_str(&String::from_utf8_lossy(word.get(..left).unwrap_or(word)));
        arguments.push_str("' ");
    }
    let name = String::from_utf8_lossy(name);
    Answer::Error(format!("ERR unknown command '{name}', with args beginning with: {arguments}").into())
}

#[cfg(test)]
mod tests {
    use shoal_testkit::places::lacking;

    use super::super::call::NAME_BYTES_MAX;
    use super::*;

    #[test]
    fn listed_places_name_the_example_command() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        assert_eq!(lacking(root, include_str!("table.rs"), "getrange"), [""; 0]);
    }

    #[test]
    fn the_table_is_in_order_and_names_are_short() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(COMMANDS.iter().all(|command| command.name.len() <= NAME_BYTES_MAX));
        for command in COMMANDS {
            assert!(std::ptr::eq(find(command.name.to_ascii_uppercase().as_bytes()).unwrap(), command));
            assert_eq!(name_of(number_of(command, 0)), command.name);
            assert!(command.parts.windows(2).all(|pair| pair[0].name < pair[1].name));
        }
        assert!(find(b"nothing").is_none());
        assert!(find(&[b'x'; 1000]).is_none());
        assert!(find(b"").is_none());
    }

    #[test]
    fn key_positions_match_redis() {
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
