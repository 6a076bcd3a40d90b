//! Answers that are cut when the session of their reader is over.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_http::{AnswerBody, HttpAnswer, boxed_answer};

use crate::answer::CutError;

/// Shorter answers are not watched: they leave in a moment.
const WATCHED_BYTES_MIN: u64 = 1 << 20;

struct CutBody {
    body: AnswerBody,
    over: Boxed<'static, ()>,
}

impl Body for CutBody {
    type Data = Box<Buffer>;
    type Error = CutError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Box<Buffer>>, CutError>>> {
        if self.over.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("the session is over, or the server stops".into())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answer, if it is long until `over` completes.
pub(super) fn cut_at(answer: HttpAnswer, over: impl FnOnce() -> Boxed<'static, ()>) -> HttpAnswer {
    match answer.body().size_hint().exact() {
        Some(bytes) if bytes < WATCHED_BYTES_MIN => answer,
        _ => {
            let over = over();
            boxed_answer(answer.map(|body| CutBody { body, over }))
        }
    }
}
