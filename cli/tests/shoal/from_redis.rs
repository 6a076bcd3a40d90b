//! Strings of a server of the Redis protocol become objects. Shoal's own frontend is one; a redis-server is another, if there is one.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use shoal_testkit::skipped::skipped;
use shoal_testkit::wait::eventually;
use tempfile::TempDir;

use crate::harness::{Done, Frontends, Server, run};
use crate::machine::free_port;

/// A redis-server with a password, on a free port.
struct Redis {
    child: Child,
    address: String,
    folder: TempDir,
}

impl Redis {
    /// None if no redis-server is installed.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--requirepass",
            "sesame",
        ]);
        command.arg("--dir").arg(folder.path()).stdout(Stdio::null());
        let Ok(child) = command.spawn() else {
            skipped("there is no redis-server");
            return None;
        };
        let own = Self { child, address: format!("127.0.0.1:{port}"), folder };
        let password = own.password();
        fs::write(&password, "sesame\n").unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
        eventually("the redis-server starts", || std::net::TcpStream::connect(&own.address).is_ok());
        Some(own)
    }

    fn password(&self) -> String {
        self.folder.path().join("password").to_str().unwrap().to_owned()
    }

    fn connection(&self, db: u32) -> redis::Connection {
        let url = format!("redis://:sesame@{}/{db}", self.address);
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn import(server: &Server, address: &str, options: &[&str]) -> Done {
    server.run(&[&["import", "--from-redis", address, "--json"], options].concat())
}

fn put(connection: &mut redis::Connection, key: &str, value: &[u8], options: &[&str]) {
    redis::cmd("SET").arg(key).arg(value).arg(options).exec(connection).unwrap();
}

#[test]
fn strings_come_with_their_deadlines_and_the_rest_is_named() {
    let Some(redis) = Redis::start() else { return };
    let server = Server::start();
    let password = redis.password();
    let with = |more: &[&str]| {
        import(&server, &redis.address, &[&["--redis-password-file", &password], more].concat())
    };
    let mut one = redis.connection(0);
    for index in 0..3000 {
        put(&mut one, &format!("k{index}"), index.to_string().as_bytes(), &[]);
    }
    put(&mut one, "mortal", b"m", &["PXAT", "3333333333333"]);
    put(&mut one, "two MiB", &vec![2; 2 << 20], &[]);
    put(&mut one, "empty", b"", &[]);
    let done = with(&["--prefix", "r/"]);
    assert_eq!((done.code, done.json()["files"].as_u64()), (0, Some(3003)), "{}", done.stderr);
    assert_eq!(server.ok(&["get", "r/k2999"]), b"2999");
    assert_eq!(server.ok(&["get", "r/two MiB"]), vec![2; 2 << 20]);
    let listed = server.run(&["ls", "r/mortal", "--json"]).json();
    assert_eq!(listed["expire_time_ns"], 3_333_333_333_333_000_000_u64, "{listed}");
    assert_eq!(with(&["--prefix", "r/"]).json()["files"], 3003, "again, with the same result");
    assert_eq!(server.keys().len(), 3003);

    redis::cmd("RPUSH").arg("list").arg("x").exec(&mut one).unwrap();
    put(&mut one, "long", &vec![0; (4 << 20) + 1], &[]);
    put(&mut one, &"n".repeat(1025), b"", &[]);
    let done = with(&[]);
    assert!(
        done.code == 1 && done.json()["refused"] == 1 && done.stderr.contains("--lossy"),
        "{}",
        done.stderr
    );
    let done = with(&["--lossy", "--include", "[ln]*", "--exclude", "lo?g"]);
    assert_eq!((done.code, done.json()["refused"].as_u64()), (5, Some(2)), "{}", done.stderr);
    assert!(done.stderr.contains("list: refused: it is a list"), "{}", done.stderr);
    let done = with(&["--lossy", "--dry-run"]);
    assert_eq!(
        (done.code, done.json()["refused"].as_u64(), done.json()["files"].as_u64()),
        (5, Some(3), Some(3003))
    );
    assert!(done.stderr.contains("long: refused: it has 4.0 MiB"), "{}", done.stderr);

    let mut four = redis.connection(4);
    for index in 0..20 {
        put(&mut four, &format!("{}{index:02}", "n".repeat(1025)), b"", &[]);
    }
    let done = with(&["--redis-db", "4"]);
    assert_eq!(
        (done.code, done.json()["refused"].as_u64()),
        (1, Some(1)),
        "the first loss ends it: {}",
        done.stderr
    );

    // A source with several databases: only one of them is imported, which was not reported.
    put(&mut redis.connection(3), "third", b"3", &[]);
    let done = with(&["--redis-db", "3"]);
    assert_eq!((done.code, done.json()["files"].as_u64()), (0, Some(1)), "{}", done.stderr);
    assert!(done.stderr.contains("only database 3 is imported"), "{}", done.stderr);
    assert!(done.stderr.contains("0 (3,006), 4 (20)"), "{}", done.stderr);
    assert_eq!(server.ok(&["get", "third"]), b"3");
    let done = import(&server, &redis.address, &[]);
    assert!(done.code == 1 && done.stderr.contains("--redis-password-file"), "{}", done.stderr);
}

#[test]
fn the_strings_of_a_shoal_come_too() {
    let folder = tempfile::tempdir().unwrap();
    let source = Frontends::start(Frontends::command(&folder.path().join("data"), "256M"));
    let mut connection =
        redis::Client::open(format!("redis://{}", source.resp)).unwrap().get_connection().unwrap();
    for index in 0..2500 {
        put(&mut connection, &format!("k{index}"), index.to_string().as_bytes(), &[]);
    }
    put(&mut connection, "mortal", b"m", &["EX", "1000"]);
    let server = Server::start();
    let done = import(&server, &source.resp, &["--bucket", "other"]);
    assert_eq!(done.stderr, "", "there is one database");
    assert_eq!((done.code, done.json()["files"].as_u64()), (0, Some(2501)), "{}", done.stderr);
    assert_eq!(server.ok(&["get", "k1234", "--bucket", "other"]), b"1234");
    let ttl_ns =
        server.run(&["ls", "mortal", "--json", "--bucket", "other"]).json()["ttl_ns"].as_u64().unwrap();
    assert!((900_000_000_000..1_000_000_000_000).contains(&ttl_ns), "{ttl_ns}");
}

/// The answer to INFO of a user without the right to it: the import does without the list of databases.
const NO_INFO: &[u8] = b"-NOPERM this user has no permissions to run the 'info' command\r\n";

/// Answers one command, or several at a time, with each of `replies`, and the next one not at all.
fn answer(listener: &TcpListener, replies: &[&[u8]]) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = [0; 4096];
    for reply in replies {
        assert!(stream.read(&mut buffer).unwrap() > 0);
        stream.write_all(reply).unwrap();
    }
    let _ = stream.read(&mut buffer);
}

