//! Many commands at once, and many clients.

use std::thread;

use shoal_redis::{Durability, RedisOptions};

use crate::support::{Client, Seen, encode, serve};

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
        expected.push(Seen::Simple("OK".into()));
        bytes.extend(encode(&[b"get", b"k"]));
        expected.push(value.as_str().into());
        bytes.extend(encode(&[b"incr", b"n"]));
        expected.push(Seen::Integer(number + 1));
        bytes.extend(b"PING\r\n");
        expected.push(Seen::Simple("PONG".into()));
        if number % 50 == 0 {
            bytes.extend(encode(&[b"set", b"big", &big]));
            expected.push(Seen::Simple("OK".into()));
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
        assert_eq!(client.next(), Some(Seen::Simple("OK".into())));
    }
    let after = served.store.stat();
    assert_eq!(after.records - before.records, 100);
    assert!(after.batches - before.batches <= 5, "{} batches", after.batches - before.batches);
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
        assert_eq!(one.run(&format!("set k {number}")), Seen::Simple("OK".into()));
        assert_eq!(other.run("get k"), number.to_string().as_str().into());
        assert_eq!(other.run("incr n"), Seen::Integer(number + 1));
        assert_eq!(one.run("get n"), (number + 1).to_string().as_str().into());
    }
}

/// Whoever has said everything and closes that half of the connection gets all answers, those of writes among them.
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
        assert_eq!(client.next(), Some(Seen::Simple("OK".into())));
    }
    assert_eq!(client.next(), Some(Seen::Integer(500)));
    assert_eq!(client.next(), None);
}
