//! Calls as the verbs get them, for this crate's unit tests.

use std::sync::Arc;

use futures_util::StreamExt;
use shoal_api::OPERATIONS_MESSAGE_BYTES_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{Store, block_on};
use shoal_frontend::Security;
use shoal_http::{Flow, MemoryPermit};
use tokio::sync::watch;

use super::frames::Frames;
use crate::auth::{Authenticated, Caller, Gate};
use crate::call::stream_messages::Messages;
use crate::failure::Failure;
use crate::operations::operation_stream;
use crate::timing::StreamTimer;

/// `request`, admitted without credentials.
pub(crate) fn admitted<T>(store: &Store, request: T) -> Authenticated<T> {
    let caller = Caller { address: "::1".parse().unwrap(), certificate: None, authorization: None };
    Gate::new(store.clone(), false, Security::default()).admit(caller, request).unwrap()
}

/// The permit of a request on a connection with `bytes_max`.
pub(crate) fn permit(bytes_max: usize) -> Arc<MemoryPermit> {
    Flow::new(bytes_max, bytes_max).connection().permit()
}

/// The answers to a stream of operations.
pub(crate) fn exchanged(store: &Store, frames: Frames) -> Vec<Result<Box<Buffer>, Failure>> {
    let draining = watch::Sender::new(false);
    let answers = operation_stream::run(
        admitted(store, Messages::new(frames, OPERATIONS_MESSAGE_BYTES_MAX)),
        permit(1 << 20),
        draining.subscribe(),
        Box::pin(std::future::pending()),
        StreamTimer::new(Default::default(), ([127, 0, 0, 1], 1).into(), admitted(store, ()).principal()),
    );
    block_on(answers.collect())
}
