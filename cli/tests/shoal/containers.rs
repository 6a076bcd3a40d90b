//! Servers in small containers (T7): with default options in control groups of 128 MiB to 1 GiB, under large and small values of both
//! protocols, imports, backups and listings. The kernel kills none, each answers afterwards, and nothing acknowledged is lost.
//!
//! Symptom: with 512 MiB and default options the kernel killed the server after ten seconds. Cause: the cache was half of the limit, and
//! the bounds of requests and answers were constants. Fix: all of them are parts of one figure.
//!
//! If control groups cannot be made the server gets its memory by option, and its own memory is held to that.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_base::SeededEntropy;
use shoal_testkit::{lab, resp};

use crate::harness::{Frontends, assert_clean, command, run};
use crate::machine::disk_folder;
use crate::memory::{Group, LOOK_EVERY};
use crate::process::{mib, own_memory};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 4] = [128 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB];
/// Clients of the Redis protocol: some with long values, some with short ones.
const LONG: u64 = 12;
const SHORT: u64 = 4;
/// The longest value is 4 MiB.
const LONG_BYTES: usize = 4_000_000;
const KEYS: u64 = 12;
/// Open pages of the console.
const PAGES: usize = 10;
/// Commands of `shoal` that run at the same time.
const IMPORTS: usize = 3;
const FILES: usize = 12;
/// A server that answers nothing for this long hangs.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The observations of the clients.
#[derive(Default)]
struct Seen {
    end: AtomicBool,
    done: AtomicU64,
    /// Commands that were refused, as there was no room.
    refused: AtomicU64,
    /// Connections that the server closed.
    closed: AtomicU64,
}

/// A connection that speaks the Redis protocol.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// An answer: the bytes of a string, or an error, or something else.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Bulk(Option<Vec<u8>>),
    Error(String),
    Other,
}

impl Connection {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server is gone");
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        stream.set_write_timeout(Some(ANSWER_MAX)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// None if the connection was closed.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Option<Answer> {
        self.stream.get_mut().write_all(&resp::encode(words)).ok()?;
        self.answer()
    }

    fn answer(&mut self) -> Option<Answer> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no answer within {ANSWER_MAX:?}");
                return None;
            }
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let count = || rest.parse::<i64>().unwrap();
        Some(match kind {
            "-" => Answer::Error(rest.to_owned()),
            "$" if count() < 0 => Answer::Bulk(None),
            "$" => {
                let mut bytes = vec![0; count() as usize + 2];
                self.stream.read_exact(&mut bytes).ok()?;
                bytes.truncate(count() as usize);
                Answer::Bulk(Some(bytes))
            }
            "*" => {
                for _ in 0..count() {
                    self.answer()?;
                }
                Answer::Other
            }
            _ => Answer::Other,
        })
    }
}

/// The value that the `turn`th write of a key stores.
fn value(key: u64, turn: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![(key * 31 + turn * 7) as u8; bytes];
    let head = format!("{key}:{turn}:");
    value[..head.len()].copy_from_slice(head.as_bytes());
    value
}

