//! The verbs over the Redis protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::finder::Finder;
use super::session::{Patience, Session};
use super::wire::{Reply, put_command};
use crate::error::{Error, Result};
use crate::identity::{Identities, Identity};
use crate::object::{Objects, RejectRules};
use crate::retry::{Failed, Outcome, Retry};

/// Commands of one batch to one session.
const BATCH_MAX: usize = 128;

/// How to reach a cluster over the Redis protocol. A string ("host:port") is one with defaults.
#[derive(Clone, Debug)]
pub struct RespOptions {
    /// "host:port" of one of its servers; the others are learnt from it.
    pub server: String,
    /// The password, where the server wants one.
    pub password: Option<String>,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
    /// The longest wait for an answer, from the call on. A connection on which one did not come in time is given up.
    pub answer_timeout: Duration,
    /// How often a command is sent at most: reads, writes with an identity, and writes that were not applied.
    pub attempts: u32,
    /// Gives each write an identity (`SHOAL.SESSION`), by which the server does it once, as
    /// [`ConnectOptions::once`](crate::ConnectOptions::once).
    pub once: bool,
}

impl RespOptions {
    /// The defaults for `server`.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            password: None,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(60),
            attempts: 4,
            once: false,
        }
    }
}

/// A client of a cluster's low-latency face; all keys are of the bucket that the servers show there. Cheap to clone; clones share
/// their connections. Needs a running tokio runtime with time and I/O enabled.
#[derive(Clone)]
pub struct RespClient {
    shared: Arc<Shared>,
}

struct Shared {
    finder: Finder,
    retry: Retry,
    identities: Option<Identities>,
}

impl std::fmt::Debug for RespClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RespClient").finish_non_exhaustive()
    }
}

impl RespClient {
    /// Connects, and learns which server has which keys.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where no server answers, [`Error::Denied`] for the password, [`Error::Invalid`].
    pub async fn connect(options: RespOptions) -> Result<Self> {
        if options.attempts == 0 {
            return Err(Error::Invalid("attempts: at least 1".into()));
        }
        let patience = Patience {
            connect: options.connect_timeout,
            answer: options.answer_timeout,
            password: options.password.map(Into::into),
        };
        let finder = Finder::connect(options.server.into(), patience).await.map_err(|failed| failed.error)?;
        let (retry, identities) = (Retry::new(options.attempts), options.once.then(Identities::default));
        Ok(Self { shared: Arc::new(Shared { finder, retry, identities }) })
    }

    /// Sends one command to the server of `key`.
    async fn ask(&self, key: &[u8], words: &[&[u8]]) -> Result<Reply, Failed> {
        let mut command = Vec::new();
        put_command(&mut command, words);
        let session = self.shared.finder.session(key);
        let reply = session.call(command, 1).await?.pop();
        let reply = reply.ok_or_else(|| session.failed("no reply", Outcome::Open))?;
        self.understood(&session, reply).await
    }

    /// The reply, where it is no error. One that says that the key is elsewhere, or a server that is gone, has the map asked for
    /// again.
    async fn understood(&self, session: &Session, reply: Reply) -> Result<Reply, Failed> {
        let Reply::Error(text) = reply else { return Ok(reply) };
        let code = text.split(' ').next().unwrap_or_default();
        let not_applied = |error| Err(Failed { error, outcome: Outcome::NotApplied });
        match code {
            "MOVED" => {
                // Where nobody answers the old map stays; the command itself was not applied, whatever became of the question.
                let _ = self.shared.finder.refresh().await;
                not_applied(Error::Busy(text))
            }
            "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => not_applied(Error::Busy(text)),
            "LOADING" => Err(session.failed(&text, Outcome::NotApplied)),
            "OOM" => Err(Failed::refused(Error::Full(text))),
            "READONLY" => Err(Failed::refused(Error::ReadOnly(text))),
            "UNKNOWN" => Err(Failed { error: Error::Unknown(text), outcome: Outcome::Open }),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Err(Failed::refused(Error::Denied(text))),
            _ => Err(Failed::refused(Error::Invalid(text))),
        }
    }

