//! Commands and answers of all threads together have a bound: long ones wait for memory, and short ones do not.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use shoal_redis::{RedisLimits, RedisOptions};
use shoal_testkit::resp::encode;
use shoal_testkit::wait::HANGS_AFTER;

use crate::support::{Client, Seen, Served, serve};

const LONG: usize = 4 << 20;

/// A frontend with two threads and room for two long values.
fn small() -> Served {
    let limits = RedisLimits {
        memory_bytes_max: 10 << 20,
        reply_bytes_max: 5 << 20,
        command_bytes_max: 5 << 20,
        ..RedisLimits::default()
    };
    serve(RedisOptions { limits, threads: Some(2), ..RedisOptions::default() })
}

#[test]
fn long_commands_and_answers_wait_and_all_are_done() {
    let served = small();
    thread::scope(|scope| {
        for id in 0..12_u8 {
            let served = &served;
            scope.spawn(move || {
                let (mut client, value) = (Client::new(served), vec![id; LONG]);
                let key = [b'k', id];
                for _ in 0..4 {
                    assert_eq!(client.words(&[b"set", &key, &value]), Seen::ok());
                    assert_eq!(client.words(&[b"get", &key]), Seen::Bulk(value.clone()));
                }
            });
        }
    });
    let mut client = Client::new(&served);
    let Seen::Error(text) = client.words(&[b"mget", b"k\0", b"k\x01"]) else { panic!("8 MiB in one answer") };
    assert!(text.contains("have more than 5242880 bytes together"), "{text}");
}

/// Their commands hold all the memory: they are closed, and not waited for at 1 KiB a second.
#[test]
fn stalled_long_commands_do_not_block_others() {
    let served = small();
    let value = vec![b'v'; LONG];
    let command = encode(&[b"set", b"stalled", &value]);
    let stalled: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            // The server does not take all of it.
            let _ = stream.write_all(&command[..LONG - 1]);
            stream
        })
        .collect();
    let mut other = Client::new(&served);
    let began = Instant::now();
    assert_eq!(other.run("set short 1"), Seen::ok());
    assert_eq!(other.run("get short"), Seen::Bulk(b"1".to_vec()));
    assert_eq!(other.words(&[b"set", b"long", &value]), Seen::ok());
    assert!(began.elapsed() < HANGS_AFTER);
    assert_eq!(other.words(&[b"get", b"long"]), Seen::Bulk(value));
    drop(stalled);
}

/// Symptom: a transaction that looked at many values of less than 64 KiB took no room, so that only the 64 MiB of each
/// transaction bounded its memory. Fix: together they are long.
#[test]
fn a_transaction_of_many_short_values_needs_room() {
    let served = small();
    let mut client = Client::new(&served);
    let value = vec![b'v'; 60_000];
    let mut append = |keys: u32| {
        for key in 0..keys {
            assert_eq!(client.words(&[b"set", &key.to_be_bytes(), &value]), Seen::ok());
        }
        assert_eq!(client.run("multi"), Seen::ok());
        for key in 0..keys {
            client.words(&[b"append", &key.to_be_bytes(), b"x"]);
        }
        client.run("exec")
    };
    assert!(matches!(append(10), Seen::Array(_)));
    // 7 MiB, and the same for their new values.
    let refused = append(120);
    assert!(matches!(&refused, Seen::Error(text) if text.starts_with("TRYAGAIN")), "{refused:?}");
    assert_eq!(client.words(&[b"strlen", &5_u32.to_be_bytes()]), Seen::Integer(60_000));
}
