//! The congestion control of connections within this machine.

use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Every kernel has it and lets every user choose it.
const LOCAL_CONGESTION_CONTROL: &str = "reno";

/// Chooses the congestion control of a socket that listens on `address` (and so of the connections that it accepts), or that is
/// connected to it. On a loopback address, a system's BBR would hold segments back by timers, to protect a network that they do
/// not pass. Other addresses keep the system's choice, and so does a socket whose system refuses this one.
pub fn set_congestion_control(socket: impl AsFd, address: SocketAddr) {
    if address.ip().to_canonical().is_loopback() {
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, LOCAL_CONGESTION_CONTROL);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn local_connections_are_not_paced() {
        let in_use = |socket: &TcpStream| rustix::net::sockopt::tcp_congestion(socket).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpStream::connect(address).unwrap();
        let systems = in_use(&socket);
        set_congestion_control(&socket, "192.0.2.1:7411".parse().unwrap());
        assert_eq!(in_use(&socket), systems);
        set_congestion_control(&socket, address);
        assert_eq!(in_use(&socket), LOCAL_CONGESTION_CONTROL);
        assert_eq!(in_use(&listener.accept().unwrap().0), systems);
        set_congestion_control(&listener, address);
        let _other = TcpStream::connect(address).unwrap();
        assert_eq!(in_use(&listener.accept().unwrap().0), LOCAL_CONGESTION_CONTROL);
    }
}
