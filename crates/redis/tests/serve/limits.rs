//! A client that is slow, silent or greedy does not hurt the others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_base::ManualClock;
use shoal_engine::Environment;
use shoal_redis::{MinRate, RedisLimits, RedisOptions};
use shoal_testkit::process::raise_open_files;
use shoal_testkit::resp::encode;
use shoal_testkit::wait::HANGS_AFTER;

use crate::support::{Client, Seen, serve, serve_in};

const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len): a value has at most 4194304 bytes, and a \
                        command 67108864; gRPC and `shoal put` take longer values";

#[test]
fn long_words_are_refused_before_memory_is_taken() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n");
    assert_eq!(client.next(), Some(Seen::Error(TOO_LONG.into())), "on the announcement alone");
    let mut client = Client::new(&served);
    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n");
    assert_eq!(client.next(), Some(Seen::Error("ERR Protocol error: invalid bulk length".into())));
    assert_eq!(client.next(), None);
    let mut client = Client::new(&served);
    let largest = vec![b'x'; 4 << 20];
    assert_eq!(client.words(&[b"set", b"k", &largest]), Seen::ok());
    assert_eq!(client.run("strlen k"), Seen::Integer(4 << 20));
    assert_eq!(client.run("get k"), Seen::Bulk(largest));
    assert_eq!(client.run("append k x"), Seen::Error(TOO_LONG.into()));
}

/// Most clients write the whole command before they read: the error must reach them, and the connection stays usable.
#[test]
fn oversized_value_is_rejected_and_connection_continues() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    for bytes in [(4 << 20) + 1, 20 << 20] {
        assert_eq!(client.words(&[b"set", b"k", &vec![b'*'; bytes]]), Seen::Error(TOO_LONG.into()));
        assert_eq!(client.run("get k"), Seen::Null);
    }
    let value = vec![b'v'; 4 << 20];
    let words: Vec<&[u8]> = [&b"mset"[..]].into_iter().chain((0..34).map(|_| &value[..])).collect();
    assert_eq!(client.words(&words), Seen::Error(TOO_LONG.into()), "136 MiB are too long together");
    assert_eq!(client.run("set k 1"), Seen::ok());
}

/// After an error of the protocol the server closes; the bytes that the client sent meanwhile do not destroy the error.
#[test]
fn client_still_writing_receives_error() {
    let served = serve(RedisOptions::default());
    for _ in 0..5 {
        let mut client = Client::new(&served);
        let mut bytes = b"set k 1\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$700000000\r\n".to_vec();
        bytes.extend(vec![b'x'; 8 << 20]);
        client.send(&bytes);
        assert_eq!(client.next(), Some(Seen::ok()));
        assert_eq!(client.next(), Some(Seen::Error("ERR Protocol error: invalid bulk length".into())));
        assert_eq!(client.next(), None);
    }
}

#[test]
fn clients_not_reading_are_closed_above_answer_limit() {
    let limits = RedisLimits { answers_bytes_max: 24 << 20, ..RedisLimits::default() };
    let served = serve(RedisOptions { limits, threads: Some(1), ..RedisOptions::default() });
    let mut other = Client::new(&served);
    assert_eq!(other.words(&[b"set", b"k", &vec![b'x'; 4 << 20]]), Seen::ok());
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(served.address).unwrap();
        let gets: Vec<u8> = (0..10).flat_map(|_| encode(&[b"get", b"k"])).collect();
        stream.write_all(&gets).unwrap();
        slow.push(stream);
    }
    let until = Instant::now() + HANGS_AFTER;
    loop {
        assert!(matches!(other.run("get k"), Seen::Bulk(_)), "who takes them is not closed");
        let Seen::Bulk(list) = other.run("client list") else { panic!("text") };
        if list.iter().filter(|&&byte| byte == b'\n').count() < 6 {
            break;
        }
        assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&list));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A walk over all keys lets the others have their turn: they are answered during the walk. Its answers are short, so that all
