//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.

use std::collections::BTreeSet;
use std::thread;

use shoal_engine::Environment;
use shoal_redis::{ClusterMode, Durability, RedisOptions};
use shoal_testkit::resp::encode;

use crate::support::{Client, Seen, cold_store, kit, serve, serve_store};

#[test]
fn commands_are_queued_and_done_as_one() {
    let served = serve(RedisOptions::default());
    let (mut client, mut other) = (Client::new(&served), Client::new(&served));
    client.script(
        "multi => +OK\n set a 1 => +QUEUED\n incr a => +QUEUED\n incr a => +QUEUED\n get a => +QUEUED",
    );
    other.script("get a => (nil)\n set b x => +OK");
    client.script(
        "
        get b => +QUEUED
        set c 1 ex 100 => +QUEUED
        ttl c => +QUEUED
        expire a 100 => +QUEUED
        persist a => +QUEUED
        pttl a => +QUEUED
        exec => [+OK, :2, :3, 3, x, +OK, :100, :1, :1, :-1]
        get a => 3
        exec => -ERR EXEC without MULTI
        discard => -ERR DISCARD without MULTI
        multi => +OK
        exec => []
        multi => +OK
        set a 9 => +QUEUED
        discard => +OK
        get a => 3
        ",
    );
}

#[test]
fn failed_command_does_not_undo_others() {
    let served = serve(RedisOptions::default());
    Client::new(&served).script(
        "
        multi => +OK
        set a text => +QUEUED
        incr a => +QUEUED
        set b 1 badoption => +QUEUED
        setrange a -1 x => +QUEUED
        append a er => +QUEUED
        get none => +QUEUED
        exec => [+OK, -ERR value is not an integer or out of range, -ERR syntax error, -ERR offset is out of range, :6, (nil)]
        mget a b => [texter, (nil)]
        ",
    );
    // A word that is not a valid key is refused by its command alone.
    let mut client = Client::new(&served);
    assert_eq!(client.run("multi"), Seen::ok());
    client.words(&[b"set", &vec![b'k'; 2_000], b"v"]);
    client.run("set a 1");
    let Seen::Array(answers) = client.run("exec") else { panic!("answers") };
    assert!(matches!(answers[0], Seen::Error(_)) && answers[1] == Seen::ok(), "{answers:?}");
}

#[test]
fn error_while_queueing_aborts_exec() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let wrong = [
        ("nothing here", "-ERR unknown command 'nothing', with args beginning with: 'here' "),
        ("get", "-ERR wrong number of arguments for 'get' command"),
        ("flushall", "-ERR FLUSHALL is not allowed inside a transaction"),
        ("flushdb async", "-ERR FLUSHDB is not allowed inside a transaction"),
        ("scan 0", "-ERR SCAN is not allowed inside a transaction"),
        ("keys *", "-ERR KEYS is not allowed inside a transaction"),
        ("dbsize", "-ERR DBSIZE is not allowed inside a transaction"),
        ("randomkey", "-ERR RANDOMKEY is not allowed inside a transaction"),
        ("client reply off", "-ERR CLIENT REPLY is not allowed inside a transaction"),
        ("client reply on", "-ERR CLIENT REPLY is not allowed inside a transaction"),
        ("shoal.session 1 1 set a 1", "-ERR SHOAL.SESSION is not allowed inside a transaction"),
    ];
    for (command, refused) in wrong {
        client.script("multi => +OK\n set a 1 => +QUEUED");
        assert_eq!(format!("{:?}", client.run(command)), refused, "{command}");
        client.script(
            "
            set b 1 => +QUEUED
            exec => -EXECABORT Transaction discarded because of previous errors.
            mget a b => [(nil), (nil)]
            ",
        );
    }
    // These are refused, but do not abort the transaction.
    client.script(
        "
        multi => +OK
        multi => -ERR MULTI calls can not be nested
        watch a => -ERR WATCH inside MULTI is not allowed
        set a 1 => +QUEUED
        exec => [+OK]
        get a => 1
        ",
    );
}

