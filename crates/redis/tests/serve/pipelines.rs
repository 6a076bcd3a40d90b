//! Many commands at once, and many clients.

use std::thread;

use shoal_engine::Environment;
use shoal_redis::{Durability, RedisOptions};
use shoal_testkit::resp::encode;

use crate::support::{Client, Seen, cold_store, serve, serve_store};

#[test]
fn answers_come_in_order_and_see_what_was_written_before() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let big = vec![b'v'; 100_000];
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for number in 0..200_i64 {
        let value = number.to_string();
        bytes.extend(encode(&[b"set", b"k", value.as_bytes()]));
        expected.push(Seen::ok());
        bytes.extend(encode(&[b"get", b"k"]));
        expected.push(value.as_str().into());
        bytes.extend(encode(&[b"incr", b"n"]));
        expected.push(Seen::Integer(number + 1));
        bytes.extend(b"PING\r\n");
        expected.push(Seen::Simple("PONG".into()));
        if number % 50 == 0 {
            bytes.extend(encode(&[b"set", b"big", &big]));
            expected.push(Seen::ok());
            bytes.extend(encode(&[b"append", b"big", b"x"]));
            expected.push(Seen::Integer(100_001));
            bytes.extend(encode(&[b"dbsize"]));
            expected.push(Seen::Integer(3));
        }
    }
    let mut writer = client.reader.get_ref().try_clone().unwrap();
    let sender = thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes).unwrap());
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(client.next().as_ref(), Some(expected), "reply {number}");
    }
    sender.join().unwrap();
}

#[test]
fn a_pipeline_of_writes_shares_batches_of_the_log() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let before = served.store.stat();
    let bytes: Vec<u8> =
        (0..100).flat_map(|number| encode(&[b"set", format!("k{number}").as_bytes(), b"v"])).collect();
    client.send(&bytes);
    for _ in 0..100 {
        assert_eq!(client.next(), Some(Seen::ok()));
    }
    let after = served.store.stat();
    assert_eq!(after.records - before.records, 100);
    assert!(after.batches - before.batches <= 5, "{} batches", after.batches - before.batches);
}

/// Plain SETs and GETs take the short path, others a task: in any mix, each reads the writes before it.
#[test]
fn fast_and_slow_paths_keep_order() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let long = vec![b'l'; 5_000];
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for round in 0..100 {
        let value = format!("v{round}");
        let other = format!("o{}", round % 7);
        bytes.extend(encode(&[b"SET", b"k", value.as_bytes()]));
        bytes.extend(encode(&[b"set", other.as_bytes(), value.as_bytes()]));
        bytes.extend(encode(&[b"set", b"long", &long]));
        expected.extend(std::iter::repeat_n(Seen::ok(), 3));
        if round % 3 == 0 {
            bytes.extend(encode(&[b"append", b"k", b"x"]));
            expected.push(Seen::Integer(value.len() as i64 + 1));
            bytes.extend(encode(&[b"set", b"k", value.as_bytes()]));
            bytes.extend(encode(&[b"set", b"k", value.as_bytes(), b"XX"]));
            expected.extend(std::iter::repeat_n(Seen::ok(), 2));
        }
        bytes.extend(encode(&[b"get", b"k"]));
        bytes.extend(encode(&[b"get", other.as_bytes()]));
        bytes.extend(encode(&[b"strlen", b"long"]));
        expected.extend([value.as_str().into(), value.as_str().into(), Seen::Integer(5_000)]);
        if round % 10 == 0 {
            bytes.extend(encode(&[b"del", b"k", b"nothing"]));
            bytes.extend(encode(&[b"get", b"k"]));
            expected.extend([Seen::Integer(1), Seen::Null]);
        }
    }
    for piece in bytes.chunks(7_001) {
        client.send(piece);
    }
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(client.next().as_ref(), Some(expected), "reply {number}");
    }
    // Again from the read cache, and after a write of another connection.
    let mut other = Client::new(&served);
    for round in 0..20 {
        assert_eq!(client.run("get o1"), "v99".into());
        assert_eq!(client.run("get o1"), "v99".into());
        assert_eq!(other.run(&format!("set o2 {round}")), Seen::ok());
        assert_eq!(client.run("get o2"), round.to_string().as_str().into());
        assert_eq!(client.run("get o2"), round.to_string().as_str().into());
        assert_eq!(other.run("get o2"), round.to_string().as_str().into());
    }
}

#[test]
fn multi_key_delete_includes_long_names() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    for (count, bytes) in [(2, 4), (512, 4), (513, 4), (512, 1_000)] {
        let names: Vec<String> = (0..count).map(|number| format!("{number:0bytes$}")).collect();
        for names in names.chunks(64) {
            let mut set: Vec<&[u8]> = vec![b"mset"];
            names.iter().for_each(|name| set.extend([name.as_bytes(), b"v"]));
            assert_eq!(client.words(&set), Seen::ok());
        }
        let before = served.store.stat();
        let del: Vec<&[u8]> =
            [&b"del"[..]].into_iter().chain(names.iter().map(|name| name.as_bytes())).collect();
        assert_eq!(client.words(&del), Seen::Integer(count as i64));
        let after = served.store.stat();
        assert_eq!(after.records - before.records, count as u64);
        assert_eq!(client.words(&del), Seen::Integer(0));
    }
}

