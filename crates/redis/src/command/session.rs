//! Commands about the connection: the client's identity, its chosen name, and its version of the protocol.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use shoal_frontend::is_same;
use shoal_metrics::RefusalCause;
use shoal_resp::Protocol;

use super::access::ShownKey;
use super::call::{Call, ConnectionState, Replies, SYNTAX, integer, is};
use crate::answer::{Answer, Failed};
use crate::clients::Says;
use crate::frontend::Frontend;

/// The user of the password.
const DEFAULT_USER: &[u8] = b"default";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Lets the client in if name and password, or id and secret of a key, are right.
fn admit(
    session: &mut ConnectionState,
    frontend: &Frontend,
    user: &[u8],
    password: &[u8],
) -> Result<(), Failed> {
    let key = match &frontend.options.password {
        _ if user != DEFAULT_USER => ShownKey::new(frontend, user, password).ok().map(Some),
        Some(right) => is_same(right, password).then_some(None),
        // As in Redis, whose default user then needs no password. If clients show keys, there is none.
        None => (!frontend.options.takes_keys()).then_some(None),
    };
    let Some(key) = key else {
        let client = &session.client;
        // The operator sees each failed attempt; the program's log bounds the rate of a message.
        frontend.metrics().add_refusal(RefusalCause::Credentials);
        tracing::warn!(peer = %client.addresses.peer, "connection {}: a wrong user or password", client.id);
        return Err(WRONG_PASSWORD.into());
    };
    session.client.says.lock().user = key.as_ref().map(ShownKey::user).unwrap_or_default();
    (session.authenticated, session.key) = (true, key.map(Box::new));
    Ok(())
}

pub(super) fn auth(session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    match call.rest(1) {
        [_] if call.frontend.options.password.is_none() => Err(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
                .into(),
        ),
        [password] => admit(session, &call.frontend, DEFAULT_USER, password).map(|()| Answer::Ok),
        [user, password] => admit(session, &call.frontend, user, password).map(|()| Answer::Ok),
        _ => Err(SYNTAX.into()),
    }
}

pub(super) fn hello(session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
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
            admit(session, &call.frontend, user, password)?;
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
    speak(session, protocol);
    Ok(Answer::map([
        ("server", Answer::text("redis")),
        ("version", Answer::text(super::server::VERSION)),
        ("proto", Answer::Integer(if protocol == Protocol::V3 { 3 } else { 2 })),
        ("id", Answer::Integer(session.client.id as i64)),
        ("mode", Answer::text(if super::cluster::is_on(call) { "cluster" } else { "standalone" })),
        ("role", Answer::text("master")),
        ("modules", Answer::Array(Vec::new())),
    ]))
}

fn speak(session: &mut ConnectionState, protocol: Protocol) {
    session.protocol = protocol;
    session.client.figures.is_v3.store(protocol == Protocol::V3, Ordering::Relaxed);
}

pub(super) fn reset(session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    speak(session, Protocol::V2);
    session.replies = Replies::All;
    (session.authenticated, session.key) = (!call.frontend.options.asks(), None);
    *session.client.says.lock() = Says::default();
    session.transaction = None;
    session.watches.clear();
    Ok(Answer::line("RESET"))
}

pub(super) fn quit(session: &mut ConnectionState, _call: &Call) -> Result<Answer, Failed> {
    session.closing = true;
    Ok(Answer::Ok)
}

/// A name that CLIENT LIST can show: printable, without spaces.
pub(super) fn name_of(word: &Bytes) -> Result<String, Failed> {
    const WRONG: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
    printable(word).ok_or_else(|| WRONG.into())
}

pub(super) fn printable(word: &[u8]) -> Option<String> {
    /// The names that a client reports stay in memory while it is connected.
    const SAID_BYTES_MAX: usize = 1024;
    let fits = word.len() <= SAID_BYTES_MAX && word.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if fits { String::from_utf8(word.to_vec()).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable() {
        assert_eq!(printable(b"redis-py(x)"), Some("redis-py(x)".to_owned()));
        for word in [&b"a b"[..], b"a\nb", b"\xFF", b"\xC3\xA9", &[b'x'; 2000]] {
            assert_eq!(printable(word), None);
        }
    }
}
