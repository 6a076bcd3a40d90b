//! The body of a request, for the tests of what reads one.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Status;

/// A body in the frames that it came in, all of which are there.
pub(crate) struct Frames(pub(crate) std::vec::IntoIter<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.next().map(|data| Ok(Frame::data(data))))
    }
}