#[test]
fn changed_watched_key_aborts_exec() {
    let served = serve(RedisOptions::default());
    let (mut client, mut other) = (Client::new(&served), Client::new(&served));
    let mut round = |between: &str, ends: &str| {
        client.script("set x 1 => +OK\n del y => :0\n watch x y => +OK");
        for command in between.split(';').filter(|command| !command.is_empty()) {
            other.run(command);
        }
        client.script(&format!(
            "multi => +OK\n set z 1 => +QUEUED\n exec => {ends}\n del z => :{}",
            i32::from(ends != "(nil)")
        ));
        other.run("del y");
    };
    round("", "[+OK]");
    round("get x;exists y;set other 1;del y;setrange x 5 ;setnx x 9;persist x", "[+OK]");
    round("set x 1", "(nil)");
    round("incr x", "(nil)");
    round("del x", "(nil)");
    round("expire x 1000", "(nil)");
    round("set y 1", "(nil)");
    round("set y 1;del y", "(nil)");
    round("mset other 1 x 2", "(nil)");
    round("rename x other", "(nil)");
    round("multi;incr x;exec", "(nil)");
    round("flushall", "(nil)");
    round("multi;get x;exec", "[+OK]");
    // Its own writes also count; EXEC and DISCARD forget all keys, whether they succeed or not.
    client.script(
        "
        watch x => +OK
        set x 2 => +OK
        multi => +OK
        get x => +QUEUED
        exec => (nil)
        multi => +OK
        get x => +QUEUED
        exec => [2]
        watch x => +OK
        set x 3 => +OK
        multi => +OK
        discard => +OK
        multi => +OK
        exec => []
        watch x => +OK
        set x 4 => +OK
        unwatch => +OK
        multi => +OK
        exec => []
        watch x => +OK
        set x 5 => +OK
        multi => +OK
        exec => (nil)
        watch x => +OK
        set x 6 => +OK
        multi => +OK
        unwatch => +QUEUED
        exec => (nil)
        ",
    );
    // In version 3 nothing is a null.
    client.run("hello 3");
    client.script("watch x => +OK\n set x 7 => +OK\n multi => +OK");
    client.send(b"EXEC\r\n");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut client.reader, &mut line).unwrap();
    assert_eq!(line, "_\r\n");
}

#[test]
fn expired_watched_key_aborts_exec() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script("set x 1 px 30 => +OK\n watch x => +OK");
    // Until it is gone, which may take any time.
    let mut other = Client::new(&served);
    while other.run("exists x") == Seen::Integer(1) {
        thread::yield_now();
    }
    client.script(
        "
        multi => +OK
        set y 1 => +QUEUED
        exec => (nil)
        watch x => +OK
        get x => (nil)
        del x => :0
        multi => +OK
        set y 2 => +QUEUED
        exec => [+OK]
        ",
    );
}