    /// After a failed attempt whose server is perhaps gone: another one may have its keys by now.
    async fn learn<T>(&self, result: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(Failed { error: Error::Unavailable { .. }, .. }) = &result {
            // Where nobody answers the old map stays.
            let _ = self.shared.finder.refresh().await;
        }
        result
    }

    async fn read(&self, key: &[u8], words: &[&[u8]]) -> Result<Reply> {
        self.shared.retry.read(|| async { self.learn(self.ask(key, words).await).await }).await
    }

    /// Sends a write, with an identity where writes have one.
    async fn write(&self, key: &[u8], words: &[&[u8]]) -> Result<Reply> {
        let numbered = self.shared.identities.as_ref().and_then(Identities::take);
        let Some(numbered) = numbered else {
            return self.shared.retry.write(|| async { self.learn(self.ask(key, words).await).await }).await;
        };
        let Identity { session, sequence } = numbered.identity;
        let (session, sequence) = (session.to_string(), sequence.to_string());
        let mut once: Vec<&[u8]> = vec![b"SHOAL.SESSION", session.as_bytes(), sequence.as_bytes()];
        once.extend_from_slice(words);
        let once = &once;
        self.shared.retry.once(|| async { self.learn(self.ask(key, once).await).await }).await
    }

    /// One command for each of several keys: those of one server in batches, the servers at the same time. What failed but may be
    /// sent again is sent again by itself.
    async fn of_each(
        &self,
        keys: &[&[u8]],
        encode: impl Fn(usize, &mut Vec<u8>),
    ) -> Vec<Result<Reply, Failed>> {
        let groups = self.shared.finder.group(keys.iter().copied().enumerate());
        let chunks = groups
            .iter()
            .flat_map(|(session, places)| places.chunks(BATCH_MAX).map(move |places| (session, places)));
        let batches: Vec<_> = chunks
            .map(|(session, places)| {
                let mut bytes = Vec::new();
                places.iter().for_each(|&place| encode(place, &mut bytes));
                async move { (session, places, session.call(bytes, places.len()).await) }
            })
            .collect();
        let mut results: Vec<Option<Result<Reply, Failed>>> = keys.iter().map(|_| None).collect();
        for (session, places, replies) in join_all(batches).await {
            match replies {
                Ok(replies) => {
                    for (&place, reply) in places.iter().zip(replies) {
                        let result = self.understood(session, reply).await;
                        if let Some(slot) = results.get_mut(place) {
                            *slot = Some(result);
                        }
                    }
                }
                Err(failed) => {
                    for &place in places {
                        if let Some(slot) = results.get_mut(place) {
                            *slot = Some(Err(failed.clone()));
                        }
                    }
                }
            }
        }
        let missing = || Failed::refused(Error::Protocol("a reply is missing".into()));
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(missing()))).collect()
    }
}

