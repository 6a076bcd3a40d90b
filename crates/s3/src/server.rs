//! The frontend as a whole: it listens, and shuts down in order. `crates/http` accepts connections and reads their requests. Next:
//! `serve/mod.rs` answers a request.

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_engine::Store;
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use shoal_http::{Capacity, Frontend, FrontendParts};
use tokio::sync::watch;

use crate::options::S3Options;
use crate::request::error::S3Error;
use crate::service::S3Service;

/// The missing protection if other machines are refused, and the options by which the operator adds it.
const NOT_SAFE: (&str, &str) = ("authenticated over TLS", "give --tls-cert and --tls-key with --key-file");

/// The reason why the frontend does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum S3ServeError {
    /// It cannot listen on the address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The buckets cannot be read.
    #[error("cannot read the buckets: {0}")]
    Buckets(S3Error),
}

/// A frontend that listens. Connections wait until [`Self::run`].
pub struct S3Server {
    listeners: Listeners,
    options: S3Options,
}

impl S3Server {
    /// Listens on `options.listen` and `options.listen_also`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`S3ServeError::Listen`].
    pub fn bind(options: S3Options) -> Result<Self, S3ServeError> {
        let address = options.listen;
        let is_closed = options.insecure || options.security.is_safe();
        let listeners = listen_on_all(address, &options.listen_also, is_closed, NOT_SAFE)?;
        let failed = |error| ListenError::System { address, error };
        let listeners = Listeners::new(listeners).map_err(failed)?;
        Ok(Self { listeners, options })
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

    /// The region that signatures name.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.options.region
    }

    /// Serves `store` within `capacity`, which other frontends may share, until `shutdown` completes; then takes no more connections and
    /// requests, waits for the running ones for a while, and cuts the rest. The store stays open.
    ///
    /// # Errors
    /// [`S3ServeError::Buckets`].
    pub fn run<'a>(
        self,
        store: Store,
        capacity: Arc<Capacity>,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> Boxed<'a, Result<(), S3ServeError>> {
        Box::pin(async move {
            let service = self.service(store).await?;
            self.serve(service, capacity, Box::pin(shutdown)).await;
            Ok(())
        })
    }

    /// The operations that this frontend serves.
    ///
    /// # Errors
    /// [`S3ServeError::Buckets`].
    pub async fn service(&self, store: Store) -> Result<S3Service, S3ServeError> {
        S3Service::open(store, self.options.clone()).await
    }

    /// As [`Self::run`], on the store of `service`, which other frontends use as well.
    pub fn run_service<'a>(
        self,
        service: S3Service,
        capacity: Arc<Capacity>,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> Boxed<'a, ()> {
        Box::pin(self.serve(service, capacity, Box::pin(shutdown)))
    }

    async fn serve(self, service: S3Service, capacity: Arc<Capacity>, shutdown: Boxed<'_, ()>) {
        let Self { listeners, options } = self;
        let drain = watch::Sender::new(false);
        let S3Options { security, metrics, limits, .. } = options;
        let metrics = Arc::clone(metrics.s3());
        let (protocol, sweep) = (Arc::clone(service.state()), service.sweep());
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
            () = sweep => {}
        }
        drop(listeners);
        drain.send_replace(true);
        frontend.finish().await;
    }
}
