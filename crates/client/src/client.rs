//! The handle that a program keeps.

use std::sync::Arc;

use crate::error::Result;
use crate::options::ConnectOptions;
use crate::retry::Retry;
use crate::transport::Transport;

/// A client of one server. Cheap to clone; clones share their connections. Needs a running tokio runtime with time and
/// I/O enabled. A call that is dropped is cancelled: a write is then wholly done or wholly not.
#[derive(Clone)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    pub(crate) retry: Retry,
}

impl Client {
    /// Connects to the server at `options` (an address as a string, or [`ConnectOptions`]). Connections that break later
    /// are opened again by the calls that need them.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for the address, [`Error::Unavailable`](crate::Error::Unavailable) where
    /// no server answers.
    pub async fn connect(options: impl Into<ConnectOptions>) -> Result<Self> {
        let options = options.into();
        options.check()?;
        let transport = Transport::connect(&options).await?;
        Ok(Self { transport: Arc::new(transport), retry: Retry::new(options.attempts) })
    }

    /// The server's address, as "127.0.0.1:7411".
    #[must_use]
    pub fn server(&self) -> &str {
        self.transport.server()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.server()).finish_non_exhaustive()
    }
}
