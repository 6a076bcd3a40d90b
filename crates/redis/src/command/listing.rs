//! COMMAND: which commands there are, and where their keys stand.

use bytes::Bytes;

use super::parts::{Part, help};
use super::{COMMANDS, Call, Command, Order, SYNTAX, Session, find, is, unknown_part, wrong_count_of_part};
use crate::answer::{Answer, Failed};
use crate::glob;

pub(super) fn command(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let (part, words) = (call.word(1), call.rest(2));
    if call.words.len() == 1 {
        return Ok(Answer::Array(COMMANDS.iter().map(|command| described(command, None)).collect()));
    }
    if is(part, "count") {
        counted(call, 0)?;
        Ok(Answer::Integer(COMMANDS.len() as i64))
    } else if is(part, "info") {
        let of = |(command, part)| described(command, part);
        Ok(Answer::Array(named(words).into_iter().map(|known| known.map_or(Answer::Null, of)).collect()))
    } else if is(part, "docs") {
        let of = |(command, part)| documented(command, part);
        Ok(Answer::Map(named(words).into_iter().flatten().map(of).collect()))
    } else if is(part, "list") {
        list(words)
    } else if is(part, "getkeys") || is(part, "getkeysandflags") {
        keys_of(words, is(part, "getkeysandflags"))
    } else if is(part, "help") {
        help(call)
    } else {
        Err(unknown_part(call))
    }
}

fn counted(call: &Call, count: usize) -> Result<(), Failed> {
    if call.rest(2).len() == count { Ok(()) } else { Err(wrong_count_of_part(call)) }
}

/// A command, or a part of one.
type Named = (&'static Command, Option<&'static Part>);

/// What is called so: `get`, `client|list`; all commands where there is no name.
fn named(words: &[Bytes]) -> Vec<Option<Named>> {
    if words.is_empty() {
        return COMMANDS.iter().map(|command| Some((command, None))).collect();
    }
    words.iter().map(|word| find_named(word)).collect()
}

fn find_named(word: &[u8]) -> Option<Named> {
    let mut names = word.splitn(2, |&byte| byte == b'|');
    let command = find(names.next()?)?;
    match names.next() {
        None => Some((command, None)),
        Some(name) => {
            command.parts().iter().find(|part| is(name, part.name)).map(|part| (command, Some(part)))
        }
    }
}

/// `get`, `client|list`.
fn full_name(command: &Command, part: Option<&Part>) -> String {
    part.map_or_else(|| command.name.to_owned(), |part| format!("{}|{}", command.name, part.name))
}

/// Every name of a command that a filter takes.
fn list(words: &[Bytes]) -> Result<Answer, Failed> {
    let all = || {
        COMMANDS.iter().flat_map(|command| {
            let parts = command.parts().iter().map(move |part| (command, Some(part)));
            std::iter::once((command, None)).chain(parts)
        })
    };
    let names = |wanted: &dyn Fn(&Command, &str) -> bool| {
        let names = all().map(|(command, part)| (command, full_name(command, part)));
        let names = names.filter(|(command, name)| wanted(command, name));
        Ok(Answer::Array(names.map(|(_, name)| Answer::string(name)).collect()))
    };
    match words {
        [] => names(&|_, _| true),
        [filter, kind, word] if is(filter, "filterby") => {
            if is(kind, "module") {
                // There are none.
                names(&|_, _| false)
            } else if is(kind, "aclcat") {
                names(&|command, _| categories(command).iter().any(|category| is(word, category)))
            } else if is(kind, "pattern") {
                let pattern = word.to_ascii_lowercase();
                names(&|_, name| glob::matches(&pattern, name.as_bytes()))
            } else {
                Err(SYNTAX.into())
            }
        }
        _ => Err(SYNTAX.into()),
    }
}

