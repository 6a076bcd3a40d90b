//! The rights of callers: all requests are admitted here.
//!
//! The store is reached only through an [`Authenticated`] request, and only [`Gate::admit`] makes one. So a handler of any frontend that
//! was not admitted has no access to the store: leaving the check out does not compile.
//!
//! If credentials are in force, a caller shows one: a token, or a certificate that TLS has verified. An unknown token is refused, even with
//! other credentials beside it. Without credentials in force, callers on this machine are let in, others only if the operator allows it.
//!
//! An admitted request has the rights of its token; without a token, all rights. It grants the store only for a named purpose
//! ([`Authenticated::to_read`] and the others), so a handler cannot omit the check of its rights either.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use shoal_engine::{Lookup, ObjectKey, RequestId, ShortObject, Store, TryGet, Waiting};
use shoal_frontend::{NotAllowed, Rights, Security};

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

/// The party for which a request is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Principal {
    /// A caller that is let in without credentials.
    Local,
    /// The holder of the token of this number, from 1.
    Token(usize),
    /// The name in the certificate.
    Certificate(Arc<str>),
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
        /// A token would do.
        token: bool,
        /// A client certificate would do.
        certificate: bool,
    },
    /// It showed unknown credentials.
    #[error("the token of the call is unknown")]
    Unknown,
    /// The token's rights changed since the start of the call.
    #[error("the token of the call has other rights now")]
    OtherRights,
}

/// The credentials that a caller may show: only the kinds that this server checks.
fn ways(token: bool, certificate: bool) -> &'static str {
    match (token, certificate) {
        (true, true) => "a token (authorization: Bearer ...) or a client certificate",
        (_, false) => "a token (authorization: Bearer ...)",
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
        let Identified { principal, rights } = self.shared.identify(caller)?;
        Ok(Authenticated { shared: Arc::clone(&self.shared), principal, rights, request_id: None, request })
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

/// A caller that is let in, and its rights.
struct Identified {
    principal: Principal,
    /// None: everything.
    rights: Option<Arc<Rights>>,
}

impl From<Principal> for Identified {
    fn from(principal: Principal) -> Self {
        Self { principal, rights: None }
    }
}

/// The credential that the caller of a stream showed: it is checked until the stream is over.
pub(crate) struct Shown {
    pub(crate) gate: Gate,
    /// The rights at the start of the stream.
    pub(crate) rights: Option<Arc<Rights>>,
    pub(crate) address: IpAddr,
    pub(crate) certificate: Option<Arc<str>>,
    pub(crate) authorization: Option<http::HeaderValue>,
}

/// Resolves when a caller may not come in any more, with the reason.
pub(crate) type Revoked = Pin<Box<dyn Future<Output = Denied> + Send>>;

impl Shown {
    /// Checks again whenever other credentials come into force.
    pub(crate) fn revoked(self) -> Revoked {
        let shared = self.gate.shared;
        let mut changes = shared.security.changes();
        Box::pin(async move {
            loop {
                let caller = Caller {
                    address: self.address,
                    certificate: self.certificate.as_ref(),
                    authorization: self.authorization.as_ref().map(http::HeaderValue::as_bytes),
                };
                match shared.identify(caller) {
                    Ok(identified) if identified.rights == self.rights => {}
                    Ok(_) => return Denied::OtherRights,
                    Err(denied) => return denied,
                }
                if changes.changed().await.is_err() {
                    // No sender is left that could change them.
                    std::future::pending::<()>().await;
                }
            }
        })
    }
}

impl Shared {
    fn identify(&self, caller: Caller<'_>) -> Result<Identified, Denied> {
        self.security.with(|credentials| {
            if !credentials.asks() {
                let is_let_in = self.insecure || caller.address.to_canonical().is_loopback();
                return if is_let_in {
                    Ok(Principal::Local.into())
                } else {
                    Err(Denied::Address(caller.address))
                };
            }
            // If no tokens are known, only the certificate counts.
            if let Some(authorization) = caller.authorization.filter(|_| !credentials.tokens().is_empty()) {
                let found = bearer(authorization).and_then(|token| credentials.tokens().find(token));
                let (number, rights) = found.ok_or(Denied::Unknown)?;
                let rights = (!rights.is_everything()).then(|| Arc::clone(rights));
                return Ok(Identified { principal: Principal::Token(number), rights });
            }
            let certificate = caller.certificate.cloned().map(Principal::Certificate);
            certificate.map(Identified::from).ok_or_else(|| Denied::Missing {
                token: !credentials.tokens().is_empty(),
                certificate: credentials.asks_certificates(),
            })
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
    /// None: everything.
    rights: Option<Arc<Rights>>,
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
        let Self { shared, principal, rights, request_id, request } = self;
        (request, Authenticated { shared, principal, rights, request_id, request: () })
    }

    /// The same admission for the decoded message of the request.
    #[must_use]
    pub fn with<U>(self, request: U) -> Authenticated<U> {
        let Self { shared, principal, rights, request_id, .. } = self;
        Authenticated { shared, principal, rights, request_id, request }
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

    /// The rights of the caller; none: all.
    pub(crate) fn rights(&self) -> Option<&Arc<Rights>> {
        self.rights.as_ref()
    }

    /// The store, to read objects of `bucket`.
    ///
    /// # Errors
    /// [`NotAllowed`] if the caller may not.
    pub fn to_read(&self, bucket: &str) -> Result<&Store, NotAllowed> {
        self.allowed(|rights| rights.allow_read(bucket))
    }

    /// The store, to read and write objects of `bucket`.
    ///
    /// # Errors
    /// [`NotAllowed`] if the caller may not.
    pub fn to_write(&self, bucket: &str) -> Result<&Store, NotAllowed> {
        self.allowed(|rights| rights.allow_write(bucket))
    }

    /// The store, to read everything in it: all buckets, figures, its space.
    ///
    /// # Errors
    /// [`NotAllowed`] if the caller may not.
    pub fn to_read_all(&self) -> Result<&Store, NotAllowed> {
        self.allowed(Rights::allow_read_all)
    }

    /// The store, to change its operation.
    ///
    /// # Errors
    /// [`NotAllowed`] if the caller may not.
    pub fn to_administer(&self) -> Result<&Store, NotAllowed> {
        self.allowed(Rights::allow_administration)
    }

    fn allowed(&self, allow: impl FnOnce(&Rights) -> Result<(), NotAllowed>) -> Result<&Store, NotAllowed> {
        if let Some(rights) = &self.rights {
            allow(rights)?;
        }
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
        if self.rights.as_ref().is_some_and(|rights| rights.allow_read(key.bucket()).is_err()) {
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
            admitted.map(|admitted| admitted.principal().clone())
        };
        assert_eq!(admit(Some("Bearer x"), None), Ok(Principal::Local), "nobody asks yet");
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
        assert_eq!(admit(None, Some(&name)), Ok(Principal::Certificate(Arc::clone(&name))));
        for (authorization, expected) in [
            (format!("Bearer {TOKEN}-old"), Ok(Principal::Token(1))),
            (format!("bearer  {TOKEN}-new"), Ok(Principal::Token(2))),
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
        assert_eq!((message, admission.principal()), (5, &Principal::Local));
        assert_eq!(admission.with("decoded").take().0, "decoded");
    }
}
