//! Clients that write before they read: they are served, or get an error at once for the commands that were not executed.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use shoal_engine::Environment;
use shoal_redis::{RedisLimits, RedisOptions};
use shoal_testkit::resp::encode;

use crate::support::{Client, Seen, Served, cold_store, serve, serve_store};

const LONG: usize = 64 << 10;

/// A client with a small socket buffer, so that untaken answers stay in the server; it fails rather than hangs.
fn client(served: &Served) -> Client {
    let client = Client::new(served);
    let stream = client.reader.get_ref();
    sockopt::set_socket_recv_buffer_size(stream, 32 << 10).unwrap();
    sockopt::set_socket_send_buffer_size(stream, 32 << 10).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(40))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    client
}

/// A round of commands of all kinds, and their answers if no other client writes.
fn round(number: usize) -> Vec<(Vec<u8>, Seen)> {
    let (key, long) = (format!("k{number}"), vec![b'a' + (number % 26) as u8; LONG]);
    vec![
        (encode(&[b"set", key.as_bytes(), &long]), Seen::ok()),
        (encode(&[b"incr", b"count"]), Seen::Integer(number as i64 + 1)),
        (encode(&[b"get", key.as_bytes()]), Seen::Bulk(long.clone())),
        (encode(&[b"set", b"short", key.as_bytes()]), Seen::ok()),
        (encode(&[b"get", b"short"]), Seen::Bulk(key.clone().into())),
        (encode(&[b"echo", &long]), Seen::Bulk(long.clone())),
        (
            encode(&[b"mget", key.as_bytes(), b"nothing", b"short"]),
            Seen::Array(vec![Seen::Bulk(long), Seen::Null, Seen::Bulk(key.clone().into())]),
        ),
        (b"PING\r\n".to_vec(), Seen::Simple("PONG".into())),
        (encode(&[b"getrange", key.as_bytes(), b"0", b"1"]), Seen::Bulk(vec![b'a' + (number % 26) as u8; 2])),
        (encode(&[b"del", key.as_bytes(), b"nothing"]), Seen::Integer(1)),
        (encode(&[b"what"]), Seen::Error("ERR unknown command 'what', with args beginning with: ".into())),
    ]
}

/// Such a client used to hang for a minute until it was cut off; its library sent everything again, and its increments were
/// applied twice.
#[test]
fn pipeline_can_be_written_before_reading() {
    const ROUNDS: usize = 250;
    let limits = RedisLimits { answer_bytes_max: 2 << 20, ..RedisLimits::default() };
    for threads in [1, 2] {
        let served =
            serve(RedisOptions { threads: Some(threads), limits: limits.clone(), ..RedisOptions::default() });
        let (mut one, mut other) = (client(&served), Client::new(&served));
        for number in 0..ROUNDS {
            round(number).iter().for_each(|(command, _)| one.send(command));
            if number % 50 == 0 {
                assert_eq!(other.run("ping"), Seen::Simple("PONG".into()));
            }
        }
        for number in 0..ROUNDS {
            for (command, expected) in round(number) {
                let seen = one.next();
                assert!(
                    seen == Some(expected),
                    "{number} {}: {seen:?}",
                    command[..30.min(command.len())].escape_ascii()
                );
            }
        }
        assert_eq!(other.run("get count"), Seen::Bulk(ROUNDS.to_string().into()));
        assert_eq!(one.run("ping"), Seen::Simple("PONG".into()), "the connection goes on");
    }
}

/// At the limit, nothing more is executed, and both sides agree on the executed commands.
#[test]
fn oversized_backlog_is_rejected_unexecuted() {
    let limits =
        RedisLimits { answer_bytes_max: 1 << 20, pending_bytes_max: 16 << 20, ..RedisLimits::default() };
    let served = serve(RedisOptions { threads: Some(1), limits, ..RedisOptions::default() });
    let (mut one, mut other) = (client(&served), Client::new(&served));
    let long = vec![b'x'; LONG];
    let round = [encode(&[b"incr", b"count"]), encode(&[b"echo", &long])].concat();
    for _ in 0..400 {
        one.send(&round);
    }
    // Everything was written: the server threw away the rest.
    let mut counted = 0;
    let refused = loop {
        match one.next() {
            Some(Seen::Integer(number)) => {
                counted += 1;
                assert_eq!(number, counted);
            }
            Some(Seen::Bulk(bytes)) => assert!(bytes == long),
            last => break last,
        }
    };
    assert!(
        matches!(&refused, Some(Seen::Error(text)) if text.contains("nothing after this point was executed")),
        "{refused:?}"
    );
    assert_eq!(one.next(), None);
    assert!((1..400).contains(&counted), "{counted}");
    assert_eq!(other.run("get count"), Seen::Bulk(counted.to_string().into()));
}

#[test]
fn client_that_never_reads_is_closed() {
    let limits =
        RedisLimits { answer_bytes_max: 1 << 20, pending_bytes_max: 16 << 20, ..RedisLimits::default() };
    let served = serve(RedisOptions { threads: Some(1), limits, ..RedisOptions::default() });
    let (mut other, one) = (Client::new(&served), client(&served));
    let mut writer = one.reader.get_ref().try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let round = encode(&[b"echo", &vec![b'x'; 1 << 20]]);
        (0..1_000).position(|_| writer.write_all(&round).is_err())
    });
    while !writing.is_finished() {
        let most = figures(&mut other).into_iter().map(|(received, answers)| received + answers).max();
        assert!(most.unwrap() < 24 << 20, "{most:?}");
    }
    let written = writing.join().unwrap().expect("it is cut");
    // The bytes that may wait, the bytes thrown away after them, and those in the system's buffers.
    assert!(written < 16 + 64 + 40, "{written} MiB were taken");
}

