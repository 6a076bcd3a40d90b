//! CLIENT: the name and library that a connection reports, and the list of all connections with commands to close them.

use bytes::Bytes;

use super::access::Needs;
use super::call::{Call, ConnectionState, Part, Replies, SYNTAX, integer, is};
use super::session::{name_of, printable};
use crate::answer::{Answer, Failed};
use crate::clients::Client;

pub(super) const PARTS: &[Part] = &[
    Part::new("getname", 0..=0, "", "The name of this connection.", Needs::Nothing),
    Part::HELP,
    Part::new("id", 0..=0, "", "The number of this connection.", Needs::Nothing),
    Part::new("info", 0..=0, "", "The line of this connection in CLIENT LIST.", Needs::Nothing),
    Part::new(
        "kill",
        1..=usize::MAX,
        "<ip:port> | [ID <id>] [TYPE <type>] [USER <user>] [ADDR <ip:port>] [LADDR <ip:port>] [SKIPME YES|NO] [MAXAGE <seconds>]",
        "End the connections that all of this is true of.",
        Needs::Admin,
    ),
    Part::new(
        "list",
        0..=usize::MAX,
        "[TYPE <type> | ID <id> ...]",
        "The connections, one a line.",
        Needs::Admin,
    ),
    Part::new(
        "no-evict",
        1..=1,
        "ON|OFF",
        "Accepted; no connection is ended for the memory of keys.",
        Needs::Nothing,
    ),
    Part::new(
        "no-touch",
        1..=1,
        "ON|OFF",
        "Accepted; reads never change figures that commands show.",
        Needs::Nothing,
    ),
    Part::new(
        "reply",
        1..=1,
        "ON|OFF|SKIP",
        "Whether this connection's commands, or the next one, are answered.",
        Needs::Nothing,
    ),
    Part::new(
        "setinfo",
        2..=2,
        "LIB-NAME|LIB-VER <text>",
        "Set the name of the client library of this connection.",
        Needs::Nothing,
    ),
    Part::new("setname", 1..=1, "<name>", "Name this connection.", Needs::Nothing),
];

/// `command_name` returns the name of a command's number.
pub(super) fn client(
    session: &mut ConnectionState,
    call: &Call,
    command_name: fn(usize) -> String,
) -> Result<Answer, Failed> {
    let client = &session.client;
    let line = |client: &Client| client.line(call.frontend.monotonic_ms(), command_name) + "\n";
    Ok(match call.part()? {
        "id" => Answer::Integer(client.id as i64),
        "getname" => {
            let name = client.says.lock().name.clone();
            if name.is_empty() { Answer::Null } else { Answer::string(name) }
        }
        "setname" => {
            client.says.lock().name = name_of(call.word(2))?;
            Answer::Ok
        }
        "setinfo" => set_info(client, call)?,
        "info" => Answer::Verbatim(line(client)),
        "list" => {
            let wanted = listed(call.rest(2))?;
            let is_wanted = |id| wanted.as_ref().is_none_or(|wanted| wanted.contains(&id));
            let clients = call.frontend.clients.list(|id, client| is_wanted(id).then(|| client.clone()));
            Answer::Verbatim(clients.iter().map(|client| line(client)).collect())
        }
        "kill" => kill(session, call, call.rest(2))?,
        "reply" => {
            session.replies =
                match (is(call.word(2), "on"), is(call.word(2), "off"), is(call.word(2), "skip")) {
                    (true, _, _) => Replies::All,
                    (_, true, _) => Replies::None,
                    // If nothing is answered, there is nothing to leave out.
                    (_, _, true) if session.replies == Replies::None => Replies::None,
                    // This command and the next.
                    (_, _, true) => Replies::NotOf(2),
                    _ => return Err(SYNTAX.into()),
                };
            Answer::Ok
        }
        "no-evict" | "no-touch" if is(call.word(2), "on") || is(call.word(2), "off") => Answer::Ok,
        "no-evict" | "no-touch" => return Err(SYNTAX.into()),
        _ => call.help(),
    })
}

fn set_info(client: &Client, call: &Call) -> Result<Answer, Failed> {
    let (attribute, word) = (call.word(2), call.word(3));
    let named = String::from_utf8_lossy(attribute).to_ascii_lowercase();
    let wrong = || format!("ERR {named} cannot contain spaces, newlines or special characters.");
    let mut says = client.says.lock();
    let place = match named.as_str() {
        "lib-name" => &mut says.library,
        "lib-ver" => &mut says.library_version,
        _ => {
            let attribute = String::from_utf8_lossy(attribute);
            return Err(format!("ERR Unrecognized option '{attribute}'").into());
        }
    };
    *place = printable(word).ok_or_else(wrong)?;
    Ok(Answer::Ok)
}

