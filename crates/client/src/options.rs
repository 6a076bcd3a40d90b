//! The address of the server, and the options of the connection.

use std::time::Duration;

use http::Uri;

use crate::error::{Error, Result};

/// The port of a server whose address names none.
pub const DEFAULT_PORT: u16 = 7411;

/// The default number of HTTP/2 connections. One connection is one mutex and one window; with two or more, neither limits a
/// client with small values.
const CONNECTIONS_DEFAULT: usize = 2;

/// Most HTTP/2 connections of one client.
const CONNECTIONS_MAX: usize = 64;

/// A credential for the server. It is never printed, not even in debugging output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl<T: Into<Vec<u8>>> From<T> for Secret {
    fn from(secret: T) -> Self {
        Self(secret.into())
    }
}

/// The address and options of a server. A string ("host:port", "host", "http://host:port", "https://host:port") is one with
/// defaults.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// "host:port", "host" (then [`DEFAULT_PORT`]), or either with the prefix "http://" or, for TLS, "https://".
    pub server: String,
    /// For TLS: the trusted roots, as PEM. Absent: those of the system.
    pub ca_pem: Option<Vec<u8>>,
    /// For TLS: the certificate for the server, and its key, as PEM.
    pub identity_pem: Option<(Vec<u8>, Secret)>,
    /// The token sent with every call.
    pub token: Option<Secret>,
    /// HTTP/2 connections that calls are spread over, 1 to 64.
    pub connections: usize,
    /// Time limit for opening a connection.
    pub connect_timeout: Duration,
    /// The longest silence of the server: the longest wait for an answer, and for each part of a stream, while no bytes move.
    pub answer_timeout: Duration,
    /// Time limit for a call with all its attempts and pauses while no bytes move. None: attempts and [`Self::answer_timeout`]
    /// bound it.
    pub call_timeout: Option<Duration>,
    /// Maximum number of attempts of a call: of reads, writes with an id, and writes that are known not to be applied.
    pub attempts: u32,
    /// Adds an id to each write, with which the server does it once: then it is also repeated after a broken connection. Costs
    /// the server a second, small record for each write, so it is off by default. Streamed values, and several puts or deletes
    /// that are not one batch, have none.
    pub dedup: bool,
}

impl ConnectOptions {
    /// The defaults for `server`.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            ca_pem: None,
            identity_pem: None,
            token: None,
            connections: CONNECTIONS_DEFAULT,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(60),
            call_timeout: None,
            attempts: 4,
            dedup: false,
        }
    }

    /// The server as "http://host:port" or "https://host:port".
    pub(crate) fn uri(&self) -> Result<Uri> {
        let invalid = |why: &str| Error::Invalid(format!("server address {:?}: {why}", self.server));
        let text = self.server.trim();
        let (scheme, host) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), host)) => (scheme, host),
            Some(_) => return Err(invalid("the scheme must be http or https")),
            None => ("http", text),
        };
        let uri: Uri = format!("{scheme}://{}", host.trim_end_matches('/'))
            .parse()
            .map_err(|_| invalid("expected host:port, as 127.0.0.1:7411"))?;
        let authority = uri.authority().ok_or_else(|| invalid("no host"))?;
        if authority.host().is_empty()
            || authority.as_str().contains('@')
            || uri.path() != "/"
            || uri.query().is_some()
        {
            return Err(invalid("expected host:port, as 127.0.0.1:7411"));
        }
        let host = authority.host();
        match authority.as_str().strip_prefix(host) {
            Some("") => {
                let with_port = format!("{scheme}://{host}:{DEFAULT_PORT}");
                with_port.parse().map_err(|_| invalid("no host"))
            }
            _ if authority.port_u16().is_some() => Ok(uri),
            _ => Err(invalid("the port is a number up to 65535")),
        }
    }

    /// Checks the options except for the address.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(Error::Invalid(format!(
                "connections: 1 to {CONNECTIONS_MAX}, not {}",
                self.connections
            )));
        }
        let is_tls = self.server.trim().starts_with("https://");
        if !is_tls && (self.ca_pem.is_some() || self.identity_pem.is_some()) {
            return Err(Error::Invalid(
                "certificates are for TLS: the server is https://host:port then".into(),
            ));
        }
        if self.attempts == 0 {
            return Err(Error::Invalid("attempts: at least 1".into()));
        }
        Ok(())
    }
}

impl From<&str> for ConnectOptions {
    fn from(server: &str) -> Self {
        Self::new(server)
    }
}

impl From<String> for ConnectOptions {
    fn from(server: String) -> Self {
        Self::new(server)
    }
}

impl From<&String> for ConnectOptions {
    fn from(server: &String) -> Self {
        Self::new(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let uri = |server: &str| ConnectOptions::new(server).uri().map(|uri| uri.to_string());
        for (given, meant) in [
            ("127.0.0.1:80", "http://127.0.0.1:80/"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80/"),
            ("http://localhost/", "http://localhost:7411/"),
            ("localhost", "http://localhost:7411/"),
            ("[::1]:9", "http://[::1]:9/"),
            ("[::1]", "http://[::1]:7411/"),
            ("https://a", "https://a:7411/"),
            ("https://a.example:9/", "https://a.example:9/"),
        ] {
            assert_eq!(uri(given).as_deref(), Ok(meant), "{given}");
        }
        for wrong in ["", "https://", "ftp://a", "a b", "a/b", "user@host:1", "host:port", ":80", "a?b"] {
            assert!(matches!(uri(wrong), Err(Error::Invalid(_))), "{wrong}: {:?}", uri(wrong));
        }
    }

    #[test]
    fn counts_are_checked() {
        let options = ConnectOptions::new("a");
        assert_eq!(options.check(), Ok(()));
        assert!(ConnectOptions { connections: 0, ..options.clone() }.check().is_err());
        assert!(ConnectOptions { connections: 65, ..options.clone() }.check().is_err());
        assert!(ConnectOptions { attempts: 0, ..options.clone() }.check().is_err());
        let with_root =
            |server: &str| ConnectOptions { ca_pem: Some(Vec::new()), ..ConnectOptions::new(server) };
        assert!(with_root("a").check().is_err());
        assert_eq!(with_root("https://a").check(), Ok(()));
    }
}
