//! Calls as the verbs get them, for this crate's unit tests.

use std::sync::Arc;

use shoal_engine::Store;
use shoal_frontend::Security;

use crate::auth::{Authenticated, Caller, Gate};
use crate::flow::{Flow, MemoryPermit};

/// `request`, admitted without credentials.
pub(crate) fn admitted<T>(store: &Store, request: T) -> Authenticated<T> {
    let caller = Caller { address: "::1".parse().unwrap(), certificate: None, authorization: None };
    Gate::new(store.clone(), false, Security::default()).admit(caller, request).unwrap()
}

/// The permit of a request on a connection with `bytes_max`.
pub(crate) fn permit(bytes_max: usize) -> Arc<MemoryPermit> {
    Flow::new(bytes_max, bytes_max).connection().permit()
}