/// Returns true for the kind of normal connections: all connections are normal.
fn is_normal(kind: &Bytes) -> Result<bool, Failed> {
    if !["normal", "master", "replica", "slave", "pubsub"].iter().any(|known| is(kind, known)) {
        let kind = String::from_utf8_lossy(kind);
        return Err(format!("ERR Unknown client type '{kind}'").into());
    }
    Ok(is(kind, "normal"))
}

/// The numbers of the connections that CLIENT LIST lists; none: all.
fn listed(words: &[Bytes]) -> Result<Option<Vec<u64>>, Failed> {
    match words {
        [] => Ok(None),
        [option, kind] if is(option, "type") => Ok(if is_normal(kind)? { None } else { Some(Vec::new()) }),
        [option, listed @ ..] if is(option, "id") && !listed.is_empty() => {
            let wrong = |_| Failed::from("ERR Invalid client ID");
            let id = |word: &Bytes| integer(word).map_err(wrong).map(|id| u64::try_from(id).unwrap_or(0));
            listed.iter().map(id).collect::<Result<_, _>>().map(Some)
        }
        _ => Err(SYNTAX.into()),
    }
}

/// A condition on the connections that CLIENT KILL closes.
type Condition = Box<dyn Fn(&Client) -> bool>;

/// Parses the conditions, in which `is_user` returns true for a user that exists; the flag is true if the calling connection stays open.
fn conditions(
    words: &[Bytes],
    now_ms: u64,
    is_user: impl Fn(&str) -> bool,
) -> Result<(Vec<Condition>, bool), Failed> {
    let (mut conditions, mut keeps_this): (Vec<Condition>, _) = (Vec::new(), true);
    let pairs = words.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(SYNTAX.into());
    }
    for pair in pairs {
        let [option, word] = pair else { return Err(SYNTAX.into()) };
        let above_zero = |wrong: &'static str| {
            let number = integer(word).map_err(|_| wrong)?;
            u64::try_from(number).ok().filter(|&number| number > 0).ok_or(Failed::from(wrong))
        };
        let address = word.clone();
        if is(option, "id") {
            let id = above_zero("ERR client-id should be greater than 0")?;
            conditions.push(Box::new(move |client| client.id == id));
        } else if is(option, "type") {
            let is_normal = is_normal(word)?;
            conditions.push(Box::new(move |_| is_normal));
        } else if is(option, "user") {
            let user = String::from_utf8_lossy(word).into_owned();
            if !is_user(&user) {
                return Err(format!("ERR No such user '{user}'").into());
            }
            conditions.push(Box::new(move |client| client.says.lock().user_name() == user));
        } else if is(option, "addr") {
            conditions.push(Box::new(move |client| address == client.addresses.peer.to_string()));
        } else if is(option, "laddr") {
            conditions.push(Box::new(move |client| address == client.addresses.local.to_string()));
        } else if is(option, "skipme") {
            keeps_this = is(word, "yes");
            if !is(word, "yes") && !is(word, "no") {
                return Err(SYNTAX.into());
            }
        } else if is(option, "maxage") {
            let age_s = above_zero("ERR maxage should be greater than 0")?;
            conditions.push(Box::new(move |client| now_ms.saturating_sub(client.since_ms) / 1000 >= age_s));
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok((conditions, keeps_this))
}

fn kill(session: &mut ConnectionState, call: &Call, words: &[Bytes]) -> Result<Answer, Failed> {
    let is_old_form = words.len() == 1;
    let (conditions, keeps_this) = match words {
        [address] => (conditions(&[Bytes::from("addr"), address.clone()], 0, |_| false)?.0, false),
        words => {
            conditions(words, call.frontend.monotonic_ms(), |user| call.frontend.options.has_user(user))?
        }
    };
    let is_wanted = |client: &Client| conditions.iter().all(|condition| condition(client));
    let wanted = call.frontend.clients.list(|_, client| is_wanted(client).then(|| client.clone()));
    let mut ended = 0;
    for client in wanted {
        if client.id != session.client.id {
            client.end();
        } else if keeps_this {
            continue;
        } else {
            // It gets its answer first.
            session.closing = true;
        }
        ended += 1;
    }
    match (is_old_form, ended) {
        (true, 0) => Err("ERR No such client".into()),
        (true, _) => Ok(Answer::Ok),
        (false, ended) => Ok(Answer::Integer(ended)),
    }
}
