//! Calls, from the frames of HTTP/2 to messages and back, between `dispatch` and an operation: [`message`] answers calls of one
//! message, [`streams`] those of many.
//!
//! An operation gets an [`Authenticated`] message, never less: there is no other way to register one.

pub(crate) mod body;
pub(crate) mod decode;
mod intake;
pub(crate) mod message;
pub(crate) mod messages;
mod min_rate;
pub(crate) mod parted;
pub(crate) mod receive;
pub(crate) mod streams;

use std::sync::Arc;

use self::body::RequestBody;
use crate::answer::body::ResponseBody;
use crate::auth::Authenticated;
use crate::failure::Failure;
use crate::flow::{ConnectionFlow, MemoryPermit};

/// A request that was admitted, with its memory.
pub(crate) struct Call {
    pub(crate) request: Authenticated<http::Request<RequestBody>>,
    pub(crate) flow: Arc<ConnectionFlow>,
    pub(crate) permit: Arc<MemoryPermit>,
}

pub(crate) type HttpResponse = http::Response<ResponseBody>;

/// Answers without reading the request's body.
pub(crate) fn refuse(failure: Failure) -> HttpResponse {
    failure.into_status().into_http()
}
