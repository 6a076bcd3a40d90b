//! A session: one connection to one server, shared by many callers, whose commands are pipelined.
//!
//! A task of its own writes what waits, all of it in one call, and gives the replies to their callers in order. A connection
//! that breaks fails the calls on it; the next call opens another one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::wire::{Reply, put_command, take_reply};
use crate::error::Error;
use crate::retry::{Failed, Outcome};

/// Calls that wait to be written; a further caller waits.
const WAITING_MAX: usize = 1_024;

/// Calls whose replies have not come; further ones are not written.
const IN_FLIGHT_MAX: usize = 4_096;

/// Memory for replies to begin with, in bytes.
const INPUT_BYTES: usize = 64 << 10;

/// How a session is opened, and how long it waits.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    pub connect: Duration,
    pub answer: Duration,
    pub password: Option<Arc<str>>,
}

/// Commands that go together, and who waits for their replies.
struct Call {
    bytes: Vec<u8>,
    replies: usize,
    answer: oneshot::Sender<Vec<Reply>>,
}

/// A connection, opened when it is needed.
pub(crate) struct Session {
    address: Arc<str>,
    patience: Patience,
    calls: Mutex<Option<mpsc::Sender<Call>>>,
}

impl Session {
    pub(crate) fn new(address: Arc<str>, patience: Patience) -> Self {
        Self { address, patience, calls: Mutex::const_new(None) }
    }

    /// The server's address, as "127.0.0.1:7412".
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Sends commands, encoded one behind the other, and waits for their replies.
    pub(crate) async fn call(&self, bytes: Vec<u8>, replies: usize) -> Result<Vec<Reply>, Failed> {
        let calls = self.connected().await?;
        let (answer, answered) = oneshot::channel();
        let call = Call { bytes, replies, answer };
        calls.send(call).await.map_err(|_| self.failed("the connection ended", Outcome::NotApplied))?;
        match tokio::time::timeout(self.patience.answer, answered).await {
            Ok(Ok(replies)) => Ok(replies),
            Ok(Err(_)) => Err(self.failed("the connection ended", Outcome::Open)),
            Err(_) => {
                let silence = format!("silent for {} s", self.patience.answer.as_secs_f64());
                Err(self.failed(&silence, Outcome::Open))
            }
        }
    }

    /// The connection's queue; opens a connection where there is none.
    async fn connected(&self) -> Result<mpsc::Sender<Call>, Failed> {
        let mut calls = self.calls.lock().await;
        if let Some(calls) = calls.as_ref().filter(|calls| !calls.is_closed()) {
            return Ok(calls.clone());
        }
        let opened = tokio::time::timeout(self.patience.connect, TcpStream::connect(&*self.address)).await;
        let opened = opened.map_err(|_| self.failed("no connection in time", Outcome::NotApplied))?;
        let stream = opened
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|error| self.failed(&error.to_string(), Outcome::NotApplied))?;
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        tokio::spawn(run(stream, receiver));
        if let Some(password) = &self.patience.password {
            self.authenticate(&sender, password).await?;
        }
        *calls = Some(sender.clone());
        Ok(sender)
    }

    async fn authenticate(&self, calls: &mpsc::Sender<Call>, password: &str) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        put_command(&mut bytes, &[b"AUTH", password.as_bytes()]);
        let (answer, answered) = oneshot::channel();
        let lost = || self.failed("the connection ended", Outcome::NotApplied);
        calls.send(Call { bytes, replies: 1, answer }).await.map_err(|_| lost())?;
        let replies = tokio::time::timeout(self.patience.answer, answered).await;
        match replies.ok().and_then(Result::ok).ok_or_else(lost)?.pop() {
            Some(Reply::Simple(_)) => Ok(()),
            Some(Reply::Error(text)) => Err(Failed::refused(Error::Denied(text))),
            _ => Err(Failed::refused(Error::Protocol("AUTH has another answer".into()))),
        }
    }

    pub(crate) fn failed(&self, reason: &str, outcome: Outcome) -> Failed {
        let server = self.address.to_string();
        Failed { error: Error::Unavailable { server, reason: reason.into() }, outcome }
    }
}

/// Whose replies come next, and those of them that came.
struct Waiting {
    replies: Vec<Reply>,
    wanted: usize,
    answer: oneshot::Sender<Vec<Reply>>,
}

/// Writes and reads until the connection ends or nobody can call any more. Who still waits then learns it by its channel.
async fn run(mut stream: TcpStream, mut calls: mpsc::Receiver<Call>) {
    let (mut reader, mut writer) = stream.split();
    let mut waiting = VecDeque::new();
    let mut input = BytesMut::with_capacity(INPUT_BYTES);
    let (mut out, mut written) = (Vec::new(), 0);
    let mut fresh = Vec::new();
    loop {
        tokio::select! {
            read = reader.read_buf(&mut input) => {
                if !matches!(read, Ok(1..)) || !give_out(&mut input, &mut waiting) {
                    return;
                }
            }
            wrote = writer.write(out.get(written..).unwrap_or_default()), if written < out.len() => match wrote {
                Ok(bytes @ 1..) => written += bytes,
                _ => return,
            },
            count = calls.recv_many(&mut fresh, WAITING_MAX), if written == out.len() && waiting.len() < IN_FLIGHT_MAX => {
                if count == 0 {
                    return;
                }
                out.clear();
                written = 0;
                for Call { bytes, replies, answer } in fresh.drain(..) {
                    out.extend_from_slice(&bytes);
                    waiting.push_back(Waiting { replies: Vec::with_capacity(replies), wanted: replies, answer });
                }
            }
        }
    }
}

/// Gives the replies in `input` to whom they are for; false where they make no sense.
fn give_out(input: &mut BytesMut, waiting: &mut VecDeque<Waiting>) -> bool {
    loop {
        let reply = match take_reply(input) {
            Ok(Some(reply)) => reply,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let Some(first) = waiting.front_mut() else { return false };
        first.replies.push(reply);
        if first.replies.len() == first.wanted
            && let Some(first) = waiting.pop_front()
        {
            // Who waited may have gone.
            let _ = first.answer.send(first.replies);
        }
    }
}