/// of them could be read at once if it had finished before.
#[test]
fn key_scan_does_not_block_other_clients() {
    const ROUNDS: usize = 20;
    const ANSWERS: &[u8] = b"*0\r\n:20000\r\n";
    let served = serve(RedisOptions { threads: Some(1), ..RedisOptions::default() });
    let (mut walker, mut other) = (Client::new(&served), Client::new(&served));
    walker.fill(20_000);
    walker.send(&b"keys *x\r\ndbsize\r\n".repeat(ROUNDS));
    for _ in 0..5 {
        assert_eq!(other.run("ping"), Seen::Simple("PONG".into()));
    }
    walker.reader.get_ref().set_nonblocking(true).unwrap();
    let mut answers = [0; ROUNDS * ANSWERS.len()];
    let mut got = 0;
    while let Ok(count @ 1..) = walker.reader.get_mut().read(&mut answers[got..]) {
        got += count;
    }
    assert!(got < answers.len(), "all walks came first");
    walker.reader.get_ref().set_nonblocking(false).unwrap();
    walker.reader.get_mut().read_exact(&mut answers[got..]).unwrap();
    assert_eq!(answers.as_slice(), ANSWERS.repeat(ROUNDS));
}

#[test]
fn connection_limit_is_reported() {
    let limits = RedisLimits { connections_max: 3, ..RedisLimits::default() };
    let served = serve(RedisOptions { limits, ..RedisOptions::default() });
    let mut clients: Vec<Client> = (0..3).map(|_| Client::new(&served)).collect();
    for client in &mut clients {
        assert_eq!(client.run("ping"), Seen::Simple("PONG".into()));
    }
    let mut refused = Client::new(&served);
    assert_eq!(refused.next(), Some(Seen::Error("ERR max number of clients reached".into())));
    assert_eq!(refused.next(), None);
    clients.pop();
    let until = Instant::now() + HANGS_AFTER;
    while Client::new(&served).next_is_error() {
        assert!(Instant::now() < until, "the place of who left is free");
    }
}

impl Client {
    fn next_is_error(&mut self) -> bool {
        let _ = self.reader.get_mut().write_all(b"PING\r\n");
        !matches!(self.next(), Some(Seen::Simple(_)))
    }
}

