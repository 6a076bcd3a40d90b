//! The least that a durable SET can be: receive, write, flush, answer. It keeps nothing that a reader could find.
//!
//! One thread. A command is written as it was received. One connection at a time is served with blocking calls only; many are
//! polled, and all the commands that are there share one write and flush.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use mio::{Events, Interest, Poll, Token};

use crate::log_file::{LogFile, WRITE_BYTES_MAX};

/// Bytes that one call receives at most: more than a few commands of 64 KiB.
const RECEIVE_BYTES: usize = 256 << 10;
const LISTENER: Token = Token(usize::MAX);

/// Serves one connection after the other.
///
/// # Errors
/// As the listener and the file; a command that is no SET.
pub(super) fn serve(log: &mut LogFile, listener: &TcpListener) -> Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        converse(log, stream)?;
    }
}

fn converse(log: &mut LogFile, mut stream: TcpStream) -> Result<()> {
    loop {
        let mut received = 0;
        let mut needed = None;
        while needed.is_none_or(|needed| received < needed) {
            let room = log.memory().get_mut(received..).filter(|room| !room.is_empty());
            match stream.read(room.context("the command is too long")?)? {
                0 => return Ok(()),
                bytes => received += bytes,
            }
            if needed.is_none() {
                needed = set_bytes(log.memory().get(..received).unwrap_or_default())?;
            }
        }
        ensure!(needed == Some(received), "one command at a time");
        log.write(received)?;
        stream.write_all(b"+OK\r\n")?;
    }
}

/// A connection among many.
struct Peer {
    stream: mio::net::TcpStream,
    /// The beginning of a command.
    begun: Vec<u8>,
    /// Commands that the next write holds.
    commands: usize,
}

/// Serves many connections at a time, until one of them breaks the rules.
///
/// # Errors
/// As the listener, the connections and the file; a command that is no SET.
pub(super) fn serve_many(log: &mut LogFile, listener: TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let mut listener = mio::net::TcpListener::from_std(listener);
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1024);
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut memory = vec![0; RECEIVE_BYTES];
    loop {
        poll.poll(&mut events, None)?;
        let mut filled = 0;
        let mut waiting: Vec<usize> = Vec::new();
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, &poll, &mut peers)?;
                continue;
            }
            let Token(number) = event.token();
            let Some(slot) = peers.get_mut(number) else { continue };
            let Some(peer) = slot else { continue };
            if filled + peer.begun.len() + RECEIVE_BYTES > WRITE_BYTES_MAX {
                answer(log, std::mem::take(&mut filled), &mut peers, &mut waiting)?;
            }
            let Some(Some(peer)) = peers.get_mut(number) else { continue };
            match peer.receive(&mut memory, log, &mut filled)? {
                Received::Commands => waiting.push(number),
                Received::Part => {}
                Received::End => drop(peers.get_mut(number).and_then(Option::take)),
            }
        }
        if filled > 0 {
            answer(log, filled, &mut peers, &mut waiting)?;
        }
    }
}

fn accept(listener: &mio::net::TcpListener, poll: &Poll, peers: &mut Vec<Option<Peer>>) -> Result<()> {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        stream.set_nodelay(true)?;
        poll.registry().register(&mut stream, Token(peers.len()), Interest::READABLE)?;
        peers.push(Some(Peer { stream, begun: Vec::new(), commands: 0 }));
    }
}

/// Writes and flushes the commands of `waiting`, and answers them.
fn answer(
    log: &mut LogFile,
    filled: usize,
    peers: &mut [Option<Peer>],
    waiting: &mut Vec<usize>,
) -> Result<()> {
    log.write(filled)?;
    for number in waiting.drain(..) {
        let Some(Some(peer)) = peers.get_mut(number) else { continue };
        let answers = b"+OK\r\n".repeat(std::mem::take(&mut peer.commands));
        // A client that sends at most a few commands at once has room for their answers.
        peer.stream.write_all(&answers)?;
    }
    Ok(())
}

/// The outcome of a receive.
enum Received {
    Commands,
    Part,
    End,
}

