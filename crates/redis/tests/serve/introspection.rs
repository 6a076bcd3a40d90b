//! The questions of clients about the server, about commands and about each other.

use std::time::{Duration, Instant};

use shoal_redis::{Announced, ClusterMode, Durability, RedisOptions};
use shoal_testkit::resp::encode;

use crate::support::{Client, Seen, serve};

fn text(seen: Seen) -> String {
    let Seen::Bulk(bytes) = seen else { panic!("{seen:?} is no text") };
    String::from_utf8(bytes).unwrap()
}

/// The value of `name=` in a line of words, or of `name:` in lines.
fn figure<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.split([' ', '\r', '\n', ',']).find_map(|word| word.strip_prefix(name));
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
fn connections_are_listed_with_what_they_do() {
    let served = serve(RedisOptions::default());
    let (mut one, mut other) = (Client::new(&served), Client::new(&served));
    assert_eq!(other.run("config get save"), Seen::Array(vec!["save".into(), "".into()]));
    other.send(b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$5000\r\nhalf");
    let until = Instant::now() + Duration::from_secs(10);
    let lines = loop {
        let lines = text(one.run("client list"));
        if lines.lines().any(|line| !line.contains("qbuf=0")) {
            break lines;
        }
        assert!(Instant::now() < until, "{lines}");
    };
    let (mut first, mut second) = lines.trim_end().split_once('\n').unwrap();
    // They may have been admitted in any order.
    if figure(first, "cmd=") != "client|list" {
        (first, second) = (second, first);
    }
    assert_eq!(figure(first, "cmd="), "client|list");
    assert_eq!(figure(second, "cmd="), "config|get");
    for name in [
        "id=",
        "addr=",
        "laddr=",
        "fd=",
        "name=",
        "age=",
        "idle=",
        "flags=",
        "db=",
        "sub=",
        "psub=",
        "ssub=",
        "multi=",
        "watch=",
        "qbuf=",
        "qbuf-free=",
        "argv-mem=",
        "multi-mem=",
        "rbs=",
        "rbp=",
        "obl=",
        "oll=",
        "omem=",
        "tot-mem=",
        "events=",
        "cmd=",
        "user=",
        "redir=",
        "resp=",
        "lib-name=",
        "lib-ver=",
    ] {
        figure(first, name);
    }
    assert!(figure(first, "fd=").parse::<i32>().unwrap() > 2);
    assert_eq!(figure(&text(one.run("client info")), "cmd="), "client|info");
    assert!(figure(&text(one.run("info clients")), "connected_clients:") == "2");
}

/// A killed client gets no more answers; the others continue.
#[test]
fn connections_are_ended_by_others() {
    let served = serve(RedisOptions::default());
    let mut one = Client::new(&served);
    let fresh = || {
        let mut client = Client::new(&served);
        let Seen::Integer(id) = client.run("client id") else { panic!("a number") };
        let address = client.reader.get_ref().local_addr().unwrap().to_string();
        (client, id, address)
    };
    let (mut by_id, id, _) = fresh();
    let (mut by_address, _, address) = fresh();
    let (mut by_old_form, _, old_address) = fresh();
    let (mut stays, stays_id, stays_address) = fresh();
    assert_eq!(one.run(&format!("client kill id {id}")), Seen::Integer(1));
    assert_eq!(by_id.next(), None);
    assert_eq!(one.run(&format!("client kill addr {address} type normal user default")), Seen::Integer(1));
    assert_eq!(by_address.next(), None);
    assert_eq!(one.run(&format!("client kill {old_address}")), Seen::ok());
    assert_eq!(by_old_form.next(), None);
    for nobody in ["type pubsub", "maxage 1000", &format!("id {stays_id} addr 1.1.1.1:1"), "laddr 1.1.1.1:1"]
    {
        assert_eq!(one.run(&format!("client kill {nobody}")), Seen::Integer(0), "{nobody}");
    }
    one.script(
        "client kill 1.1.1.1:1 => -ERR No such client
         client kill id 0 => -ERR client-id should be greater than 0
         client kill id x => -ERR client-id should be greater than 0
         client kill user nobody => -ERR No such user 'nobody'
         client kill type foo => -ERR Unknown client type 'foo'
         client kill skipme maybe => -ERR syntax error
         client kill id 1 addr => -ERR syntax error
         client kill => -ERR wrong number of arguments for 'client|kill' command",
    );
    assert_eq!(stays.run("ping"), Seen::Simple("PONG".into()));
    // One that takes no answers, and one in the middle of a command.
    stays.send(b"*2\r\n$3\r\nget\r\n$100\r\nhalf");
    assert_eq!(one.run(&format!("client kill addr {stays_address} skipme yes")), Seen::Integer(1));
    assert_eq!(stays.next(), None);
    // Itself: it gets the answer.
    let Seen::Integer(own) = one.run("client id") else { panic!("a number") };
    assert_eq!(one.run(&format!("client kill id {own}")), Seen::Integer(0));
    assert_eq!(one.run(&format!("client kill id {own} skipme no")), Seen::Integer(1));
    assert_eq!(one.next(), None);
}

#[test]
fn answers_are_left_out_as_asked() {
    for durability in [Durability::Sync, Durability::Relaxed(Duration::from_millis(100))] {
        let served = serve(RedisOptions { durability, ..RedisOptions::default() });
        let mut client = Client::new(&served);
        client.send(
            b"set a 1\r\nclient reply skip\r\nset b 2\r\nset c 3\r\nclient reply off\r\nget a\r\nwhat\r\nincr a\r\nset d 4\r\nmget a b\r\n\
              client reply skip\r\nget a\r\nclient reply on\r\nget a\r\nclient reply skip\r\nnonsense\r\nget b\r\n",
        );
        let ok = || Some(Seen::ok());
        assert_eq!(client.next(), ok(), "a");
        assert_eq!(client.next(), ok(), "c");
        assert_eq!(client.next(), ok(), "on");
        assert_eq!(client.next(), Some("2".into()));
        assert_eq!(client.next(), Some("2".into()));
        assert_eq!(client.run("get d"), "4".into());
        client.script(
            "client reply maybe => -ERR syntax error
             client reply => -ERR wrong number of arguments for 'client|reply' command
             ping => +PONG",
        );
    }
}

/// An answer was lost. Symptom: after a write whose answer was left out, the answers of short SETs did not come. Cause: the
/// state that decides whether an answer is left out was set by the commands that start one by one, and not by those started
/// several at once. Fix: it is set before any command starts.
#[test]
fn answers_follow_a_skipped_reply() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let commands: [&[&[u8]]; 4] = [
        &[b"SET", b"a", b"1"],
        &[b"CLIENT", b"REPLY", b"SKIP"],
        &[b"SET", b"b", b"2"],
        &[b"SET", b"c", b"3"],
    ];
    client.send(&commands.map(encode).concat());
    for expected in ["a", "c"] {
        assert_eq!(client.next(), Some(Seen::ok()), "{expected}");
    }
    assert_eq!(client.run("get b"), "2".into());
}