fn keys_of(words: &[Bytes], flags: bool) -> Result<Answer, Failed> {
    let name = words.first().ok_or("ERR Unknown subcommand or wrong number of arguments for 'getkeys'")?;
    let command = find(name).ok_or("ERR Invalid command specified")?;
    if !command.takes(words.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let flag = |text| Answer::Simple(text);
    let shown = |key: &Bytes| match flags {
        false => Answer::Bulk(key.clone()),
        true => {
            let done = if command.writes {
                vec![flag("RW"), flag("access"), flag("update")]
            } else {
                vec![flag("RO"), flag("access")]
            };
            Answer::Array(vec![Answer::Bulk(key.clone()), Answer::Set(done)])
        }
    };
    let keys: Vec<Answer> = command.keys.of(words).map(shown).collect();
    if keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    Ok(Answer::Array(keys))
}

/// What Redis's access lists would call a command.
fn categories(command: &Command) -> Vec<&'static str> {
    const KEYSPACE: [&str; 22] = [
        "copy",
        "dbsize",
        "del",
        "exists",
        "expire",
        "expireat",
        "expiretime",
        "flushall",
        "flushdb",
        "keys",
        "object",
        "persist",
        "pexpire",
        "pexpireat",
        "pexpiretime",
        "pttl",
        "randomkey",
        "rename",
        "renamenx",
        "scan",
        "touch",
        "ttl",
    ];
    const CONNECTION: [&str; 11] = [
        "asking",
        "auth",
        "client",
        "command",
        "echo",
        "hello",
        "ping",
        "quit",
        "readonly",
        "readwrite",
        "reset",
    ];
    let name = command.name;
    let has_keys = command.keys.first > 0;
    let mut found = Vec::new();
    if has_keys || command.order == Order::All && (command.writes || KEYSPACE.contains(&name)) {
        found.push(if command.writes { "write" } else { "read" });
    }
    if KEYSPACE.contains(&name) || name == "type" || name == "unlink" {
        found.push("keyspace");
    } else if name.contains("bit") {
        found.push("bitmap");
    } else if ["multi", "exec", "discard", "watch", "unwatch"].contains(&name) {
        found.push("transaction");
    } else if has_keys {
        found.push("string");
    } else if CONNECTION.contains(&name) || name == "select" {
        found.push("connection");
    }
    if ["config", "cluster"].contains(&name) {
        found.push("admin");
    }
    if ["config", "cluster", "client", "flushall", "flushdb", "info", "keys"].contains(&name) {
        found.push("dangerous");
    }
    found.push(if is_fast(command) { "fast" } else { "slow" });
    found
}

/// Whether it takes the same time whatever there is.
fn is_fast(command: &Command) -> bool {
    command.keys.first > 0 && !["bitcount", "bitop", "bitpos"].contains(&command.name)
}

/// As COMMAND INFO shows a command, or a part of one.
fn described(command: &'static Command, part: Option<&Part>) -> Answer {
    let mut flags = Vec::new();
    if command.keys.first > 0 || command.order == Order::All {
        flags.push(if command.writes { "write" } else { "readonly" });
    }
    if is_fast(command) {
        flags.push("fast");
    }
    if command.is_for_strangers() {
        flags.push("no-auth");
    }
    let keys = command.keys;
    let parts = if part.is_none() { command.parts() } else { &[] };
    // With its own name a part has two words at least.
    let arity = if part.is_some() { -2 } else { command.arity };
    Answer::Array(vec![
        Answer::string(full_name(command, part)),
        Answer::Integer(arity.into()),
        Answer::Set(flags.iter().map(|flag| Answer::Simple(flag)).collect()),
        Answer::Integer(keys.first as i64),
        Answer::Integer(keys.last as i64),
        Answer::Integer(keys.step as i64),
        Answer::Set(categories(command).iter().map(|name| Answer::Line(format!("@{name}"))).collect()),
        Answer::Array(Vec::new()),
        Answer::Array(Vec::new()),
        Answer::Array(parts.iter().map(|part| described(command, Some(part))).collect()),
    ])
}

/// As COMMAND DOCS shows a command, or a part of one.
fn documented(command: &'static Command, part: Option<&'static Part>) -> (Answer, Answer) {
    let known = ["transaction", "bitmap", "string", "connection"];
    let group = known.into_iter().find(|group| categories(command).contains(group));
    let group = if categories(command).contains(&"keyspace") { "generic" } else { group.unwrap_or("server") };
    let mut about = vec![
        (Answer::text("summary"), Answer::text("As in Redis; docs/format/resp.md says what differs.")),
        (Answer::text("since"), Answer::text("1.0.0")),
        (Answer::text("group"), Answer::text(group)),
        (
            Answer::text("complexity"),
            Answer::text(if is_fast(command) { "O(1) for each key" } else { "O(N)" }),
        ),
    ];
    if part.is_none() && !command.parts().is_empty() {
        let parts = command.parts().iter().map(|part| documented(command, Some(part))).collect();
        about.push((Answer::text("subcommands"), Answer::Map(parts)));
    }
    (Answer::string(full_name(command, part)), Answer::Map(about))
}
