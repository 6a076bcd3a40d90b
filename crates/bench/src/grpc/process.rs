//! The servers as processes: started on a core of their own, with their processor time, and ended with what started them.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shoal_device::IoMode;
use tokio::sync::oneshot;

use super::serve::{ServeOptions, serve_until};
use crate::machine;

/// How long a server may take to start (it writes its data file first) and to end.
const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(15);

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Ticks of `/proc/PID/stat` in a second: the same on all Linux.
const TICKS_PER_S: u64 = 100;

/// The cores that clients and servers are kept on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    client: usize,
    server: usize,
}

impl Cores {
    /// The first two that this thread may use; none where there is one only.
    pub(super) fn choose() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        Some(Self { client: cores.next()?, server: cores.next()? })
    }

    /// Keeps this thread, and what it starts from now on, on the clients' core.
    pub(super) fn take_clients(self) -> bool {
        pin(self.client)
    }
}

/// Keeps this thread, and the threads and processes that it starts from now on, on one core; whether that could be done.
fn pin(core: usize) -> bool {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).is_ok()
}

/// A running server.
pub(super) struct Remote {
    pub(super) address: SocketAddr,
    running: Running,
    /// Removed at the end.
    leftovers: Vec<PathBuf>,
}

enum Running {
    /// A process, which ends with its standard input, or is killed.
    Process { child: Child, input: Option<ChildStdin> },
    /// A thread of this process: for tests.
    Thread { stop: Option<oneshot::Sender<()>>, thread: Option<JoinHandle<Result<()>>> },
}

impl Remote {
    /// Starts `program bench grpc-server`, or, without a program, the same in a thread of this process.
    pub(super) fn start(
        options: &ServeOptions,
        program: Option<&Path>,
        cores: Option<Cores>,
    ) -> Result<Self> {
        let leftovers = options.data.iter().cloned().collect();
        let Some(program) = program else { return Self::in_thread(options, leftovers) };
        let mut command = Command::new(program);
        command.args(["bench", "grpc-server", "--variant", &options.variant]);
        if let Some(data) = &options.data {
            command.arg("--data").arg(data);
        }
        command.args(["--io", name_of(options.io)]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(&mut command, cores)?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the server has no output")?;
        let mut remote = Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            running: Running::Process { child, input },
            leftovers,
        };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        remote.address =
            line.trim().parse().with_context(|| format!("the server {} did not start", options.variant))?;
        Ok(remote)
    }

    fn in_thread(options: &ServeOptions, leftovers: Vec<PathBuf>) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let options = options.clone();
        let thread =
            std::thread::spawn(move || serve_until(&options, stopped, |address| Ok(tell.send(address)?)));
        let address = told.recv().context("the server did not start")?;
        let running = Running::Thread { stop: Some(stop), thread: Some(thread) };
        Ok(Self { address, running, leftovers })
    }

    /// Starts etcd, a cluster of one, with its data in a new folder beside `data`.
    pub(super) fn etcd(program: &Path, data: &Path, cores: Option<Cores>) -> Result<Self> {
        let folder = data.with_extension("etcd");
        if folder.exists() {
            bail!("{} exists: it is left alone", folder.display());
        }
        let [address, peers] = [free_address()?, free_address()?];
        let url = |address: SocketAddr| format!("http://{address}");
        let mut command = Command::new(program);
        command.arg("--data-dir").arg(&folder);
        for (name, value) in [
            ("--listen-client-urls", url(address)),
            ("--advertise-client-urls", url(address)),
            ("--listen-peer-urls", url(peers)),
            ("--initial-advertise-peer-urls", url(peers)),
            ("--initial-cluster", format!("default={}", url(peers))),
        ] {
            command.arg(name).arg(value);
        }
        command.args(["--log-level", "error", "--quota-backend-bytes", "8589934592"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn(&mut command, cores)?;
        let running = Running::Process { child, input: None };
        let remote = Self { address, running, leftovers: vec![folder] };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if began.elapsed() > START_MAX {
                bail!("{} does not listen", program.display());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(remote)
    }

    /// Processor time that the server has used; of a thread: that of this whole process.
    pub(super) fn cpu_time(&self) -> Duration {
        match &self.running {
            Running::Process { child, .. } => cpu_time_of(child.id()).unwrap_or_default(),
            Running::Thread { .. } => machine::cpu_time(),
        }
    }

    /// Ends the server in order.
    ///
    /// # Errors
    /// It had failed, or did not end in time and was killed.
    pub(super) fn stop(mut self) -> Result<()> {
        match &mut self.running {
            Running::Process { input: None, .. } => Ok(()),
            Running::Process { child, input } => {
                drop(input.take());
                let began = Instant::now();
                while began.elapsed() < STOP_MAX {
                    if let Some(status) = child.try_wait()? {
                        return if status.success() {
                            Ok(())
                        } else {
                            bail!("the server ended with {status}")
                        };
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
                bail!("the server did not end")
            }
            Running::Thread { stop, thread } => {
                drop(stop.take());
                let ended = thread.take().map(JoinHandle::join);
                ended.map_or(Ok(()), |ended| ended.unwrap_or_else(|_| bail!("the server panicked")))
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Running::Process { child, .. } = &mut self.running {
            // It has ended already, or there is nothing more to be had from it.
            let _ = child.kill();
            let _ = child.wait();
        }
        for leftover in &self.leftovers {
            // There is nobody to tell that it stays.
            let _ = if leftover.is_dir() {
                std::fs::remove_dir_all(leftover)
            } else {
                std::fs::remove_file(leftover)
            };
        }
    }
}

/// As the command line calls it.
fn name_of(io: IoMode) -> &'static str {
    match io {
        IoMode::Auto => "auto",
        IoMode::Uring => "uring",
        IoMode::Threads => "threads",
    }
}

/// Starts `command` on the servers' core.
fn spawn(command: &mut Command, cores: Option<Cores>) -> Result<Child> {
    if let Some(cores) = cores {
        pin(cores.server);
    }
    let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()));
    if let Some(cores) = cores {
        cores.take_clients();
    }
    child
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// User and system time of a process with all its threads, to a hundredth of a second.
fn cpu_time_of(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in brackets, may have anything in it. Behind it are the fields from the third one on; these are 14 and 15.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_is_that_of_its_threads() {
        let own = std::process::id();
        let before = cpu_time_of(own).unwrap();
        let spin = move || while cpu_time_of(own).unwrap() < before + Duration::from_millis(60) {};
        std::thread::spawn(spin).join().unwrap();
        assert!(cpu_time_of(own).unwrap() <= machine::cpu_time() + Duration::from_millis(50));
    }
}
