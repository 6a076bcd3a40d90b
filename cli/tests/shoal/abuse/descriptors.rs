//! More connections than there are files for (T18): a server that may open 256 files, and ten thousand connections on both frontends.
//! Clients that were connected before are served on, silent connections make room, the server does not spin, and when they are gone it takes new ones.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_storekit::eventually;
use shoal_testkit::lab;
use shoal_testkit::process::raise_open_files;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Healthy, await_nothing_left, p99_ms};
use crate::harness::Frontends;
use crate::load::{client, figure};
use crate::machine::{disk_folder, runtime};
use crate::process::{open_files, processor_seconds, sockets};

const FILES_MAX: usize = 256;
/// Attempts at a time, and the time limit of one: the system lets only a few thousand wait to be accepted.
const ATTEMPTS: usize = 500;
const ATTEMPT_MAX: Duration = Duration::from_millis(500);
/// Files of this process besides its connections.
const OWN_FILES: usize = 2_000;
/// A thread that tries again all the time uses a whole core. More than two there are to accept.
const CORES_MAX: f64 = 0.5;

/// The same command with a limit of this many open files.
fn limited(command: &Command, files: usize) -> Command {
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(format!("ulimit -n {files} && exec \"$0\" \"$@\""));
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// Opens `count` connections and holds the ones that succeed.
async fn connect(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let (mut held, mut attempts) = (Vec::new(), JoinSet::new());
    for _ in 0..count {
        attempts.spawn(timeout(ATTEMPT_MAX, TcpStream::connect(address)));
        if attempts.len() >= ATTEMPTS {
            held.extend(attempts.join_next().await.unwrap().unwrap().ok().and_then(Result::ok));
        }
    }
    while let Some(attempt) = attempts.join_next().await {
        held.extend(attempt.unwrap().ok().and_then(Result::ok));
    }
    held
}

#[test]
fn connections_beyond_descriptor_limit() {
    let files = raise_open_files();
    let connects =
        (lab::number("CONNECTS", 1_500) as usize).min(files.saturating_sub(OWN_FILES).max(files / 2));
    let idle = Duration::from_secs(lab::number("IDLE_S", 2));
    let folder = disk_folder();
    let data = folder.path().join("data");
    let server = Frontends::start(limited(&Frontends::command(&data, "1G"), FILES_MAX));
    let pid = server.pid();
    runtime().block_on(async {
        let healthy = Healthy::start(&server).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = sockets(pid);
        let (first, second) =
            tokio::join!(connect(server.grpc_address(), connects / 2), connect(server.resp_address(), connects / 2));
        let held = first.len() + second.len();
        // Once its files are used up, connections that have shown no credentials make room.
        let evicted = || async { figure(&healthy.client, "server.connections_evicted").await > 0 };
        eventually("some make room", evicted).await;
        let (began, used) = (Instant::now(), processor_seconds(pid));
        tokio::time::sleep(idle).await;
        let cores = (processor_seconds(pid) - used) / began.elapsed().as_secs_f64();
        let most = open_files(pid);
        drop((first, second));
        let began = Instant::now();
        let fresh = Healthy::start(&server).await;
        let again = began.elapsed();
        fresh.end().await;
        let one = client(&server.grpc, 1).await;
        let refused = figure(&one, "server.connections_refused").await;
        drop(one);
        let client = healthy.client.clone();
        let served = healthy.end().await;
        await_nothing_left(&server, &client, before).await;
        println!(
            "descriptors: {connects} connects to a server of {FILES_MAX} files, {held} came about ({refused} refused), {most} files open at \
             most; {:.0} % of a core while nobody but others calls, who were served {} times, p99 {:.1} ms; both frontends take new clients after \
             {:.0} ms, {before} sockets as before",
            cores * 100.0,
            served.count(),
            p99_ms(&served),
            again.as_secs_f64() * 1000.0,
        );
        assert!(held > FILES_MAX, "only {held} of {connects} came about");
        assert!(cores <= CORES_MAX, "{cores:.2} cores are used by who waits");
    });
    server.stop();
}
