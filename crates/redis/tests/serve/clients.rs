//! The connected clients, their rights, and their view of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shoal_base::{Clock, SystemClock};
use shoal_engine::Environment;
use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve, serve_in};

fn with_password() -> RedisOptions {
    RedisOptions { password: Some(b"tide".to_vec()), ..RedisOptions::default() }
}

#[test]
fn commands_require_authentication() {
    let served = serve(with_password());
    let mut client = Client::new(&served);
    client.script(
        "
        get a => -NOAUTH Authentication required.
        ping => -NOAUTH Authentication required.
        auth low => -WRONGPASS invalid username-password pair or user is disabled.
        auth default low => -WRONGPASS invalid username-password pair or user is disabled.
        auth other tide => -WRONGPASS invalid username-password pair or user is disabled.
        auth a b c => -ERR syntax error
        auth tide => +OK
        get a => (nil)
        reset => +RESET
        get a => -NOAUTH Authentication required.
        auth default tide => +OK
        ping => +PONG
        ",
    );
    let mut client = Client::new(&served);
    assert!(format!("{:?}", client.run("hello 3")).starts_with("-NOAUTH HELLO must be called"));
    assert!(matches!(client.run("hello 3 auth default tide setname me"), Seen::Map(_)));
    assert_eq!(client.run("client getname"), "me".into());
    assert_eq!(client.run("get none"), Seen::Null);
    let mut client = Client::new(&served);
    client.send(b"*11\r\n");
    assert_eq!(
        client.next(),
        Some(Seen::Error("ERR Protocol error: unauthenticated multibulk length".into()))
    );
    assert_eq!(client.next(), None, "closed");
}

#[test]
fn auth_without_configured_password_fails() {
    let served = serve(RedisOptions::default());
    let text = format!("{:?}", Client::new(&served).run("auth x"));
    assert!(text.starts_with("-ERR AUTH <password> called without any password configured"), "{text}");
}

#[test]
fn the_protocol_is_chosen() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    assert!(matches!(client.run("hello"), Seen::Array(items) if items.len() == 14));
    assert!(matches!(client.run("hello 3"), Seen::Map(pairs) if pairs.len() == 7));
    assert!(matches!(client.run("config get maxmemory*"), Seen::Map(pairs) if pairs.len() == 2));
    assert!(matches!(client.run("hello 2"), Seen::Array(_)));
    client.script(
        "
        hello 4 => -NOPROTO unsupported protocol version
        hello x => -ERR Protocol version is not an integer or out of range
        hello 2 foo => -ERR Syntax error in HELLO option 'foo'
        client setname a\u{7f}b => -ERR Client names cannot contain spaces, newlines or special characters.
        client setname me => +OK
        client getname => me
        client setinfo lib-name tests => +OK
        client setinfo lib-x tests => -ERR Unrecognized option 'lib-x'
        client no-evict on => +OK
        client foo => -ERR unknown subcommand 'foo'. Try CLIENT HELP.
        client id 1 => -ERR wrong number of arguments for 'client|id' command
        client list type foo => -ERR Unknown client type 'foo'
        echo hi => hi
        ping hi => hi
        wait 0 0 => :0
        wait 1 0 => :0
        wait 1 -1 => -ERR timeout is negative
        wait x 0 => -ERR value is not an integer or out of range
        waitaof 1 0 0 => [:1, :0]
        waitaof 1 1 0 => [:1, :0]
        waitaof 2 0 0 => -ERR value is out of range, must be between 0 and 1
        command count extra => -ERR wrong number of arguments for 'command|count' command
        command getkeys mset a 1 b 2 => [a, b]
        ",
    );
    let Seen::Bulk(info) = client.run("client info") else { panic!("text") };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("name=me") && info.contains("resp=2") && info.contains("lib-name=tests"), "{info}");
    let Seen::Bulk(info) = client.run("info server") else { panic!("text") };
    assert!(info.starts_with(b"# Server\r\nredis_version:"));
    assert!(matches!(client.run("command info get nothing"), Seen::Array(found) if found[1] == Seen::Null));
    assert_eq!(client.run("quit"), Seen::ok());
    assert_eq!(client.next(), None);
}

#[test]
fn http_request_closes_connection() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 1\r\n");
    assert_eq!(client.next(), None);
    assert_eq!(Client::new(&served).run("get a"), Seen::Null);
}

#[test]
fn client_list_shows_last_command() {
    let served = serve(RedisOptions { threads: Some(1), ..RedisOptions::default() });
    let mut idle = Client::new(&served);
    assert_eq!(idle.run("get none"), Seen::Null);
    let mut client = Client::new(&served);
    let Seen::Bulk(list) = client.run("client list") else { panic!("text") };
    let list = String::from_utf8(list).unwrap();
    let commands: Vec<&str> =
        list.lines().filter_map(|line| line.split(' ').find(|part| part.starts_with("cmd="))).collect();
    assert_eq!(commands, ["cmd=get", "cmd=client|list"], "{list}");
}

#[test]
fn keyspace_info_counts_the_bucket() {
    let served = serve(RedisOptions::default());
    shoal_storekit::put(&served.store, "other", b"x", b"value");
    let mut client = Client::new(&served);
    assert_eq!(client.run("info keyspace"), "# Keyspace\r\n".into());
    client.script(
        "
        set a 1 => +OK
        set b 1 ex 100 => +OK
        ",
    );
    let Seen::Bulk(text) = client.run("info keyspace") else { panic!("text") };
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("# Keyspace\r\ndb0:keys=2,expires=1,avg_ttl=99"), "{text}");
    let Seen::Bulk(text) = client.run("info") else { panic!("text") };
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("\r\n\r\n# Stats\r\n") && text.contains("\r\n\r\n# Keyspace\r\ndb0:keys=2,"),
        "{text}"
    );
}

/// Panics on a dispatch thread, once it is armed.
struct Trap {
    clock: SystemClock,
    set: AtomicBool,
}

impl Clock for Trap {
    fn wall_ns(&self) -> u64 {
        self.clock.wall_ns()
    }

    fn boot_ns(&self) -> u64 {
        self.clock.boot_ns()
    }

    fn boot_id(&self) -> [u8; 16] {
        self.clock.boot_id()
    }

    fn monotonic_ns(&self) -> u64 {
        let dispatches = std::thread::current().name() == Some("shoal-redis");
        assert!(!(dispatches && self.set.swap(false, Ordering::SeqCst)), "this panic is part of the test");
        self.clock.monotonic_ns()
    }
}

/// A thread that dies takes its connections with it: their clients see the close, and reconnect.
#[test]
fn dispatch_thread_restarts_after_panic() {
    let trap = Arc::new(Trap { clock: SystemClock::new(), set: AtomicBool::new(false) });
    let environment = Environment { clock: trap.clone(), ..Environment::default() };
    let served = serve_in(RedisOptions { threads: Some(1), ..RedisOptions::default() }, environment);
    for round in 0..3 {
        let mut client = Client::new(&served);
        assert_eq!(client.run(&format!("set k {round}")), Seen::ok());
        trap.set.store(true, Ordering::SeqCst);
        client.send(b"PING\r\n");
        assert_eq!(client.next(), None, "the connection ended");
        std::thread::sleep(Duration::from_millis(10));
        let mut client = Client::new(&served);
        assert_eq!(client.run("get k"), round.to_string().as_str().into());
        assert!(
            matches!(client.run("client list"), Seen::Bulk(list) if list.iter().filter(|&&byte| byte == b'\n').count() == 1)
        );
    }
}
