//! The least that a durable SET can be: receive, write, flush, answer. It keeps nothing that a reader could find.
//!
//! One thread and one connection at a time, blocking calls only. A command is written as it was received.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, bail, ensure};

use crate::log_file::LogFile;

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

/// Bytes of the SET that `received` begins with; none: its head is not here yet.
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
        // Behind the length of a word come the word and the end of its line.
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
    fn a_head_in_pieces_is_no_command_yet_and_others_are_refused() {
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
