//! How a dispatch thread reaches the network. Two ways, behind one trait: [`crate::epoll`] and [`crate::uring`].

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::Duration;

use shoal_buffer::Buffer;
use shoal_engine::Room;

use crate::connection::End;
use crate::mailbox::Token;
use crate::socket::Wanted;

/// Something became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// There is mail.
    Bell,
    /// A connection wants in.
    Listener,
    /// A socket; `ended`: behind what it has, nothing more comes.
    Socket { token: Token, readable: bool, writable: bool, ended: bool },
}

/// How a socket is received from into the room of a long value.
///
/// # Errors
/// [`End::Gone`].
pub(crate) type ReceiveInto<S> = fn(&mut S, &mut Room, &mut Buffer) -> Result<Option<usize>, End>;

/// The network of one thread. Nothing of it waits but [`Network::wait`].
pub(crate) trait Network: Sized {
    /// A connection's socket.
    type Socket;

    /// Receives once into the room of a long value, and what comes behind the value into `received`, which is empty. None where
    /// this network cannot choose where it receives to.
    const RECEIVE_INTO: Option<ReceiveInto<Self::Socket>>;

    /// Whether what is sent stays in its memory until the socket took it, and not in the buffer that it was in.
    const KEEPS_WHAT_IS_SENT: bool;

    /// The network of this thread; `bell` becomes readable when there is mail.
    ///
    /// # Errors
    /// As the system.
    fn new(bell: &OwnedFd) -> std::io::Result<Self>;

    /// Says from now on when connections want in.
    ///
    /// # Errors
    /// As the system.
    fn listen(&mut self, listener: &TcpListener) -> std::io::Result<()>;

    /// Says so no more.
    fn stop_listening(&mut self, listener: &TcpListener);

    /// Takes a socket; what happens to it is told with `token`.
    ///
    /// # Errors
    /// As the system.
    fn add(&mut self, fd: OwnedFd, token: Token) -> std::io::Result<Self::Socket>;

    /// Closes a socket.
    fn remove(&mut self, socket: Self::Socket);

    /// Waits until something is ready, at most for `timeout`, and puts it into `ready`.
    ///
    /// # Errors
    /// As the system.
    fn wait(&mut self, timeout: Duration, ready: &mut Vec<Ready>) -> std::io::Result<()>;

    /// What was told of the socket.
    fn set_ready(&mut self, socket: &mut Self::Socket, readable: bool, writable: bool, ended: bool);

    /// Whether there may be something to receive.
    fn is_readable(&self, socket: &Self::Socket) -> bool;

    /// Receives once, behind what is in `received`, as `wanted` says. Gives how many bytes came, and none where nothing more comes.
    ///
    /// # Errors
    /// [`End::Gone`].
    fn receive(
        &mut self,
        socket: &mut Self::Socket,
        received: &mut Buffer,
        wanted: Wanted,
    ) -> Result<Option<usize>, End>;

    /// Bytes in this thread's memory that came and were not received.
    fn unread(&self, socket: &Self::Socket) -> usize;

    /// Sends what is to be sent, as far as the socket takes it now.
    ///
    /// # Errors
    /// [`End::Gone`].
    fn send(&mut self, socket: &mut Self::Socket, out: &mut Buffer, now_ns: u64) -> Result<(), End>;

    /// Bytes that were taken out of the answers and are not sent.
    fn unsent(&self, socket: &Self::Socket) -> usize;

    /// Since when it has not taken anything of what is to be sent.
    fn stuck_since_ns(&self, socket: &Self::Socket) -> Option<u64>;

    /// Says that nothing more is sent, and listens on for a while so that the other side hears what was sent last. What
    /// comes is thrown away.
    fn linger(&mut self, socket: &mut Self::Socket, now_ns: u64);

    fn is_lingering(&self, socket: &Self::Socket) -> bool;

    /// Throws away what came; gives true where it may be closed.
    fn drain(&mut self, socket: &mut Self::Socket, now_ns: u64) -> bool;
}
