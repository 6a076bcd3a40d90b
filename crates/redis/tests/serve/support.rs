//! A server on a store in memory, and a client that shows replies as they are.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use shoal_base::ManualClock;
use shoal_device::sim::Latency;
use shoal_engine::{DEFAULT_BUCKET, Environment, Store, block_on};
use shoal_redis::{RedisOptions, Running, Server};
use shoal_storekit::{StoreKit, put, slow_device};
use shoal_testkit::resp::encode;
use shoal_testkit::wait::HANGS_AFTER;

/// A server on a separate port.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    /// Dropped first: it stops the threads.
    _running: Running,
}

/// Blocks of a store.
pub(crate) const BLOCKS: u64 = 32_768;

/// The stores of these tests.
pub(crate) fn kit() -> StoreKit {
    StoreKit::new(BLOCKS)
}

/// Serves a new store; the store has these clocks, too.
pub(crate) fn serve_timed(clock: &Arc<ManualClock>) -> Served {
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    serve_store(kit().with(environment.clone()).in_memory(), RedisOptions::default(), environment)
}

/// A store on a slow device, with these keys, none of them in memory.
pub(crate) fn cold_store(pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Store {
    let latency = Latency { read_ns: 1_000_000, ..Latency::default() };
    let device = slow_device(BLOCKS, latency);
    let store = kit().create(&device);
    for (key, value) in pairs {
        put(&store, DEFAULT_BUCKET, &key, value);
    }
    block_on(store.close()).unwrap();
    drop(store);
    kit().open(&device)
}

/// Serves a new store, on two threads by default.
pub(crate) fn serve(options: RedisOptions) -> Served {
    serve_in(options, Environment::default())
}

/// Serves a new store with these clocks.
pub(crate) fn serve_in(options: RedisOptions, environment: Environment) -> Served {
    serve_store(kit().in_memory(), options, environment)
}

/// Serves this store.
pub(crate) fn serve_store(store: Store, options: RedisOptions, environment: Environment) -> Served {
    let listen = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let threads = options.threads.or(Some(2));
    let server = Server::bind(RedisOptions { listen, threads, ..options }).unwrap();
    let address = server.address();
    let running = server.start(store.clone(), environment).unwrap();
    Served { address, store, _running: running }
}

/// A reply.
#[derive(Clone, PartialEq)]
pub(crate) enum Seen {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Seen>),
    Map(Vec<(Seen, Seen)>),
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(value) => write!(f, ":{value}"),
            Self::Bulk(bytes) if bytes.len() > 100 => write!(f, "{} bytes", bytes.len()),
            Self::Bulk(bytes) => write!(f, "{}", bytes.escape_ascii()),
            Self::Null => f.write_str("(nil)"),
            Self::Array(items) => write!(f, "{items:?}"),
            Self::Map(pairs) => write!(f, "{pairs:?}"),
        }
    }
}

impl Seen {
    /// The reply of a successful command without a value.
    pub(crate) fn ok() -> Self {
        Self::Simple("OK".into())
    }
}

impl From<&str> for Seen {
    fn from(text: &str) -> Self {
        Self::Bulk(text.into())
    }
}

/// A client.
pub(crate) struct Client {
    pub(crate) reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn new(served: &Served) -> Self {
        let stream = TcpStream::connect(served.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// The next reply; `None` if the connection was closed.
    pub(crate) fn next(&mut self) -> Option<Seen> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.strip_suffix("\r\n").expect("a whole line").to_owned();
        let (kind, text) = line.split_at(1);
        let count = || text.parse::<i64>().unwrap();
        Some(match kind {
            "+" => Seen::Simple(text.to_owned()),
            "-" => Seen::Error(text.to_owned()),
            ":" => Seen::Integer(count()),
            "_" => Seen::Null,
            "$" | "*" if count() == -1 => Seen::Null,
            "$" | "=" => {
                let mut bytes = vec![0; count() as usize + 2];
                self.reader.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
                Seen::Bulk(if kind == "=" { bytes.split_off(4) } else { bytes })
            }
            "*" | "~" => Seen::Array((0..count()).map(|_| self.next().unwrap()).collect()),
            "%" => Seen::Map((0..count()).map(|_| (self.next().unwrap(), self.next().unwrap())).collect()),
            _ => panic!("{line}"),
        })
    }

    /// Runs one command, as words.
    pub(crate) fn words(&mut self, words: &[&[u8]]) -> Seen {
        let bytes = encode(words);
        self.send(&bytes);
        self.next().expect("a reply")
    }

    /// Runs one command, as text split at spaces.
    pub(crate) fn run(&mut self, line: &str) -> Seen {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.words(&words)
    }

    /// Sets `count` keys in one pipeline.
    pub(crate) fn fill(&mut self, count: usize) {
        let bytes: Vec<u8> = (0..count)
            .flat_map(|number| encode(&[b"set", format!("key{number:06}").as_bytes(), b"v"]))
            .collect();
        let mut writer = self.reader.get_ref().try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&bytes).unwrap());
            for _ in 0..count {
                assert_eq!(self.next(), Some(Seen::ok()));
            }
        });
    }

    /// Runs commands and compares their replies: `command => reply`, the reply as it is shown.
    pub(crate) fn script(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (command, expected) = line.split_once(" =>").expect("command => reply");
            let expected = expected.strip_prefix(' ').unwrap_or_default();
            let seen = format!("{:?}", self.run(command));
            assert_eq!(seen.trim_end(), expected, "{command}");
        }
    }
}