#[test]
fn counters_of_many_clients_lose_nothing() {
    let served = serve(RedisOptions::default());
    thread::scope(|scope| {
        for number in 0..8 {
            let served = &served;
            scope.spawn(move || {
                let mut client = Client::new(served);
                for _ in 0..50 {
                    assert!(matches!(client.run("incr shared"), Seen::Integer(_)));
                    assert!(matches!(client.run("append text x"), Seen::Integer(_)));
                    client.run(&format!("setbit bits {number} 1"));
                }
            });
        }
    });
    let mut client = Client::new(&served);
    assert_eq!(client.run("get shared"), "400".into());
    assert_eq!(client.run("strlen text"), Seen::Integer(400));
    assert_eq!(client.run("bitcount bits"), Seen::Integer(8));
}

#[test]
fn relaxed_writes_are_seen_at_once() {
    let relaxed = Durability::Relaxed(std::time::Duration::from_millis(500));
    let served = serve(RedisOptions { durability: relaxed, ..RedisOptions::default() });
    let (mut one, mut other) = (Client::new(&served), Client::new(&served));
    for number in 0..300 {
        assert_eq!(one.run(&format!("set k {number}")), Seen::ok());
        assert_eq!(other.run("get k"), number.to_string().as_str().into());
        assert_eq!(other.run("incr n"), Seen::Integer(number + 1));
        assert_eq!(one.run("get n"), (number + 1).to_string().as_str().into());
    }
}

/// A read that waits for the device returns the value before a later write of its pipeline.
#[test]
fn a_read_that_waits_does_not_see_later_writes() {
    const KEYS: usize = 40;
    let key = |number: usize| format!("k{number}").into_bytes();
    let old = |number: usize| b'a' + (number % 26) as u8;
    let store = cold_store((0..KEYS).map(|number| (key(number), vec![old(number); 200_000])));
    let served = serve_store(store, RedisOptions::default(), Environment::default());
    let mut client = Client::new(&served);
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for number in 0..KEYS {
        bytes.extend(encode(&[b"getrange", &key(number), b"5", b"9"]));
        expected.push(Seen::Bulk(vec![old(number); 5]));
        bytes.extend(encode(&[b"set", &key(number), b"NNNNNNNNNN"]));
        expected.push(Seen::ok());
        bytes.extend(encode(&[b"strlen", &key(number)]));
        expected.push(Seen::Integer(10));
        bytes.extend(encode(&[b"getrange", &key(number), b"5", b"9"]));
        expected.push("NNNNN".into());
    }
    let mut writer = client.reader.get_ref().try_clone().unwrap();
    let sender = thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes).unwrap());
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(client.next().as_ref(), Some(expected), "reply {number}");
    }
    sender.join().unwrap();
}

/// INFO counts the writes before it in its pipeline.
#[test]
fn info_counts_the_writes_before_it() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    for round in 1..=20 {
        client.send(format!("set k{round} v\r\ninfo keyspace\r\n").as_bytes());
        assert_eq!(client.next(), Some(Seen::ok()));
        assert_counts(client.next(), round);
    }
}

/// Asserts that INFO reports this number of keys.
fn assert_counts(answer: Option<Seen>, keys: i64) {
    let Some(Seen::Bulk(text)) = answer else { panic!("text, not {answer:?}") };
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(&format!("db0:keys={keys},")), "{text}");
}

/// In the relaxed mode, a walk sees the writes acknowledged to its connection before.
#[test]
fn relaxed_writes_are_among_the_keys_at_once() {
    let relaxed = Durability::Relaxed(std::time::Duration::from_millis(500));
    let served = serve(RedisOptions { durability: relaxed, ..RedisOptions::default() });
    let mut client = Client::new(&served);
    for round in 1..=50 {
        assert_eq!(client.run(&format!("set k{round} v")), Seen::ok());
        assert_counts(Some(client.run("info keyspace")), round);
        assert_eq!(client.run("dbsize"), Seen::Integer(round));
        assert!(matches!(client.run("keys k*"), Seen::Array(keys) if keys.len() == round as usize));
        client.run("set gone v");
        client.run("del gone");
    }
    client.run("set last v");
    assert_eq!(client.run("flushall"), Seen::ok());
    client.script("dbsize => :0");
    client.script("get last => (nil)");
}

/// FLUSHALL yields after every 512 keys; the commands after it in its pipeline start when all keys are gone.
#[test]
fn commands_after_flush_start_when_it_finishes() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.fill(2_000);
    client.send(b"flushall\r\nget key001999\r\nset z 1\r\nget a\r\nget z\r\ndbsize\r\n");
    assert_eq!(client.next(), Some(Seen::ok()));
    assert_eq!(client.next(), Some(Seen::Null), "the last page was deleted before");
    assert_eq!(client.next(), Some(Seen::ok()));
    assert_eq!(client.next(), Some(Seen::Null));
    assert_eq!(client.next(), Some("1".into()), "written after the flush");
    assert_eq!(client.next(), Some(Seen::Integer(1)));
}

/// A client that has sent everything and closes its sending half gets all answers, including those of writes.
#[test]
fn answers_come_after_the_last_word() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let bytes: Vec<u8> = (0..500)
        .flat_map(|number| encode(&[b"set", format!("k{number}").as_bytes(), &[b'v'; 2_000]]))
        .collect();
    client.send(&bytes);
    client.send(b"dbsize\r\n");
    client.reader.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..500 {
        assert_eq!(client.next(), Some(Seen::ok()));
    }
    assert_eq!(client.next(), Some(Seen::Integer(500)));
    assert_eq!(client.next(), None);
}