impl Objects for RespClient {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        value(self.read(key, &[b"GET", key]).await?)
    }

    async fn get_versioned(&self, key: &[u8]) -> Result<Option<(u64, Bytes)>> {
        let reply = self.read(key, &[b"SHOAL.GETV", key]).await?;
        match reply {
            Reply::Null => Ok(None),
            Reply::Array(parts) => match &parts[..] {
                [Reply::Integer(version), Reply::Bulk(value)] => Ok(Some((*version as u64, value.clone()))),
                _ => Err(other_reply()),
            },
            _ => Err(other_reply()),
        }
    }

    async fn put(&self, key: &[u8], value: Bytes, rules: RejectRules) -> Result<()> {
        let text;
        let words: &[&[u8]] = match rules {
            // No object has this version; to SHOAL.CAS it would say that there must be none.
            RejectRules { if_version_not: Some(0), .. } => {
                return Err(Error::ConditionFailed { rule: None, current: None });
            }
            RejectRules {
                if_exists: false,
                if_missing: false,
                if_version_not: None,
                if_version_at_most: None,
            } => &[b"SET", key, &value],
            RejectRules {
                if_exists: true,
                if_missing: false,
                if_version_not: None,
                if_version_at_most: None,
            } => &[b"SET", key, &value, b"NX"],
            RejectRules {
                if_exists: false,
                if_missing: true,
                if_version_not: None,
                if_version_at_most: None,
            } => &[b"SET", key, &value, b"XX"],
            RejectRules {
                if_exists: false,
                if_missing: _,
                if_version_not: Some(version),
                if_version_at_most: None,
            } => {
                text = version.to_string();
                &[b"SHOAL.CAS", key, text.as_bytes(), &value]
            }
            _ => return Err(Error::Invalid("the Redis protocol has no word for these conditions".into())),
        };
        match self.write(key, words).await? {
            Reply::Simple(_) | Reply::Integer(_) => Ok(()),
            // What the object's version is now is not in the reply.
            Reply::Null => Err(Error::ConditionFailed { rule: None, current: None }),
            _ => Err(other_reply()),
        }
    }

    async fn delete(&self, key: &[u8]) -> Result<()> {
        match self.write(key, &[b"DEL", key]).await? {
            Reply::Integer(_) => Ok(()),
            _ => Err(other_reply()),
        }
    }

    async fn get_many(&self, keys: &[Bytes]) -> Vec<Result<Option<Bytes>>> {
        let words: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let encode = |place: usize, out: &mut Vec<u8>| {
            if let Some(key) = words.get(place) {
                put_command(out, &[b"GET", key]);
            }
        };
        let mut results = Vec::with_capacity(keys.len());
        for (key, result) in keys.iter().zip(self.of_each(&words, encode).await) {
            results.push(match result {
                Ok(reply) => value(reply),
                Err(Failed { outcome: Outcome::Refused, error }) => Err(error),
                Err(_) => self.get(key).await,
            });
        }
        results
    }

    async fn put_many(&self, items: &[(Bytes, Bytes)]) -> Vec<Result<()>> {
        if self.shared.identities.is_some() {
            let puts = items.iter().map(|(key, value)| self.put(key, value.clone(), RejectRules::default()));
            return join_all(puts).await;
        }
        let words: Vec<&[u8]> = items.iter().map(|(key, _)| &key[..]).collect();
        let encode = |place: usize, out: &mut Vec<u8>| {
            if let Some((key, value)) = items.get(place) {
                put_command(out, &[b"SET", key, value]);
            }
        };
        let mut results = Vec::with_capacity(items.len());
        for ((key, value), result) in items.iter().zip(self.of_each(&words, encode).await) {
            results.push(match result {
                Ok(Reply::Simple(_)) => Ok(()),
                Ok(_) => Err(other_reply()),
                Err(Failed { outcome: Outcome::NotApplied, .. }) => {
                    self.put(key, value.clone(), RejectRules::default()).await
                }
                Err(failed) => Err(failed.of_write()),
            });
        }
        results
    }

    async fn put_together(&self, items: &[(Bytes, Bytes)]) -> Result<()> {
        let Some((first, _)) = items.first() else { return Ok(()) };
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(items.iter().flat_map(|(key, value)| [&key[..], &value[..]]));
        match self.write(first, &words).await? {
            Reply::Simple(_) => Ok(()),
            _ => Err(other_reply()),
        }
    }
}

fn value(reply: Reply) -> Result<Option<Bytes>> {
    match reply {
        Reply::Bulk(value) => Ok(Some(value)),
        Reply::Null => Ok(None),
        _ => Err(other_reply()),
    }
}

fn other_reply() -> Error {
    Error::Protocol("a command has a reply of another kind".into())
}
