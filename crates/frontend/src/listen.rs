//! Taking an address for a frontend.

use std::net::{SocketAddr, TcpListener};

/// Connections that wait to be accepted. The standard library lets few wait; one that finds no place is tried again after a
/// second.
pub const BACKLOG: i32 = 4096;

/// Why an address was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Other machines reach the address, and callers prove nothing.
    #[error(
        "refusing to listen on {address}: it is reachable from other machines and callers are not {lacks}; listen on 127.0.0.1, \
         {remedy}, or say --insecure if that network is trusted"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
        /// The credential that callers do not show.
        lacks: &'static str,
        /// The options that the operator can give.
        remedy: &'static str,
    },
    /// The system does not give the address.
    #[error("cannot listen on {address}: {error}")]
    System {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Listens on `address`, without blocking. An address that other machines reach needs `is_closed`: callers prove who they are,
/// or the operator trusts the network. `lacks` and `remedy` go into the refusal ([`ListenError::NotLoopback`]).
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
    let listener = || -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        shoal_base::set_congestion_control(&listener, address);
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    };
    listener().map_err(|error| ListenError::System { address, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_within_the_machine_are_not_paced() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), true, ("", "")).unwrap();
        let is_paced = |socket: &TcpListener| rustix::net::sockopt::tcp_congestion(socket).unwrap() != "reno";
        assert!(!is_paced(&listener));
    }
}
