//! The matrix of permissions: every command by every kind of caller, on several keys, against the oracle of the testkit.

use std::sync::Arc;

use shoal_base::{Clock, ManualClock};
use shoal_engine::Environment;
use shoal_frontend::access::KeyFile;
use shoal_frontend::{Credentials, Security, Tokens};
use shoal_redis::RedisOptions;
use shoal_testkit::permissions::{HOLDERS, Holder, Shows, key_file};
use shoal_testkit::resp::encode;

use crate::support::{Client, Seen, Served, serve, serve_in};

/// Each command with its needs: actions on the keys K and L, on the `bucket`, or on the `store`. None: every caller may.
pub(crate) const COMMANDS: &[(&str, &str)] = &[
    ("append K v", "write K"),
    ("asking", ""),
    ("bitcount K", "read K"),
    ("bitfield K get u8 0", "read K, write K"),
    ("bitfield_ro K get u8 0", "read K"),
    ("bitop and K L L", "write K, read L"),
    ("bitpos K 1", "read K"),
    ("client getname", ""),
    ("client help", ""),
    ("client id", ""),
    ("client info", ""),
    ("client kill id 99999", "admin store"),
    ("client list", "admin store"),
    ("client no-evict on", ""),
    ("client no-touch on", ""),
    ("client reply on", ""),
    ("client setinfo lib-name x", ""),
    ("client setname x", ""),
    ("client unknown", ""),
    ("cluster help", ""),
    ("cluster info", ""),
    ("cluster keyslot K", ""),
    ("cluster myid", ""),
    ("cluster nodes", ""),
    ("cluster shards", ""),
    ("cluster slots", ""),
    ("command", ""),
    ("command count", ""),
    ("command docs get", ""),
    ("command getkeys get K", ""),
    ("command getkeysandflags get K", ""),
    ("command help", ""),
    ("command info get", ""),
    ("command list", ""),
    ("config get *", "admin store"),
    ("config help", ""),
    ("config resetstat", "admin store"),
    ("config set hash-max-x 1", "admin store"),
    ("copy K L replace", "read K, write L"),
    ("dbsize", "list bucket"),
    ("decr N", "read N, write N"),
    ("decrby N 1", "read N, write N"),
    ("del K", "delete K"),
    ("del K L", "delete K, delete L"),
    ("discard", ""),
    ("echo x", ""),
    ("exec", ""),
    ("exists K L", "read K, read L"),
    ("expire K 100", "write K, delete K"),
    ("expireat K 9999999999", "write K, delete K"),
    ("expiretime K", "read K"),
    ("flushall", "delete bucket, bucket bucket"),
    ("flushdb", "delete bucket, bucket bucket"),
    ("function flush", "admin store"),
    ("function help", ""),
    ("function list", ""),
    ("get K", "read K"),
    ("getbit K 0", "read K"),
    ("getdel K", "read K, delete K"),
    ("getex K ex 100", "read K, write K, delete K"),
    ("getrange K 0 1", "read K"),
    ("getset K v", "read K, write K"),
    ("incr N", "read N, write N"),
    ("incrby N 1", "read N, write N"),
    ("incrbyfloat N 1", "read N, write N"),
    ("info", "list bucket"),
    ("keys *", "list bucket"),
    ("keys in/*", "list bucket"),
    ("mget K L", "read K, read L"),
    ("mset K v L v", "write K, write L"),
    ("msetnx K v L v", "write K, write L"),
    ("multi", ""),
    ("object encoding K", "read K"),
    ("object freq K", "read K"),
    ("object help", ""),
    ("object idletime K", "read K"),
    ("object refcount K", "read K"),
    ("persist K", "write K"),
    ("pexpire K 100000", "write K, delete K"),
    ("pexpireat K 9999999999999", "write K, delete K"),
    ("pexpiretime K", "read K"),
    ("ping", ""),
    ("psetex K 100000 v", "write K"),
    ("pttl K", "read K"),
    ("randomkey", "list bucket"),
    ("readonly", ""),
    ("readwrite", ""),
    ("rename K L", "read K, delete K, write L"),
    ("renamenx K L", "read K, delete K, write L"),
    ("scan 0", "list bucket"),
    ("select 0", ""),
    ("set K v", "write K"),
    ("set K v ex 100", "write K"),
    ("set K v get", "read K, write K"),
    ("setbit K 0 1", "read K, write K"),
    ("setex K 100 v", "write K"),
    ("setnx K v", "write K"),
    ("setrange K 0 v", "write K"),
    ("shoal.cas K 0 v", "write K"),
    ("shoal.damage", "list bucket"),
    ("shoal.getv K", "read K"),
    ("shoal.session new", ""),
    ("shoal.session 1 1 set K v", "write K"),
    ("shoal.session 1 2 getdel K", "read K, delete K"),
    ("shoal.session 1 3 rename K L", "read K, delete K, write L"),
    ("shoal.session 1 4 exec", ""),
    ("shoal.session 1 5 shoal.session 1 6 set K v", ""),
    ("strlen K", "read K"),
    ("substr K 0 1", "read K"),
    ("time", ""),
    ("touch K", "read K"),
    ("ttl K", "read K"),
    ("type K", "read K"),
    ("unlink K", "delete K"),
    ("unwatch", ""),
    ("wait 0 0", ""),
    ("waitaof 0 0 0", ""),
    ("watch K", "read K"),
];

