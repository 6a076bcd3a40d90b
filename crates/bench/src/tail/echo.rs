//! A server of the Redis protocol that stores nothing and answers at once: it measures the generator itself, and tests give it
//! a stall.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::{Message, Messages};

/// Time between two looks at the wish to stop.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A pause of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    /// Commands before it.
    pub(super) after: u64,
    pub(super) time: Duration,
}

/// The running server: one thread.
pub(super) struct Echo {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts it on a free port. A GET returns `value_bytes` bytes.
    pub(super) fn start(value_bytes: usize, pause: Option<Pause>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (address, stop) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let mut value = format!("${value_bytes}\r\n").into_bytes();
        value.resize(value.len() + value_bytes, b'v');
        value.extend_from_slice(b"\r\n");
        let mut serve =
            Serve { listener, clients: Vec::new(), value, pause, commands: 0, stop: stop.clone() };
        Ok(Self { address, stop, thread: Some(thread::spawn(move || serve.run())) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

struct Client {
    stream: TcpStream,
    messages: Messages,
    out: Vec<u8>,
}

struct Serve {
    listener: TcpListener,
    clients: Vec<Client>,
    value: Vec<u8>,
    pause: Option<Pause>,
    commands: u64,
    stop: Arc<AtomicBool>,
}

impl Serve {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut entries = vec![PollFd::new(&self.listener, PollFlags::IN)];
            entries.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN)));
            if !matches!(poll(&mut entries, Some(&LOOK_EVERY)), Ok(1..)) {
                continue;
            }
            let ready: Vec<bool> = entries.iter().map(|entry| !entry.revents().is_empty()).collect();
            let mut index = ready.len() - 1;
            // From the end, because a client that is gone leaves the list.
            for is_ready in ready[1..].iter().rev() {
                index -= 1;
                if *is_ready && self.serve(index).is_err() {
                    self.clients.swap_remove(index);
                }
            }
            if ready[0] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                self.clients.push(Client { stream, messages: Messages::new(), out: Vec::new() });
            }
        }
    }

    fn serve(&mut self, index: usize) -> Result<()> {
        let client = &mut self.clients[index];
        if !client.messages.receive(&mut client.stream)? {
            return Ok(());
        }
        while let Some(message) = client.messages.next()? {
            if let Some(pause) = self.pause.filter(|pause| pause.after == self.commands) {
                thread::sleep(pause.time);
            }
            self.commands += 1;
            match message {
                // GET and a key.
                Message::Array(2) => client.out.extend_from_slice(&self.value),
                _ => client.out.extend_from_slice(b"+OK\r\n"),
            }
        }
        let mut out = &client.out[..];
        while !out.is_empty() {
            match client.stream.write(out) {
                Ok(bytes) => out = &out[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
        client.out.clear();
        Ok(())
    }
}
