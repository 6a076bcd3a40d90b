//! The received messages of a stream, each in one piece: in its received memory, if it is within one frame of HTTP/2.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use shoal_buffer::Buffer;
use shoal_http::{MemoryPermit, StreamIntake};
use tonic::Status;

use super::receive::{FrameBody, KEPT_BYTES_MIN, append_frame};
use crate::failure::Failure;
use crate::wire::{PREFIX_BYTES, length};

/// Takes the messages off the body of a request.
pub(crate) struct Messages<B> {
    body: B,
    message_bytes_max: usize,
    /// The received bytes that were not returned yet.
    received: Buffer,
    /// `None` in tests of the framing.
    account: Option<StreamIntake>,
}

impl<B: FrameBody> Messages<B> {
    pub(crate) fn new(body: B, message_bytes_max: usize) -> Self {
        Self { body, message_bytes_max, received: Buffer::new(), account: None }
    }

    /// As [`Self::new`]; arriving bytes count for `permit`. A message that finds no room waits for it at most
    /// `room_wait_max`.
    pub(crate) fn counted(
        body: B,
        message_bytes_max: usize,
        permit: Arc<MemoryPermit>,
        room_wait_max: Duration,
    ) -> Self {
        let account = StreamIntake::new(permit, room_wait_max);
        Self { account: Some(account), ..Self::new(body, message_bytes_max) }
    }

    /// The next message; none at the end of the stream.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if let Some(account) = &mut self.account {
            account.end_message();
        }
        loop {
            match self.take() {
                Ok(None) => {}
                Ok(Some(message)) => {
                    if let Some(account) = &mut self.account {
                        account.gives(PREFIX_BYTES + message.len());
                    }
                    return Poll::Ready(Some(Ok(message)));
                }
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            if let Some(account) = &mut self.account
                && let Err(no_room) = ready!(account.poll_room(context))
            {
                return Poll::Ready(Some(Err(Failure::from(no_room).into_status())));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if let Some(account) = &mut self.account {
                        account.came(data.len());
                    }
                    match self.received.is_empty() {
                        true => self.received.append_external(data),
                        false => append_frame(&mut self.received, data),
                    }
                }
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None if self.received.is_empty() => return Poll::Ready(None),
                None => {
                    let status = Status::internal("the request ended in the middle of its message");
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }

    /// A complete message.
    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        match length(&self.received, self.message_bytes_max)? {
            Some(bytes) if self.received.len() - PREFIX_BYTES >= bytes => {
                self.received.advance(PREFIX_BYTES);
                Ok(Some(self.received.copy_to_bytes(bytes)))
            }
            _ => {
                // A few bytes of a frame would pin the memory that their connection was read into.
                if self.received.len() < KEPT_BYTES_MIN {
                    self.received.own();
                }
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::frames::Frames;

    const MESSAGE_BYTES_MAX: usize = 300;

    fn messages(sent: &[u8], cut: usize) -> Result<Vec<Bytes>, Status> {
        let frames: Vec<_> = sent.chunks(cut).map(Bytes::copy_from_slice).collect();
        let mut messages = Messages::new(Frames(frames.into_iter()), MESSAGE_BYTES_MAX);
        let mut taken = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(message)) = messages.poll_next(&mut context) {
            taken.push(message?);
        }
        Ok(taken)
    }

    proptest! {
        /// Any cuts of the bytes into frames lead to the sent messages.
        #[test]
        fn cuts_do_not_matter(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..6), cut in 1..400_usize
        ) {
            let framed = |message: &Vec<u8>| [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
            let bytes: Vec<u8> = sent.iter().flat_map(framed).collect();
            prop_assert_eq!(messages(&bytes, cut).unwrap(), sent);
            if !bytes.is_empty() {
                prop_assert!(messages(&bytes[..bytes.len() - 1], cut).is_err(), "it ends in the middle");
            }
        }

        #[test]
        fn random_bytes_never_panic_stream_parser(bytes in prop::collection::vec(any::<u8>(), 0..40), cut in 1..9_usize) {
            if let Ok(taken) = messages(&bytes, cut) {
                prop_assert_eq!(taken.iter().map(|message| message.len() + PREFIX_BYTES).sum::<usize>(), bytes.len());
            }
        }
    }

    #[test]
    fn long_and_packed_messages_are_refused() {
        let long = [&[0][..], &(MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes()].concat();
        assert_eq!(messages(&long, 2).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert_eq!(messages(&[1, 0, 0, 0, 0], 9).unwrap_err().code(), tonic::Code::Internal);
    }
}
