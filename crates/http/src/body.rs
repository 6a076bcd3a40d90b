//! The body of a request, whose sender must keep to the minimum rate.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use shoal_frontend::{MinRate, TooSlow};

use crate::min_rate::Watch;

/// The reason why the rest of a body is missing.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Its sender was too slow.
    #[error(transparent)]
    TooSlow(TooSlow),
    /// Its sender gave it up, or broke the protocol.
    #[error("the request was aborted: {0}")]
    Aborted(hyper::Error),
}

/// The body of a request, whose sender must keep to the minimum rate while the reader waits for it.
#[derive(Debug)]
pub struct WatchedBody {
    body: Incoming,
    /// `None` if the sender may be silent for any time.
    watch: Option<Watch>,
}

impl WatchedBody {
    /// `body`, whose sender must keep to `least`.
    #[must_use]
    pub fn new(body: Incoming, least: MinRate) -> Self {
        Self { body, watch: Some(Watch::new(least)) }
    }

    /// Its sender may be silent for any time.
    #[must_use]
    pub fn unhurried(self) -> Self {
        Self { watch: None, ..self }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, watch } = &mut *self;
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            let Some(watch) = watch else { return Poll::Pending };
            return watch.poll(context).map(|slow| Some(Err(BodyError::TooSlow(slow))));
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let arrived = frame.data_ref().map_or(0, Bytes::len);
                let came = watch.as_mut().map_or(Ok(()), |watch| watch.came(arrived));
                Some(came.map(|()| frame).map_err(BodyError::TooSlow))
            }
            Some(Err(error)) => Some(Err(BodyError::Aborted(error))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