#[test]
fn objects_are_described() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "set k 12 => +OK
         object encoding k => int
         object refcount k => :1
         object idletime k => :0
         object idletime nothing => (nil)
         object encoding => -ERR wrong number of arguments for 'object|encoding' command
         object what k => -ERR unknown subcommand 'what'. Try OBJECT HELP.",
    );
    assert!(
        matches!(client.run("object freq k"), Seen::Error(text) if text.starts_with("ERR An LFU maxmemory policy"))
    );
    for command in ["object", "client", "command", "config", "function"] {
        let Seen::Array(lines) = client.run(&format!("{command} help")) else { panic!("lines") };
        let first =
            format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", command.to_uppercase());
        assert_eq!(lines[0], Seen::Simple(first));
        assert!(lines.contains(&Seen::Simple("HELP".into())), "{lines:?}");
    }
}

#[test]
fn command_info_and_docs_agree() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let array = |seen| match seen {
        Seen::Array(items) => items,
        other => panic!("{other:?}"),
    };
    let Seen::Integer(count) = client.run("command count") else { panic!("a number") };
    let all = array(client.run("command"));
    assert_eq!(all.len() as i64, count);
    assert_eq!(array(client.run("command info")).len(), all.len());
    // In version 2, a map is an array of twice the length.
    assert_eq!(array(client.run("command docs")).len(), 2 * all.len());
    let names: Vec<String> = array(client.run("command list")).into_iter().map(text).collect();
    let whole = names.iter().filter(|name| !name.contains('|')).count();
    assert_eq!(whole as i64, count);
    assert!(names.contains(&"client|list".to_owned()));
    client.script(
        "command list filterby module json => []
         command list filterby pattern xyz* => []
         command list filterby pattern client|k* => [client|kill]
         command list filterby pattern GET => [get]
         command list filterby aclcat nothing => []
         command list filterby size 3 => -ERR syntax error
         command list foo => -ERR syntax error
         command getkeys object encoding k => [k]
         command getkeysandflags get k => [[k, [+RO, +access]]]
         command getkeys ping => -ERR The command has no key arguments
         command getkeys nothing k => -ERR Invalid command specified",
    );
    let bitmap: Vec<String> =
        array(client.run("command list filterby aclcat bitmap")).into_iter().map(text).collect();
    assert_eq!(bitmap, ["bitcount", "bitfield", "bitfield_ro", "bitop", "bitpos", "getbit", "setbit"]);
    let info = array(client.run("command info client|list client|nothing get"));
    assert!(matches!(&info[0], Seen::Array(about) if about[0] == "client|list".into()));
    assert_eq!(info[1], Seen::Null);
}

#[test]
fn config_get_returns_actual_settings() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "config get databases => [databases, 1]
         config get MAXMEMORY appendonly => [appendonly, yes, maxmemory, 0]
         config get proto-max-* timeou? => [proto-max-bulk-len, 4194304, timeout, 0]
         config get nothing => []
         config get => -ERR wrong number of arguments for 'config|get' command",
    );
}

