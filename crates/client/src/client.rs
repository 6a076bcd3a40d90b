//! The handle that a program keeps.

use std::sync::Arc;

use shoal_base::task::Boxed;

use crate::error::Result;
use crate::options::ConnectOptions;
use crate::request_id::{RequestId, RequestIds};
use crate::retry::{Failed, Retry};
use crate::transport::Transport;

/// A client of one server. Cheap to clone; clones share their connections. Needs a running tokio runtime with time and I/O
/// enabled. A dropped call is cancelled: a write is then done completely or not at all.
#[derive(Clone)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    pub(crate) retry: Retry,
    /// The request ids, if writes are done once.
    request_ids: Option<Arc<RequestIds>>,
}

impl Client {
    /// Connects to the server at `options` (an address as a string, or [`ConnectOptions`]). Connections that break later are
    /// reopened by the calls that need them.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for the address, [`Error::Unavailable`](crate::Error::Unavailable) if no
    /// server answers.
    pub fn connect(options: impl Into<ConnectOptions>) -> Boxed<'static, Result<Self>> {
        Self::connect_to(options.into())
    }

    fn connect_to(options: ConnectOptions) -> Boxed<'static, Result<Self>> {
        Box::pin(async move {
            options.check()?;
            let transport = Transport::connect(&options).await?;
            let (server, progress) = (transport.server(), transport.progress().clone());
            let retry = Retry::new(server, progress, options.attempts, options.call_timeout);
            let request_ids = options.dedup.then(Arc::default);
            Ok(Self { transport: Arc::new(transport), retry, request_ids })
        })
    }

    /// Repeats a write if that is safe: one with an id like a read, others only if they were not applied.
    pub(crate) async fn write<T, F>(&self, attempt: impl Fn(Option<RequestId>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        match self.request_ids.as_ref().and_then(|ids| ids.take()) {
            Some(lane) => self.retry.write_with_id(|| attempt(Some(lane.id))).await,
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
