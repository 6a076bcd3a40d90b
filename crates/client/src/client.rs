//! The handle that a program keeps.

use std::sync::Arc;

use crate::error::Result;
use crate::identity::{Identities, Identity, Numbered};
use crate::options::ConnectOptions;
use crate::retry::{Failed, Retry};
use crate::transport::Transport;

/// A client of one server. Cheap to clone; clones share their connections. Needs a running tokio runtime with time and
/// I/O enabled. A call that is dropped is cancelled: a write is then wholly done or wholly not.
#[derive(Clone)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    pub(crate) retry: Retry,
    /// Where writes are to be done once.
    pub(crate) identities: Option<Arc<Identities>>,
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
        let identities = options.once.then(Arc::default);
        Ok(Self { transport: Arc::new(transport), retry: Retry::new(options.attempts), identities })
    }

    /// The identity of the next write, where writes are to be done once.
    pub(crate) fn number(&self) -> Option<Numbered<'_>> {
        self.identities.as_ref()?.take()
    }

    /// Sends a write again where that is safe: what has an identity like a read, other writes only where they were not
    /// applied.
    pub(crate) async fn write<T, F>(&self, attempt: impl Fn(Option<Identity>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        match self.number() {
            Some(numbered) => self.retry.once(|| attempt(Some(numbered.identity))).await,
            None => self.retry.write(|| attempt(None)).await,
        }
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
