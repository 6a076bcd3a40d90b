//! The body of a request: watched, counted, and in plain frames of gRPC.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;
use shoal_api::MESSAGE_BYTES_MAX;
use shoal_frontend::MinRate;
use shoal_http::{BodyError, Intake, MemoryPermit, NoRoom, WatchedBody};
use tonic::Status;

use super::decode::Decoders;
use crate::failure::Failure;
use crate::wire::PREFIX_BYTES;

/// The body of a request.
pub(crate) struct RequestBody {
    body: WatchedBody,
    /// Counts the arriving bytes; `None` for a stream, whose messages are counted by their reader.
    intake: Option<Intake>,
    /// The frame that arrived and has to wait.
    held: Option<Bytes>,
    /// Turns the received bytes into plain frames of gRPC; `None` if they are plain already.
    decoders: Option<Box<Decoders>>,
}

impl RequestBody {
    /// The body of a request whose bytes `permit` counts. Bytes without room wait at most `room_wait_max`.
    pub(crate) fn new(
        body: Incoming,
        permit: Arc<MemoryPermit>,
        min_rate: MinRate,
        room_wait_max: Duration,
    ) -> Self {
        let intake = Intake::new(permit, room_wait_max);
        Self { body: WatchedBody::new(body, min_rate), intake: Some(intake), held: None, decoders: None }
    }

    /// Decodes a request that is not plain gRPC.
    pub(crate) fn decoded(self, decoders: Option<Decoders>) -> Self {
        Self { decoders: decoders.map(Box::new), ..self }
    }

    /// Stops counting the received bytes: the reader counts them, in messages of at most `message_bytes_max`.
    pub(crate) fn uncounted(self, message_bytes_max: usize) -> Self {
        let decoders = self.decoders.map(|decoders| Box::new(decoders.bounded(message_bytes_max)));
        Self { intake: None, decoders, ..self }
    }

    /// Counts `bytes` that are held from now on and decode to `plain`.
    fn count(&mut self, bytes: usize, plain: &[u8]) -> Result<(), Status> {
        match &mut self.intake {
            Some(intake) if bytes > 0 => intake.count(bytes, || announced(plain)).map_err(no_room),
            _ => Ok(()),
        }
    }

    /// The content of the transport's last frame that was not taken yet.
    fn decoded_part(&mut self) -> Result<Option<Bytes>, Status> {
        self.decoders.as_mut().map_or(Ok(None), |decoders| decoders.next())
    }

    /// The content of a frame of the transport; `None` if more bytes are needed.
    fn decode(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        let Some(decoders) = &mut self.decoders else { return Ok(Some(frame)) };
        match frame.into_data() {
            Ok(data) => {
                decoders.push(data)?;
                Ok(decoders.next()?.map(Frame::data))
            }
            Err(other) => Ok(Some(other)),
        }
    }

    /// As [`Self::uncounted`], and its sender may be silent: it holds nothing meanwhile, and keep-alive notices if it is gone.
    pub(crate) fn unhurried(self, message_bytes_max: usize) -> Self {
        let uncounted = self.uncounted(message_bytes_max);
        Self { body: uncounted.body.unhurried(), ..uncounted }
    }
}

/// The length of the message, with its prefix, that starts with `plain`. The reader of the message refuses one that is too long, with the
/// right error.
fn announced(plain: &[u8]) -> Option<u32> {
    let (&[_, a, b, c, d], _) = plain.split_first_chunk::<PREFIX_BYTES>()?;
    let message_bytes = u32::from_be_bytes([a, b, c, d]) as usize;
    (message_bytes <= MESSAGE_BYTES_MAX).then_some((PREFIX_BYTES + message_bytes) as u32)
}

fn no_room(no_room: NoRoom) -> Status {
    Failure::from(no_room).into_status()
}

/// A reset stream is an error here, not its end: tonic would take "cancelled" for the latter.
fn status_of(error: BodyError) -> Status {
    match error {
        BodyError::TooSlow(slow) => Failure::too_slow(slow).into_status(),
        BodyError::Aborted(_) => Status::aborted(error.to_string()),
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(intake) = &mut this.intake {
                ready!(intake.poll_room(context)).map_err(no_room)?;
            }
            if let Some(data) = this.held.take() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if let Some(part) = this.decoded_part()? {
                this.count(part.len(), &part)?;
                this.held = Some(part);
                continue;
            }
            return Poll::Ready(match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let arrived = frame.data_ref().map_or(0, Bytes::len);
                    // A slow sender is not a peer that does not take its answers.
                    if let Some(intake) = &this.intake {
                        intake.note_moved();
                    }
                    let decoded = this.decode(frame)?;
                    let plain = decoded.as_ref().and_then(Frame::data_ref).map_or(&[][..], |data| data);
                    this.count(plain.len().max(arrived), plain)?;
                    let Some(frame) = decoded else { continue };
                    match frame.into_data() {
                        Ok(data) if this.intake.as_ref().is_some_and(Intake::is_over) => {
                            this.held = Some(data);
                            continue;
                        }
                        Ok(data) => Some(Ok(Frame::data(data))),
                        Err(other) => Some(Ok(other)),
                    }
                }
                Some(Err(error)) => Some(Err(status_of(error))),
                None => match this.decoders.take().map_or(Ok(()), |decoders| decoders.end()) {
                    Ok(()) => None,
                    Err(status) => Some(Err(status)),
                },
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.decoders.is_none() && self.held.is_none()
    }
}
