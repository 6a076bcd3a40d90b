//! A server of the Redis protocol for SETs into a store that is a library: a thread for each connection, and one call of the store for
//! the commands that arrived together.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};

use super::stores::{Put, Puts};

/// Commands that one call of the store takes at most.
const COMMANDS_MAX: usize = 64;
/// Bytes of a word at most.
const WORD_BYTES_MAX: usize = 4 << 20;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// The running server.
pub struct Server {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it on a free port.
    pub fn start(store: Arc<dyn Puts>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, stop) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let stops = stop.clone();
        let thread = thread::spawn(move || {
            let mut clients = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                if stops.load(Ordering::Acquire) {
                    break;
                }
                let store = store.clone();
                clients.push(thread::spawn(move || {
                    if let Err(error) = serve(stream, &*store) {
                        eprintln!("a connection failed: {error:#}");
                    }
                }));
            }
            for client in clients {
                // A panic was printed.
                let _ = client.join();
            }
        });
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    /// Waits until all clients are gone.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The connection that accept returns for this.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stream: TcpStream, store: &dyn Puts) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut received = BufReader::with_capacity(READ_BYTES, stream);
    while let Some(put) = next(&mut received)? {
        let mut puts = vec![put];
        while puts.len() < COMMANDS_MAX && !received.buffer().is_empty() {
            puts.push(next(&mut received)?.context("the last command is incomplete")?);
        }
        let answers = "+OK\r\n".repeat(puts.len());
        store.put(puts)?;
        out.write_all(answers.as_bytes())?;
    }
    Ok(())
}

/// The next SET; none if the client has closed the connection.
fn next(received: &mut impl BufRead) -> Result<Option<Put>> {
    let Some(words) = number(received, b'*')? else { return Ok(None) };
    ensure!(words == 3, "a command of {words} words: only SET KEY VALUE is known");
    let [command, key, value] = [word(received)?, word(received)?, word(received)?];
    ensure!(command.eq_ignore_ascii_case(b"SET"), "{} is not SET", String::from_utf8_lossy(&command));
    Ok(Some(Put { key, value: value.into() }))
}

/// The number in a line that starts with `mark`; none at the end of the connection.
fn number(received: &mut impl BufRead, mark: u8) -> Result<Option<usize>> {
    let mut line = String::new();
    if received.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let digits = line.strip_prefix(char::from(mark)).and_then(|line| line.strip_suffix("\r\n"));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => bail!("{line:?} is no line of the Redis protocol"),
    }
}

fn word(received: &mut impl BufRead) -> Result<Vec<u8>> {
    let bytes = number(received, b'$')?.context("a command is incomplete")?;
    ensure!(bytes <= WORD_BYTES_MAX, "a word of {bytes} bytes");
    let mut word = vec![0; bytes + 2];
    received.read_exact(&mut word)?;
    ensure!(word.ends_with(b"\r\n"), "a word is longer than announced");
    word.truncate(bytes);
    Ok(word)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<Vec<u8>>>);

    impl Puts for Seen {
        fn put(&self, puts: Vec<Put>) -> Result<()> {
            self.0.lock().unwrap().extend(puts.into_iter().map(|put| [&put.key[..], &put.value].concat()));
            Ok(())
        }
    }

    #[test]
    fn each_set_is_put_before_its_answer() {
        let store = Arc::new(Seen::default());
        let server = Server::start(store.clone()).unwrap();
        let mut client = TcpStream::connect(server.address).unwrap();
        let sets = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\nxy\r\n*3\r\n$3\r\nset\r\n$1\r\nb\r\n$0\r\n\r\n";
        client.write_all(sets.as_bytes()).unwrap();
        let mut answers = [0; 10];
        client.read_exact(&mut answers).unwrap();
        assert_eq!((&answers, store.0.lock().unwrap().len()), (b"+OK\r\n+OK\r\n", 2));
        drop(client);
        drop(server);
        assert_eq!(*store.0.lock().unwrap(), [b"axy".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn other_commands_and_wrong_lines_are_refused() {
        for wrong in ["*1\r\n$4\r\nPING\r\n", "SET a b\r\n", "*3\r\n$9999999999\r\n", "*3\r\n$3\r\nSETxx"] {
            assert!(next(&mut wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(next(&mut &b""[..]).unwrap().is_none());
    }
}
