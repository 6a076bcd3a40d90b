//! Commands about the connection: who the client is, what it calls itself, which protocol it speaks.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use shoal_engine::Watch;
use shoal_resp::Protocol;

use super::transactions::Transaction;
use super::{Call, Run, SYNTAX, integer, is};
use crate::answer::{Answer, Effect, Failed};
use crate::clients::{Entered, Says};
use crate::face::Face;

/// What the server knows about a connection.
pub(crate) struct Session {
    pub client: Entered,
    pub protocol: Protocol,
    pub authenticated: bool,
    /// Nothing more is read; the connection ends when its answers have left.
    pub closing: bool,
    /// Which commands are answered.
    pub replies: Replies,
    /// What was queued since MULTI.
    pub transaction: Option<Box<Transaction>>,
    /// The keys that it watches, each once.
    pub watches: Vec<Watch>,
}

/// Which commands of a connection are answered (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    All,
    None,
    /// The next ones are not, so many of them.
    NotOf(u8),
}

impl Replies {
    /// Another command is through.
    pub(crate) fn next(&mut self) {
        if let Self::NotOf(left) = self {
            *self = if *left > 1 { Self::NotOf(*left - 1) } else { Self::All };
        }
    }
}

impl Session {
    pub(crate) fn new(client: Entered, authenticated: bool) -> Self {
        let (transaction, watches) = (None, Vec::new());
        Self {
            client,
            protocol: Protocol::V2,
            authenticated,
            closing: false,
            replies: Replies::All,
            transaction,
            watches,
        }
    }

    /// A command was refused as it came: what it was to be part of is, too.
    pub(crate) fn spoil(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_spoiled = true;
        }
    }

    /// Notes for CLIENT LIST what was queued and how many keys are watched.
    pub(crate) fn show_transaction(&self) {
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.len() + 1);
        self.client.queued.store(queued, Ordering::Relaxed);
        self.client.watches.store(self.watches.len(), Ordering::Relaxed);
    }

    /// Memory of what was queued and of what is watched.
    pub(crate) fn held_bytes(&self) -> usize {
        /// What a watch takes besides its key, roughly.
        const WATCH_BYTES: usize = 256;
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes());
        let watched = |watch: &Watch| WATCH_BYTES + watch.key().encoded().len();
        queued + self.watches.iter().map(watched).sum::<usize>()
    }

    /// Does to the connection what a command wants; where that are commands of a transaction, their answers are put in their places.
    pub(crate) fn effect(&mut self, effect: Effect, answer: &mut Answer) {
        match effect {
            Effect::Watch(watches) => {
                for watch in watches {
                    if !self.watches.iter().any(|known| known.key() == watch.key()) {
                        self.watches.push(watch);
                    }
                }
            }
            Effect::Run(calls) => {
                for (at, call) in calls {
                    let Run::Now(run) = call.command.run else { continue };
                    let said = run(self, &call).unwrap_or_else(|Failed(text)| Answer::Error(text));
                    if let Answer::Transaction(answers) = answer
                        && let Some(place) = answers.get_mut(at)
                    {
                        *place = said;
                    }
                }
            }
        }
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
        let client = &session.client;
        // The operator hears of who tries; how often a cause is logged is bounded by the program's log.
        tracing::warn!(peer = %client.address, "connection {}: a wrong user or password", client.id);
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
        pair("mode", Answer::text("cluster")),
        pair("role", Answer::text("master")),
        pair("modules", Answer::Array(Vec::new())),
    ]))
}

pub(super) fn reset(session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    session.protocol = Protocol::V2;
    session.replies = Replies::All;
    session.client.speaks(Protocol::V2);
    session.authenticated = call.face.options.password.is_none();
    *session.client.says.lock() = Says::default();
    session.transaction = None;
    session.watches.clear();
    Ok(Answer::Simple("RESET"))
}

pub(super) fn quit(session: &mut Session, _call: &Call) -> Result<Answer, Failed> {
    session.closing = true;
    Ok(Answer::Ok)
}

/// A name that CLIENT LIST can show: printable, without spaces.
pub(super) fn name_of(word: &Bytes) -> Result<String, Failed> {
    const WRONG: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
    printable(word).ok_or_else(|| WRONG.into())
}

pub(super) fn printable(word: &[u8]) -> Option<String> {
    /// What a client says about itself stays in memory as long as it is connected.
    const SAID_BYTES_MAX: usize = 1024;
    let fits = word.len() <= SAID_BYTES_MAX && word.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if fits { String::from_utf8(word.to_vec()).ok() } else { None }
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