#[test]
fn commands_about_the_connection_are_part_of_it() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "
        multi => +OK
        client setname me => +QUEUED
        client getname => +QUEUED
        set a 1 => +QUEUED
        ping => +QUEUED
        echo text => +QUEUED
        select 0 => +QUEUED
        select 1 => +QUEUED
        wait 0 0 => +QUEUED
        get a => +QUEUED
        client getname => +QUEUED
        exec => [+OK, me, +OK, +PONG, text, +OK, -ERR DB index is out of range, :0, 1, me]
        multi => +OK
        set a 2 => +QUEUED
        reset => +RESET
        exec => -ERR EXEC without MULTI
        get a => 1
        ",
    );
    // A command that is not executed also leaves the connection unchanged.
    client.script(
        "watch a => +OK\n set a 3 => +OK\n multi => +OK\n client setname you => +QUEUED\n exec => (nil)",
    );
    assert_eq!(format!("{:?}", client.run("client getname")), "(nil)");
    client.script("multi => +OK\n info server => +QUEUED\n hello 3 => +QUEUED");
    let Seen::Array(answers) = client.run("exec") else { panic!("answers") };
    assert!(matches!(&answers[0], Seen::Bulk(text) if text.starts_with(b"# Server")), "{answers:?}");
    assert!(matches!(answers[1], Seen::Map(_)), "{answers:?}");
    client.script("multi => +OK\n set a 4 => +QUEUED\n quit => +OK");
    assert_eq!(client.next(), None);
    let options = RedisOptions { password: Some(b"secret".to_vec()), ..RedisOptions::default() };
    let served = serve(options);
    Client::new(&served).script(
        "
        multi => -NOAUTH Authentication required.
        auth secret => +OK
        multi => +OK
        auth wrong => +QUEUED
        auth secret => +QUEUED
        exec => [-WRONGPASS invalid username-password pair or user is disabled., +OK]
        ",
    );
}

/// A client that disconnects leaves nothing behind: its queued commands are dropped, and its keys are no longer watched.
#[test]
fn disconnect_discards_transaction() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script("watch a b => +OK\n multi => +OK\n set a 1 => +QUEUED");
    drop(client);
    Client::new(&served)
        .script("get a => (nil)\n set a 2 => +OK\n multi => +OK\n incr a => +QUEUED\n exec => [:3]");
}

#[test]
fn versions_and_request_ids() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "multi => +OK\n shoal.cas a 0 one => +QUEUED\n set b x => +QUEUED\n shoal.cas c 0 two => +QUEUED",
    );
    client.script("shoal.getv c => +QUEUED\n shoal.cas c 0 three => +QUEUED\n shoal.getv none => +QUEUED");
    let Seen::Array(answers) = client.run("exec") else { panic!("answers") };
    let version = |key: &str| match Client::new(&served).run(&format!("shoal.getv {key}")) {
        Seen::Array(both) => both[0].clone(),
        other => panic!("{other:?}"),
    };
    let c = Seen::Array(vec![version("c"), "two".into()]);
    let expected = [version("a"), Seen::ok(), version("c"), c, Seen::Null, Seen::Null];
    assert_eq!(answers, expected);
    // A repeated EXEC, with everything that belongs to it, is done once.
    for _ in 0..3 {
        client.script(
            "
            multi => +OK
            incr n => +QUEUED
            get n => +QUEUED
            type n => +QUEUED
            set m x nx => +QUEUED
            shoal.session 7 1 exec => [:1, 1, +string, +OK]
            get n => 1
            ",
        );
    }
    client.script(
        "
        shoal.session 7 2 exec => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        multi => +OK
        incr n => +QUEUED
        shoal.session x 2 exec => -ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys
        exec => -ERR EXEC without MULTI
        ",
    );
}

