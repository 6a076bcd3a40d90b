//! The operator's side of a server: metrics, health, its log, `stat`, `top` and `report`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use shoal_testkit::skipped::skipped;
use shoal_testkit::wait::eventually;
use tempfile::TempDir;

use crate::harness::{Done, Process, command, run_with};

/// A server with all its listeners, and its log in a file.
struct Watched {
    child: Process,
    folder: TempDir,
    grpc: String,
    redis: String,
    metrics: String,
}

impl Watched {
    fn start(options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), options)
    }

    fn start_in(folder: TempDir, options: &[&str]) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = command(&["serve", "--size", "256M", "--cache", "16M", "--listen", "127.0.0.1:0"]);
        command.args(["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]).args(options);
        command.arg("--data").arg(folder.path().join("data"));
        command.stderr(log);
        let mut child = Process::start(command);
        let (grpc, redis) = (child.says("gRPC  "), child.says("Redis redis://"));
        let metrics = child.says("Metrics http://").strip_suffix("/metrics").unwrap().to_owned();
        Self { child, folder, grpc, redis, metrics }
    }

    /// Head and body of an answer of the metrics listener.
    fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// The value of a time series; 0 if there is none.
    fn value(&self, series: &str) -> f64 {
        let (_, figures) = self.get("/metrics");
        let value = figures.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// The number of requests of a frontend with this operation and result.
    fn count(&self, frontend: &str, operation: &str, result: &str) -> u64 {
        let labels = format!("{{frontend=\"{frontend}\",operation=\"{operation}\",result=\"{result}\"}}");
        self.value(&format!("shoal_request_duration_seconds_count{labels}")) as u64
    }

    /// Waits until a count is `expected`: a request is counted after its answer was sent.
    fn wait_for_count(&self, (frontend, operation, result): (&str, &str, &str), expected: u64) {
        let what = format!("{expected} of {frontend} {operation} {result}");
        eventually(&what, || self.count(frontend, operation, result) == expected);
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Done {
        let mut command = command(arguments);
        command.env("SHOAL_SERVER", &self.grpc);
        run_with(command, input)
    }

    fn redis(&self, commands: &str) -> String {
        let mut stream = TcpStream::connect(&self.redis).unwrap();
        stream.write_all(format!("{commands}QUIT\r\n").as_bytes()).unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        answers
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Stops it in order, and returns its log.
    fn stop(mut self) -> String {
        self.child.stop();
        self.log()
    }
}

/// A server that takes no more writes reports that to clients that send it requests, and continues to serve reads.
#[test]
fn a_read_only_server_is_not_ready() {
    let server = Watched::start(&[]);
    assert_eq!(server.run(&["put", "notes/today", "-"], b"hello").code, 0);
    std::fs::remove_file(server.folder.path().join("data")).unwrap();
    let unready = (0..600).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let (head, body) = server.get("/readyz");
        head.starts_with("HTTP/1.1 503").then_some(body)
    });
    let reason = unready.expect("the server notices that its data file is gone");
    assert!(reason.contains("takes no writes") && reason.contains("was deleted"), "{reason}");
    assert_eq!((server.value("shoal_ready"), server.value("shoal_read_only")), (0.0, 1.0));
    assert!(server.get("/livez").0.starts_with("HTTP/1.1 200"), "a restart would lose the data");
    assert_eq!(server.run(&["get", "notes/today"], b"").text(), "hello");
}

/// Symptom: after five writes with a request id `stat`, the metrics, INFO and `check` counted six objects, `ls` one.
/// Cause: the stored results are entries, too.
#[test]
fn results_are_counted_apart_everywhere() {
    let mut server = Watched::start(&["--log", "error"]);
    let counts = |server: &Watched| {
        let stat = server.run(&["stat", "--json"], b"").json();
        let info = server.redis("INFO shoal\r\n");
        let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        assert_eq!(line("shoal_results:"), server.value("shoal_results").to_string());
        assert_eq!(line("shoal_objects:"), server.value("shoal_objects").to_string());
        assert_eq!(line("shoal_objects:"), stat["objects"].to_string());
        (server.value("shoal_objects"), server.value("shoal_results"))
    };
    for number in 1..=5 {
        let written = server.redis(&format!("SHOAL.SESSION 7 {number} SET k v{number}\r\n"));
        assert!(written.starts_with("+OK"), "{written}");
    }
    assert_eq!(counts(&server), (1.0, 5.0));
    assert!(server.redis("DBSIZE\r\n").starts_with(":1\r"));
    let text = server.run(&["stat"], b"");
    assert!(text.text().contains(" 1, 2 B of values; 5 stored results"), "{}", text.text());
    // The next run finds them in the trees.
    server.child.stop();
    let data = server.folder.path().join("data");
    let data = data.to_str().unwrap();
    let report = run_with(command(&["check", "--data", data, "--json"]), b"").json();
    assert_eq!((&report["objects"], &report["own_objects"]), (&1.into(), &5.into()), "{report}");
    let closed = run_with(command(&["stat", "--data", data]), b"");
    assert!(closed.text().contains(" 1, 2 B of values; 5 stored results"), "{}", closed.text());
    assert_eq!(counts(&Watched::start_in(server.folder, &["--log", "error"])), (1.0, 5.0));
}

#[test]
fn health_ready_and_stat_report_state() {
    let server = Watched::start(&["--log-format", "json", "--access-log", "--slow", "1ns"]);
    assert!(server.get("/livez").0.starts_with("HTTP/1.1 200"));
    assert!(server.get("/readyz").0.starts_with("HTTP/1.1 200"));
    assert_eq!(server.run(&["put", "notes/today", "-"], b"hello").code, 0);
    assert_eq!(server.run(&["get", "notes/today"], b"").text(), "hello");
    assert_eq!(server.run(&["get", "notes/none"], b"").code, 3);
    assert!(server.redis("SET greeting hello\r\nGET greeting\r\nGET none\r\n").contains("hello"));
    for request in
        [("grpc", "put", "ok"), ("redis", "get", "ok"), ("redis", "get", "not_found"), ("redis", "put", "ok")]
    {
        server.wait_for_count(request, 1);
    }
    assert_eq!(server.value("shoal_objects"), 2.0, "they are in the log only");
    assert_eq!(server.value("shoal_ready"), 1.0);
    // People and programs get the same figures.
    let stat = server.run(&["stat"], b"");
    for words in ["objects       ", " 2, ", "room ", "takes writes", "none met"] {
        assert!(stat.text().contains(words), "{words}: {}", stat.text());
    }
    let all = server.run(&["stat", "--all"], b"");
    assert!(all.text().contains("log.ring") && all.text().contains("redis.get.not_found"), "{}", all.text());
    let json = server.run(&["stat", "--json"], b"").json();
    assert_eq!(json["objects"], 2);
    assert!(
        json["requests"]["redis"].as_array().unwrap().iter().any(|it| it["operation"] == "put"),
        "{json}"
    );
    let top = server.run(&["top", "--once", "--every", "100ms"], b"");
    assert!(top.text().contains("takes writes") && top.text().contains("redis"), "{}", top.text());
    let path = server.folder.path().join("report.tar.gz");
    let report = server.run(&["report", "--output", path.to_str().unwrap()], b"");
    assert!(report.text().contains("configuration.toml, server.log"), "{report:?}");
    let names = ["summary.txt", "figures.json", "space.json", "machine.txt"];
    assert!(names.iter().all(|name| report.text().contains(name)), "{}", report.text());
    let log = server.stop();
    for line in log.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    for words in
        ["serving ", "\"cap\":", "Put notes/today", "get greeting", "slow request: set", "\"log_ms\":"]
    {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn the_audit_log_has_every_request_with_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let server = Watched::start(&["--audit-log", path.to_str().unwrap()]);
    assert_eq!(server.run(&["put", "notes/today", "-"], b"hello").code, 0);
    assert!(
        server
            .redis("SET greeting hello\r\nMSET a 1 b 2\r\nMULTI\r\nDEL a\r\nEXEC\r\nNONSENSE\r\n")
            .contains("+QUEUED")
    );
    assert_eq!(server.value("shoal_audit_lines_lost_total"), 0.0);
    server.stop();
    let log = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let put = lines.iter().find(|line| line["op"] == "Put").unwrap_or_else(|| panic!("{log}"));
    let expected = ["grpc", "local", "127.0.0.1", "default", "notes/today", "ok"];
    assert_eq!(["proto", "who", "ip", "bucket", "key", "result"].map(|field| &put[field]), expected, "{log}");
    let redis = lines.iter().filter(|line| line["proto"] == "redis");
    let shown: Vec<_> =
        redis.map(|line| (&line["op"], &line["key"], &line["keys"], &line["result"])).collect();
    let shown = serde_json::to_string(&shown).unwrap();
    let expected = concat!(
        r#"["set","greeting",null,"ok"],["mset","a",2,"ok"],["multi",null,null,"ok"],["del","a",null,"ok"],"#,
        r#"["exec",null,null,"ok"],["(unknown)",null,null,"invalid"]"#
    );
    assert!(shown.contains(expected), "{shown}");
}

/// Symptom: only the line of the log at the start showed how a server divides its memory.
#[test]
fn the_division_of_memory_is_shown_everywhere() {
    let memory = 256_u64 << 20;
    let server = Watched::start(&["--memory", "256M"]);
    let json = server.run(&["stat", "--json"], b"").json();
    let figures = json["figures"].as_object().unwrap();
    assert_eq!(figures["memory.limit"], memory);
    let parts: Vec<(&str, u64)> = figures
        .iter()
        .filter_map(|(name, bytes)| Some((name.strip_prefix("memory.")?, bytes.as_u64().unwrap())))
        .filter(|(part, _)| *part != "limit")
        .collect();
    assert_eq!(parts.len(), 9, "{parts:?}");
    let sum: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    assert!(sum <= memory && sum > memory / 2, "{parts:?}");
    assert_eq!(server.value("shoal_memory_limit_bytes"), memory as f64);
    for (part, bytes) in &parts {
        assert_eq!(server.value(&format!("shoal_memory_part_bytes{{part=\"{part}\"}}")), *bytes as f64);
    }
    let text = server.run(&["stat"], b"");
    assert!(text.text().contains("in use of 256.0 MiB: at most store "), "{}", text.text());
    let show = |options: &[&str]| run_with(command(&[&["config", "show"], options].concat()), b"");
    // As the server was started.
    let json = show(&["--json", "--memory", "256M", "--cache", "16M", "--resp", "127.0.0.1:0"]).json();
    let division = &json["memory-division"];
    assert_eq!(division["total"], memory);
    let shown = parts.iter().map(|(part, bytes)| ((*part).to_owned(), (*bytes).into())).collect();
    assert_eq!(division["parts"], serde_json::Value::Object(shown));
    let text = show(&["--memory", "256M"]);
    assert!(text.text().contains("# the memory is divided: 256.0 MiB: store "), "{}", text.text());
    let refused = show(&["--memory", "48M"]);
    assert!(refused.text().contains("# the memory cannot be divided: 48.0 MiB of memory are"), "{refused:?}");
}

#[test]
fn taken_metrics_address_fails_and_default_warns() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let options = ["serve", "--listen", "127.0.0.1:0", "--metrics", &address];
    let mut failing = command(&options);
    failing.arg("--data").arg(&data);
    let done = run_with(failing, b"");
    assert!(
        done.code == 1 && done.stderr.contains("--metrics") && done.stderr.contains(&address),
        "{done:?}"
    );
    assert!(!Path::new(&data).exists(), "nothing is created");
    // The default address is taken: by this test, or by another program before.
    let _default = TcpListener::bind("127.0.0.1:7415");
    let mut warned = command(&["serve", "--listen", "127.0.0.1:0", "--size", "64M", "--cache", "16M"]);
    warned.env_remove("SHOAL_METRICS").arg("--data").arg(&data);
    warned.stderr(Stdio::piped());
    let mut child = Process::start(warned);
    child.says("gRPC");
    let log = child.stop_and_read();
    assert!(log.contains("no metrics: cannot listen on 127.0.0.1:7415"), "{log}");
}

#[test]
fn scrapes_under_load_count_every_command() {
    const ROUNDS: usize = 50;
    const COMMANDS: usize = 200;
    let server = Watched::start(&[]);
    let count = |operation: &str| server.count("redis", operation, "ok");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            for round in 0..ROUNDS {
                let commands = (0..COMMANDS).map(|at| format!("SET k{at} {round}\r\nGET k{at}\r\n"));
                server.redis(&commands.collect::<String>());
            }
        });
        let mut before = (0, 0);
        while !load.is_finished() {
            let now = (count("put"), count("get"));
            assert!(now.0 >= before.0 && now.1 >= before.1, "counters only grow: {before:?}, {now:?}");
            before = now;
        }
    });
    for operation in ["put", "get"] {
        server.wait_for_count(("redis", operation, "ok"), (ROUNDS * COMMANDS) as u64);
    }
    assert!(server.value("shoal_objects") >= COMMANDS as f64);
}

