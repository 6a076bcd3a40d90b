//! The sessions of users that have signed in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Semaphore, watch};

use crate::answer::{ApiError, ApiResult};

/// The most sessions; the one that was not used for the longest time makes room for a further one.
const SESSIONS_MAX: usize = 256;

/// A session that was not used for this time is over.
pub(super) const IDLE_MAX: Duration = Duration::from_hours(12);

/// Sign-ins at a time. Further ones wait: guesses of secrets come at a bounded rate.
const SIGN_INS_AT_ONCE: usize = 4;

/// Bytes of the random words.
const WORD_BYTES: usize = 32;

/// A session.
pub(crate) struct Session {
    name: [u8; 32],
    /// `ID.SECRET` of a key, or a token.
    pub(super) shown: Box<[u8]>,
    /// The word that a request must carry besides the cookie.
    pub(super) csrf: Arc<str>,
    /// The time of the last request, on the monotonic clock.
    used_ns: AtomicU64,
    /// Becomes true at its end.
    pub(super) is_over: watch::Sender<bool>,
}

impl Session {
    pub(super) fn touch(&self, now_ns: u64) {
        self.used_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// The time for which it may still be idle.
    pub(super) fn rest(&self, now_ns: u64) -> Duration {
        let idle = Duration::from_nanos(now_ns.saturating_sub(self.used_ns.load(Ordering::Relaxed)));
        IDLE_MAX.saturating_sub(idle)
    }
}

/// The sessions. A user without one may have been let in without credentials, or by a certificate.
pub(crate) struct Sessions {
    /// By the hash of the word in the cookie: the time of a search does not depend on a secret.
    all: Mutex<HashMap<[u8; 32], Arc<Session>>>,
    /// The word that requests of users without a session must carry.
    pub(super) csrf: Arc<str>,
    pub(super) sign_ins: Arc<Semaphore>,
}

impl Sessions {
    pub(crate) fn new() -> ApiResult<Self> {
        let sign_ins = Arc::new(Semaphore::new(SIGN_INS_AT_ONCE));
        Ok(Self { all: Mutex::default(), csrf: random_word()?.into(), sign_ins })
    }

    /// A new session of a user that has shown a valid credential, and the word of its cookie.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(super) fn start(&self, shown: Box<[u8]>, now_ns: u64) -> ApiResult<(Arc<Session>, String)> {
        let word = random_word()?;
        let session = Arc::new(Session {
            name: name_of(&word),
            shown,
            csrf: random_word()?.into(),
            used_ns: now_ns.into(),
            is_over: watch::Sender::new(false),
        });
        let ended = self.add(&session);
        if let Some(ended) = ended {
            ended.is_over.send_replace(true);
        }
        Ok((session, word))
    }

    /// Adds a session. Returns the one that makes room for it.
    fn add(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        let (mut all, mut ended) = (self.all.lock(), None);
        if all.len() >= SESSIONS_MAX {
            let oldest = all.values().min_by_key(|session| session.used_ns.load(Ordering::Relaxed)).cloned();
            ended = oldest.and_then(|oldest| all.remove(&oldest.name));
        }
        all.insert(session.name, Arc::clone(session));
        ended
    }

    /// The session of a cookie's word, unless it was idle for too long.
    pub(super) fn find(&self, word: &str, now_ns: u64) -> Option<Arc<Session>> {
        let session = self.all.lock().get(&name_of(word)).cloned()?;
        if session.rest(now_ns).is_zero() {
            self.end(&session);
            return None;
        }
        Some(session)
    }

    /// Finishes a session, and its streams.
    pub(super) fn end(&self, session: &Session) {
        self.all.lock().remove(&session.name);
        session.is_over.send_replace(true);
    }
}

fn name_of(word: &str) -> [u8; 32] {
    let mut name = [0; 32];
    name.copy_from_slice(digest(&SHA256, word.as_bytes()).as_ref());
    name
}

/// 256 random bits, in hex.
fn random_word() -> ApiResult<String> {
    let mut bytes = [0; WORD_BYTES];
    let failed = |_| {
        ApiError::new(
            http::StatusCode::SERVICE_UNAVAILABLE,
            "the system has no random numbers; try again later",
        )
    };
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(shoal_s3::text::hex(&bytes))
}
