//! Commands that are families of commands (CLIENT LIST, CONFIG GET): their parts, and what HELP says of them.

use super::{Call, Command, is, wrong_count_of_part};
use crate::answer::{Answer, Failed};

/// A part of a command.
pub(crate) struct Part {
    /// In small letters.
    pub name: &'static str,
    /// What follows it, as HELP shows it.
    arguments: &'static str,
    about: &'static str,
}

const fn part(name: &'static str, arguments: &'static str, about: &'static str) -> Part {
    Part { name, arguments, about }
}

const HELP: Part = part("help", "", "Tell what there is.");

static CLIENT: [Part; 11] = [
    part("getname", "", "The name of this connection."),
    HELP,
    part("id", "", "The number of this connection."),
    part("info", "", "What CLIENT LIST says of this connection."),
    part(
        "kill",
        "<ip:port> | [ID <id>] [TYPE <type>] [USER <user>] [ADDR <ip:port>] [LADDR <ip:port>] [SKIPME YES|NO] [MAXAGE <seconds>]",
        "End the connections that all of this is true of.",
    ),
    part("list", "[TYPE <type> | ID <id> ...]", "The connections, one a line."),
    part("no-evict", "ON|OFF", "Accepted; no connection is ended for the memory of keys."),
    part("no-touch", "ON|OFF", "Accepted; reads change nothing that commands tell."),
    part("reply", "ON|OFF|SKIP", "Whether this connection's commands, or the next one, are answered."),
    part("setinfo", "LIB-NAME|LIB-VER <text>", "Say which library this connection is of."),
    part("setname", "<name>", "Name this connection."),
];
static CLUSTER: [Part; 7] = [
    HELP,
    part("info", "", "How the cluster is."),
    part("keyslot", "<key>", "The hash slot of a key."),
    part("myid", "", "The name of this node."),
    part("nodes", "", "The nodes, one a line."),
    part("shards", "", "The slots with their nodes, as maps."),
    part("slots", "", "The slots with their nodes, as arrays."),
];
static COMMAND: [Part; 7] = [
    part("count", "", "How many commands there are."),
    part("docs", "[<command> ...]", "What commands are for."),
    part("getkeys", "<command> [<argument> ...]", "The keys of a whole command."),
    part(
        "getkeysandflags",
        "<command> [<argument> ...]",
        "The keys of a whole command, and what is done with them.",
    ),
    HELP,
    part("info", "[<command> ...]", "Arguments, flags and keys of commands."),
    part("list", "[FILTERBY MODULE <name> | ACLCAT <category> | PATTERN <pattern>]", "Names of commands."),
];
static CONFIG: [Part; 4] = [
    part("get", "<pattern> ...", "The settings whose names are like one of the patterns."),
    HELP,
    part("resetstat", "", "Accepted; the figures of INFO go on."),
    part(
        "set",
        "<name> <value> ...",
        "Refused, but for the layout of types that there are not: options are given at the start.",
    ),
];
static FUNCTION: [Part; 3] = [
    part("flush", "", "Accepted; there are no functions."),
    HELP,
    part("list", "", "The functions: there are none."),
];
static OBJECT: [Part; 5] = [
    part("encoding", "<key>", "How Redis would store the value."),
    part("freq", "<key>", "Refused, as accesses are not counted."),
    HELP,
    part("idletime", "<key>", "Seconds since the value was written; reads do not count."),
    part("refcount", "<key>", "1, where the key exists."),
];

impl Command {
    /// Its parts, in the order of their names; none where it has none.
    pub(crate) fn parts(&self) -> &'static [Part] {
        match self.name {
            "client" => &CLIENT,
            "cluster" => &CLUSTER,
            "command" => &COMMAND,
            "config" => &CONFIG,
            "function" => &FUNCTION,
            "object" => &OBJECT,
            _ => &[],
        }
    }

    /// The part that `words` are of: its place, from 1; 0 where there is none.
    pub(crate) fn part_of(&self, word: Option<&[u8]>) -> usize {
        let Some(word) = word else { return 0 };
        self.parts().iter().position(|part| is(word, part.name)).map_or(0, |place| place + 1)
    }
}

/// What HELP says of a command.
pub(super) fn help(call: &Call) -> Result<Answer, Failed> {
    if call.words.len() != 2 {
        return Err(wrong_count_of_part(call));
    }
    let name = call.command.name.to_ascii_uppercase();
    let line = |text: String| Answer::Line(text);
    let mut lines = vec![line(format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"))];
    for Part { name, arguments, about } in call.command.parts() {
        lines.push(line(format!("{} {arguments}", name.to_ascii_uppercase()).trim_end().to_owned()));
        lines.push(line(format!("    {about}")));
    }
    Ok(Answer::Array(lines))
}
