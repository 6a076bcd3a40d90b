//! The rights of callers: all requests are admitted here.
//!
//! The store is reached only through an [`Authenticated`] request, and only [`Gate::admit`] makes one. So a handler of any frontend that
//! was not admitted has no access to the store: leaving the check out does not compile.
//!
//! If credentials are in force, a caller shows one: a token, or a certificate that TLS has verified. An unknown token is refused, even with
//! other credentials beside it. Without credentials in force, callers on this machine are let in, others only if the operator allows it.
//!
//! An admitted request has the grants of its credential. It gives the store only to a method, for a bucket and its keys
//! ([`Authenticated::to`] and the others), and a method has its actions in `methods.rs`. So a handler cannot omit that check either.

mod methods;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use shoal_api::{AwakeSleep, v1};
use shoal_base::{Clock, SystemClock};
use shoal_engine::{Lookup, ObjectKey, RequestId, ShortObject, Store, TryGet, Waiting};
use shoal_frontend::Security;
use shoal_frontend::access::{self, ALL_KEYS, Action, Actions, Known, NoKey, Principal, PrincipalId};

pub(crate) use self::methods::Guarded;
use self::methods::actions_of;

/// A stream looks at the end of its caller's key this often: the wall clock may be set.
const EXPIRY_CHECK_MAX: Duration = Duration::from_secs(60);

/// The sender of a request, as it presents itself, unverified.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The address that the request came from.
    pub address: IpAddr,
    /// The name in the certificate that the caller showed, and TLS verified.
    pub certificate: Option<&'a Arc<str>>,
    /// The value of the header `authorization:` of the request.
    pub authorization: Option<&'a [u8]>,
}

/// The caller may not do this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It calls from another machine.
    #[error("callers from {0} are refused: the server was not started with --insecure")]
    Address(IpAddr),
    /// It showed no credentials.
    #[error("the call has no credentials: the server requires {}", ways(*.token, *.certificate))]
    Missing {
        /// A token or key would do.
        token: bool,
        /// A client certificate would do.
        certificate: bool,
    },
    /// It showed unknown credentials.
    #[error("the token or key of the call is unknown")]
    Unknown,
    /// It showed a key whose time is over.
    #[error("the key of the call has expired")]
    Expired,
    /// It showed a certificate, and there are keys, none of which names it.
    #[error("no key names the certificate of the call: give a key `certificate = \"NAME\"`, or send one")]
    Unnamed,
    /// The grants changed since the start of the call.
    #[error("the token or key of the call has other rights now")]
    OtherRights,
}

impl From<NoKey> for Denied {
    fn from(reason: NoKey) -> Self {
        match reason {
            NoKey::Unknown => Self::Unknown,
            NoKey::Expired => Self::Expired,
            NoKey::Unnamed => Self::Unnamed,
        }
    }
}

/// The credentials that a caller may show: only the kinds that this server checks.
fn ways(token: bool, certificate: bool) -> &'static str {
    match (token, certificate) {
        (true, true) => "a token or key (authorization: Bearer ...) or a client certificate",
        (_, false) => "a token or key (authorization: Bearer ...)",
        (false, true) => "a client certificate",
    }
}

/// The access to the store.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    insecure: bool,
    security: Security,
}

impl Gate {
    /// A gate before `store`. With `insecure`, callers from other machines are let in too if `security` has no credentials to ask for.
    #[must_use]
    pub fn new(store: Store, insecure: bool, security: Security) -> Self {
        let shared = Shared { store, insecure, security };
        Self { shared: Arc::new(shared) }
    }

    /// Admits `request`.
    ///
    /// # Errors
    /// [`Denied`] if `caller` may not come in.
    pub fn admit<T>(&self, caller: Caller<'_>, request: T) -> Result<Authenticated<T>, Denied> {
        let Known { principal, .. } = self.shared.identify(caller)?;
        Ok(Authenticated { shared: Arc::clone(&self.shared), principal, request_id: None, request })
    }

    /// Runs `work`; the writes that it queues reach the store's committer at once ([`Store::gather`]).
    pub(crate) fn gather<T>(&self, work: impl FnOnce() -> T) -> T {
        self.shared.store.gather(work)
    }

    /// The same for a thread that may serve one client ([`Store::turn`]).
    pub(crate) fn turn(&self, work: impl FnOnce() -> Waiting) {
        self.shared.store.turn(work);
    }
}

/// The credential that the caller of a stream showed: it is checked until the stream is over.
pub(crate) struct Shown {
    pub(crate) gate: Gate,
    /// The caller at the start of the stream.
    pub(crate) principal: Principal,
    pub(crate) address: IpAddr,
    pub(crate) certificate: Option<Arc<str>>,
    pub(crate) authorization: Option<http::HeaderValue>,
}

/// Resolves when a caller may not come in any more, with the reason.
pub(crate) type Revoked = Pin<Box<dyn Future<Output = Denied> + Send>>;

