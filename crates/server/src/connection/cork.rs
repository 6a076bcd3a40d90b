//! A cork for a socket: while it is set, writes leave in full segments only.
//!
//! A long answer is several frames, and HTTP/2 writes each of them by itself. Without a cork each write is a segment:
//! the system takes each segment through its layers, and the peer's, and wakes the peer for it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::set_tcp_cork;

/// The cork of a connection; without a socket it does nothing.
#[derive(Debug, Default)]
pub(crate) struct Cork {
    /// The same socket as the connection's.
    socket: Option<OwnedFd>,
    is_in: bool,
}

impl Cork {
    /// A cork for `socket`, which is out.
    pub(crate) fn of(socket: &impl AsFd) -> Self {
        // Where there are no descriptors left it works without.
        Self { socket: socket.as_fd().try_clone_to_owned().ok(), is_in: false }
    }

    pub(crate) fn put_in(&mut self) {
        self.set(true);
    }

    /// The rest leaves now.
    pub(crate) fn take_out(&mut self) {
        self.set(false);
    }

    fn set(&mut self, is_in: bool) {
        if self.is_in == is_in {
            return;
        }
        self.is_in = is_in;
        if let Some(socket) = &self.socket {
            // The system takes a cork out by itself after a fifth of a second.
            let _ = set_tcp_cork(socket, is_in);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::sockopt::tcp_cork;

    use super::*;

    #[test]
    fn it_is_in_and_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut cork = Cork::of(&stream);
        for is_in in [true, true, false, false, true] {
            cork.set(is_in);
            assert_eq!(tcp_cork(&stream).unwrap(), is_in);
        }
        Cork::default().put_in();
    }
}