/// Writes and reads a separate set of keys until the end; then everything acknowledged must be there.
fn client(address: SocketAddr, id: u64, longest: usize, seen: &Seen) {
    let dice = SeededEntropy::new(id);
    let name = |key: u64| format!("c{id}:{key}").into_bytes();
    let mut connection = Connection::new(address);
    // Of each key the turns of its last acknowledged write and of a later one whose outcome is unknown.
    let mut known: Vec<(Option<u64>, Option<u64>)> = vec![(None, None); KEYS as usize];
    let length = |key: u64| longest - key as usize * (longest / 16);
    let mut turn = 0;
    while !seen.end.load(Ordering::Relaxed) {
        turn += 1;
        let key = dice.below(KEYS);
        let answer = match dice.below(10) {
            0..5 => {
                let answer = connection.ask(&[b"set", &name(key), &value(key, turn, length(key))]);
                let known = &mut known[key as usize];
                match answer {
                    Some(Answer::Error(_)) => {}
                    Some(_) => *known = (Some(turn), None),
                    None => known.1 = Some(turn),
                }
                answer
            }
            5..8 => connection.ask(&[b"get", &name(key)]),
            8 => connection.ask(&[b"mget", &name(key), &name((key + 1) % KEYS), b"absent"]),
            _ => connection.ask(&[b"scan", b"0", b"count", b"100"]),
        };
        seen.done.fetch_add(1, Ordering::Relaxed);
        match answer {
            Some(Answer::Error(text)) => {
                assert!(
                    ["TRYAGAIN", "ERR the values have more"].iter().any(|it| text.starts_with(it)),
                    "{text}"
                );
                seen.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            Some(_) => {}
            None => {
                seen.closed.fetch_add(1, Ordering::Relaxed);
                connection = Connection::new(address);
            }
        }
    }
    for (key, (acknowledged, unknown)) in (0..).zip(known) {
        let got = loop {
            match connection.ask(&[b"get", &name(key)]) {
                Some(Answer::Bulk(got)) => break got,
                Some(Answer::Error(text)) => assert!(text.starts_with("TRYAGAIN"), "{text}"),
                Some(Answer::Other) => panic!("GET gives a string"),
                None => connection = Connection::new(address),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let turns = [acknowledged, unknown].into_iter().flatten();
        let may = turns.map(|turn| Some(value(key, turn, length(key)))).any(|value| value == got);
        assert!(
            may || acknowledged.is_none() && got.is_none(),
            "c{id}:{key}: neither {acknowledged:?} nor {unknown:?}"
        );
    }
}

/// A command of `shoal` that talks to the server.
fn spawn(url: &str, words: &[&str]) -> Child {
    let mut command = command(words);
    command.arg("--server").arg(url).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The program in the group, without arguments.
fn program(group: Option<&Group>) -> Command {
    let plain = command(&[] as &[&str]);
    let Some(group) = group else { return plain };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.processes()).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null());
    shell
}

/// The command of a server with default options in the group, or with this memory if there is none.
pub(crate) fn server(data: &Path, bytes: u64, group: Option<&Group>) -> Command {
    let mut command = program(group);
    command.args([
        "serve",
        "--size",
        "6G",
        "--log",
        "error",
        "--listen",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
    ]);
    command.arg("--data").arg(data);
    if group.is_none() {
        command.arg("--memory").arg(bytes.to_string());
    }
    command
}

/// Runs commands until `end`, one after the other; returns their number.
fn commands(url: &str, source: &Path, id: usize, seen: &Seen) -> u64 {
    let mut count = 0;
    while !seen.end.load(Ordering::Relaxed) {
        let prefix = format!("i{id}.{}/", count % 4);
        let source = source.to_str().unwrap();
        let imports = ["import", source, "--prefix", &prefix];
        let words: &[&str] = match (id, count % 3) {
            (0, 1) => &["backup", "/dev/stdout"],
            (0, 2) => &["ls"],
            _ => &imports,
        };
        let mut child = spawn(url, words);
        while child.try_wait().unwrap().is_none() {
            if seen.end.load(Ordering::Relaxed) {
                child.kill().unwrap();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        count += 1;
    }
    count
}

/// The most memory that the process has for itself until `wanted` is over; it must live.
fn watch(server: &mut Frontends, bytes: u64, wanted: Duration) -> u64 {
    let (began, mut peak) = (Instant::now(), 0);
    while began.elapsed() < wanted {
        std::thread::sleep(LOOK_EVERY);
        let ended = server.child.try_wait().unwrap();
        assert_eq!(
            ended,
            None,
            "the server was killed: more than {} MiB; at most {:.1} were seen",
            bytes / MIB,
            mib(peak)
        );
        peak = own_memory(server.pid()).max(peak);
    }
    peak
}

/// Pages of the console that stay open until the end: streams of figures, and maps and censuses, all as fine as they can be. Returns the number of
/// bytes that they got.
fn pages(address: &str, seen: &Seen) -> u64 {
    let open = |method: &str, path: &str, headers: &str| {
        let mut stream = TcpStream::connect(address).expect("the server is gone");
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let ask = |method: &str, path: &str, headers: &str| {
        let headers = format!("connection: close\r\ncontent-length: 0\r\n{headers}");
        let mut answer = String::new();
        // A connection may be refused if there is no room.
        let _ = open(method, path, &headers).read_to_string(&mut answer);
        answer
    };
    let session = ask("GET", "/api/session", "");
    let csrf =
        session.split("\"csrf\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let csrf = format!("x-shoal-csrf: {csrf}\r\n");
    let mut streams: Vec<TcpStream> = (0..PAGES).map(|_| open("GET", "/api/live", "")).collect();
    let (mut got, mut piece) = (0, vec![0; 64 << 10]);
    while !seen.end.load(Ordering::Relaxed) {
        for stream in &mut streams {
            match stream.read(&mut piece) {
                Ok(count) if count > 0 => got += count as u64,
                // It is not served for want of room.
                _ => *stream = open("GET", "/api/live", ""),
            }
        }
        for path in ["/api/space?cells=16384", "/api/history", "/api/census?buckets=true"] {
            got += ask("GET", path, "").len() as u64;
        }
        ask("POST", "/api/census", &csrf);
    }
    got
}

fn survives(bytes: u64, source: &Path, folder: &Path, wanted: Duration) {
    let data: PathBuf = folder.join(format!("data{}", bytes / MIB));
    let group = Group::of(&format!("shoal-test-{}-{}", std::process::id(), bytes / MIB), bytes);
    let mut command = server(&data, bytes, group.as_ref());
    command.args(["--console", "127.0.0.1:0"]);
    let mut server = Frontends::start(command);
    let (seen, address) = (Seen::default(), server.resp_address());
    let console = server.child.says("Console http://");
    let url = server.grpc.trim().to_owned();
    let (peak, ran, shown) = std::thread::scope(|scope| {
        let seen = &seen;
        let clients: Vec<_> = (0..LONG + SHORT)
            .map(|id| {
                scope.spawn(move || client(address, id, if id < LONG { LONG_BYTES } else { 900 }, seen))
            })
            .collect();
        let url = &url;
        let ran: Vec<_> =
            (0..IMPORTS).map(|id| scope.spawn(move || commands(url, source, id, seen))).collect();
        let looks = scope.spawn(|| pages(&console, seen));
        // Also after a panic: the clients see the end.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let end = End(&seen.end);
        let peak = watch(&mut server, bytes, wanted);
        drop(end);
        let ran: u64 = ran.into_iter().map(|thread| thread.join().unwrap()).sum();
        clients.into_iter().for_each(|client| client.join().unwrap());
        (peak, ran, looks.join().unwrap())
    });
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{} MiB ({}): {} commands of Redis clients, {} refused, {} connections closed, {ran} imports, backups and listings, \
         {:.1} MiB for {PAGES} pages; at most {:.1} MiB",
        bytes / MIB,
        if group.is_some() { "control group" } else { "measured" },
        count(&seen.done),
        count(&seen.refused),
        count(&seen.closed),
        mib(shown),
        mib(peak),
    );
    assert!(peak <= bytes, "{peak} bytes at the peak");
    assert_eq!(count(&seen.closed), 0, "clients that take their answers are not closed");
    assert!(count(&seen.done) > 20 && ran > 0 && shown > 0, "there was load");
    let stat = run(&["stat", "--server", &url]);
    assert_eq!(stat.code, 0, "{}", stat.stderr);
    server.stop();
    assert_clean(&data);
    fs::remove_file(&data).unwrap();
}

#[test]
fn a_server_with_default_options_survives_in_small_containers() {
    let folder = disk_folder();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    for file in 0..FILES {
        fs::write(source.join(file.to_string()), value(file as u64, 0, 3_900_000)).unwrap();
    }
    let wanted = Duration::from_secs(lab::number("CONTAINER_S", 3));
    for bytes in SIZES {
        survives(bytes, &source, folder.path(), wanted);
    }
}

/// Fills a store with long and short values, and kills its server: the log has records that no tree has.
fn killed_store(data: &Path, bytes: u64) {
    let mut command = command(&["serve", "--size", "2G", "--memory", "1G", "--log", "error"]);
    command.args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--metrics", "off"]);
    let server = Frontends::start({
        command.arg("--data").arg(data);
        command
    });
    let mut connection = Connection::new(server.resp_address());
    let mut left = bytes;
    for key in 0.. {
        let length = if key % 64 == 0 { LONG_BYTES } else { [10_000, 900][key as usize % 2] };
        let answer = connection.ask(&[b"set", format!("key-{key}").as_bytes(), &value(key, 0, length)]);
        assert!(!matches!(answer, None | Some(Answer::Error(_))), "{answer:?}");
        left = left.saturating_sub(length as u64);
        if left == 0 {
            break;
        }
    }
    // Dropped, it is killed.
    drop(server);
}

/// Symptom: a check took no account of its container: a repair could hold 128 MiB beside its cache. Fix: both are parts of the memory.
#[test]
fn a_check_and_a_repair_survive_in_a_small_container() {
    let folder = disk_folder();
    let data = folder.path().join("data");
    killed_store(&data, lab::number("CHECKED_MIB", 96) * MIB);
    let group = Group::of(&format!("shoal-test-{}-check", std::process::id()), SIZES[0]);
    let check = |options: &[&str]| {
        let mut command = program(group.as_ref());
        command.arg("check").arg("--data").arg(&data).args(options);
        if group.is_none() {
            command.args(["--memory", "128M"]);
        }
        let done = command.output().unwrap();
        println!("{options:?}: {}", String::from_utf8_lossy(&done.stdout).lines().last().unwrap_or_default());
        // None: a signal ended it.
        done.status.code()
    };
    assert_eq!(check(&[]), Some(0));
    damage(&data);
    // Damaged values stay.
    for options in [&[][..], &["--repair"], &["--acknowledge"], &[]] {
        assert_eq!(check(options), Some(1), "{options:?}");
    }
    let peak = group.as_ref().and_then(Group::peak);
    println!(
        "128 MiB: at most {:?} MiB with the pages of files that the kernel keeps",
        peak.map(|peak| peak / MIB)
    );
}

/// Overwrites a block here and there.
fn damage(data: &Path) {
    let file = fs::OpenOptions::new().write(true).open(data).unwrap();
    let blocks = file.metadata().unwrap().len() / 4096;
    for part in 4..60 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 4096], blocks * part / 64 * 4096).unwrap();
    }
}

/// Below its minimum memory a server does not start, and reports the memory that it needs.
#[test]
fn too_little_memory_is_refused_with_what_is_needed() {
    let folder = disk_folder();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let start =
        |options: &[&str]| run(&[&["serve", "--data", data, "--listen", "127.0.0.1:0"], options].concat());
    for options in [&["--memory", "48M"][..], &["--memory", "512M", "--cache", "480M"]] {
        let refused = start(options);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(
            refused.stderr.contains("a server needs ") && refused.stderr.contains("--memory"),
            "{}",
            refused.stderr
        );
    }
    assert!(!Path::new(data).exists(), "nothing was created");
}
