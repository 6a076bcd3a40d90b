//! The server as a whole: it listens, accepts, and shuts down in order. Next: `connection/mod.rs` serves a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shoal_api::within;
use shoal_base::task::Boxed;
use shoal_engine::{Store, check_bucket};
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::admission::{Admission, AdmittedConnection, Leaves};
use crate::auth::Gate;
use crate::connection;
use crate::dispatch::Dispatch;
use crate::dispatch::standard::Standard;
use crate::dispatch::web::Origins;
use crate::flow::Flow;
use crate::operations::backup::BACKUPS_MAX;
use crate::operations::free_space::READERS_MAX;
use crate::operations::stat::Counters;
use crate::options::{ServerLimits, ServerOptions};

/// Pause after a failed accept: if file descriptors have run out, the next one fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections without credentials that are closed if the process has no descriptor for a new one.
const EVICTED_FOR_FILES: usize = 64;

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
        Ok(Self { listeners, options })
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
    /// [`ServerLimits::drain_max`], and cuts the rest. The store stays open: the caller closes it.
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
        let Self { listeners, options } = self;
        let ServerOptions { insecure, security, kv_bucket, gzip, gzip_answers, .. } = options;
        let ServerOptions { web_origins, limits, metrics, report, open_health, .. } = options;
        let mut changes = security.changes();
        let drain = watch::Sender::new(false);
        let dispatch = Arc::new(Dispatch {
            gate: Gate::new(store.clone(), insecure, security.clone()),
            security,
            kv_bucket,
            gzip,
            gzip_answers,
            origins: Origins { allowed: web_origins },
            standard: Standard::new().await?,
            counters: Counters::new(),
            admission: Admission::new(limits.connections_max),
            flow: Flow::new(limits.bytes_in_flight_max, limits.connection_bytes_in_flight_max)
                .with_waiting(limits.connection_window_bytes, limits.waiting_bytes_max),
            min_rate: limits.min_rate,
            room_wait_max: limits.room_wait_max,
            backup_permits: Arc::new(Semaphore::new(BACKUPS_MAX)),
            free_space_permits: Arc::new(Semaphore::new(READERS_MAX)),
            draining: drain.subscribe(),
            metrics,
            report,
            open_health,
        });
        watch_connections(&dispatch);
        let mut connections = Connections {
            tasks: JoinSet::new(),
            dispatch: Arc::clone(&dispatch),
            limits: Arc::new(limits),
            drain: drain.subscribe(),
        };
        let doubt = async {
            while changes.changed().await.is_ok() {
                dispatch.admission.doubt_all();
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = shutdown => {}
            () = doubt => {}
            () = connections.accept(&listeners) => {}
            () = tell_health(&dispatch, &store) => {}
        }
        drop(listeners);
        dispatch.standard.set_serving(false).await;
        drain.send_replace(true);
        dispatch.standard.end_watches().await;
        connections.finish().await;
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

/// Registers a reader of the connections with the metrics.
fn watch_connections(dispatch: &Arc<Dispatch>) {
    // The metrics outlive the server and must not keep it.
    let watched = Arc::downgrade(dispatch);
    dispatch.metrics.grpc().watch_connections(move || {
        let Some(dispatch) = watched.upgrade() else { return shoal_metrics::Connections::default() };
        let (open, opened) = dispatch.admission.counts();
        shoal_metrics::Connections {
            open: open as u64,
            opened,
            refused: dispatch.admission.refused(),
            evicted: dispatch.admission.evicted(),
            overdue: dispatch.admission.overdue(),
            memory_refusals: dispatch.flow.refused().count.load(Ordering::Relaxed),
            memory_bytes: dispatch.flow.bytes() as u64,
        }
    });
}

struct Connections {
    tasks: JoinSet<()>,
    dispatch: Arc<Dispatch>,
    limits: Arc<ServerLimits>,
    drain: watch::Receiver<bool>,
}

impl Connections {
    /// Accepts connections. Runs for ever.
    async fn accept(&mut self, listeners: &Listeners) {
        loop {
            match listeners.accept().await {
                Ok((stream, peer)) => self.add(stream, peer),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.dispatch.admission.evict(EVICTED_FOR_FILES);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn add(&mut self, stream: TcpStream, peer: SocketAddr) {
        while self.tasks.try_join_next().is_some() {}
        let security = self.dispatch.security.clone();
        let admitted =
            AdmittedConnection::enter(&self.dispatch.admission, self.limits.unauthenticated_max, security);
        let Some(admitted) = admitted.map(Arc::new) else { return };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "closed at once");
            return;
        }
        let (dispatch, limits) = (Arc::clone(&self.dispatch), Arc::clone(&self.limits));
        let drain = self.drain.clone();
        let serve = async move {
            let its = Arc::clone(&admitted);
            let served = connection::serve(stream, peer, its, Arc::clone(&dispatch), &limits, drain);
            match admitted.hold(served).await {
                Ok(()) => {}
                Err(Leaves::Evicted) => tracing::debug!(%peer, "closed: a new connection took its place"),
                Err(Leaves::Overdue) => {
                    dispatch.admission.note_overdue();
                    tracing::info!(%peer, "closed: it showed no credentials in time");
                }
            }
        };
        self.tasks.spawn(serve);
    }

    /// Waits for the requests under way, for a while.
    async fn finish(mut self) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if within(self.limits.drain_max, ended).await.is_none() {
            let cut = self.tasks.len();
            tracing::warn!("{cut} connection(s) closed: their requests did not finish in time");
            self.tasks.shutdown().await;
        }
    }
}
