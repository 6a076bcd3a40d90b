//! Calls as the verbs get them, for this crate's unit tests.

use std::sync::Arc;

use shoal_engine::Store;

use crate::auth::{Authenticated, Caller, Gate};
use crate::flow::{Flow, Lease};
use crate::security::Security;

/// `request`, let in as anybody's.
pub(crate) fn admitted<T>(store: &Store, request: T) -> Authenticated<T> {
    let caller = Caller { address: "::1".parse().unwrap(), certificate: None, authorization: None };
    Gate::new(store.clone(), false, Security::default()).admit(caller, request).unwrap()
}

/// What a request may hold on a connection with `bytes_max`.
pub(crate) fn lease(bytes_max: usize) -> Arc<Lease> {
    Flow::new(bytes_max, bytes_max).connection().lease()
}
