//! Takes the bytes of a body from the connection, as fast as memory allows, and checks them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use shoal_frontend::MinRate;
use shoal_http::{BodyError, Intake, MemoryPermit, StreamIntake, WatchedBody};

use super::check::{BodyCheck, CheckedBody};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// The body of a request. The client is asked for it (100-continue) at the first [`Self::next`].
pub(crate) struct BodyReader {
    body: WatchedBody,
    counting: Counting,
}

/// The count of its bytes.
enum Counting {
    /// Of a body that is kept as a whole, with its length.
    Whole(Intake, u32),
    /// Of a body that is passed on piece by piece; with the length of the last piece.
    Stream(StreamIntake, usize),
}

impl BodyReader {
    /// A body of `bytes` that is kept until its request ends.
    pub(crate) fn whole(
        body: Incoming,
        (least, wait_max): (MinRate, Duration),
        permit: &Arc<MemoryPermit>,
        bytes: u32,
    ) -> Self {
        let counting = Counting::Whole(Intake::new(Arc::clone(permit), wait_max), bytes);
        Self { body: WatchedBody::new(body, least), counting }
    }

    /// A body of any length whose pieces are dropped one after the other.
    pub(crate) fn stream(
        body: Incoming,
        (least, wait_max): (MinRate, Duration),
        permit: &Arc<MemoryPermit>,
    ) -> Self {
        let counting = Counting::Stream(StreamIntake::new(Arc::clone(permit), wait_max), 0);
        Self { body: WatchedBody::new(body, least), counting }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// `RequestTimeout`, `IncompleteBody`; `SlowDown` if there is no memory for it.
    pub(crate) async fn next(&mut self) -> S3Result<Option<Bytes>> {
        if let Counting::Stream(intake, last) = &mut self.counting
            && *last > 0
        {
            intake.end_message();
            *last = 0;
        }
        loop {
            let Some(frame) = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| match error {
                BodyError::TooSlow(slow) => S3Error::new(ErrorCode::RequestTimeout, slow.to_string()),
                BodyError::Aborted(_) => ErrorCode::IncompleteBody.into(),
            })?;
            // Trailers of HTTP have no meaning here.
            let Ok(data) = frame.into_data() else { continue };
            if data.is_empty() {
                continue;
            }
            match &mut self.counting {
                Counting::Whole(intake, bytes) => {
                    let announced = *bytes;
                    intake.note_moved();
                    intake.count(data.len(), || Some(announced))?;
                    poll_fn(|context| intake.poll_room(context)).await?;
                }
                Counting::Stream(intake, last) => {
                    intake.came(data.len());
                    poll_fn(|context| intake.poll_room(context)).await?;
                    intake.gives(data.len());
                    *last = data.len();
                }
            }
            return Ok(Some(data));
        }
    }

    /// Takes the whole body, checks it, and passes the bytes of its value to `sink`: parts of the pieces that arrived.
    ///
    /// # Errors
    /// As [`Self::next`], and those of [`BodyCheck`].
    pub(crate) async fn read(
        &mut self,
        mut check: BodyCheck,
        mut sink: impl FnMut(&Bytes, &[u8]),
    ) -> S3Result<CheckedBody> {
        while let Some(piece) = self.next().await? {
            check.feed(&piece, &mut |data| sink(&piece, data))?;
        }
        check.finish()
    }
}
