//! Servers of other projects as processes: a free address, and the wait until they listen.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use shoal_bench::cores::Cores;
use shoal_bench::grpc::Remote;

/// The maximum time of a server's start.
const START_MAX: Duration = Duration::from_secs(60);

/// Pause between two attempts to connect.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts a silent server on the servers' core and waits until it listens at `address`; `leftovers` are removed at the end.
///
/// # Errors
/// It does not start, or does not listen within a minute.
pub(crate) fn start(
    command: &mut Command,
    address: SocketAddr,
    leftovers: Vec<PathBuf>,
    cores: Option<Cores>,
) -> Result<Remote> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let remote = Remote::spawn(command, address, leftovers, cores)?;
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if began.elapsed() > START_MAX {
            bail!("{:?} does not listen", command.get_program());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(remote)
}

/// An address of this machine that nothing listens at.
///
/// # Errors
/// As the system.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