impl Peer {
    /// Receives until nothing is there, and appends the whole commands to the log's memory.
    fn receive(&mut self, memory: &mut [u8], log: &mut LogFile, filled: &mut usize) -> Result<Received> {
        let before = self.commands;
        loop {
            let bytes = match self.stream.read(memory) {
                Ok(0) => return Ok(Received::End),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            let is_all = bytes < memory.len();
            let mut rest = memory.get(..bytes).unwrap_or_default();
            if !self.begun.is_empty() {
                self.begun.extend_from_slice(rest);
                let begun = std::mem::take(&mut self.begun);
                self.take(&begun, log, filled)?;
                rest = &[];
            }
            self.take(rest, log, filled)?;
            // Fewer bytes than requested: the next ones bring another event.
            if is_all {
                break;
            }
        }
        Ok(if self.commands > before { Received::Commands } else { Received::Part })
    }

    /// Appends the whole commands of `received` to the log's memory, and keeps the rest.
    fn take(&mut self, received: &[u8], log: &mut LogFile, filled: &mut usize) -> Result<()> {
        let mut whole = 0;
        while let Some(bytes) = set_bytes(received.get(whole..).unwrap_or_default())? {
            if whole + bytes > received.len() {
                break;
            }
            (whole, self.commands) = (whole + bytes, self.commands + 1);
        }
        let (commands, rest) = received.split_at(whole);
        let room = log.memory().get_mut(*filled..*filled + whole).context("more than one write takes")?;
        room.copy_from_slice(commands);
        *filled += whole;
        self.begun.extend_from_slice(rest);
        Ok(())
    }
}

/// Bytes of the SET at the start of `received`; none: its head is not here yet.
///
/// # Errors
/// It is no SET.
fn set_bytes(received: &[u8]) -> Result<Option<usize>> {
    let mut at = 0;
    let mut number = |kind: u8| -> Result<Option<usize>> {
        let rest = received.get(at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let line = rest.get(..end.saturating_sub(1)).unwrap_or_default();
        let Some((&first, digits)) = line.split_first() else { bail!("an empty line") };
        ensure!(first == kind, "no command: {:?}", String::from_utf8_lossy(line));
        let number = std::str::from_utf8(digits)?.parse()?;
        // The length of a word is followed by the word and its line end.
        at += end + 1 + if kind == b'$' { number + 2 } else { 0 };
        Ok(Some(number))
    };
    let Some(words) = number(b'*')? else { return Ok(None) };
    ensure!(words == 3, "a command of {words} words is no SET");
    for _ in 0..words {
        if number(b'$')?.is_none() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

#[cfg(test)]
mod tests {
    use shoal_bench::redis::{Link, alone};

    use super::*;

    #[test]
    fn a_set_is_answered_and_another_command_ends_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogFile::new(folder.path()).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let ended = serve(&mut log, &listener);
            (log, ended)
        });
        let command = alone(&[b"SET", b"key", &[b'v'; 70_000]]);
        let mut link = Link::connect(address).unwrap();
        link.call(&command, 1).unwrap();
        assert!(link.call(b"*1\r\n$4\r\nPING\r\n", 1).is_err());
        let (mut log, ended) = server.join().unwrap();
        assert!(ended.is_err());
        assert!(log.memory().get(100..command.len()).unwrap() == command.get(100..).unwrap());
    }

    #[test]
    fn many_connections_share_a_write_and_each_command_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogFile::new(folder.path()).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let ended = serve_many(&mut log, listener);
            (log, ended)
        });
        let command = alone(&[b"SET", b"key", &[b'v'; 70_000]]);
        let mut links: Vec<Link> = (0..5).map(|_| Link::connect(address).unwrap()).collect();
        for link in &mut links {
            link.call(&command.repeat(3), 3).unwrap();
        }
        drop(links.pop());
        links[0].call(&command, 1).unwrap();
        assert!(links[1].call(b"*1\r\n$4\r\nPING\r\n", 1).is_err());
        let (mut log, ended) = server.join().unwrap();
        assert!(ended.is_err());
        assert!(log.memory().get(100..command.len()).unwrap() == command.get(100..).unwrap());
    }

    #[test]
    fn partial_header_is_no_command() {
        let command = alone(&[b"SET", b"key", b"value"]);
        let head = command.len() - b"value\r\n".len();
        for end in 0..head {
            assert_eq!(set_bytes(command.get(..end).unwrap()).unwrap(), None, "{end}");
        }
        assert_eq!(set_bytes(command.get(..head).unwrap()).unwrap(), Some(command.len()));
        assert!(set_bytes(&alone(&[b"GET", b"key"])).is_err());
        assert!(set_bytes(b"PING\r\n").is_err());
    }
}