impl Shown {
    /// Checks again whenever other credentials come into force, and at the end of the key.
    pub(crate) fn revoked(self) -> Revoked {
        let mut changes = self.gate.shared.security.changes();
        Box::pin(async move {
            loop {
                let until_s = match self.check() {
                    Ok(until_s) => until_s,
                    Err(denied) => return denied,
                };
                let changed = tokio::select! {
                    changed = changes.changed() => changed,
                    () = sleep_until(until_s) => Ok(()),
                };
                if changed.is_err() {
                    // No sender is left that could change them.
                    std::future::pending::<()>().await;
                }
            }
        })
    }

    /// The second from which the credential is not accepted.
    ///
    /// # Errors
    /// [`Denied`] if it is not accepted any more, or has other grants.
    fn check(&self) -> Result<Option<u64>, Denied> {
        let known = self.gate.shared.identify(Caller {
            address: self.address,
            certificate: self.certificate.as_ref(),
            authorization: self.authorization.as_ref().map(http::HeaderValue::as_bytes),
        })?;
        if known.principal.has_grants_of(&self.principal) {
            Ok(known.until_s)
        } else {
            Err(Denied::OtherRights)
        }
    }
}

/// The second of the Unix epoch.
fn now_s() -> u64 {
    SystemClock::default().wall_ns() / 1_000_000_000
}

/// Completes at this second of the Unix epoch, or earlier; never without one.
async fn sleep_until(until_s: Option<u64>) {
    let Some(until_s) = until_s else { return std::future::pending().await };
    let left = Duration::from_secs(until_s.saturating_sub(now_s()));
    AwakeSleep::new(left.min(EXPIRY_CHECK_MAX)).await;
}

impl Shared {
    fn identify(&self, caller: Caller<'_>) -> Result<Known, Denied> {
        self.security.with(|credentials| {
            if !credentials.asks() {
                let is_let_in = self.insecure || caller.address.to_canonical().is_loopback();
                return if is_let_in {
                    Ok(Principal::unrestricted(PrincipalId::Local).into())
                } else {
                    Err(Denied::Address(caller.address))
                };
            }
            // If no tokens and keys are known, only the certificate counts.
            if let Some(authorization) = caller.authorization.filter(|_| credentials.asks_bearer()) {
                let shown = bearer(authorization).ok_or(Denied::Unknown)?;
                return Ok(credentials.find_bearer(shown, now_s)?);
            }
            let missing = || Denied::Missing {
                token: credentials.asks_bearer(),
                certificate: credentials.asks_certificates(),
            };
            let certificate = caller.certificate.ok_or_else(missing)?;
            Ok(credentials.find_certificate(certificate, now_s)?)
        })
    }
}

/// The token of `Bearer TOKEN`.
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A request whose caller was admitted.
pub struct Authenticated<T> {
    shared: Arc<Shared>,
    principal: Principal,
    request_id: Option<RequestId>,
    request: T,
}

impl<T> Authenticated<T> {
    /// The party for which the request is executed.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The request, and the admission without it.
    #[must_use]
    pub fn take(self) -> (T, Authenticated<()>) {
        let Self { shared, principal, request_id, request } = self;
        (request, Authenticated { shared, principal, request_id, request: () })
    }

    /// The same admission for the decoded message of the request.
    #[must_use]
    pub fn with<U>(self, request: U) -> Authenticated<U> {
        let Self { shared, principal, request_id, .. } = self;
        Authenticated { shared, principal, request_id, request }
    }

    /// The same admission of a write that is executed only once.
    #[must_use]
    pub fn with_request_id(self, request_id: Option<RequestId>) -> Self {
        Self { request_id, ..self }
    }