/// Every command answers and leaves the same state inside a transaction as outside.
#[test]
fn every_command_is_the_same_inside() {
    let samples = "
        append a x;append n 5;bitcount a;bitcount a 0 -1;copy a b;copy a n replace;copy none b;decr n;decr a;decrby n 5;del a;
        del a n none;echo x;exists a none a;expire a 100;expire none 1;expire a -1;expire a 100 nx;expire t 1 gt;
        expireat a 33177117420;expiretime t;get a;get none;get t;getbit a 1;getdel a;getdel none;getex a;getex a ex 50;
        getex t persist;getrange a 1 2;getrange none 0 1;getset a new;incr n;incr a;incrby n 7;incrby none 7;incrbyfloat n 1.5;
        incrbyfloat a 1;mget a none n t;mset a 1 b 2 a 3;mset a 1 b;msetnx b 1 c 2;msetnx b 1 a 2;object encoding n;
        object encoding none;object refcount a;persist t;persist a;pexpire a 100000;pexpireat a 33177117420000;pexpiretime t;
        psetex a 100000 v;psetex a 0 v;pttl none;pttl a;rename a b;rename none b;rename a a;renamenx a n;renamenx a b;
        set a v;set a v nx;set b v nx;set a v xx;set b v xx;set a v get;set b v get;set t v keepttl;set a v ex 100;
        set a v exat 1;set a v bad;setbit a 3 1;setbit b 100 1;setex a 100 v;setex a x v;setnx a v;setnx b v;setrange a 2 xyz;
        setrange b 3 x;shoal.cas b 0 v;shoal.cas a 0 v;shoal.cas a 1 v;shoal.getv none;strlen a;strlen none;substr a 0 1;
        touch a none;ttl t;ttl none;ttl a;type a;type none;unlink a n;ping;ping x;select 0;select 9;asking;readonly;readwrite;
        wait 0 0;waitaof 1 1 0;client getname;client setname x;cluster keyslot a;command count;config get databases;function list;
        auth x;hello 2;bitcount a 1 9 bit;bitcount n 0;bitfield a get u8 0 set u8 8 1 overflow fail incrby u2 0 3;
        bitfield b set u8 0 65;bitfield t get u4 0;bitfield a set u8 0;bitfield_ro a get i8 #1;bitfield_ro none get u1 0;
        bitfield_ro a set u8 0 1;bitop and b a n;bitop or a a n none;bitop xor t a t;bitop not n n;bitop not n a n;
        bitop and a none;bitop or b none c;bitop nor b a n;bitpos a 1;bitpos a 0 0 -1 bit;bitpos none 0;bitpos a 2;object help;
        object freq a;object idletime none;object nothing a;client help;client id;client kill id 999;client kill 1.2.3.4:5;
        client list id 999;client no-evict on;client no-touch off;client no-touch x;client setinfo lib-name x;client nothing;
        cluster help;cluster info;cluster nothing;command help;command list;command info get;command docs get;
        command getkeys bitop and a b;command getkeysandflags set a 1;command info bitop;config help;config resetstat;
        config set a b;config nothing;function help;function flush";
    // With different answers, or about transactions and connections as such.
    let apart = "
        flushall flushdb scan keys dbsize randomkey shoal.damage info time shoal.session multi exec discard watch unwatch quit reset
        client|info client|reply cluster|myid cluster|nodes cluster|shards cluster|slots";
    let samples: Vec<&str> = samples.split(';').map(str::trim).filter(|sample| !sample.is_empty()).collect();
    let options = || RedisOptions { cluster: ClusterMode::On { announce: None }, ..RedisOptions::default() };
    let (inside, outside) = (serve(options()), serve(options()));
    let (mut inside, mut outside) = (Client::new(&inside), Client::new(&outside));
    let Seen::Array(all) = outside.run("command list") else { panic!("a list") };
    let named = |sample: &&str| {
        let mut words = sample.split(' ');
        let (name, part) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        [name.to_owned(), format!("{name}|{part}")]
    };
    let tried: BTreeSet<String> = samples.iter().flat_map(named).collect();
    let missing: Vec<&Seen> = all
        .iter()
        .filter(|name| {
            let Seen::Bulk(name) = name else { return true };
            let name = std::str::from_utf8(name).unwrap();
            !tried.contains(name) && !apart.split_whitespace().any(|known| known == name)
        })
        .collect();
    assert!(missing.is_empty(), "give these commands samples here: {missing:?}");
    let setup = ["set a text", "set n 17", "set t v exat 33177117420"];
    let left = |client: &mut Client| {
        ["a", "b", "c", "n", "t", "none"]
            .map(|key| (client.run(&format!("get {key}")), client.run(&format!("pexpiretime {key}")), key))
    };
    for sample in samples {
        // Half of them see the state from before, the others the transaction's own writes.
        for within in [false, true] {
            for client in [&mut inside, &mut outside] {
                client.run("flushall");
                client.run("client setname me");
            }
            let outside_said: Vec<Seen> =
                setup.iter().chain([&sample]).map(|command| outside.run(command)).collect();
            if !within {
                setup.iter().for_each(|command| drop(inside.run(command)));
            }
            assert_eq!(inside.run("multi"), Seen::ok(), "{sample}");
            for command in setup.iter().filter(|_| within).chain([&sample]) {
                assert_eq!(inside.run(command), Seen::Simple("QUEUED".into()), "{command}");
            }
            let Seen::Array(mut inside_said) = inside.run("exec") else { panic!("{sample}: no answers") };
            let (said, expected) = (inside_said.pop().unwrap(), outside_said.last().unwrap().clone());
            match sample {
                // It is a different one.
                "shoal.cas b 0 v" => assert!(matches!(said, Seen::Integer(_))),
                // The time advances.
                sample
                    if sample.starts_with("getex")
                        || sample.contains(" ex ")
                        || sample.starts_with("expire a 100") =>
                {
                    assert_eq!(said, expected, "{sample}, {within}");
                    continue;
                }
                "setex a 100 v" | "psetex a 100000 v" | "pexpire a 100000" => {
                    assert_eq!(said, expected, "{sample}, {within}");
                    continue;
                }
                _ => assert_eq!(said, expected, "{sample}, {within}"),
            }
            assert_eq!(left(&mut inside), left(&mut outside), "{sample}, {within}");
        }
    }
}