/// The mode in the answer of HELLO.
fn mode(client: &mut Client) -> Seen {
    let Seen::Array(pairs) = client.run("hello 2") else { panic!("pairs") };
    let at = pairs.iter().position(|word| *word == "mode".into()).expect("a mode");
    pairs[at + 1].clone()
}

/// Symptom: a cluster's client behind a mapped port was redirected to an unreachable address, without being configured for a
/// cluster. Cause: every server called itself a cluster, and reported its own view of its address. Fix: a cluster only if
/// requested, with an address that can be announced.
#[test]
fn cluster_mode_is_off_by_default() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script("config get cluster-enabled => [cluster-enabled, no]");
    let info = text(client.run("info"));
    assert_eq!((figure(&info, "cluster_enabled:"), figure(&info, "redis_mode:")), ("0", "standalone"));
    assert_eq!(mode(&mut client), "standalone".into());
    let commands = ["asking", "readonly", "readwrite"].map(str::to_owned);
    let parts = ["help", "info", "keyslot k", "myid", "nodes", "shards", "slots"];
    for command in commands.into_iter().chain(parts.map(|part| format!("cluster {part}"))) {
        let disabled = Seen::Error("ERR This instance has cluster support disabled".into());
        assert_eq!(client.run(&command), disabled, "{command}");
    }
}

#[test]
fn a_cluster_has_one_node_at_the_announced_address() {
    let announced = Announced { host: "shoal.example".into(), port: 17_412 };
    for announce in [None, Some(announced)] {
        let cluster = ClusterMode::On { announce: announce.clone() };
        let served = serve(RedisOptions { cluster, ..RedisOptions::default() });
        let (host, port) = match announce {
            None => ("127.0.0.1".to_owned(), served.address.port()),
            Some(Announced { host, port }) => (host, port),
        };
        let mut client = Client::new(&served);
        client.script(
            "config get cluster-enabled => [cluster-enabled, yes]
             asking => +OK
             readonly => +OK
             readwrite => +OK
             cluster keyslot foo => :12182",
        );
        let info = text(client.run("info"));
        assert_eq!((figure(&info, "cluster_enabled:"), figure(&info, "redis_mode:")), ("1", "cluster"));
        assert_eq!(figure(&text(client.run("cluster info")), "cluster_enabled:"), "1");
        assert_eq!(mode(&mut client), "cluster".into());
        let Seen::Array(slots) = client.run("cluster slots") else { panic!("slots") };
        let Seen::Array(range) = &slots[0] else { panic!("a range") };
        let Seen::Array(node) = &range[2] else { panic!("a node") };
        assert_eq!(range[..2], [Seen::Integer(0), Seen::Integer(16_383)]);
        assert_eq!(node[..2], [host.as_str().into(), Seen::Integer(port.into())]);
        let nodes = text(client.run("cluster nodes"));
        let expected = format!(" {host}:{port}@{} myself,master ", u32::from(port) + 10_000);
        assert!(nodes.contains(&expected), "{nodes}");
        let shards = format!("{:?}", client.run("cluster shards"));
        assert!(
            shards.contains(&format!("endpoint, {host}")) && shards.contains(&format!("port, :{port}")),
            "{shards}"
        );
    }
}

#[test]
fn info_reports_memory_and_cpu() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let info = text(client.run("info"));
    let number = |name: &str| figure(&info, name).parse::<f64>().unwrap();
    assert!(number("used_memory:") > 1e6 && number("used_memory_peak:") >= number("used_memory:"));
    assert!(number("used_cpu_user:") + number("used_cpu_sys:") >= 0.0);
    assert!(number("used_memory:") >= number("shoal_overlay_bytes:"));
}

/// Counted completely, or marked as an estimate.
#[test]
fn keys_are_counted_or_estimated() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.fill(9_000);
    let counted = text(client.run("info keyspace"));
    assert_eq!(counted, "# Keyspace\r\ndb0:keys=9000,expires=0,avg_ttl=0\r\n");
    client.fill(11_000);
    let estimated = text(client.run("info keyspace"));
    assert!(estimated.trim_end().ends_with(",estimated=1"), "{estimated}");
}

#[test]
fn invalid_keys_fail_in_every_command() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    let long = vec![b'k'; 1025];
    for key in [&long[..], b""] {
        let refused = client.words(&[b"get", key]);
        assert!(matches!(&refused, Seen::Error(_)), "{refused:?}");
        for words in [
            &[&b"mget"[..], b"a", key][..],
            &[b"set", key, b"v"],
            &[b"mset", b"a", b"1", key, b"2"],
            &[b"exists", key],
            &[b"del", b"a", key],
            &[b"ttl", key],
            &[b"bitop", b"not", b"a", key],
        ] {
            assert_eq!(client.words(words), refused, "{:?}", words[0].escape_ascii().to_string());
        }
    }
}
