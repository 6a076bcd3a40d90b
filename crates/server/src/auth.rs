//! Who may do what: the one place where a request is admitted.
//!
//! The store is reached only through an [`Authenticated`] request, and only [`Gate::admit`] makes one. So a handler, on
//! whatever face, that was not admitted has nothing to work with: leaving the check out does not compile.
//!
//! Today's policy knows no secrets: callers on this machine are let in, others only where the operator said so. Tokens
//! and certificates will be further fields of [`Caller`], looked at here.

use std::net::IpAddr;
use std::sync::Arc;

use shoal_engine::{Identity, Store};

/// What is known about whoever sent a request, before it is believed.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The address that the request came from.
    pub address: IpAddr,
}

/// Whoever a request is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Principal {
    /// Anybody who is let in without proof.
    Local,
}

/// The caller may not do this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("callers from {0} are not let in: the server was not started with --insecure")]
pub struct Denied(IpAddr);

/// The way to the store.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    insecure: bool,
}

impl Gate {
    /// A gate before `store`. With `insecure`, callers from other machines are let in too.
    #[must_use]
    pub fn new(store: Store, insecure: bool) -> Self {
        Self { shared: Arc::new(Shared { store, insecure }) }
    }

    /// Admits `request`.
    ///
    /// # Errors
    /// [`Denied`] where `caller` may not come in.
    pub fn admit<T>(&self, caller: Caller, request: T) -> Result<Authenticated<T>, Denied> {
        if !self.shared.insecure && !caller.address.to_canonical().is_loopback() {
            return Err(Denied(caller.address));
        }
        let shared = Arc::clone(&self.shared);
        Ok(Authenticated { shared, principal: Principal::Local, identity: None, request })
    }
}

/// A request whose caller was admitted.
pub struct Authenticated<T> {
    shared: Arc<Shared>,
    principal: Principal,
    identity: Option<Identity>,
    request: T,
}

impl<T> Authenticated<T> {
    /// Whoever the request is done for.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.principal
    }

    /// The request, and the admission without it.
    #[must_use]
    pub fn take(self) -> (T, Authenticated<()>) {
        let Self { shared, principal, identity, request } = self;
        (request, Authenticated { shared, principal, identity, request: () })
    }

    /// The same admission for what the request was turned into (its message, decoded).
    #[must_use]
    pub fn with<U>(self, request: U) -> Authenticated<U> {
        Authenticated { shared: self.shared, principal: self.principal, identity: self.identity, request }
    }

    /// The same admission of a write that is to be done once.
    #[must_use]
    pub fn identified(self, identity: Option<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Who the write is, where its sender said so.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(insecure: bool) -> Gate {
        Gate::new(crate::testing::store(), insecure)
    }

    #[test]
    fn only_this_machine_is_let_in() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
        ] {
            let caller = Caller { address: address.parse().unwrap() };
            assert_eq!(gate(false).admit(caller, ()).is_ok(), local, "{address}");
            assert!(gate(true).admit(caller, ()).is_ok(), "{address}");
        }
    }

    #[test]
    fn the_admission_stays_with_what_the_request_is_turned_into() {
        let request = gate(false).admit(Caller { address: "::1".parse().unwrap() }, 5).unwrap();
        let (message, admission) = request.take();
        assert_eq!((message, admission.principal()), (5, Principal::Local));
        assert_eq!(admission.with("decoded").take().0, "decoded");
    }
}
