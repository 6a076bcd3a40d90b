//! Commands about the connection: who the client is, what it calls itself, which protocol it speaks.

use std::net::SocketAddr;

use bytes::Bytes;
use shoal_resp::Protocol;

use super::{Call, SYNTAX, integer, is, unknown_part, wrong_count_of_part};
use crate::answer::{Answer, Failed};
use crate::clients::{Client, Entered, Says};
use crate::face::Face;

/// What the server knows about a connection.
pub(crate) struct Session {
    pub client: Entered,
    pub protocol: Protocol,
    pub authenticated: bool,
    /// Nothing more is read; the connection ends when its answers have left.
    pub closing: bool,
}

impl Session {
    pub(crate) fn new(client: Entered, authenticated: bool) -> Self {
        Self { client, protocol: Protocol::V2, authenticated, closing: false }
    }
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Lets the client in where name and password are right.
fn admit(session: &mut Session, face: &Face, user: &[u8], password: &[u8]) -> Result<(), Failed> {
    let right = match &face.options.password {
        Some(right) => user == b"default" && same(right, password),
        // As in Redis, whose default user needs no password then.
        None => user == b"default",
    };
    if !right {
        return Err(WRONG_PASSWORD.into());
    }
    session.authenticated = true;
    Ok(())
}

/// Whether two secrets are the same, in a time that does not tell how much of them is.
fn same(right: &[u8], given: &[u8]) -> bool {
    let differs = (0..right.len().max(given.len()))
        .fold(0, |differs, at| differs | right.get(at).unwrap_or(&0) ^ given.get(at).unwrap_or(&0));
    differs == 0 && right.len() == given.len()
}

pub(super) fn auth(session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    match call.rest(1) {
        [_] if call.face.options.password.is_none() => Err(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
                .into(),
        ),
        [password] => admit(session, &call.face, b"default", password).map(|()| Answer::Ok),
        [user, password] => admit(session, &call.face, user, password).map(|()| Answer::Ok),
        _ => Err(SYNTAX.into()),
    }
}

pub(super) fn hello(session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let mut words = call.rest(1).iter();
    let mut protocol = session.protocol;
    if let Some(version) = words.next() {
        let version = integer(version);
        let version = version.map_err(|_| "ERR Protocol version is not an integer or out of range")?;
        protocol = match version {
            2 => Protocol::V2,
            3 => Protocol::V3,
            _ => return Err("NOPROTO unsupported protocol version".into()),
        };
    }
    let mut name = None;
    while let Some(word) = words.next() {
        let wrong = || format!("ERR Syntax error in HELLO option '{}'", String::from_utf8_lossy(word));
        if is(word, "auth") {
            let (Some(user), Some(password)) = (words.next(), words.next()) else {
                return Err(wrong().into());
            };
            admit(session, &call.face, user, password)?;
        } else if is(word, "setname") {
            name = Some(words.next().ok_or_else(wrong)?);
        } else {
            return Err(wrong().into());
        }
    }
    if !session.authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    if let Some(name) = name {
        session.client.says.lock().name = name_of(name)?;
    }
    session.protocol = protocol;
    session.client.speaks(protocol);
    let version = if protocol == Protocol::V3 { 3 } else { 2 };
    let pair = |key, value| (Answer::text(key), value);
    Ok(Answer::Map(vec![
        pair("server", Answer::text("redis")),
        pair("version", Answer::text(super::server::VERSION)),
        pair("proto", Answer::Integer(version)),
        pair("id", Answer::Integer(session.client.id as i64)),
        pair("mode", Answer::text("standalone")),
        pair("role", Answer::text("master")),
        pair("modules", Answer::Array(Vec::new())),
    ]))
}

pub(super) fn reset(session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    session.protocol = Protocol::V2;
    session.client.speaks(Protocol::V2);
    session.authenticated = call.face.options.password.is_none();
    *session.client.says.lock() = Says::default();
    Ok(Answer::Simple("RESET"))
}

pub(super) fn quit(session: &mut Session, _call: &Call) -> Result<Answer, Failed> {
    session.closing = true;
    Ok(Answer::Ok)
}

/// A name that CLIENT LIST can show: printable, without spaces.
fn name_of(word: &Bytes) -> Result<String, Failed> {
    const WRONG: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
    printable(word).ok_or_else(|| WRONG.into())
}

fn printable(word: &[u8]) -> Option<String> {
    /// What a client says about itself stays in memory as long as it is connected.
    const SAID_BYTES_MAX: usize = 1024;
    let fits = word.len() <= SAID_BYTES_MAX && word.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if fits { String::from_utf8(word.to_vec()).ok() } else { None }
}

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
    } else if is(part, "no-evict") || is(part, "no-touch") {
        counted(1)?;
        if is(call.word(2), "on") || is(call.word(2), "off") { Ok(Answer::Ok) } else { Err(SYNTAX.into()) }
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

fn list(call: &Call, words: &[Bytes]) -> Result<Answer, Failed> {
    let mut ids = None;
    match words {
        [] => {}
        [option, kind] if is(option, "type") => {
            if !["normal", "master", "replica", "slave", "pubsub"].iter().any(|known| is(kind, known)) {
                let kind = String::from_utf8_lossy(kind);
                return Err(format!("ERR Unknown client type '{kind}'").into());
            }
            if !is(kind, "normal") {
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

/// Milliseconds of the clock that never goes back.
pub(crate) fn monotonic_ms(face: &Face) -> u64 {
    face.clock.monotonic_ns() / 1_000_000
}

/// Where the client reached this server: what a cluster's client is told to connect to.
pub(super) fn reached_at(session: &Session) -> SocketAddr {
    let local = session.client.local;
    SocketAddr::new(local.ip().to_canonical(), local.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_compared_as_a_whole() {
        assert!(same(b"secret", b"secret"));
        for other in [&b"secre"[..], b"secret\0", b"Secret", b"", b"secretsecret"] {
            assert!(!same(b"secret", other));
        }
        assert!(same(b"", b""));
    }

    #[test]
    fn names_are_printable() {
        assert_eq!(printable(b"redis-py(x)"), Some("redis-py(x)".to_owned()));
        for word in [&b"a b"[..], b"a\nb", b"\xFF", b"\xC3\xA9", &[b'x'; 2000]] {
            assert_eq!(printable(word), None);
        }
    }
}
