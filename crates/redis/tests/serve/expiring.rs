//! Time to live.

use std::thread::sleep;
use std::time::Duration;

use shoal_engine::{ByteRange, ListRequest, ObjectKey, block_on};
use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve};

#[test]
fn moments() {
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
fn what_is_over_does_not_exist_for_anybody() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.run("set stays 1");
    client.run("set goes 1 px 30");
    let key = ObjectKey::new("redis", b"goes").unwrap();
    assert!(block_on(served.store.head(&key)).unwrap().unwrap().expiry_ns.is_some());
    sleep(Duration::from_millis(60));
    assert!(block_on(served.store.get(&key, ByteRange::ALL)).unwrap().is_none());
    assert!(block_on(served.store.head(&key)).unwrap().is_none());
    let request = ListRequest { bucket: "redis".into(), limit: 10, ..ListRequest::default() };
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
