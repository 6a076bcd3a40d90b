//! Notifies systemd that the server is ready or stops (`sd_notify`): a datagram to the socket in NOTIFY_SOCKET. Without that variable
//! nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The server takes requests.
pub(crate) const READY: &str = "READY=1";
/// The server stops in order.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Sends `state` to the manager that started this program, if there is one. A failure is logged; the manager reports its timeout.
pub(crate) fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!("cannot send {state} to the socket {} (NOTIFY_SOCKET): {error}", socket.display());
    }
}

/// A name that starts with @ is in the abstract name space.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn notify_reaches_file_and_abstract_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        assert_eq!(received(&socket), "READY=1");

        let name = format!("shoal-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING).unwrap();
        assert_eq!(received(&socket), "STOPPING=1");

        assert!(send(folder.path().join("none").as_os_str(), READY).is_err());
    }
}
