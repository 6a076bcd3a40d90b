//! Taking the addresses of a frontend.
//!
//! A name may have several addresses, as `localhost` has 127.0.0.1 and ::1. A frontend listens on all of them, at the same port.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use rustix::io::Errno;
use tokio::net::TcpStream;

/// Connections that wait to be accepted. The default of the standard library is low; a connection that finds no place is
/// retried after a second.
pub const BACKLOG: i32 = 4096;

/// Number of attempts to find a port that is free at all addresses of a name.
const PORTS_TRIED: usize = 16;

/// The reason why an address was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Other machines reach the address, and callers need not authenticate.
    #[error(
        "refusing to listen on {address}: it is reachable from other machines and callers are not {lacks}; listen on 127.0.0.1, \
         {remedy}, or set --insecure if that network is trusted"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
        /// The missing credential.
        lacks: &'static str,
        /// The options with which the operator can fix it.
        remedy: &'static str,
    },
    /// The system refuses the address.
    #[error("cannot listen on {address}: {error}")]
    System {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
}

/// Listens on `address`, without blocking. An address that other machines reach needs `is_closed`: callers authenticate, or the
/// operator trusts the network. `lacks` and `remedy` go into the refusal ([`ListenError::NotLoopback`]).
///
/// # Errors
/// [`ListenError`].
pub fn listen(
    address: SocketAddr,
    is_closed: bool,
    (lacks, remedy): (&'static str, &'static str),
) -> Result<TcpListener, ListenError> {
    if !is_closed && !address.ip().to_canonical().is_loopback() {
        return Err(ListenError::NotLoopback { address, lacks, remedy });
    }
    let listener = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        shoal_base::set_congestion_control(&listener, address);
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    };
    listener().map_err(|error| ListenError::System { address, error })
}

/// Listens on `first` and on `others`, the further addresses of its name. Leaves out an address that this machine does not have, with a
/// line in the log, unless it has none of them. Port 0 takes a port that is free at all of them.
///
/// # Errors
/// As [`listen`].
pub fn listen_on_all(
    first: SocketAddr,
    others: &[SocketAddr],
    is_closed: bool,
    lacks: (&'static str, &'static str),
) -> Result<Vec<TcpListener>, ListenError> {
    let mut tries = if first.port() == 0 && !others.is_empty() { PORTS_TRIED } else { 1 };
    loop {
        tries -= 1;
        match listen_once(first, others, is_closed, lacks) {
            Err(ListenError::System { error, .. })
                if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
}

fn listen_once(
    first: SocketAddr,
    others: &[SocketAddr],
    is_closed: bool,
    lacks: (&'static str, &'static str),
) -> Result<Vec<TcpListener>, ListenError> {
    let (mut listeners, mut absent, mut port) = (Vec::new(), Vec::new(), first.port());
    for mut address in std::iter::once(first).chain(others.iter().copied()) {
        address.set_port(port);
        match listen(address, is_closed, lacks) {
            Ok(listener) => {
                let taken = listener.local_addr();
                port = taken.map_err(|error| ListenError::System { address, error })?.port();
                listeners.push(listener);
            }
            Err(ListenError::System { address, error }) if is_absent(&error) => absent.push((address, error)),
            Err(error) => return Err(error),
        }
    }
    match absent.pop() {
        Some((address, error)) if listeners.is_empty() => Err(ListenError::System { address, error }),
        last => {
            for (address, error) in absent.into_iter().chain(last) {
                tracing::warn!("not listening on {}: {error}", address.ip());
            }
            Ok(listeners)
        }
    }
}

/// Returns true if this machine does not have the address, or no addresses of its family.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

/// The listeners of one frontend, in a tokio runtime.
pub struct Listeners {
    all: Vec<tokio::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    /// The listener to ask first: each in turn.
    next: AtomicUsize,
}

impl Listeners {
    /// Wraps the result of [`listen_on_all`]. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(listeners: Vec<TcpListener>) -> io::Result<Self> {
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let all = listeners.into_iter().map(tokio::net::TcpListener::from_std).collect::<io::Result<_>>()?;
        Ok(Self { all, addresses, next: AtomicUsize::new(0) })
    }

    /// The listening addresses, at least one.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts a connection of any address.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| {
            let from = self.next.fetch_add(1, Ordering::Relaxed) % self.all.len().max(1);
            let (before, after) = self.all.split_at(from);
            for listener in after.iter().chain(before) {
                if let Poll::Ready(accepted) = listener.poll_accept(context) {
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(words: &[&str]) -> Vec<SocketAddr> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    fn listen_at(words: &[&str]) -> Result<Vec<TcpListener>, ListenError> {
        let addresses = addresses(words);
        listen_on_all(addresses[0], &addresses[1..], true, ("", ""))
    }

    /// Symptom: with `--listen localhost:7411`, which has 127.0.0.1 and ::1, clients of one of them were refused. Cause: only the first
    /// address was taken. Fix: all are.
    #[tokio::test]
    async fn all_addresses_of_a_name_are_listened_on() {
        let listeners =
            Listeners::new(listen_at(&["127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0"]).unwrap()).unwrap();
        let ports: Vec<u16> = listeners.addresses().iter().map(SocketAddr::port).collect();
        assert!(ports[0] > 0 && ports == [ports[0]; 3], "{ports:?}");
        for address in listeners.addresses() {
            let (connected, accepted) = tokio::join!(TcpStream::connect(address), listeners.accept());
            assert_eq!(connected.unwrap().local_addr().unwrap(), accepted.unwrap().1);
        }
    }

    #[test]
    fn unavailable_address_is_skipped() {
        // A reserved network (RFC 1112): no machine has addresses of it.
        let listeners = listen_at(&["240.0.0.1:0", "127.0.0.1:0"]).unwrap();
        assert_eq!(listeners.len(), 1);
        assert!(listeners[0].local_addr().unwrap().ip().is_loopback());
        assert!(matches!(listen_at(&["240.0.0.1:0", "240.0.0.2:0"]), Err(ListenError::System { .. })));
        let taken = listeners[0].local_addr().unwrap();
        let in_use = listen_on_all(taken, &addresses(&["127.0.0.2:0"]), true, ("", ""));
        assert!(
            matches!(in_use, Err(ListenError::System { error, .. }) if error.kind() == io::ErrorKind::AddrInUse)
        );
    }

    #[test]
    fn connections_within_the_machine_are_not_paced() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), true, ("", "")).unwrap();
        let is_paced = |socket: &TcpListener| rustix::net::sockopt::tcp_congestion(socket).unwrap() != "reno";
        assert!(!is_paced(&listener));
    }
}