/// `qbuf` and `omem` of all connections.
fn figures(client: &mut Client) -> Vec<(usize, usize)> {
    let Seen::Bulk(list) = client.run("client list") else { panic!("text") };
    let list = String::from_utf8(list).unwrap();
    let figure = |line: &str, name: &str| {
        let word = line.split(' ').find_map(|word| word.strip_prefix(name)).unwrap();
        word.parse::<usize>().unwrap()
    };
    list.lines().map(|line| (figure(line, "qbuf="), figure(line, "omem="))).collect()
}

/// Many clients that write before they read stay below the common limit; each is served completely, or gets an error at the
/// point of the cut.
#[test]
fn backlogs_share_one_limit() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 160;
    let limits = RedisLimits {
        answer_bytes_max: 1 << 20,
        pending_bytes_max: 64 << 20,
        received_bytes_max: 24 << 20,
        ..RedisLimits::default()
    };
    let served = serve(RedisOptions { threads: Some(1), limits, ..RedisOptions::default() });
    let mut other = Client::new(&served);
    let long = vec![b'x'; LONG];
    let ends = std::thread::scope(|scope| {
        let writing: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut one = client(&served);
                let long = &long;
                scope.spawn(move || {
                    let round = encode(&[b"echo", long]);
                    (0..ROUNDS).for_each(|_| one.send(&round));
                    one
                })
            })
            .collect();
        while writing.iter().any(|one| !one.is_finished()) {
            let all: usize = figures(&mut other).into_iter().map(|(received, _)| received).sum();
            assert!(all < 26 << 20, "{all} bytes wait");
            // A long command within the limits is not refused because others wait.
            assert_eq!(other.words(&[b"set", b"k", &vec![b'y'; 1 << 20]]), Seen::ok());
        }
        writing.into_iter().map(|one| read_to_end(one.join().unwrap(), ROUNDS)).collect::<Vec<_>>()
    });
    let served_whole = ends.iter().filter(|whole| **whole).count();
    assert!((1..CLIENTS).contains(&served_whole), "{ends:?}");
}

/// Reads `rounds` answers; false if there are fewer, followed by an error.
fn read_to_end(mut one: Client, rounds: usize) -> bool {
    for _ in 0..rounds {
        match one.next() {
            Some(Seen::Bulk(bytes)) => assert_eq!(bytes.len(), LONG),
            Some(Seen::Error(_)) => {
                assert_eq!(one.next(), None);
                return false;
            }
            other => panic!("{other:?}"),
        }
    }
    true
}

/// Untaken answers used to pin the frames of their values: a few connections had the whole cache.
#[test]
fn waiting_answers_release_cache_frames() {
    const CLIENTS: usize = 12;
    const ANSWERS: usize = 4 << 20;
    const KEYS: usize = 300;
    let limits = RedisLimits { answer_bytes_max: ANSWERS, ..RedisLimits::default() };
    let options = RedisOptions { limits, ..RedisOptions::default() };
    let long = vec![b'x'; LONG];
    let key = |number: usize| format!("k{}", number % KEYS).into_bytes();
    let served = serve_store(
        cold_store((0..KEYS).map(|number| (key(number), long.clone()))),
        options,
        Environment::default(),
    );
    let mut other = Client::new(&served);
    // Each starts with other keys.
    let gets = |first: usize| -> Vec<u8> {
        (first..first + KEYS).flat_map(|number| encode(&[b"get", &key(number)])).collect()
    };
    let mut stuck: Vec<Client> = (0..CLIENTS).map(|_| client(&served)).collect();
    stuck.iter_mut().enumerate().for_each(|(number, one)| one.send(&gets(number * KEYS / CLIENTS)));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let stuck = figures(&mut other).into_iter().filter(|(_, answers)| *answers >= ANSWERS).count();
        let pool = served.store.stat().pool;
        // Reads in progress also pin their frames.
        if stuck == CLIENTS && pool.frames_pinned <= pool.frames / 8 + 64 {
            break;
        }
        assert!(
            Instant::now() < until,
            "{stuck} do not take their answers, {} of {} frames are pinned",
            pool.frames_pinned,
            pool.frames
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    for one in &mut stuck {
        for _ in 0..KEYS {
            assert!(one.next() == Some(Seen::Bulk(long.clone())));
        }
    }
}

/// A client that still wrote and had answers to take used to miss the error after a malformed command.
#[test]
fn client_still_writing_receives_answers_and_error() {
    let served = serve(RedisOptions::default());
    let mut one = client(&served);
    let long = vec![b'x'; LONG];
    for _ in 0..100 {
        one.send(&encode(&[b"echo", &long]));
    }
    one.send(b"*1\r\n?\r\n");
    one.send(&vec![b'z'; 30 << 20]);
    for _ in 0..100 {
        assert!(one.next() == Some(Seen::Bulk(long.clone())));
    }
    assert_eq!(one.next(), Some(Seen::Error("ERR Protocol error: expected '$', got '?'".into())));
    assert_eq!(one.next(), None);
}

/// A client that takes nothing except by closing leaves nothing behind.
#[test]
fn disconnect_drops_waiting_commands() {
    let limits = RedisLimits { answer_bytes_max: 1 << 20, ..RedisLimits::default() };
    let served = serve(RedisOptions { limits, threads: Some(1), ..RedisOptions::default() });
    let mut other = Client::new(&served);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(served.address).unwrap();
        let round = encode(&[b"echo", &vec![b'x'; LONG]]);
        (0..200).for_each(|_| stream.write_all(&round).unwrap());
    }
    let until = Instant::now() + Duration::from_secs(20);
    while figures(&mut other).len() > 1 {
        assert!(Instant::now() < until, "{:?}", figures(&mut other));
        std::thread::sleep(Duration::from_millis(5));
    }
}