/// Commands that an unauthenticated client may send.
const FOR_STRANGERS: [&str; 4] = ["auth", "hello", "quit", "reset"];

fn security(keys: &str) -> Security {
    let keys = KeyFile::parse(keys.as_bytes()).unwrap().keys().unwrap();
    Security::new(Credentials::with_keys(None, Tokens::default(), Some(keys)).unwrap())
}

fn all_keys() -> Security {
    security(&key_file("2020-01-01T00:00:00Z", "2500-01-01T00:00:00Z"))
}

fn options(security: &Security) -> RedisOptions {
    let password = Some(b"tide".to_vec());
    RedisOptions { security: security.clone(), password, bucket: "films".into(), ..RedisOptions::default() }
}

/// A client that has shown its credential, if it has one.
fn client_of(served: &Served, holder: &Holder) -> Client {
    let mut client = Client::new(served);
    let (id, secret) = (holder.id(), holder.secret());
    match holder.shows {
        Shows::Nothing => {}
        Shows::Password => assert_eq!(client.run("auth tide"), Seen::ok()),
        Shows::BadKey => {
            assert!(format!("{:?}", client.run(&format!("auth {id} {secret}"))).starts_with("-WRONGPASS"))
        }
        _ => assert_eq!(client.run(&format!("auth {id} {secret}")), Seen::ok(), "{}", holder.name),
    }
    client
}

/// The callers of this protocol.
fn callers() -> impl Iterator<Item = &'static Holder> {
    HOLDERS.iter().filter(|holder| {
        !matches!(holder.shows, Shows::Token(_) | Shows::Certificate(_) | Shows::UnnamedCertificate(_))
    })
}

fn is_let_in(holder: &Holder) -> bool {
    !matches!(holder.shows, Shows::Nothing | Shows::BadKey)
}

/// The oracle's answer: may the caller do all of `needs` with these keys?
fn is_allowed(holder: &Holder, needs: &str, key: impl Fn(&str) -> String) -> bool {
    needs.split(", ").filter(|need| !need.is_empty()).all(|need| match need.split_once(' ').unwrap() {
        (action, "bucket") => holder.may(&[(action, "films", "")]),
        (action, "store") => holder.may(&[(action, "", "")]),
        (action, name) => holder.may(&[(action, "films", &key(name))]),
    })
}

fn is_refusal(seen: &Seen, word: &str) -> bool {
    matches!(seen, Seen::Error(text) if text.starts_with(word))
}

