//! Stores one object whose value arrives in pieces.
//!
//! Nothing is stored before the last message, which only [`PutStream::finish`] sends: after any earlier failure, the write was
//! not applied.

use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
use futures_util::stream;
use shoal_api::v1::put_stream_request::Part;
use shoal_api::{CHUNK_BYTES_MAX, v1};
use shoal_base::task::Boxed;
use tokio::sync::mpsc;

use crate::client::Client;
use crate::error::Result;
use crate::object::{Lsn, PutOptions, PutResult};
use crate::retry::{Failed, Outcome};
use crate::transport::Transport;
use crate::wire;

/// Messages that wait for the connection.
const QUEUE_MESSAGES_MAX: usize = 2;

/// Pieces shorter than this are gathered; a message for each would cost more than the copy.
const GATHER_BYTES: usize = 64 << 10;

type Answer = Pin<Box<dyn Future<Output = Result<v1::PutResponse, Failed>> + Send>>;

/// A value on its way to the server. Dropping it without [`finish`](Self::finish) stores nothing.
pub struct PutStream {
    transport: Arc<Transport>,
    parts: mpsc::Sender<v1::PutStreamRequest>,
    answer: Answer,
    gathered: BytesMut,
    bytes: u64,
}

impl Client {
    /// Starts to store a value that arrives in pieces: up to 5 GiB, in constant memory. The first [`PutStream::write`] that
    /// notices an error of the request returns it.
    #[must_use]
    pub fn put_stream(&self, bucket: &str, key: &[u8], options: PutOptions) -> PutStream {
        let (ttl_ns, expire_time_ns) = options.expiry.fields();
        let header = v1::PutStreamHeader {
            ttl_ns,
            expire_time_ns,
            bucket: bucket.into(),
            key: Bytes::copy_from_slice(key),
            rules: wire::rules(options.rules),
            metadata: wire::metadata(options.metadata),
            modified_ns: options.modified_ns,
        };
        let (parts, mut queue) = mpsc::channel(QUEUE_MESSAGES_MAX);
        // The queue is empty: the header fits.
        let sent = parts.try_send(message(Part::Header(header)));
        debug_assert!(sent.is_ok());
        let transport = Arc::clone(&self.transport);
        let answer = Box::pin(async move {
            transport.send::<v1::PutStream>(stream::poll_fn(move |context| queue.poll_recv(context))).await
        });
        let transport = Arc::clone(&self.transport);
        PutStream { transport, parts, answer, gathered: BytesMut::new(), bytes: 0 }
    }
}

impl PutStream {
    /// Takes the next bytes of the value. Waits if the server is slower than the caller.
    ///
    /// # Errors
    /// As [`Client::put`], but never [`Error::Unknown`](crate::Error::Unknown): nothing is stored yet.
    pub fn write(&mut self, bytes: Bytes) -> Boxed<'_, Result<()>> {
        Box::pin(async move { self.send(bytes).await.map_err(|failed| failed.error) })
    }

    /// The value is complete: makes it durable and visible.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn finish(self) -> Boxed<'static, Result<PutResult>> {
        Box::pin(async move { self.end().await.map_err(Failed::of_write) })
    }

    pub(crate) async fn send(&mut self, mut bytes: Bytes) -> Result<(), Failed> {
        self.bytes += bytes.len() as u64;
        if self.gathered.len() + bytes.len() < GATHER_BYTES {
            self.gathered.extend_from_slice(&bytes);
            return Ok(());
        }
        self.send_gathered().await?;
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES_MAX));
            self.send_part(Part::Chunk(chunk)).await?;
        }
        Ok(())
    }

    pub(crate) async fn end(mut self) -> Result<PutResult, Failed> {
        self.send_gathered().await?;
        self.send_part(Part::End(v1::PutStreamEnd { bytes: self.bytes })).await?;
        drop(self.parts);
        let answer = self.transport.within(self.answer).await?;
        Ok(PutResult { version: Lsn(answer.version) })
    }

    async fn send_gathered(&mut self) -> Result<(), Failed> {
        let gathered = self.gathered.split().freeze();
        if gathered.is_empty() { Ok(()) } else { self.send_part(Part::Chunk(gathered)).await }
    }

    /// Hands one message to the connection; fails if the answer comes first, because it can only be a failure then.
    async fn send_part(&mut self, part: Part) -> Result<(), Failed> {
        let room = pin!(self.parts.reserve());
        let step = async {
            match select(&mut self.answer, room).await {
                Either::Left((Ok(_), _)) => Err(wire::protocol("it answered before the value was complete")),
                Either::Left((Err(failed), _)) => Err(failed),
                Either::Right((Ok(permit), _)) => {
                    permit.send(message(part));
                    Ok(())
                }
                Either::Right((Err(_), answer)) => match answer.await {
                    Ok(_) => Err(wire::protocol("it answered before the value was complete")),
                    Err(failed) => Err(failed),
                },
            }
        };
        self.transport.within(step).await.map_err(not_applied)
    }
}

/// Before the end was sent, an open outcome means that nothing was applied.
fn not_applied(failed: Failed) -> Failed {
    match failed.outcome {
        Outcome::Open => Failed { outcome: Outcome::NotApplied, ..failed },
        _ => failed,
    }
}

fn message(part: Part) -> v1::PutStreamRequest {
    v1::PutStreamRequest { part: Some(part) }
}
