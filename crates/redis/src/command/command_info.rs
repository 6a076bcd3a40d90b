//! COMMAND: the names of the commands, and the positions of their keys.

use bytes::Bytes;

use super::access::Needs;
use super::call::{Call, Command, Order, Part, SYNTAX, is};
use crate::answer::{Answer, Failed};

pub(super) const PARTS: &[Part] = &[
    Part::new("count", 0..=0, "", "How many commands there are.", Needs::Nothing),
    Part::new("docs", 0..=usize::MAX, "[<command> ...]", "The purpose of commands.", Needs::Nothing),
    Part::new(
        "getkeys",
        0..=usize::MAX,
        "<command> [<argument> ...]",
        "The keys of a whole command.",
        Needs::Nothing,
    ),
    Part::new(
        "getkeysandflags",
        0..=usize::MAX,
        "<command> [<argument> ...]",
        "The keys of a whole command, and their use.",
        Needs::Nothing,
    ),
    Part::HELP,
    Part::new(
        "info",
        0..=usize::MAX,
        "[<command> ...]",
        "Arguments, flags and keys of commands.",
        Needs::Nothing,
    ),
    Part::new(
        "list",
        0..=usize::MAX,
        "[FILTERBY MODULE <name> | ACLCAT <category> | PATTERN <pattern>]",
        "Names of commands.",
        Needs::Nothing,
    ),
];

/// COMMAND, of `commands`.
pub(super) fn command(call: &Call, commands: &'static [Command]) -> Result<Answer, Failed> {
    let words = call.rest(2);
    let described = |(command, part)| described(command, part);
    let documented = |(command, part)| documented(command, part);
    if call.words.len() == 1 {
        return Ok(Answer::Array(commands.iter().map(|command| described((command, None))).collect()));
    }
    Ok(match call.part()? {
        "count" => Answer::Integer(commands.len() as i64),
        "info" => {
            let known = named(commands, words).into_iter();
            Answer::Array(known.map(|known| known.map_or(Answer::Null, described)).collect())
        }
        "docs" => Answer::Map(named(commands, words).into_iter().flatten().map(documented).collect()),
        "list" => list(commands, words)?,
        "getkeys" => keys_of(commands, words, false)?,
        "getkeysandflags" => keys_of(commands, words, true)?,
        _ => call.help(),
    })
}

/// A command, or a part of one.
type Named = (&'static Command, Option<&'static Part>);

/// The commands with these names, `get`, `client|list`; all if there is no name.
fn named(commands: &'static [Command], words: &[Bytes]) -> Vec<Option<Named>> {
    if words.is_empty() {
        return commands.iter().map(|command| Some((command, None))).collect();
    }
    words.iter().map(|word| find_named(commands, word)).collect()
}

fn find_named(commands: &'static [Command], word: &[u8]) -> Option<Named> {
    let mut names = word.splitn(2, |&byte| byte == b'|');
    let command = Command::find(commands, names.next()?)?;
    let Some(name) = names.next() else { return Some((command, None)) };
    Some((command, Some(command.parts.iter().find(|part| is(name, part.name))?)))
}

/// Every name of a command that passes a filter.
fn list(commands: &'static [Command], words: &[Bytes]) -> Result<Answer, Failed> {
    let wanted: &dyn Fn(&Command, &str) -> bool = match words {
        [] => &|_, _| true,
        // There are no modules.
        [filter, kind, _] if is(filter, "filterby") && is(kind, "module") => &|_, _| false,
        [filter, kind, word] if is(filter, "filterby") && is(kind, "aclcat") => {
            &|command, _| categories(command).iter().any(|category| is(word, category))
        }
        [filter, kind, word] if is(filter, "filterby") && is(kind, "pattern") => {
            &|_, name| shoal_base::glob::matches(&word.to_ascii_lowercase(), name.as_bytes())
        }
        _ => return Err(SYNTAX.into()),
    };
    let mut names = Vec::new();
    for command in commands {
        let all = std::iter::once(None).chain(command.parts.iter().map(Some));
        let all = all.map(|part| command.full_name(part)).filter(|name| wanted(command, name));
        names.extend(all.map(Answer::string));
    }
    Ok(Answer::Array(names))
}

fn keys_of(commands: &'static [Command], words: &[Bytes], flags: bool) -> Result<Answer, Failed> {
    let name = words.first().ok_or("ERR Unknown subcommand or wrong number of arguments for 'getkeys'")?;
    let command = Command::find(commands, name).ok_or("ERR Invalid command specified")?;
    if !command.takes(words.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let flag = Answer::line;
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

/// The categories of a command in Redis's access lists.
fn categories(command: &Command) -> Vec<&'static str> {
    let name = command.name;
    let is_keyspace = matches!(
        name,
        "copy"
            | "dbsize"
            | "del"
            | "exists"
            | "expire"
            | "expireat"
            | "expiretime"
            | "flushall"
            | "flushdb"
            | "keys"
            | "object"
            | "persist"
            | "pexpire"
            | "pexpireat"
            | "pexpiretime"
            | "pttl"
            | "randomkey"
            | "rename"
            | "renamenx"
            | "scan"
            | "touch"
            | "ttl"
    );
    let is_connection = matches!(
        name,
        "asking"
            | "auth"
            | "client"
            | "command"
            | "echo"
            | "hello"
            | "ping"
            | "quit"
            | "readonly"
            | "readwrite"
            | "reset"
            | "select"
    );
    let has_keys = command.keys.first > 0;
    let mut found = Vec::new();
    if has_keys || command.order == Order::All && (command.writes || is_keyspace) {
        found.push(if command.writes { "write" } else { "read" });
    }
    if is_keyspace || name == "type" || name == "unlink" {
        found.push("keyspace");
    } else if name.contains("bit") {
        found.push("bitmap");
    } else if ["multi", "exec", "discard", "watch", "unwatch"].contains(&name) {
        found.push("transaction");
    } else if has_keys {
        found.push("string");
    } else if is_connection {
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

/// Returns true if its time does not depend on the size of the data.
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
    let parts = if part.is_none() { command.parts } else { &[] };
    // With its own name, a subcommand has at least two words.
    let arity = if part.is_some() { -2 } else { command.arity };
    Answer::Array(vec![
        Answer::string(command.full_name(part)),
        Answer::Integer(arity.into()),
        Answer::Set(flags.iter().map(|flag| Answer::line(flag)).collect()),
        Answer::Integer(keys.first as i64),
        Answer::Integer(keys.last as i64),
        Answer::Integer(keys.step as i64),
        Answer::Set(categories(command).iter().map(|name| Answer::Line(format!("@{name}").into())).collect()),
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
        (Answer::text("summary"), Answer::text("As in Redis; docs/format/resp.md lists the differences.")),
        (Answer::text("since"), Answer::text("1.0.0")),
        (Answer::text("group"), Answer::text(group)),
        (
            Answer::text("complexity"),
            Answer::text(if is_fast(command) { "O(1) for each key" } else { "O(N)" }),
        ),
    ];
    if part.is_none() && !command.parts.is_empty() {
        let parts = command.parts.iter().map(|part| documented(command, Some(part))).collect();
        about.push((Answer::text("subcommands"), Answer::Map(parts)));
    }
    (Answer::string(command.full_name(part)), Answer::Map(about))
}
