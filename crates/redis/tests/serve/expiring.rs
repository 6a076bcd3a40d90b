//! Time to live.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use shoal_base::ManualClock;
use shoal_base::limits::LIST_PASSED_MAX;
use shoal_engine::{ByteRange, DEFAULT_BUCKET, ListRequest, ObjectKey, block_on};
use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve, serve_timed};

#[test]
fn expiry_commands() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "
        set a 1 ex 100 => +OK
        ttl a => :100
        persist a => :1
        persist a => :0
        ttl a => :-1
        ttl none => :-2
        expire a 100 gt => :0
        expire a 100 => :1
        expire a 50 gt => :0
        expire a 200 gt => :1
        expire a 300 lt => :0
        expire a 100 nx => :0
        expire a 100 xx => :1
        expire a 1 nx xx => -ERR NX and XX, GT or LT options at the same time are not compatible
        expire a 1 gt lt => -ERR GT and LT options at the same time are not compatible
        expire a 1 foo => -ERR Unsupported option foo
        expire a 9223372036854775807 => -ERR invalid expire time in 'expire' command
        expire none 5 => :0
        set a 2 keepttl => +OK
        ttl a => :100
        append a x => :2
        ttl a => :100
        getset a y => 2x
        ttl a => :-1
        getex a ex 40 => y
        ttl a => :40
        getex a => y
        ttl a => :40
        getex a persist => y
        ttl a => :-1
        setex a 50 z => +OK
        psetex b 50000 z => +OK
        ttl b => :50
        setex a 0 z => -ERR invalid expire time in 'setex' command
        pexpireat a 33177117420000 => :1
        pexpireat a 9223372036854770000 => :1
        expireat a 33177117420 => :1
        expiretime b2 => :-2
        set b2 1 => +OK
        expiretime b2 => :-1
        expire a -5 => :1
        exists a => :0
        rename b c => +OK
        ttl c => :50
        ",
    );
    assert_eq!(client.run("pexpireat c 16725225600000"), Seen::Integer(1));
    assert_eq!(client.run("expiretime c"), Seen::Integer(16_725_225_600));
    assert_eq!(client.run("pexpiretime c"), Seen::Integer(16_725_225_600_000));
}

#[test]
fn expired_key_is_absent_in_every_command() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.run("set stays 1");
    client.run("set goes 1 px 1000");
    let key = ObjectKey::new(DEFAULT_BUCKET, b"goes").unwrap();
    assert!(block_on(served.store.head(&key)).unwrap().unwrap().expiry.is_some());
    sleep(Duration::from_millis(1_100));
    assert!(block_on(served.store.get(&key, ByteRange::ALL)).unwrap().is_none());
    assert!(block_on(served.store.head(&key)).unwrap().is_none());
    let request = ListRequest { bucket: DEFAULT_BUCKET.into(), limit: 10, ..ListRequest::default() };
    assert_eq!(block_on(served.store.list(&request)).unwrap().entries.len(), 1);
    client.script(
        "
        get goes => (nil)
        keys * => [stays]
        dbsize => :1
        set goes 2 xx => (nil)
        incr goes => :1
        ttl goes => :-1
        ",
    );
}

const SECOND: u64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND as i64;

/// Reported from outside: after the wall clock had been ahead by a day, SET with EX answered OK and GET nil, EXPIRE deleted the
/// key, and after a step back of 5 s, a time to live of 3 s was lost.
#[test]
fn wall_clock_jump_keeps_ttl() {
    let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
    let served = serve_timed(&clock);
    let mut client = Client::new(&served);
    client.script("set p 1 => +OK");
    clock.step_wall(DAY);
    client.script("get p => 1\n set q 1 => +OK\n expireat q 1800000010 => :1\n exists q => :0");
    clock.step_wall(-DAY);
    client.script(
        "
        set k v ex 60 => +OK
        get k => v
        ttl k => :60
        pttl k => :60000
        expiretime k => :1800000060
        expire p 60 => :1
        get p => 1
        ttl p => :60
        setex s 60 1 => +OK
        psetex ps 60000 1 => +OK
        set g 1 => +OK
        getex g px 60000 => 1
        ttl g => :60
        set a 1 exat 1800000060 => +OK
        ttl a => :60
        persist s => :1
        ttl s => :-1
        expire s 60 => :1
        dbsize => :6
        ",
    );
    // Back and forth: an expiry in elapsed time does not move, an expiry by the wall clock does.
    clock.step_wall(-5 * SECOND as i64);
    client.script("set short 1 ex 3 => +OK\n ttl k => :60\n expiretime k => :1800000055\n ttl a => :65\n expiretime a => :1800000060");
    clock.step_wall(20 * SECOND as i64);
    client.script(
        "get short => 1\n ttl short => :3\n ttl k => :60\n expiretime k => :1800000075\n ttl a => :45",
    );
    clock.advance(2 * SECOND);
    client.script("get short => 1\n append short x => :2\n ttl short => :1\n expire short 5 gt => :1\n expire short 4 gt => :0");
    clock.advance(5 * SECOND);
    client.script("get short => (nil)\n ttl k => :53\n rename k k2 => +OK\n ttl k2 => :53\n copy p p2 => :1\n ttl p2 => :53");
    clock.step_wall(-DAY);
    clock.advance(52 * SECOND);
    client.script("ttl k2 => :1\n ttl g => :1\n dbsize => :7\n exists a => :1");
    clock.advance(SECOND);
    client.script("exists k2 p p2 s ps g => :0\n keys * => [a]\n dbsize => :1\n get p => (nil)");
    let Seen::Bulk(text) = client.run("info keyspace") else { panic!("text") };
    assert!(String::from_utf8(text).unwrap().contains("expires=1"));
}

/// Symptom: RANDOMKEY and one SCAN passed a million expired keys and kept their thread for a second. Cause: a page was
/// bounded by the keys that it lists. Fix: by the keys that it looks at, so a page may be empty and not be the last.
#[test]
fn many_expired_keys_are_passed_page_by_page() {
    const GONE: usize = 3 * LIST_PASSED_MAX;
    let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
    let served = serve_timed(&clock);
    let mut client = Client::new(&served);
    client.script("set z here => +OK");
    for some in (0..GONE).collect::<Vec<_>>().chunks(1_024) {
        let sets: String = some.iter().map(|number| format!("set gone{number:06} 1 px 1000\r\n")).collect();
        client.send(sets.as_bytes());
        some.iter().for_each(|_| assert_eq!(client.next(), Some(Seen::ok())));
    }
    clock.advance(2 * SECOND);
    let (mut cursor, mut found, mut empty) = (String::from("0"), Vec::new(), 0);
    loop {
        let Seen::Array(answer) = client.run(&format!("scan {cursor} count 100000")) else {
            panic!("a page")
        };
        let [Seen::Bulk(next), Seen::Array(keys)] = &answer[..] else { panic!("{answer:?}") };
        cursor = String::from_utf8(next.clone()).unwrap();
        empty += usize::from(keys.is_empty() && cursor != "0");
        found.extend_from_slice(keys);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, [Seen::from("z")]);
    assert!(empty > 0, "a page of expired keys alone has a cursor");
    for _ in 0..20 {
        assert_eq!(client.run("randomkey"), Seen::from("z"));
    }
    let passed = served.store.stat().keys_passed_most as usize;
    assert!((LIST_PASSED_MAX..=LIST_PASSED_MAX + 2).contains(&passed), "{passed} keys passed by one page");
}
