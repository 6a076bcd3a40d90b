//! CLIENT: what a connection says of itself, and what there is to see and to end of all of them.

use std::net::SocketAddr;

use bytes::Bytes;

use super::parts::help;
use super::session::{Replies, monotonic_ms, name_of, printable};
use super::{Call, SYNTAX, Session, integer, is, unknown_part, wrong_count_of_part};
use crate::answer::{Answer, Failed};
use crate::clients::Client;

pub(super) fn client(session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let (part, words) = (call.word(1), call.rest(2));
    let counted = |count: usize| if words.len() == count { Ok(()) } else { Err(wrong_count_of_part(call)) };
    let client = &session.client;
    if is(part, "id") {
        counted(0)?;
        Ok(Answer::Integer(client.id as i64))
    } else if is(part, "getname") {
        counted(0)?;
        let name = client.says.lock().name.clone();
        Ok(if name.is_empty() { Answer::Null } else { Answer::string(name) })
    } else if is(part, "setname") {
        counted(1)?;
        client.says.lock().name = name_of(call.word(2))?;
        Ok(Answer::Ok)
    } else if is(part, "setinfo") {
        counted(2)?;
        set_info(client, call)
    } else if is(part, "info") {
        counted(0)?;
        Ok(Answer::Verbatim(client.line(monotonic_ms(&call.face)) + "\n"))
    } else if is(part, "list") {
        list(call, words)
    } else if is(part, "kill") {
        kill(session, call, words)
    } else if is(part, "reply") {
        counted(1)?;
        session.replies = match (is(call.word(2), "on"), is(call.word(2), "off"), is(call.word(2), "skip")) {
            (true, _, _) => Replies::All,
            (_, true, _) => Replies::None,
            // With nothing answered there is nothing to leave out.
            (_, _, true) if session.replies == Replies::None => Replies::None,
            // Of this command and the next.
            (_, _, true) => Replies::NotOf(2),
            _ => return Err(SYNTAX.into()),
        };
        Ok(Answer::Ok)
    } else if is(part, "no-evict") || is(part, "no-touch") {
        counted(1)?;
        if is(call.word(2), "on") || is(call.word(2), "off") { Ok(Answer::Ok) } else { Err(SYNTAX.into()) }
    } else if is(part, "help") {
        help(call)
    } else {
        Err(unknown_part(call))
    }
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

/// Whether connections are of this kind: all of them are normal ones.
fn is_normal(kind: &Bytes) -> Result<bool, Failed> {
    if !["normal", "master", "replica", "slave", "pubsub"].iter().any(|known| is(kind, known)) {
        let kind = String::from_utf8_lossy(kind);
        return Err(format!("ERR Unknown client type '{kind}'").into());
    }
    Ok(is(kind, "normal"))
}

fn list(call: &Call, words: &[Bytes]) -> Result<Answer, Failed> {
    let mut ids = None;
    match words {
        [] => {}
        [option, kind] if is(option, "type") => {
            if !is_normal(kind)? {
                ids = Some(Vec::new());
            }
        }
        [option, listed @ ..] if is(option, "id") && !listed.is_empty() => {
            let wrong = |_| Failed::from("ERR Invalid client ID");
            let id = |word: &Bytes| integer(word).map_err(wrong).map(|id| u64::try_from(id).unwrap_or(0));
            ids = Some(listed.iter().map(id).collect::<Result<Vec<u64>, Failed>>()?);
        }
        _ => return Err(SYNTAX.into()),
    }
    let now = monotonic_ms(&call.face);
    let clients = call.face.clients.list(ids.as_deref());
    Ok(Answer::Verbatim(clients.iter().map(|client| client.line(now) + "\n").collect()))
}

/// Which connections are to end: those of which all that is given is true.
#[derive(Default)]
struct Wanted {
    id: Option<u64>,
    address: Option<Bytes>,
    local: Option<Bytes>,
    age_seconds: Option<u64>,
    /// There is none of the kind, or of the user.
    nobody: bool,
    keeps_this: bool,
}

impl Wanted {
    fn parse(words: &[Bytes]) -> Result<Self, Failed> {
        let mut wanted = Self { keeps_this: true, ..Self::default() };
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
            if is(option, "id") {
                wanted.id = Some(above_zero("ERR client-id should be greater than 0")?);
            } else if is(option, "type") {
                wanted.nobody |= !is_normal(word)?;
            } else if is(option, "user") {
                if word != "default" {
                    return Err(format!("ERR No such user '{}'", String::from_utf8_lossy(word)).into());
                }
            } else if is(option, "addr") {
                wanted.address = Some(word.clone());
            } else if is(option, "laddr") {
                wanted.local = Some(word.clone());
            } else if is(option, "skipme") {
                wanted.keeps_this = is(word, "yes");
                if !is(word, "yes") && !is(word, "no") {
                    return Err(SYNTAX.into());
                }
            } else if is(option, "maxage") {
                wanted.age_seconds = Some(above_zero("ERR maxage should be greater than 0")?);
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(wanted)
    }

    fn is(&self, client: &Client, now_ms: u64) -> bool {
        let same = |wanted: &Option<Bytes>, address: SocketAddr| {
            wanted.as_ref().is_none_or(|wanted| wanted == address.to_string().as_bytes())
        };
        !self.nobody
            && self.id.is_none_or(|id| id == client.id)
            && same(&self.address, client.address)
            && same(&self.local, client.local)
            && self.age_seconds.is_none_or(|age| now_ms.saturating_sub(client.since_ms) / 1000 >= age)
    }
}

fn kill(session: &mut Session, call: &Call, words: &[Bytes]) -> Result<Answer, Failed> {
    let (wanted, is_old_form) = match words {
        [] => return Err(wrong_count_of_part(call)),
        [address] => (Wanted { address: Some(address.clone()), ..Wanted::default() }, true),
        words => (Wanted::parse(words)?, false),
    };
    let now_ms = monotonic_ms(&call.face);
    let mut ended = 0;
    for client in call.face.clients.list(None) {
        if !wanted.is(&client, now_ms) {
            continue;
        }
        if client.id != session.client.id {
            client.end();
        } else if wanted.keeps_this {
            continue;
        } else {
            // It hears of it first.
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
