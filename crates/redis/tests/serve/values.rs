//! Long values: received into the memory that is written to the device, in pieces of any size.

use std::io::Write;
use std::time::{Duration, Instant};

use shoal_redis::RedisOptions;
use shoal_testkit::bytes::patterned;
use shoal_testkit::resp::encode;
use shoal_testkit::wait::HANGS_AFTER;

use crate::support::{Client, Seen, serve};

/// Between the socket and the device, only the part of a value that arrives with the words before it is copied.
#[test]
fn a_long_value_is_not_copied() {
    const ROUNDS: u64 = 20;
    const COPIED_MAX: u64 = 512;
    let served = serve(RedisOptions { threads: Some(1), ..RedisOptions::default() });
    let mut client = Client::new(&served);
    for bytes in [20 << 10, 64 << 10, 250_000] {
        // The first one is not expected: the part that arrives with its words is copied.
        assert_eq!(client.words(&[b"set", b"k", &patterned(bytes, 0)]), Seen::ok());
        let before = served.store.stat();
        for seed in 0..ROUNDS as usize {
            assert_eq!(client.words(&[b"set", b"k", &patterned(bytes, seed)]), Seen::ok());
        }
        let stat = served.store.stat();
        let copied = stat.value_bytes_copied - before.value_bytes_copied;
        assert!(copied <= ROUNDS * COPIED_MAX, "{copied} of {ROUNDS} values of {bytes} bytes were copied");
        assert_eq!(client.run("get k"), Seen::Bulk(patterned(bytes, ROUNDS as usize - 1)));
        assert_eq!(served.store.stat().device.reads, stat.device.reads, "and it is read from where it is");
    }
}

/// Commands of all kinds in one pipeline, cut at any byte.
#[test]
fn long_values_among_other_commands_and_in_any_pieces() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let sizes = [16_383, 16_384, 20_480, 65_535, 65_536, 65_537, 131_072, 400_000, 700_000];
    let (mut bytes, mut replies) = (Vec::new(), Vec::new());
    for (seed, &size) in sizes.iter().enumerate() {
        let (key, value) = (format!("key{seed}"), patterned(size, seed));
        let words: [(Vec<&[u8]>, Option<Seen>); 8] = [
            (vec![b"set", key.as_bytes(), &value], Some(Seen::ok())),
            (vec![b"set", b"other", &value[1..]], Some(Seen::ok())),
            (vec![b"get", key.as_bytes()], Some(Seen::Bulk(value.clone()))),
            (vec![b"SET", key.as_bytes(), &value, b"EX", b"100"], Some(Seen::ok())),
            (vec![b"strlen", b"other"], Some(Seen::Integer(size as i64 - 1))),
            (vec![b"set", b"short", b"1"], Some(Seen::ok())),
            (vec![b"append", key.as_bytes(), b"x"], Some(Seen::Integer(size as i64 + 1))),
            (vec![b"setnx", b"short", &value], Some(Seen::Integer(0))),
        ];
        for (words, reply) in words {
            bytes.extend(encode(&words));
            replies.push(reply);
        }
    }
    for piece in [usize::MAX, 100_003, 16_001] {
        let mut writer = client.reader.get_ref().try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bytes.chunks(piece.min(bytes.len())).for_each(|part| writer.write_all(part).unwrap())
            });
            for (at, reply) in replies.iter().enumerate() {
                assert_eq!(client.next(), *reply, "reply {at}, pieces of {piece}");
            }
        });
    }
    // The end of a value arrives separately.
    let command = encode(&[b"set", b"k", &patterned(50_000, 1)]);
    for cut in [command.len() - 1, command.len() - 2, command.len() - 3, 30, 31] {
        for part in [&command[..cut], &command[cut..]] {
            client.send(part);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(client.next(), Some(Seen::ok()));
        assert_eq!(client.run("get k"), Seen::Bulk(patterned(50_000, 1)));
    }
}

/// A client that announces long values and sends little of them keeps memory from nobody, and is served when it continues.
#[test]
fn slow_long_value_loses_only_its_buffer() {
    const SLOW: usize = 300;
    const BLOCKS_OF_OTHER: usize = 16;
    let served = serve(RedisOptions { threads: Some(1), ..RedisOptions::default() });
    let frames = served.store.stat().pool.frames;
    let long = patterned(100_000, 5);
    let mut slow: Vec<Client> = (0..SLOW).map(|_| Client::new(&served)).collect();
    for (at, client) in slow.iter_mut().enumerate() {
        let command = encode(&[b"set", format!("slow{at}").as_bytes(), &long]);
        client.send(&command[..1_000]);
    }
    let mut other = Client::new(&served);
    assert_eq!(other.run("get none"), Seen::Null);
    // A buffer exists from the second piece on. The first value arrives completely, but not the end of the command.
    let sent = |at: usize, bytes: usize| if at == 0 { bytes - 1 } else { 2_000 };
    for (at, client) in slow.iter_mut().enumerate() {
        let command = encode(&[b"set", format!("slow{at}").as_bytes(), &long]);
        client.send(&command[1_000..sent(at, command.len())]);
    }
    for round in 0..20 {
        assert_eq!(other.words(&[b"set", b"k", &patterned(65_536, round)]), Seen::ok());
        assert_eq!(other.run("get k"), Seen::Bulk(patterned(65_536, round)));
    }
    let used = served.store.stat().pool.frames_used;
    assert!(used < frames / 2, "{used} of {frames} frames");
    // They are checked once a second.
    let until = Instant::now() + HANGS_AFTER;
    let left = loop {
        let left = served.store.stat().pool.frames_used;
        if left <= 3 * BLOCKS_OF_OTHER || Instant::now() > until {
            break left;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(left <= 3 * BLOCKS_OF_OTHER, "{left} frames of {used} are still used");
    assert!(used > 10 * BLOCKS_OF_OTHER, "there were rooms to be lost: {used} frames");
    for (at, client) in slow.iter_mut().enumerate() {
        let command = encode(&[b"set", format!("slow{at}").as_bytes(), &long]);
        client.send(&command[sent(at, command.len())..]);
        assert_eq!(client.next(), Some(Seen::ok()));
    }
    for (at, client) in slow.iter_mut().enumerate().step_by(37) {
        assert_eq!(client.run(&format!("get slow{at}")), Seen::Bulk(long.clone()));
    }
}
