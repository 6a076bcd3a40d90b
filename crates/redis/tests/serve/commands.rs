//! Each family's commands, with Redis's replies and error texts.

use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve};

#[test]
fn strings() {
    let served = serve(RedisOptions::default());
    Client::new(&served).script(
        "
        get a => (nil)
        set a 1 => +OK
        get a => 1
        set a 2 nx => (nil)
        set b 2 xx => (nil)
        set a 2 xx get => 1
        set fresh 2 nx get => (nil)
        set a 3 nx get => 2
        get a => 2
        set a 1 nx xx => -ERR syntax error
        set a 1 ex => -ERR syntax error
        set a 1 ex 10 px 10 => -ERR syntax error
        set a 1 ex 10 keepttl => -ERR syntax error
        set a 1 ex 0 => -ERR invalid expire time in 'set' command
        set a 1 ex 9223372036854775807 => -ERR invalid expire time in 'set' command
        set a 1 ex x => -ERR value is not an integer or out of range
        setnx a 1 => :0
        setnx c 1 => :1
        getset a 5 => 2
        getdel a => 5
        getdel a => (nil)
        append s ab => :2
        append s cd => :4
        strlen s => :4
        strlen none => :0
        getrange s 1 2 => bc
        getrange s 2 -1 => cd
        getrange s 0 -100 => 
        getrange none 0 -1 => 
        substr s 0 0 => a
        setrange s 6 x => :7
        get s => abcd\\x00\\x00x
        setrange s -1 x => -ERR offset is out of range
        setrange s 536870911 x => -ERR string exceeds maximum allowed size (proto-max-bulk-len): a value has at most 4194304 bytes, and a command 67108864; gRPC and `shoal put` take longer values
        mset x 1 y 2 => +OK
        mset x 1 y => -ERR wrong number of arguments for 'mset' command
        mget x y z => [1, 2, (nil)]
        msetnx z 1 x 2 => :0
        get z => (nil)
        msetnx z 1 w 2 => :1
        setbit bits 7 1 => :0
        get bits => \\x01
        getbit bits 7 => :1
        getbit bits 700 => :0
        bitcount bits => :1
        setbit bits -1 1 => -ERR bit offset is not an integer or out of range
        setbit bits 1 2 => -ERR bit is not an integer or out of range
        get => -ERR wrong number of arguments for 'get' command
        get a b => -ERR wrong number of arguments for 'get' command
        foo a b => -ERR unknown command 'foo', with args beginning with: 'a' 'b'
        object encoding x => int
        object encoding s => embstr
        ",
    );
}

#[test]
fn numbers() {
    let served = serve(RedisOptions::default());
    Client::new(&served).script(
        "
        incr n => :1
        incrby n 41 => :42
        decr n => :41
        decrby n 40 => :1
        decrby n -9223372036854775808 => -ERR decrement would overflow
        incrby n 9223372036854775807 => -ERR increment or decrement would overflow
        set n x => +OK
        incr n => -ERR value is not an integer or out of range
        incrby n 1.5 => -ERR value is not an integer or out of range
        set f 3.0 => +OK
        incrbyfloat f 1.1 => 4.1
        incrbyfloat n 1 => -ERR value is not a valid float
        incrbyfloat f x => -ERR value is not a valid float
        incrbyfloat f +inf => -ERR increment would produce NaN or Infinity
        ",
    );
}

#[test]
fn keys() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "
        mset a 1 b 2 => +OK
        exists a b a none => :3
        touch a none => :1
        type a => +string
        type none => +none
        rename a c => +OK
        rename a c => -ERR no such key
        rename c c => +OK
        get c => 1
        renamenx c b => :0
        renamenx c d => :1
        renamenx d d => :0
        copy d e => :1
        copy d b => :0
        copy d b replace => :1
        get b => 1
        copy d d => -ERR source and destination objects are the same
        dbsize => :3
        del b none b => :1
        unlink e => :1
        keys * => [d]
        keys x* => []
        randomkey => d
        flushall => +OK
        dbsize => :0
        randomkey => (nil)
        select 0 => +OK
        select 1 => -ERR DB index is out of range
        select x => -ERR value is not an integer or out of range
        scan x => -ERR invalid cursor
        scan 0 count 0 => -ERR syntax error
        scan 0 foo => -ERR syntax error
        ",
    );
    for number in 0..250 {
        client.run(&format!("set key:{number} {number}"));
    }
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let Seen::Array(reply) = client.run(&format!("scan {cursor} match key:*5 count 30")) else {
            panic!()
        };
        let [Seen::Bulk(next), Seen::Array(keys)] = &reply[..] else { panic!("{reply:?}") };
        found.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    let expected: Vec<String> = (0..250).filter(|n| n % 10 == 5).map(|n| format!("key:{n}")).collect();
    found.sort();
    let mut sorted = expected;
    sorted.sort();
    assert_eq!(found, sorted);
    assert_eq!(client.run("dbsize"), Seen::Integer(250));
    assert_eq!(client.run("flushdb async"), Seen::ok());
    assert_eq!(client.run("keys *"), Seen::Array(vec![]));
}

#[test]
fn versions() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    assert_eq!(client.run("shoal.getv a"), Seen::Null);
    assert_eq!(client.run("shoal.cas a 7 x"), Seen::Null, "it does not exist");
    let Seen::Integer(first) = client.run("shoal.cas a 0 x") else { panic!("a version") };
    assert_eq!(client.run("shoal.cas a 0 y"), Seen::Null);
    assert_eq!(client.run("shoal.getv a"), Seen::Array(vec![Seen::Integer(first), "x".into()]));
    let Seen::Integer(second) = client.run(&format!("shoal.cas a {first} y ex 100")) else {
        panic!("a version")
    };
    assert!(second > first);
    assert_eq!(client.run(&format!("shoal.cas a {first} z")), Seen::Null);
    assert_eq!(client.run("ttl a"), Seen::Integer(100));
}

#[test]
fn a_delete_that_is_refused_deletes_nothing() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.run("set kept 1");
    let refused = format!("{:?}", client.words(&[b"del", b"kept", &[b'x'; 1025]]));
    assert!(refused.starts_with("-ERR"), "{refused}");
    client.script("get kept => 1");
}
