//! Calls, between `dispatch` and an operation: from the frames of HTTP/2 to a message, and from its answer to a response.
//!
//! [`unary`] runs calls of one message, [`streams`] those of many. [`body`] is the body of a request, counted and decoded; [`receive`]
//! parses the one message in it, [`stream_messages`] the messages of a stream. An operation gets an [`Authenticated`] message, never
//! less: there is no other way to register one.

pub(crate) mod body;
pub(crate) mod decode;
pub(crate) mod receive;
pub(crate) mod stream_messages;
pub(crate) mod streams;
pub(crate) mod unary;
pub(crate) mod with_value;

use std::sync::Arc;

use shoal_http::{ConnectionFlow, MemoryPermit};

use self::body::RequestBody;
use crate::answer::body::ResponseBody;
use crate::auth::Authenticated;
use crate::failure::Failure;

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