/// Eight connections increment two keys together, and four read both: nobody ever sees them differ, and no count is lost. The
/// same with WATCH, GET and SET.
#[test]
fn transaction_is_atomic_for_readers() {
    for durability in [Durability::Sync, Durability::Relaxed(std::time::Duration::from_millis(50))] {
        let served = serve(RedisOptions { durability, threads: Some(3), ..RedisOptions::default() });
        let served = &served;
        thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    let mut client = Client::new(served);
                    for _ in 0..50 {
                        if number % 2 == 0 {
                            client.send(b"MULTI\r\nINCR left\r\nINCR {x}right\r\nEXEC\r\n");
                            (0..3).for_each(|_| drop(client.next()));
                            let Some(Seen::Array(both)) = client.next() else { panic!("answers") };
                            assert_eq!(both[0], both[1]);
                            continue;
                        }
                        loop {
                            client.run("watch left {x}right");
                            let Seen::Array(both) = client.run("mget left {x}right") else {
                                panic!("values")
                            };
                            let of = |seen: &Seen| match seen {
                                Seen::Bulk(text) => std::str::from_utf8(text).unwrap().parse().unwrap(),
                                _ => 0_u64,
                            };
                            let next = of(&both[0]) + 1;
                            client.run("multi");
                            client.run(&format!("set left {next}"));
                            client.run(&format!("set {{x}}right {next}"));
                            if client.run("exec") != Seen::Null {
                                break;
                            }
                        }
                    }
                });
            }
            for _ in 0..4 {
                scope.spawn(move || {
                    let mut client = Client::new(served);
                    for _ in 0..100 {
                        client.send(b"MULTI\r\nGET left\r\nGET {x}right\r\nEXEC\r\n");
                        (0..3).for_each(|_| drop(client.next()));
                        let Some(Seen::Array(both)) = client.next() else { panic!("answers") };
                        assert_eq!(both[0], both[1]);
                    }
                });
            }
        });
        Client::new(served).script("mget left {x}right => [400, 400]");
    }
}