#[test]
fn client_not_reading_stalls_alone_and_is_closed() {
    let min_rate = MinRate { silence_max: Duration::from_millis(300), ..MinRate::default() };
    let limits = RedisLimits { answer_bytes_max: 1 << 20, min_rate, ..RedisLimits::default() };
    let served = serve(RedisOptions { limits, threads: Some(1), ..RedisOptions::default() });
    let mut other = Client::new(&served);
    assert_eq!(other.words(&[b"set", b"k", &vec![b'x'; 1 << 20]]), Seen::ok());
    let mut slow = TcpStream::connect(served.address).unwrap();
    slow.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let gets: Vec<u8> = (0..100).flat_map(|_| encode(&[b"get", b"k"])).collect();
    let _ = slow.write_all(&gets);
    let until = Instant::now() + HANGS_AFTER;
    loop {
        assert_eq!(other.run("ping"), Seen::Simple("PONG".into()));
        let Seen::Bulk(list) = other.run("client list") else { panic!("text") };
        if list.iter().filter(|&&byte| byte == b'\n').count() == 1 {
            break;
        }
        assert!(Instant::now() < until, "the slow one is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Symptom: a server that was paused for 70 s (SIGSTOP, a virtual machine) closed well-behaved clients. Cause: its own pause
/// counted as their silence. Fix: a late look at the clock counts no time.
#[test]
fn server_pause_does_not_close_clients() {
    let clock = Arc::new(ManualClock::new(1));
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let served = serve_in(RedisOptions { threads: Some(1), ..RedisOptions::default() }, environment);
    let mut other = Client::new(&served);
    assert_eq!(other.words(&[b"set", b"k", &vec![b'x'; 1 << 20]]), Seen::ok());
    let mut takes_nothing = TcpStream::connect(served.address).unwrap();
    takes_nothing.write_all(&encode(&[b"get", b"k"]).repeat(20)).unwrap();
    let mut half = TcpStream::connect(served.address).unwrap();
    half.write_all(b"*3\r\n$3\r\nSET").unwrap();
    let mut clients_after = |seconds: u64| {
        clock.advance(seconds * 1_000_000_000);
        let Seen::Bulk(list) = other.run("client list") else { panic!("text") };
        list.iter().filter(|&&byte| byte == b'\n').count()
    };
    let until = Instant::now() + HANGS_AFTER;
    while clients_after(0) < 3 {
        assert!(Instant::now() < until, "they do not come in");
    }
    for seconds in [70, 1, 70, 1] {
        assert_eq!(clients_after(seconds), 3, "a late look was their silence");
    }
    // Second by second, the time counts.
    assert!((0..100).any(|_| clients_after(1) == 1), "they are still there");
}

#[test]
fn partial_command_is_dropped_with_connection() {
    let limits = RedisLimits { received_bytes_max: 3 << 20, ..RedisLimits::default() };
    let served = serve(RedisOptions { limits, ..RedisOptions::default() });
    let begin = |bytes: usize| {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4194304\r\n").unwrap();
        // If the server closes meanwhile, the rest is refused.
        let _ = stream.write_all(&vec![b'x'; bytes]);
        stream
    };
    let slow: Vec<TcpStream> = (0..6).map(|_| begin(2 << 20)).collect();
    let mut other = Client::new(&served);
    assert_eq!(other.run("set k 1"), Seen::ok());
    drop(slow);
    let value = vec![b'y'; 2 << 20];
    let until = Instant::now() + HANGS_AFTER;
    loop {
        let mut client = Client::new(&served);
        if client.try_set(&value) {
            break;
        }
        assert!(Instant::now() < until, "memory comes back with the connections");
    }
    let mut other = Client::new(&served);
    for byte in encode(&[b"get", b"k"]) {
        other.send(&[byte]);
    }
    assert_eq!(other.next(), Some(Seen::Bulk(value)));
}

impl Client {
    fn try_set(&mut self, value: &[u8]) -> bool {
        let bytes = encode(&[b"set", b"k", value]);
        self.reader.get_mut().write_all(&bytes).is_ok() && self.next() == Some(Seen::ok())
    }
}

#[test]
fn ten_thousand_idle_connections() {
    let served = serve(RedisOptions::default());
    // The number that this process may open: it has both sides of each connection, and tests that run in parallel also need
    // some.
    const OTHERS: usize = 3_000;
    let count = 9_900.min(raise_open_files().saturating_sub(OTHERS) / 2);
    let idle: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    let mut client = Client::new(&served);
    let until = Instant::now() + HANGS_AFTER;
    for number in 0..200 {
        assert_eq!(client.run(&format!("set k {number}")), Seen::ok());
        assert_eq!(client.run("get k"), number.to_string().as_str().into());
    }
    assert!(Instant::now() < until);
    drop(idle);
}

/// A client that closes its sending half still gets answers; one that disconnects in the middle of a command, or of an answer,
/// leaves nothing.
#[test]
fn connections_closed_mid_command() {
    let served = serve(RedisOptions { threads: Some(1), ..RedisOptions::default() });
    let mut other = Client::new(&served);
    assert_eq!(other.words(&[b"set", b"k", &vec![b'x'; 100_000]]), Seen::ok());
    for _ in 0..20 {
        let mut client = Client::new(&served);
        client.send(&[encode(&[b"get", b"k"]), encode(&[b"set", b"other", b"1"])].concat());
        client.reader.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.next(), Some(Seen::Bulk(vec![b'x'; 100_000])));
        assert_eq!(client.next(), Some(Seen::ok()));
        assert_eq!(client.next(), None);
    }
    let command = encode(&[b"set", b"gone", &vec![b'y'; 100_000]]);
    for cut in [1, 4, 20, 50, 1_000, 70_000, command.len() - 1] {
        let mut client = Client::new(&served);
        client.send(&command[..cut]);
        client.reader.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.next(), None, "half a command of {cut} bytes has no answer");
        // And one that disconnects with untaken answers: the system resets the connection.
        let mut client = Client::new(&served);
        client.send(&encode(&[b"get", b"k"]).repeat(20));
        client.send(&command[..cut]);
    }
    assert_eq!(other.run("get gone"), Seen::Null);
    await_connections(&mut other, 1);
}

/// Waits until this number of connections exists.
fn await_connections(client: &mut Client, count: usize) {
    let until = Instant::now() + HANGS_AFTER;
    loop {
        let Seen::Bulk(list) = client.run("client list") else { panic!("text") };
        let there = list.iter().filter(|&&byte| byte == b'\n').count();
        if there == count {
            return;
        }
        assert!(Instant::now() < until, "{there} connections");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two hundred clients that send a byte at a time: each of them is served, and another client does not wait for them.
#[test]
fn slow_sender_does_not_slow_others() {
    const SLOW: usize = 200;
    let served = serve(RedisOptions { threads: Some(1), ..RedisOptions::default() });
    let mut slow: Vec<Client> = (0..SLOW).map(|_| Client::new(&served)).collect();
    let mut other = Client::new(&served);
    let command = encode(&[b"set", b"slow", b"0123456789"]);
    for byte in &command {
        for client in &mut slow {
            client.send(&[*byte]);
        }
        // All the others are in the middle of a command: a client that waited for one of them would wait forever.
        assert_eq!(other.run("get nothing"), Seen::Null);
    }
    for client in &mut slow {
        assert_eq!(client.next(), Some(Seen::ok()));
    }
}

/// A command that arrived a byte at a time used to hold its connection forever. A client may be silent between commands.
#[test]
fn trickling_command_is_closed() {
    let min_rate = MinRate { window: Duration::from_secs(2), ..MinRate::default() };
    let limits = RedisLimits { min_rate, ..RedisLimits::default() };
    let served = serve(RedisOptions { limits, ..RedisOptions::default() });
    let mut silent = Client::new(&served);
    assert_eq!(silent.run("set k 1"), Seen::ok());
    let (words, value) = (b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$100\r\n", [b'x'; 60]);
    let in_the_value = [&words[..], &value[..]].concat();
    // All at the same time, because each waits for its end.
    std::thread::scope(|scope| {
        for opening in [&b"*3\r\n"[..], b"set k ", words, &in_the_value] {
            let mut client = Client::new(&served);
            client.send(opening);
            let mut writer = client.reader.get_ref().try_clone().unwrap();
            scope.spawn(move || {
                // Too slow for the rest of the command to arrive within a minute.
                while writer.write_all(if opening == b"*3\r\n" { b"$" } else { b"y" }).is_ok() {
                    std::thread::sleep(Duration::from_millis(2_000));
                    if opening == b"*3\r\n" {
                        break;
                    }
                }
            });
            scope.spawn(move || {
                assert_eq!(client.next(), None, "{:?} was answered", opening.escape_ascii().to_string());
            });
        }
    });
    assert_eq!(silent.run("get k"), "1".into());
}

/// Connections that come and go leave nothing behind, in any state.
#[test]
fn connection_churn_leaks_nothing() {
    const ROUNDS: usize = 1_500;
    let served = serve(RedisOptions { threads: Some(2), ..RedisOptions::default() });
    let mut other = Client::new(&served);
    let long = encode(&[b"set", b"long", &vec![b'z'; 50_000]]);
    for round in 0..ROUNDS {
        let mut stream = TcpStream::connect(served.address).unwrap();
        // Nothing, a read, a write, half of a long value, garbage: then it disconnects.
        let sent: &[u8] = match round % 5 {
            0 => b"",
            1 => b"get k\r\n",
            2 => b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\n1\r\n",
            3 => &long[..long.len() / 2],
            _ => b"*1\r\n?",
        };
        stream.write_all(sent).unwrap();
        if round % 100 == 0 {
            assert_eq!(other.run("ping"), Seen::Simple("PONG".into()));
        }
    }
    await_connections(&mut other, 1);
    assert_eq!(other.run("get long"), Seen::Null);
    let used = served.store.stat().pool;
    assert!(used.frames_used < 2_000, "{} frames are used", used.frames_used);
}
