//! The servers as processes: started on a separate core, with their processor time, and stopped together with their parent.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::oneshot;

use super::serve::{ServeOptions, Servers};
use crate::cores::Cores;
use crate::machine;

/// Time limit for stopping a server.
const STOP_MAX: Duration = Duration::from_secs(15);

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running server.
pub struct Remote {
    /// Its listening address.
    pub address: SocketAddr,
    running: Running,
    /// Removed at the end.
    leftovers: Vec<PathBuf>,
}

enum Running {
    /// A process, which stops at the end of its standard input, or is killed.
    Process { child: Child, input: Option<ChildStdin> },
    /// A thread of this process: for tests.
    Thread { stop: Option<oneshot::Sender<()>>, thread: Option<JoinHandle<Result<()>>> },
}

impl Remote {
    /// Starts a server as `servers` requests, and waits until it has reported its address.
    pub(super) fn start(options: &ServeOptions, servers: &Servers, cores: Option<Cores>) -> Result<Self> {
        let leftovers = options.data.iter().cloned().collect();
        let mut command = match servers {
            Servers::Processes(program, first) => {
                let mut command = Command::new(program);
                command.args(*first).args(options.arguments());
                command
            }
            Servers::Threads(serve) => {
                let (stop, stopped) = oneshot::channel();
                let (tell, told) = std::sync::mpsc::channel();
                let (options, serve) = (options.clone(), *serve);
                let thread = std::thread::spawn(move || {
                    serve(&options, stopped, &mut |address| Ok(tell.send(address)?))
                });
                let address = told.recv().context("the server did not start")?;
                let running = Running::Thread { stop: Some(stop), thread: Some(thread) };
                return Ok(Self { address, running, leftovers });
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut remote = Self::spawn(&mut command, (Ipv4Addr::LOCALHOST, 0).into(), leftovers, cores)?;
        if let Running::Process { child, .. } = &mut remote.running {
            let output = child.stdout.take().context("the server has no output")?;
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line)?;
            let address = line.trim().parse();
            remote.address =
                address.with_context(|| format!("the server {} did not start", options.variant))?;
        }
        Ok(remote)
    }

    /// Starts a server as a process on the servers' core. It listens at `address`; `leftovers` are removed at the end. A
    /// process that has no standard input is killed at the end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(
        command: &mut Command,
        address: SocketAddr,
        leftovers: Vec<PathBuf>,
        cores: Option<Cores>,
    ) -> Result<Self> {
        let child = Cores::on_servers(cores, || command.spawn());
        let mut child = child.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let input = child.stdin.take();
        Ok(Self { address, running: Running::Process { child, input }, leftovers })
    }

    /// Processor time that the server has used; of a thread: that of this whole process.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        match &self.running {
            Running::Process { child, .. } => machine::cpu_time_of(child.id()).unwrap_or_default(),
            Running::Thread { .. } => machine::cpu_time(),
        }
    }

    /// The number of its process; none of a thread.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        match &self.running {
            Running::Process { child, .. } => Some(child.id()),
            Running::Thread { .. } => None,
        }
    }

    /// Stops the server in order.
    ///
    /// # Errors
    /// It had failed, or did not stop in time and was killed.
    pub fn stop(mut self) -> Result<()> {
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
            // It has exited already, or nothing more can be done.
            let _ = child.kill();
            let _ = child.wait();
        }
        for leftover in &self.leftovers {
            // There is no way to report that it stays.
            let _ = if leftover.is_dir() {
                std::fs::remove_dir_all(leftover)
            } else {
                std::fs::remove_file(leftover)
            };
        }
    }
}