#[test]
fn the_matrix_of_commands_and_callers_matches_the_oracle() {
    let security = all_keys();
    let served = serve(options(&security));
    let mut cases = 0;
    for holder in callers() {
        for (line, needs) in COMMANDS {
            for (first, second) in [("in/", "in/"), ("in/", "out/"), ("out/", "in/"), ("inside", "out/")] {
                let key = |name: &str| match name {
                    "K" => format!("{first}k"),
                    "N" => format!("{first}number"),
                    "L" => format!("{second}l"),
                    other => other.to_owned(),
                };
                let words: Vec<String> = line.split(' ').map(key).collect();
                let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
                let mut client = client_of(&served, holder);
                let seen = client.words(&words);
                let context = format!("{line} ({first}, {second}) by {}: {seen:?}", holder.name);
                let may = is_allowed(holder, needs, key);
                assert_eq!(is_refusal(&seen, "NOAUTH"), !is_let_in(holder), "{context}");
                assert_eq!(is_refusal(&seen, "NOPERM"), is_let_in(holder) && !may, "{context}");
                // The same in a transaction, which a denied command spoils.
                if is_let_in(holder) && !may {
                    assert_eq!(client.run("multi"), Seen::ok());
                    assert!(is_refusal(&client.words(&words), "NOPERM"), "{context}");
                    assert!(is_refusal(&client.run("exec"), "EXECABORT"), "{context}");
                }
                cases += 1;
            }
        }
    }
    let names = Client::new(&served);
    let Seen::Array(names) = with_password(names).run("command list") else { panic!("no list") };
    for name in names {
        let Seen::Bulk(name) = name else { panic!("{name:?}") };
        let name = String::from_utf8(name).unwrap().replace('|', " ");
        let is_tried = COMMANDS.iter().any(|(line, _)| format!("{line} ").starts_with(&format!("{name} ")));
        assert!(is_tried || FOR_STRANGERS.contains(&&*name), "{name} is not tried");
    }
    println!("{cases} cases of {} commands and {} callers", COMMANDS.len(), callers().count());
}

fn with_password(mut client: Client) -> Client {
    assert_eq!(client.run("auth default tide"), Seen::ok());
    client
}

#[test]
fn a_key_is_shown_by_auth_and_hello() {
    let served = serve(options(&all_keys()));
    let holder = HOLDERS.iter().find(|holder| holder.name == "reads").unwrap();
    let (id, secret) = (holder.id(), holder.secret());
    let mut client = Client::new(&served);
    assert!(matches!(client.run(&format!("hello 2 auth {id} {secret}")), Seen::Array(_)));
    assert_eq!(client.run("get k"), Seen::Null);
    assert_eq!(
        client.run("set k v"),
        Seen::Error(format!("NOPERM User {id} has no permissions to run the 'set' command"))
    );
    let Seen::Bulk(line) = client.run("client info") else { panic!("no line") };
    assert!(String::from_utf8(line).unwrap().contains(&format!("user={id} ")));
    // A failed AUTH changes nothing; another one changes the grants.
    assert!(is_refusal(&client.run(&format!("auth {id} wrong")), "WRONGPASS"));
    assert!(is_refusal(&client.run("set k v"), "NOPERM"));
    assert_eq!(client.run("auth tide"), Seen::ok());
    assert_eq!(client.run("set k v"), Seen::ok());
    assert_eq!(client.run("reset"), Seen::Simple("RESET".into()));
    assert!(is_refusal(&client.run("get k"), "NOAUTH"));
}

/// Without a password, `default` needs none in Redis. With keys, that would be a way around them.
#[test]
fn the_default_user_needs_the_password_if_there_are_keys() {
    let served = serve(RedisOptions { password: None, ..options(&all_keys()) });
    let mut client = Client::new(&served);
    assert!(is_refusal(&client.run("get k"), "NOAUTH"));
    for line in ["auth default x", "auth default tide", "hello 3 auth default x"] {
        assert!(is_refusal(&client.run(line), "WRONGPASS"), "{line}");
    }
    assert!(is_refusal(&client.run("auth tide"), "ERR AUTH"));
    let holder = HOLDERS.iter().find(|holder| holder.name == "everything").unwrap();
    assert_eq!(client_of(&served, holder).run("set k v"), Seen::ok());
    assert!(is_refusal(&client.run("reset"), "NOAUTH") || is_refusal(&client.run("get k"), "NOAUTH"));
}

