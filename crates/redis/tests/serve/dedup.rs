//! Several keys as one write batch, and writes that are done once.

use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve};

#[test]
fn several_keys_at_once() {
    let served = serve(RedisOptions::default());
    Client::new(&served).script(
        "
        mset a 1 b 2 a 3 => +OK
        mget a b => [3, 2]
        msetnx c 1 a 5 => :0
        exists c => :0
        msetnx c 1 d 2 c 3 => :1
        mget c d => [3, 2]
        rename a b => +OK
        mget a b => [(nil), 3]
        rename a b => -ERR no such key
        rename b b => +OK
        renamenx b c => :0
        renamenx b e => :1
        mget b c e => [(nil), 3, 3]
        renamenx e e => :0
        copy e c => :0
        copy e c replace => :1
        copy none c replace => :0
        mget c e => [3, 3]
        ",
    );
}

#[test]
fn a_repeated_write_gives_its_first_answer() {
    let served = serve(RedisOptions::default());
    Client::new(&served).script(
        "
        shoal.session 7 1 incr n => :1
        shoal.session 7 1 incr n => :1
        get n => 1
        shoal.session 7 2 incr n => :2
        shoal.session 7 1 incr n => :1
        shoal.session 8 1 incr n => :3
        shoal.session 7 3 set a 1 nx => +OK
        shoal.session 7 3 set a 1 nx => +OK
        shoal.session 7 4 set a 2 nx => (nil)
        del a => :1
        shoal.session 7 4 set a 2 nx => (nil)
        shoal.session 7 5 mset x 1 y 2 => +OK
        shoal.session 7 6 rename x z => +OK
        shoal.session 7 6 rename x z => +OK
        shoal.session 7 7 del y z y => :2
        shoal.session 7 7 del y z y => :2
        shoal.session 7 8 append long 0123456789 => :10
        shoal.session 7 8 append long 0123456789 => :10
        shoal.session 7 9 getset long x => 0123456789
        shoal.session 7 9 getset long x => 0123456789
        shoal.session 7 12 get a => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        shoal.session 7 13 flushall => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        shoal.session 7 14 shoal.session 7 15 incr n => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        shoal.session x 1 incr n => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        shoal.session 7 => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        shoal.session 7 15 incr => -ERR wrong number of arguments for 'incr' command
        get n => 3
        ",
    );
    let mut client = Client::new(&served);
    let version = client.run("shoal.session 7 20 shoal.cas v 0 1");
    assert!(matches!(version, Seen::Integer(version) if version > 0), "{version:?}");
    assert_eq!(client.run("shoal.session 7 20 shoal.cas v 0 1"), version);
    assert_eq!(client.run("shoal.session 7 21 shoal.cas v 0 1"), Seen::Null);
    let session = client.run("shoal.session new");
    assert!(matches!(session, Seen::Integer(session) if session >= 0), "{session:?}");
    assert_ne!(client.run("shoal.session new"), session);
}

/// Two clients rename the same key to and fro while two others count on it: no count is lost, and the key is never there
/// twice.
#[test]
fn renaming_loses_no_other_clients_write() {
    const ROUNDS: i64 = 200;
    let served = serve(RedisOptions::default());
    let counted: i64 = std::thread::scope(|scope| {
        for (from, to) in [("one", "two"), ("two", "one")] {
            let served = &served;
            scope.spawn(move || {
                let mut client = Client::new(served);
                for _ in 0..ROUNDS {
                    client.run(&format!("renamenx {from} {to}"));
                }
            });
        }
        let threads: Vec<_> = ["one", "two"]
            .into_iter()
            .map(|name| {
                let served = &served;
                scope.spawn(move || {
                    let mut client = Client::new(served);
                    client.run(&format!("incr {name}"));
                    for _ in 1..ROUNDS {
                        client.run(&format!("incr {name}"));
                    }
                    ROUNDS
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let mut client = Client::new(&served);
    let sum: i64 = ["one", "two"]
        .iter()
        .map(|name| match client.run(&format!("get {name}")) {
            Seen::Bulk(bytes) => String::from_utf8(bytes).unwrap().parse().unwrap(),
            _ => 0,
        })
        .sum();
    // RENAMENX replaces nothing, so every count is in one of the two.
    assert_eq!(sum, counted);
}