    /// The request id of the write, if its sender set one.
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        self.request_id
    }

    /// The store, for the method `M` on a key of `bucket`, or on all keys with a prefix.
    ///
    /// # Errors
    /// [`access::NotAllowed`] if the caller has no grant for that.
    pub(crate) fn to<M: Guarded>(
        &self,
        bucket: &str,
        key_or_prefix: &[u8],
    ) -> Result<&Store, access::NotAllowed> {
        self.allowed(M::ACTIONS, bucket, key_or_prefix)
    }

    /// The same for several keys of `bucket`: all of them, or none. Without keys, the caller needs a grant for the whole bucket.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub(crate) fn to_each<'k, M: Guarded>(
        &self,
        bucket: &str,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<&Store, access::NotAllowed> {
        let of_bucket = self.allowed(M::ACTIONS, bucket, ALL_KEYS);
        let mut keys = keys.into_iter().peekable();
        if of_bucket.is_ok() || keys.peek().is_none() {
            return of_bucket;
        }
        keys.try_for_each(|key| self.allowed(M::ACTIONS, bucket, key).map(drop))?;
        Ok(&self.shared.store)
    }

    /// The same for an operation of a stream.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub(crate) fn to_operate(
        &self,
        operation: v1::operation::Action,
        key: &ObjectKey,
    ) -> Result<&Store, access::NotAllowed> {
        self.allowed(actions_of(operation), key.bucket(), key.key())
    }

    /// The store, for the method `M`, which is about all of it.
    ///
    /// # Errors
    /// As [`Self::to`].
    pub(crate) fn to_whole_store<M: Guarded>(&self) -> Result<&Store, access::NotAllowed> {
        self.principal.check_whole_store(M::ACTIONS)?;
        Ok(&self.shared.store)
    }

    fn allowed(
        &self,
        actions: Actions,
        bucket: &str,
        key_or_prefix: &[u8],
    ) -> Result<&Store, access::NotAllowed> {
        self.principal.check(actions, bucket, key_or_prefix)?;
        Ok(&self.shared.store)
    }

    /// Runs `work`; the writes that it queues reach the store's committer at once ([`Store::gather`]).
    pub(crate) fn gather<R>(&self, work: impl FnOnce() -> R) -> R {
        self.shared.store.gather(work)
    }

    /// As [`Store::try_get`]. An object that the caller may not read is not searched for.
    #[inline]
    pub(crate) fn try_get<R>(
        &self,
        key: &ObjectKey,
        show: impl FnOnce(Option<&ShortObject<'_>>) -> R,
    ) -> TryGet<R> {
        const READ: Actions = Actions::of(&[Action::Read]);
        if self.allowed(READ, key.bucket(), key.key()).is_err() {
            return TryGet::MustWait(Lookup::default());
        }
        self.shared.store.try_get(key, show)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_frontend::{Credentials, Tokens};

    const TOKEN: &str = "0123456789abcdef";

    fn gate(insecure: bool) -> Gate {
        Gate::new(crate::testing::store(), insecure, Security::default())
    }

    fn caller(address: &str) -> Caller<'static> {
        Caller { address: address.parse().unwrap(), certificate: None, authorization: None }
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(gate(false).admit(caller(address), ()).is_ok(), local, "{address}");
            assert!(gate(true).admit(caller(address), ()).is_ok(), "{address}");
        }
    }

    /// With tokens configured, no caller is let in without one, from this machine or with --insecure.
    #[test]
    fn client_with_token_is_admitted() {
        let text = format!("{TOKEN}-old\n{TOKEN}-new\n");
        let credentials = Credentials::new(None, Tokens::parse(text.as_bytes()).unwrap()).unwrap();
        let security = Security::default();
        let gate = Gate::new(crate::testing::store(), true, security.clone());
        let admit = |authorization: Option<&str>, certificate: Option<&Arc<str>>| {
            let authorization = authorization.map(str::as_bytes);
            let admitted = gate.admit(Caller { authorization, certificate, ..caller("127.0.0.1") }, ());
            admitted.map(|admitted| admitted.principal().identity().clone())
        };
        assert_eq!(admit(Some("Bearer x"), None), Ok(PrincipalId::Local), "nobody asks yet");
        security.replace(credentials);
        let name: Arc<str> = "a.example".into();
        // Only the configured credentials are named.
        let missing = admit(None, None).unwrap_err();
        assert_eq!(missing, Denied::Missing { token: true, certificate: false });
        assert!(!missing.to_string().contains("certificate"), "{missing}");
        let both = Denied::Missing { token: true, certificate: true }.to_string();
        let certificate = Denied::Missing { token: false, certificate: true }.to_string();
        assert!(both.contains("token") && both.contains("certificate"), "{both}");
        assert!(!certificate.contains("token") && certificate.contains("certificate"), "{certificate}");
        assert_eq!(admit(None, Some(&name)), Ok(PrincipalId::Certificate(Arc::clone(&name))));
        for (authorization, expected) in [
            (format!("Bearer {TOKEN}-old"), Ok(PrincipalId::Token(1))),
            (format!("bearer  {TOKEN}-new"), Ok(PrincipalId::Token(2))),
            (format!("Bearer {TOKEN}"), Err(Denied::Unknown)),
            (format!("Basic {TOKEN}-new"), Err(Denied::Unknown)),
            (format!("{TOKEN}-new"), Err(Denied::Unknown)),
            (String::new(), Err(Denied::Unknown)),
        ] {
            assert_eq!(admit(Some(&authorization), None), expected, "{authorization}");
            // A wrong token is refused, certificate or not.
            assert_eq!(admit(Some(&authorization), Some(&name)), expected, "{authorization}");
        }
    }

    #[test]
    fn admission_follows_transformed_request() {
        let request = gate(false).admit(caller("::1"), 5).unwrap();
        let (message, admission) = request.take();
        assert_eq!((message, admission.principal().identity()), (5, &PrincipalId::Local));
        assert_eq!(admission.with("decoded").take().0, "decoded");
    }
}