/// Transactions in one pipeline, with commands between them, take effect in their order.
#[test]
fn transactions_in_a_pipeline() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    let ok = Seen::ok;
    let queued = || Seen::Simple("QUEUED".into());
    let long = vec![b'v'; 40_000];
    for number in 0..100_i64 {
        let text = number.to_string();
        let other: &[u8] = if number % 3 == 0 { &long } else { b"short" };
        bytes.extend(encode(&[b"set", b"k", text.as_bytes()]));
        bytes.extend(b"WATCH k other\r\nGET k\r\nMULTI\r\nGET k\r\nINCR k\r\n");
        bytes.extend(encode(&[b"set", b"other", other]));
        bytes.extend(b"STRLEN other\r\nEXEC\r\nGET k\r\nMULTI\r\nSET k 7\r\nDISCARD\r\n");
        let answers =
            vec![text.as_str().into(), Seen::Integer(number + 1), ok(), Seen::Integer(other.len() as i64)];
        expected.extend([ok(), ok(), text.as_str().into(), ok(), queued(), queued(), queued(), queued()]);
        expected.extend([
            Seen::Array(answers),
            (number + 1).to_string().as_str().into(),
            ok(),
            queued(),
            ok(),
        ]);
    }
    let mut writer = client.reader.get_ref().try_clone().unwrap();
    let sender = thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes).unwrap());
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(client.next().as_ref(), Some(expected), "reply {number}");
    }
    sender.join().unwrap();
}

/// A transaction is one write batch of the log, for any number of keys; a transaction above the limits of a batch is refused
/// before any change.
#[test]
fn many_keys_are_one_write_batch_or_refused() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let mut transaction = |count: usize, bytes: usize| {
        let before = served.store.stat();
        let mut sent = b"MULTI\r\n".to_vec();
        let value = vec![b'v'; bytes];
        for number in 0..count {
            sent.extend(encode(&[b"set", format!("k{number}").as_bytes(), &value]));
        }
        sent.extend(b"EXEC\r\n");
        let mut writer = client.reader.get_ref().try_clone().unwrap();
        let sender = thread::spawn(move || std::io::Write::write_all(&mut writer, &sent).unwrap());
        (0..=count).for_each(|_| assert!(matches!(client.next(), Some(Seen::Simple(_)))));
        sender.join().unwrap();
        let after = served.store.stat();
        (client.next().unwrap(), after.records - before.records, after.batches - before.batches)
    };
    let (answer, records, batches) = transaction(2_000, 10);
    assert!(matches!(&answer, Seen::Array(answers) if answers.len() == 2_000), "{answer:?}");
    // The answer may come before it is counted; a seal may happen in parallel.
    assert!([0, 2_000].contains(&records) && batches <= 3, "{records} records in {batches} batches");
    let (answer, records, _) = transaction(3_000, 100);
    let Seen::Error(text) = &answer else { panic!("{answer:?}") };
    assert!(text.starts_with("ERR 3000 objects in one write batch need"), "{text}");
    assert_eq!(records, 0);
    // These objects also have no space in the store: the answer is the one that stays the same when space is freed.
    let (answer, records, _) = transaction(60_000, 10);
    let Seen::Error(text) = &answer else { panic!("{answer:?}") };
    assert!(text.starts_with("ERR 60000 objects in one write batch need"), "{text}");
    assert_eq!(records, 0);
    // Longer than the memory for unsent commands: refused as it is queued.
    let limits =
    // Larger than the memory for queued commands: refused when it is queued.
        shoal_redis::RedisLimits { command_bytes_max: 100_000, ..shoal_redis::RedisLimits::default() };
    let served = serve(RedisOptions { limits, ..RedisOptions::default() });
    let mut client = Client::new(&served);
    client.run("multi");
    client.words(&[b"set", b"a", &vec![b'v'; 60_000]]);
    let text = format!("{:?}", client.words(&[b"set", b"b", &vec![b'v'; 60_000]]));
    assert_eq!(text, "-ERR a transaction has at most 65536 commands of 100000 bytes together");
    client.script("exec => -EXECABORT Transaction discarded because of previous errors.\n exists a b => :0");
}

