//! A session: one connection to one server, shared by many callers, whose commands are pipelined.
//!
//! A task of its own writes what waits, all of it in one call, and gives the replies to their callers in order. A connection
//! that breaks fails the calls on it; the next call opens another one. So does one on which a call had no reply in time: as
//! replies come in order, nobody behind it would have one sooner.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::AbortHandle;

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

/// An open connection; it ends when nobody has it any more.
struct Connection {
    calls: mpsc::Sender<Call>,
    task: AbortHandle,
    given_up: AtomicBool,
}

impl Connection {
    fn is_usable(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed) && !self.calls.is_closed()
    }

    /// Ends it, also for those who wait on it.
    fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection, opened when it is needed.
pub(crate) struct Session {
    address: Arc<str>,
    patience: Patience,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Session {
    pub(crate) fn new(address: Arc<str>, patience: Patience) -> Self {
        Self { address, patience, connection: Mutex::const_new(None) }
    }

    /// The server's address, as "127.0.0.1:7412".
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Sends commands, encoded one behind the other, and waits for their replies; all of it, the waiting for a place in the
    /// queue too, takes at most as long as an answer may.
    pub(crate) async fn call(&self, bytes: Vec<u8>, replies: usize) -> Result<Vec<Reply>, Failed> {
        let (mut used, mut is_queued) = (None, false);
        let exchange = async {
            let connection: &Arc<Connection> = used.insert(self.connected().await?);
            let lost = |outcome| self.failed("the connection ended", outcome);
            let place = connection.calls.reserve().await.map_err(|_| lost(Outcome::NotApplied))?;
            let (answer, answered) = oneshot::channel();
            is_queued = true;
            place.send(Call { bytes, replies, answer });
            answered.await.map_err(|_| lost(Outcome::Open))
        };
        if let Ok(result) = tokio::time::timeout(self.patience.answer, exchange).await {
            return result;
        }
        if let Some(connection) = used {
            connection.give_up();
        }
        let silence = format!("silent for {} s", self.patience.answer.as_secs_f64());
        Err(self.failed(&silence, if is_queued { Outcome::Open } else { Outcome::NotApplied }))
    }

    /// The connection; opens one where there is none that is usable.
    async fn connected(&self) -> Result<Arc<Connection>, Failed> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(connection.clone());
        }
        let opened = tokio::time::timeout(self.patience.connect, TcpStream::connect(&*self.address)).await;
        let opened = opened.map_err(|_| self.failed("no connection in time", Outcome::NotApplied))?;
        let stream = opened
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|error| self.failed(&error.to_string(), Outcome::NotApplied))?;
        let (calls, receiver) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(run(stream, receiver)).abort_handle();
        let connection = Arc::new(Connection { calls, task, given_up: AtomicBool::new(false) });
        if let Some(password) = &self.patience.password {
            self.authenticate(&connection.calls, password).await?;
        }
        *current = Some(connection.clone());
        Ok(connection)
    }

    async fn authenticate(&self, calls: &mpsc::Sender<Call>, password: &str) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        put_command(&mut bytes, &[b"AUTH", password.as_bytes()]);
        let (answer, answered) = oneshot::channel();
        let lost = || self.failed("the connection ended", Outcome::NotApplied);
        calls.send(Call { bytes, replies: 1, answer }).await.map_err(|_| lost())?;
        match answered.await.map_err(|_| lost())?.pop() {
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

/// Writes and reads until the connection ends or nobody has it any more. Who still waits then learns it by its channel.
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