/// `deploy/prometheus/try`, a step of CI, has a Prometheus server scrape and fire alerts; this is its part without waiting.
#[test]
fn promtool_accepts_the_metrics_and_the_alerts_fire_in_their_tests() {
    let run = |arguments: &[&str], input: &[u8]| {
        let mut command = std::process::Command::new("promtool");
        command.args(arguments);
        run_with(command, input)
    };
    if std::process::Command::new("promtool").arg("--version").output().is_err() {
        skipped("there is no promtool here (apt-get install prometheus)");
        return;
    }
    let server = Watched::start(&[]);
    assert_eq!(server.run(&["put", "k", "-"], b"v").code, 0);
    server.redis("SET k v\r\nGET k\r\n");
    let (_, figures) = server.get("/metrics");
    let checked = run(&["check", "metrics"], figures.as_bytes());
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{figures}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus");
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let rules = run(&["check", "rules", &file("alerts.yml")], b"");
    assert_eq!(rules.code, 0, "{rules:?}");
    let fired = run(&["test", "rules", &file("alerts_test.yml")], b"");
    assert_eq!(fired.code, 0, "{fired:?}");
}

#[test]
fn log_level_applies_to_shoal_only() {
    let server = Watched::start(&["--log", "debug"]);
    assert_eq!(server.run(&["put", "k", "-"], b"v").code, 0);
    let log = server.stop();
    assert!(log.contains("serving ") && !log.contains("frame") && !log.contains("h2"), "{log}");
}