/// Values that are not in memory are read; the queued commands delay nothing.
#[test]
fn cold_values_are_read_together() {
    let pairs = (0..64).map(|number| (format!("k{number}").into_bytes(), vec![number as u8; 20_000]));
    let served = serve_store(cold_store(pairs), RedisOptions::default(), Environment::default());
    let mut client = Client::new(&served);
    client.run("multi");
    for number in 0..64 {
        client.run(&format!("get k{number}"));
    }
    client.run("append k5 more");
    client.run("strlen k5");
    let Seen::Array(answers) = client.run("exec") else { panic!("answers") };
    for (number, answer) in answers.iter().take(64).enumerate() {
        assert_eq!(*answer, Seen::Bulk(vec![number as u8; 20_000]));
    }
    assert_eq!(answers[64..], [Seen::Integer(20_004), Seen::Integer(20_004)]);
}

/// The number of watched keys is bounded, and a key that is watched again counts once.
#[test]
fn watches_are_bounded() {
    let served = serve_store(kit().in_memory(), RedisOptions::default(), Environment::default());
    let mut client = Client::new(&served);
    let keys: Vec<String> = (0..4_000).map(|number| format!("k{number}")).collect();
    let words: Vec<&[u8]> =
        [b"watch".as_slice()].into_iter().chain(keys.iter().map(|key| key.as_bytes())).collect();
    assert_eq!(client.words(&words), Seen::ok());
    let text = format!("{:?}", client.words(&words));
    assert_eq!(text, "-ERR a connection watches at most 4096 keys: UNWATCH forgets them");
    for _ in 0..200 {
        assert_eq!(client.run("watch k1"), Seen::ok());
    }
    client.script("set k3999 1 => +OK\n multi => +OK\n exec => (nil)");
}

/// CLIENT REPLY leaves the same answers out of transactions too; the commands are done.
#[test]
fn transaction_without_replies_is_executed() {
    let served = serve_store(kit().in_memory(), RedisOptions::default(), Environment::default());
    let mut client = Client::new(&served);
    client.send(
        b"CLIENT REPLY OFF\r\nWATCH z\r\nMULTI\r\nSET a 1\r\nINCR a\r\nEXEC\r\nMULTI\r\nFLUSHALL\r\nEXEC\r\n",
    );
    client.script("client reply on => +OK\n get a => 2");
    // Only MULTI has no answer.
    client.send(b"CLIENT REPLY SKIP\r\nMULTI\r\n");
    client.script("incr a => +QUEUED\n exec => [:3]");
    client.send(b"MULTI\r\nGET a\r\nRESET\r\nCLIENT REPLY SKIP\r\nEXEC\r\n");
    assert_eq!(
        [client.next(), client.next(), client.next()].map(|seen| format!("{:?}", seen.unwrap())),
        ["+OK", "+QUEUED", "+RESET"]
    );
    client.script("ping => +PONG");
}

/// CLIENT LIST shows the queued commands and the number of watched keys.
#[test]
fn client_list_shows_what_is_queued_and_watched() {
    let served = serve_store(kit().in_memory(), RedisOptions::default(), Environment::default());
    let (mut client, mut other) = (Client::new(&served), Client::new(&served));
    let Seen::Integer(id) = client.run("client id") else { panic!("a number") };
    let mut shows = |wanted: &str| {
        let Seen::Bulk(line) = other.run(&format!("client list id {id}")) else { panic!("a line") };
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(line.contains(wanted), "{wanted}: {line}");
    };
    shows(" flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 watch=0 ");
    client.script("watch a b => +OK");
    shows(" multi=-1 watch=2 ");
    client.script("multi => +OK");
    shows(" flags=x db=0 sub=0 psub=0 ssub=0 multi=0 watch=2 ");
    client.script("get a => +QUEUED\n get b => +QUEUED");
    shows(" multi=2 watch=2 ");
    client.script("exec => [(nil), (nil)]");
    shows(" multi=-1 watch=0 ");
}
