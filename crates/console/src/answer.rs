//! Answers of the API: documents of JSON, streams, and errors.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use shoal_buffer::Buffer;
use shoal_engine::Error;
use shoal_frontend::access::NotAllowed;
use shoal_http::{AnswerShare, BodyError, HttpAnswer, MemoryPermit, NoRoom, boxed_answer};

/// The reason for which the rest of an answer is missing.
pub(crate) type CutError = Box<dyn std::error::Error + Send + Sync>;

/// The pieces of an answer that is made while it is sent.
pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, CutError>> + Send>>;

/// The error of a request to the API.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// The problem, and the next step of the user.
    message: String,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The request is wrong.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn answer(&self) -> HttpAnswer {
        let document = serde_json::json!({ "error": self.message }).to_string();
        whole(self.status, "application/json", Bytes::from(document), None)
    }
}

impl From<NotAllowed> for ApiError {
    fn from(denied: NotAllowed) -> Self {
        Self::new(StatusCode::FORBIDDEN, format!("{denied}; an administrator can add the grant to its key"))
    }
}

impl From<NoRoom> for ApiError {
    fn from(no_room: NoRoom) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{no_room}; try again later"))
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Invalid(_) => StatusCode::BAD_REQUEST,
            Error::NoBucket(_) => StatusCode::NOT_FOUND,
            Error::Busy(_) | Error::Closed => StatusCode::SERVICE_UNAVAILABLE,
            Error::Full { .. } | Error::NoRoom(_) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let status = match error {
            BodyError::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            BodyError::Aborted(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

/// The body of an answer. `permit` counts its memory until it is dropped.
struct ApiBody {
    ready: Option<Bytes>,
    more: Option<Pieces>,
    /// The length of a body that is known as a whole.
    bytes: Option<u64>,
    share: Option<AnswerShare>,
}

impl Body for ApiBody {
    type Data = Box<Buffer>;
    type Error = CutError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Box<Buffer>>, CutError>>> {
        let this = &mut *self;
        if this.ready.is_none() {
            let Some(more) = &mut this.more else { return Poll::Ready(None) };
            match ready!(more.as_mut().poll_next(context)) {
                Some(Ok(piece)) => this.ready = Some(piece),
                end => {
                    this.more = None;
                    return Poll::Ready(end.map(|piece| piece.map(|_| Frame::data(Box::default()))));
                }
            }
        }
        let bytes = this.ready.as_ref().map_or(0, Bytes::len);
        if let Some(share) = &mut this.share {
            ready!(share.poll_turn(bytes, context));
        }
        let piece = this.ready.take().unwrap_or_default();
        this.bytes = this.bytes.map(|left| left.saturating_sub(bytes as u64));
        Poll::Ready(Some(Ok(Frame::data(Box::new(Buffer::from(piece))))))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_none() && self.more.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> HttpAnswer {
    whole(status, "", Bytes::new(), None)
}

/// An answer of bytes in memory, which `permit` counts.
pub(crate) fn whole(
    status: StatusCode,
    content_type: &'static str,
    content: Bytes,
    permit: Option<Arc<MemoryPermit>>,
) -> HttpAnswer {
    let bytes = content.len() as u64;
    let body = ApiBody {
        ready: (bytes > 0).then_some(content),
        more: None,
        bytes: Some(bytes),
        share: permit.map(AnswerShare::new),
    };
    let mut answer = answer_of(status, content_type, body);
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    answer
}

/// A document of JSON, whose memory `permit` counts.
///
/// # Errors
/// There is no room for it.
pub(crate) fn json(
    status: StatusCode,
    document: &impl Serialize,
    permit: &Arc<MemoryPermit>,
) -> ApiResult<HttpAnswer> {
    let written = serde_json::to_vec(document);
    let document =
        written.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    permit.grow(document.len())?;
    Ok(whole(status, "application/json", document.into(), Some(Arc::clone(permit))))
}

/// An answer that is made while it is sent. An error cuts its connection. The pieces' maker counts their memory by `permit`.
pub(crate) fn stream(content_type: &'static str, pieces: Pieces, permit: Arc<MemoryPermit>) -> HttpAnswer {
    let share = Some(AnswerShare::new(permit));
    answer_of(StatusCode::OK, content_type, ApiBody { ready: None, more: Some(pieces), bytes: None, share })
}

fn answer_of(status: StatusCode, content_type: &'static str, body: ApiBody) -> HttpAnswer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    if !content_type.is_empty() {
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    boxed_answer(answer)
}
