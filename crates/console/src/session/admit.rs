//! Admits requests: by a session, by a certificate, or because the server asks for no credentials.

use std::sync::Arc;
use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, StatusCode};
use shoal_base::Clock;
use shoal_base::task::Boxed;
use shoal_frontend::access::{Known, Principal, PrincipalId};
use shoal_frontend::{Credentials, Security, is_same};
use shoal_http::Peer;
use tokio::sync::watch;

use super::store::{IDLE_MAX, Session};
use crate::answer::{ApiError, ApiResult};
use crate::state::ConsoleState;

/// A stream looks at the end of its session this often: the wall clock may be set.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// The header with the word of a session. Pages of other origins cannot read the word, and cannot set the header.
const CSRF: &str = "x-shoal-csrf";

/// The party of a request.
#[derive(Clone)]
pub(crate) struct Admitted {
    pub(crate) principal: Principal,
    /// The word that a request must carry.
    pub(super) csrf: Arc<str>,
    /// `None`: it came in without signing in.
    pub(super) session: Option<Arc<Session>>,
    /// The second from which its credential is not accepted.
    pub(super) until_s: Option<u64>,
    /// The name in the certificate that it showed.
    certificate: Option<Arc<str>>,
    /// It is on this machine, or the operator lets in other machines.
    is_near: bool,
}

/// The party that shows a credential, or none, to `credentials`; `None` if it is not let in.
fn known_by(
    credentials: &Credentials,
    shown: Option<&[u8]>,
    (certificate, is_near): (Option<&Arc<str>>, bool),
    now_s: u64,
) -> Option<Known> {
    if !credentials.asks() {
        return is_near.then(|| Principal::unrestricted(PrincipalId::Local).into());
    }
    match shown {
        Some(shown) => credentials.find_bearer(shown, || now_s).ok(),
        None => credentials.find_certificate(certificate?, || now_s).ok(),
    }
}

impl ConsoleState {
    /// The party of a request; `None` if it has to sign in.
    pub(crate) fn admit(&self, peer: &Peer, headers: &HeaderMap) -> Option<Admitted> {
        let now_ns = self.environment.clock.boot_ns();
        let session = cookies(headers, self.cookie()).find_map(|word| self.sessions.find(word, now_ns));
        self.admit_by(peer, session)
    }

    /// The party of a session, or of a request without one.
    pub(super) fn admit_by(&self, peer: &Peer, session: Option<Arc<Session>>) -> Option<Admitted> {
        let is_near = self.insecure || peer.address.ip().to_canonical().is_loopback();
        let certificate = peer.certificate.as_ref();
        let shown = session.as_ref().map(|session| &*session.shown);
        let by = (certificate, is_near);
        let known = self.security.with(|credentials| known_by(credentials, shown, by, self.now_s()));
        let Some(Known { principal, until_s }) = known else {
            if let Some(session) = session {
                self.sessions.end(&session);
            }
            return None;
        };
        if let Some(session) = &session {
            session.touch(self.environment.clock.boot_ns());
        }
        peer.set_authenticated();
        let csrf = session.as_ref().map_or(&self.sessions.csrf, |session| &session.csrf);
        Some(Admitted {
            principal,
            csrf: Arc::clone(csrf),
            session,
            until_s,
            certificate: certificate.cloned(),
            is_near,
        })
    }

    /// The name of the cookie. Over TLS browsers take this name from no other host, and only for all paths.
    pub(super) fn cookie(&self) -> &'static str {
        if self.security.is_encrypted() { "__Host-shoal_session" } else { "shoal_session" }
    }
}

impl Admitted {
    /// Checks that a request that changes something comes from a page of the console.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn check_word(&self, headers: &HeaderMap) -> ApiResult<()> {
        let given = headers.get(CSRF).map(|given| given.as_bytes()).unwrap_or_default();
        if is_same(self.csrf.as_bytes(), given) {
            return Ok(());
        }
        let problem =
            format!("the header {CSRF} is missing or is of an earlier session; load the page again");
        Err(ApiError::new(StatusCode::FORBIDDEN, problem))
    }

    /// Completes when the party may not come in any more, has other grants, or the server stops: for streams. It watches from now on.
    pub(crate) fn over(&self, state: &ConsoleState) -> Boxed<'static, ()> {
        let clock = Arc::clone(&state.environment.clock);
        let watched = Watched { of: self.clone(), security: state.security.clone(), clock };
        let (changes, drain) = (state.security.changes(), state.drain.clone());
        Box::pin(watched.over(changes, drain))
    }
}

/// A party, and the things that can end its stream.
struct Watched {
    of: Admitted,
    security: Security,
    clock: Arc<dyn Clock>,
}

impl Watched {
    async fn over(self, mut changes: watch::Receiver<()>, mut drain: watch::Receiver<bool>) {
        // Without a session no sender sets it.
        let never = watch::Sender::new(false);
        let mut ended = self.of.session.as_ref().map_or(&never, |session| &session.is_over).subscribe();
        while let Some(rest) = self.rest() {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                _ = drain.wait_for(|drain| *drain) => return,
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(rest.min(LOOK_MAX)) => {}
            }
        }
    }

    /// The time for which the party may stay if nothing changes; `None`: none.
    fn rest(&self) -> Option<Duration> {
        let now_s = self.clock.wall_ns() / 1_000_000_000;
        let session = self.of.session.as_ref();
        let shown = session.map(|session| &*session.shown);
        let by = (self.of.certificate.as_ref(), self.of.is_near);
        let known = self.security.with(|credentials| known_by(credentials, shown, by, now_s))?;
        if !known.principal.has_grants_of(&self.of.principal) {
            return None;
        }
        let of_credential = known.until_s.map(|until_s| Duration::from_secs(until_s.saturating_sub(now_s)));
        let of_session = session.map_or(IDLE_MAX, |session| session.rest(self.clock.boot_ns()));
        let rest = of_credential.map_or(of_session, |rest| rest.min(of_session));
        (!rest.is_zero()).then_some(rest)
    }
}

/// The values of the cookies of a name.
fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(found, _)| *found == name).map(|(_, value)| value)
}