/// A key for which the server replied to GET with an error was left out in silence, with exit code 0; a key that was made between the
/// questions for its time and for its value came without its deadline.
#[test]
fn import_fails_on_errors_and_keeps_deadlines() {
    let server = Server::start();
    for (get, code, words) in [
        (
            &b":-1\r\n-LOADING Redis is loading the dataset in memory\r\n"[..],
            1,
            "GET of \"a\": the server answers: LOADING",
        ),
        (b":-1\r\n-WRONGTYPE Operation against a key\r\n", 0, ""),
        (b":-2\r\n$1\r\nv\r\n", 0, ""),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let page = b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n";
        let replies: [&[u8]; 5] = [b":-2\r\n", NO_INFO, page, b"+string\r\n:1\r\n", get];
        let done = std::thread::scope(|scope| {
            scope.spawn(|| answer(&listener, &replies));
            import(&server, &address, &[])
        });
        assert_eq!((done.code, done.json()["files"].as_u64()), (code, Some(0)), "{}", done.stderr);
        assert!(done.stderr.contains(words), "{}", done.stderr);
    }
    assert!(server.keys().is_empty());
}

#[test]
fn broken_import_reports_progress() {
    let server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let done = std::thread::scope(|scope| {
        // The second SCAN has no answer.
        let page = b"*2\r\n$1\r\n7\r\n*1\r\n$1\r\na\r\n";
        let unknown = b"-ERR unknown command 'PEXPIRETIME'\r\n";
        let replies: [&[u8]; 5] = [unknown, NO_INFO, page, b"+string\r\n:1\r\n", b":5000\r\n$1\r\nv\r\n"];
        scope.spawn(move || answer(&listener, &replies));
        import(&server, &address, &[])
    });
    assert_eq!((done.code, done.json()["files"].as_u64()), (1, Some(1)), "{}", done.stderr);
    for words in ["the connection was lost", "after 1 key;", "run it again"] {
        assert!(done.stderr.contains(words), "{words}: {}", done.stderr);
    }
    assert_eq!(server.ok(&["get", "a"]), b"v", "what came is stored");
    assert!(server.run(&["ls", "a", "--json"]).json()["ttl_ns"].as_u64().unwrap() <= 5_000_000_000);

    let done = import(&server, "127.0.0.1:1", &[]);
    assert!(done.code == 1 && done.stderr.contains("cannot connect"), "{}", done.stderr);
    assert_eq!(import(&server, "nowhere", &[]).code, 2);
}

/// Symptom: after an import from Redis, Redis clients of the new server found nothing. Cause: it stored into the bucket of the
/// other commands. Fix: it stores into the bucket of Redis clients.
#[test]
fn an_import_goes_to_the_bucket_that_redis_clients_see() {
    let folder = tempfile::tempdir().unwrap();
    let source = Frontends::start(Frontends::command(&folder.path().join("source"), "256M"));
    let connect = |server: &Frontends| {
        redis::Client::open(format!("redis://{}", server.resp)).unwrap().get_connection().unwrap()
    };
    put(&mut connect(&source), "greeting", b"hello", &[]);
    for (name, options) in [("one", &["--resp-bucket", "cache"][..]), ("two", &[])] {
        let data = folder.path().join(name);
        let mut command = Frontends::command(&data, "256M");
        command.args(options);
        let server = Frontends::start(command);
        let import = ["import", "--from-redis", &source.resp, "--server", server.grpc.trim()];
        let done = run(&import);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let value: String = redis::cmd("GET").arg("greeting").query(&mut connect(&server)).unwrap();
        assert_eq!(value, "hello", "{name}");
        server.stop();
    }
    // A data file whose Redis clients have bucket "redis", without a server.
    let data = folder.path().join("three");
    let file = |words: &[&str]| run(&[words, &["--data", data.to_str().unwrap()]].concat());
    assert_eq!(file(&["put", "old", "/dev/null", "--bucket", "redis"]).code, 0);
    assert_eq!(file(&["import", "--from-redis", &source.resp]).code, 0);
    assert_eq!(file(&["get", "greeting", "--bucket", "redis"]).stdout, b"hello");
    assert_eq!(file(&["import", "--from-redis", &source.resp, "--bucket", "default"]).code, 0);
    assert_eq!(file(&["get", "greeting"]).stdout, b"hello", "the option goes before");
    source.stop();
}
