//! The console as a whole: it listens, and shuts down in order. Next: `router.rs` answers a request.

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use shoal_http::{Capacity, Frontend, FrontendParts};
use tokio::sync::watch;

use crate::options::{ConsoleOptions, ConsoleParts};
use crate::session::Sessions;
use crate::state::ConsoleState;

/// The missing protection if other machines are refused, and the options by which the operator adds it.
const NOT_SAFE: (&str, &str) = ("authenticated over TLS", "give --tls-cert and --tls-key with --key-file");

/// The reason why the console does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsoleError {
    /// It cannot listen on the address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Sessions cannot have secret names.
    #[error("the system has no random numbers")]
    Random,
}

/// A console that listens. Connections wait until [`Self::run`].
pub struct ConsoleServer {
    listeners: Listeners,
    options: ConsoleOptions,
    sessions: Sessions,
}

impl ConsoleServer {
    /// Listens on `options.listen` and `options.listen_also`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ConsoleError`].
    pub fn bind(options: ConsoleOptions) -> Result<Self, ConsoleError> {
        let address = options.listen;
        let is_closed = options.insecure || options.security.is_safe();
        let listeners = listen_on_all(address, &options.listen_also, is_closed, NOT_SAFE)?;
        let failed = |error| ListenError::System { address, error };
        let listeners = Listeners::new(listeners).map_err(failed)?;
        let sessions = Sessions::new().map_err(|_| ConsoleError::Random)?;
        Ok(Self { listeners, options, sessions })
    }

    /// The addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.listeners.addresses()
    }

    /// Returns true if connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.options.security.is_encrypted()
    }

    /// Serves `parts` within `capacity`, which other frontends may share, until `shutdown` completes; then takes no more connections and
    /// requests, waits for the running ones for a while, and cuts the rest. The store stays open.
    pub fn run<'a>(
        self,
        parts: ConsoleParts,
        capacity: Arc<Capacity>,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> Boxed<'a, ()> {
        Box::pin(self.serve(parts, capacity, Box::pin(shutdown)))
    }

    async fn serve(self, parts: ConsoleParts, capacity: Arc<Capacity>, shutdown: Boxed<'_, ()>) {
        let Self { listeners, options, sessions } = self;
        let drain = watch::Sender::new(false);
        let (security, limits) = (options.security.clone(), options.limits.clone());
        let metrics = Arc::clone(options.metrics.console());
        let protocol = Arc::new(ConsoleState::new(options, parts, sessions, drain.subscribe()));
        let mut frontend = Frontend::new(FrontendParts {
            protocol,
            capacity,
            security,
            metrics,
            limits,
            drain: drain.subscribe(),
        });
        tokio::select! {
            () = shutdown => {}
            () = frontend.accept(&listeners) => {}
        }
        drop(listeners);
        drain.send_replace(true);
        frontend.finish().await;
    }
}
