//! Servers and commands as child processes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use shoal_client::{Client, ConnectOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The binary, without the variables of the caller's environment that change its behaviour.
pub(crate) fn command<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shoal"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SHOAL_") {
            command.env_remove(name);
        }
    }
    // The default addresses are those of all servers of the machine.
    command
        .env("SHOAL_RESP", "off")
        .env("SHOAL_S3", "off")
        .env("SHOAL_CONSOLE", "off")
        .env("SHOAL_METRICS", "off");
    command.env_remove("RUST_LOG").args(arguments).stdin(Stdio::null());
    command
}

/// The output and the end of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// Standard output of a command that succeeded, as one JSON object a line.
    pub(crate) fn json_lines(&self) -> Vec<serde_json::Value> {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Standard output as one JSON object.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap()
    }
}

/// Runs `command` with `input`.
pub(crate) fn run_with(mut command: Command, input: &[u8]) -> Done {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that fails does not read it.
        scope.spawn(move || drop(stdin.write_all(input)));
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Done { code: output.status.code().unwrap(), stdout: output.stdout, stderr }
    })
}

/// Runs the binary without a server.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: &[A]) -> Done {
    run_with(command(arguments), b"")
}

/// Checks the store in `data`, which is closed.
pub(crate) fn check(data: &Path, options: &[&str]) -> Done {
    run(&[&["check", "--data", text_of(data)], options].concat())
}

/// The store in `data` passes its own check.
pub(crate) fn assert_clean(data: &Path) {
    let checked = check(data, &[]);
    assert_eq!(checked.code, 0, "{}{}", checked.text(), checked.stderr);
}

/// A path as an argument among others.
pub(crate) fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A client of the server at `url`, and the runtime that it works in.
pub(crate) fn client_of(url: &str) -> (Runtime, Client) {
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(Client::connect(ConnectOptions::new(url))).unwrap();
    (runtime, client)
}

/// Sends `signal` to `child`.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A server as a child process. Killed if a test fails.
pub(crate) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Waits for the next line of its standard output, which starts with `start`; returns the rest of it, its address.
    pub(crate) fn says(&mut self, start: &str) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let rest = line.strip_prefix(start).unwrap_or_else(|| panic!("{line:?} begins not with {start:?}"));
        rest.trim().to_owned()
    }

    /// Stops it in order.
    pub(crate) fn stop(&mut self) {
        signal(self, Signal::TERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// Stops it in order; its standard error, which was piped.
    pub(crate) fn stop_and_read(&mut self) -> String {
        signal(self, Signal::TERM);
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{log}");
        log
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running server on a new store, on a free port.
pub(crate) struct Server {
    pub(crate) child: Process,
    pub(crate) url: String,
    pub(crate) folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (child, url) = serve(&folder.path().join("data"), &[]);
        Self { child, url, folder }
    }

    /// The binary with the address of this server.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = command(arguments);
        command.env("SHOAL_SERVER", &self.url);
        command
    }

    /// Runs a command against this server.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Done {
        run_with(self.command(arguments), b"")
    }

    /// As [`Self::run`] for a command that must succeed; returns its standard output.
    pub(crate) fn ok<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Vec<u8> {
        let done = self.run(arguments);
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    }

    /// Imports from `source`; its figures are JSON.
    pub(crate) fn import(&self, source: &Path, options: &[&str]) -> Done {
        self.run(&[&["import", text_of(source), "--json"], options].concat())
    }

    /// Exports all objects whose keys start with `prefix` to `target`; its figures are JSON.
    pub(crate) fn export(&self, prefix: &str, target: &Path, options: &[&str]) -> Done {
        self.run(&[&["export", prefix, text_of(target), "--json"], options].concat())
    }

    /// Stores `value` under `key`.
    pub(crate) fn put<K: AsRef<OsStr>>(&self, key: K, value: &[u8], options: &[&str]) {
        let mut command = self.command(&[OsStr::new("put"), key.as_ref(), OsStr::new("-")]);
        command.args(options);
        let done = run_with(command, value);
        assert_eq!(done.code, 0, "{}", done.stderr);
    }

    /// The keys in the order in which they are listed.
    pub(crate) fn keys(&self) -> Vec<String> {
        let listed = String::from_utf8(self.ok(&["ls"])).unwrap();
        listed.lines().map(str::to_owned).collect()
    }
}

/// Starts a server and waits until it prints its address.
pub(crate) fn serve(data: &Path, options: &[&str]) -> (Process, String) {
    serve_sized(data, "256M", options)
}

/// The same for a store of this size.
pub(crate) fn serve_sized(data: &Path, size: &str, options: &[&str]) -> (Process, String) {
    let mut command = command(&["serve", "--listen", "127.0.0.1:0", "--size", size, "--cache", "16M"]);
    command.args(options).arg("--log").arg("warn").arg("--data").arg(data);
    started(command)
}

/// Starts the server that `command` names and waits until it prints its address.
pub(crate) fn started(command: Command) -> (Process, String) {
    let mut child = Process::start(command);
    let url = child.says("gRPC  ");
    assert!(url.starts_with("http://127.0.0.1:") && !url.ends_with(":0"), "{url}");
    (child, url)
}

/// A running server with both frontends.
pub(crate) struct Frontends {
    pub(crate) child: Process,
    pub(crate) grpc: String,
    /// Address and port.
    pub(crate) resp: String,
}

impl Frontends {
    /// Starts `command`, and waits until it prints its addresses.
    pub(crate) fn start(command: Command) -> Self {
        let mut child = Process::start(command);
        let (grpc, resp) = (child.says("gRPC"), child.says("Redis "));
        // redis:// or, with TLS, rediss://.
        let resp = resp.rsplit('/').next().unwrap().to_owned();
        Self { child, grpc, resp }
    }

    /// A server of a store of this size below the build's folder, which is on a disk, with a cache of 32 MiB.
    pub(crate) fn command(data: &Path, size: &str) -> Command {
        let mut command = command(&["serve", "--size", size, "--cache", "32M", "--log", "error"]);
        command.args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0"]).arg("--data").arg(data);
        command
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address of gRPC.
    pub(crate) fn grpc_address(&self) -> SocketAddr {
        self.grpc.split_once("://").unwrap().1.parse().unwrap()
    }

    /// The address of the Redis frontend.
    pub(crate) fn resp_address(&self) -> SocketAddr {
        self.resp.parse().unwrap()
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) {
        self.child.stop();
    }
}
