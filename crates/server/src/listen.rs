//! The server as a whole: it listens, and shuts down in order. `crates/http` accepts connections and reads their requests. Next:
//! `dispatch/mod.rs` answers a request.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use shoal_base::task::Boxed;
use shoal_engine::{Store, check_bucket};
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use shoal_http::{
    Capacity, ConnectionFlow, Frontend, FrontendParts, HttpAnswer, HttpProtocol, Peer, Waiters, boxed_answer,
};
use tokio::sync::{Semaphore, watch};

use crate::auth::Gate;
use crate::dispatch::Dispatch;
use crate::dispatch::standard::Standard;
use crate::dispatch::web::Origins;
use crate::operations::backup::Backups;
use crate::operations::free_space::READERS_MAX;
use crate::operations::stat::Counters;
use crate::options::ServerOptions;

/// The missing protection if other machines are refused, and the options by which the operator adds it.
const NOT_SAFE: (&str, &str) =
    ("authenticated over TLS", "give --tls-cert and --tls-key with --token-file or --tls-client-ca");

/// The reason why the server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The bucket of `io.grpc.KeyValueService` has no proper name.
    #[error("the bucket of io.grpc.KeyValueService: {0}")]
    Bucket(shoal_engine::Error),
    /// The schema that reflection would serve is damaged.
    #[error("cannot serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A server that listens. Connections wait until [`Self::run`].
pub struct Server {
    listeners: Listeners,
    options: ServerOptions,
    capacity: Arc<Capacity>,
    backups: Backups,
}

impl Server {
    /// Listens on `options.listen` and `options.listen_also`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ServeError::Bucket`], [`ServeError::Listen`].
    pub async fn bind(options: ServerOptions) -> Result<Self, ServeError> {
        let address = options.listen;
        check_bucket(&options.kv_bucket).map_err(ServeError::Bucket)?;
        let is_closed = options.insecure || options.security.is_safe();
        let listeners = listen_on_all(address, &options.listen_also, is_closed, NOT_SAFE)?;
        let failed = |error| ListenError::System { address, error };
        let listeners = Listeners::new(listeners).map_err(failed)?;
        let capacity = Capacity::new(&options.limits);
        Ok(Self { listeners, options, capacity, backups: Backups::default() })
    }

    /// The connections and the memory of the server, which another frontend may share.
    #[must_use]
    pub fn capacity(&self) -> Arc<Capacity> {
        Arc::clone(&self.capacity)
    }

    /// The backups that the server sends, which another frontend may share.
    #[must_use]
    pub fn backups(&self) -> Backups {
        self.backups.clone()
    }

    /// The first address that is listened on, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses().first().copied().unwrap_or(self.options.listen)
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

    /// Serves `store` until `shutdown` completes; then takes no more connections and requests, waits for the running ones at most
    /// [`ServerLimits::drain_max`](shoal_http::ServerLimits::drain_max), and cuts the rest. The store stays open: the caller closes it.
    ///
    /// # Errors
    /// [`ServeError::Reflection`].
    pub fn run<'a>(
        self,
        store: Store,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> Boxed<'a, Result<(), ServeError>> {
        self.run_until(store, Box::pin(shutdown))
    }

    fn run_until(self, store: Store, shutdown: Boxed<'_, ()>) -> Boxed<'_, Result<(), ServeError>> {
        Box::pin(self.serve(store, shutdown))
    }

    async fn serve(self, store: Store, shutdown: Boxed<'_, ()>) -> Result<(), ServeError> {
        let Self { listeners, options, capacity, backups } = self;
        let ServerOptions { insecure, security, kv_bucket, gzip, gzip_answers, .. } = options;
        let ServerOptions { web_origins, limits, metrics, report, open_health, .. } = options;
        let drain = watch::Sender::new(false);
        let dispatch = Arc::new(Dispatch {
            gate: Gate::new(store.clone(), insecure, security.clone()),
            kv_bucket,
            gzip,
            gzip_answers,
            origins: Origins { allowed: web_origins },
            standard: Standard::new().await?,
            counters: Counters::new(),
            capacity: Arc::clone(&capacity),
            min_rate: limits.min_rate,
            room_wait_max: limits.room_wait_max,
            backups,
            free_space_permits: Arc::new(Semaphore::new(READERS_MAX)),
            draining: drain.subscribe(),
            metrics,
            report,
            open_health,
        });
        let mut frontend = Frontend::new(FrontendParts {
            protocol: dispatch.clone(),
            capacity,
            security,
            metrics: Arc::clone(dispatch.metrics.grpc()),
            limits,
            drain: drain.subscribe(),
        });
        tokio::select! {
            () = shutdown => {}
            () = frontend.accept(&listeners) => {}
            () = tell_health(&dispatch, &store) => {}
        }
        drop(listeners);
        dispatch.standard.set_serving(false).await;
        drain.send_replace(true);
        dispatch.standard.end_watches().await;
        frontend.finish().await;
        Ok(())
    }
}

/// Sets the health to "not serving" when the store stops taking writes, which is for good. Runs for ever.
async fn tell_health(dispatch: &Dispatch, store: &Store) {
    let reason = store.failed().await;
    tracing::error!("the store is read-only: {reason}");
    dispatch.standard.set_serving(false).await;
    std::future::pending().await
}

impl HttpProtocol for Dispatch {
    fn serve<'a>(
        &'a self,
        peer: &'a Peer,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
    ) -> Boxed<'a, HttpAnswer> {
        Box::pin(async { boxed_answer(self.answer(peer, flow, request).await) })
    }

    fn turn(&self, work: &mut dyn FnMut() -> Waiters) {
        self.gate.turn(|| match work() {
            Waiters::One => shoal_engine::Waiting::One,
            Waiters::Several => shoal_engine::Waiting::Several,
        });
    }

    fn gather(&self, work: &mut dyn FnMut()) {
        self.gate.gather(work);
    }
}