#[test]
fn a_removed_key_has_no_rights_at_the_next_command() {
    let security = all_keys();
    let served = serve(options(&security));
    for name in ["everything", "pattern"] {
        security.replace(all_keys().with(Clone::clone));
        let holder = HOLDERS.iter().find(|holder| holder.name == name).unwrap();
        let (mut idle, mut queues, mut sends) =
            (client_of(&served, holder), client_of(&served, holder), client_of(&served, holder));
        assert_eq!(idle.run("set k v"), Seen::ok());
        assert_eq!(queues.run("multi"), Seen::ok());
        assert_eq!(queues.run("set k queued"), Seen::Simple("QUEUED".into()));
        // The start of a long value, which may be received into the memory that is written.
        let long = encode(&[b"set", b"k", &vec![b'x'; 300_000]]);
        sends.send(&long[..200_000]);
        // The same keys again change nothing.
        security.replace(all_keys().with(Clone::clone));
        assert_eq!(idle.run("get k"), "v".into());
        security.replace(security_without_keys());
        for line in ["get k", "set k stolen", "ping"] {
            assert!(is_refusal(&idle.run(line), "NOAUTH"), "{line} by {name}");
        }
        assert!(is_refusal(&queues.run("exec"), "NOAUTH"));
        sends.send(&long[200_000..]);
        let seen = sends.next();
        assert!(
            seen.as_ref().is_none_or(|seen| is_refusal(seen, "NOAUTH") || is_refusal(seen, "ERR")),
            "{seen:?}"
        );
        assert_eq!(with_password(Client::new(&served)).run("get k"), "v".into());
    }
}

fn security_without_keys() -> Credentials {
    security("").with(Clone::clone)
}

/// A transaction that was queued with other grants is refused.
#[test]
fn a_key_with_other_grants_has_them_at_the_next_command() {
    let text = key_file("2020-01-01T00:00:00Z", "2500-01-01T00:00:00Z");
    let security = security(&text);
    let served = serve(options(&security));
    let holder = HOLDERS.iter().find(|holder| holder.name == "pattern").unwrap();
    let (mut client, mut queues) = (client_of(&served, holder), client_of(&served, holder));
    assert_eq!(client.run("set k v"), Seen::ok());
    assert_eq!(queues.run("multi"), Seen::ok());
    assert_eq!(queues.run("set k queued"), Seen::Simple("QUEUED".into()));
    let less = text.replace("'all fil*'", "'read fil*'");
    assert_ne!(less, text);
    let keys = KeyFile::parse(less.as_bytes()).unwrap().keys().unwrap();
    security.replace(Credentials::with_keys(None, Tokens::default(), Some(keys)).unwrap());
    assert!(is_refusal(&client.run("set k stolen"), "NOPERM"));
    assert!(is_refusal(&queues.run("exec"), "EXECABORT"));
    assert_eq!(client.run("get k"), "v".into());
}

#[test]
fn a_key_ends_at_its_time_on_an_open_connection() {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let now_s = clock.wall_ns() / 1_000_000_000;
    let mut file = KeyFile::default();
    let entry = file.create(None, vec!["all *".into()], now_s, Some(now_s + 100)).unwrap();
    let line = format!("auth {} {}", entry.id, entry.secret.clone().unwrap());
    let credentials = Credentials::with_keys(None, Tokens::default(), Some(file.keys().unwrap())).unwrap();
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let served = serve_in(options(&Security::new(credentials)), environment);
    let mut client = Client::new(&served);
    assert_eq!((client.run(&line), client.run("set k v")), (Seen::ok(), Seen::ok()));
    clock.advance(99_000_000_000);
    assert_eq!(client.run("get k"), "v".into());
    clock.advance(1_000_000_000);
    assert!(is_refusal(&client.run("get k"), "NOAUTH"));
    assert!(is_refusal(&client.run(&line), "WRONGPASS"));
}
