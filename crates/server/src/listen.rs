//! The server as a whole: it listens, accepts, and ends in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shoal_engine::{Store, check_bucket};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::admission::{Admission, Leaves};
use crate::auth::Gate;
use crate::connection;
use crate::dispatch::Dispatch;
use crate::flow::Flow;
use crate::free_space::READERS_MAX;
use crate::options::{Limits, ServerOptions};
use crate::patience::Patience;
use crate::standard::Standard;
use crate::stat::Counters;
use crate::web::Origins;

/// Pause after a failed accept: it fails again at once where file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections without credentials that are closed where the process has no file for a new one.
const EVICTED_FOR_FILES: usize = 64;

/// Pause between two looks at whether the store takes writes.
const HEALTH_PAUSE: Duration = Duration::from_millis(500);

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Callers from other machines could come in, and nothing proves who they are.
    #[error(
        "refusing to listen on {0}: it is reachable from other machines and callers are not authenticated over TLS; \
         listen on 127.0.0.1, give --tls-cert and --tls-key with --token-file or --tls-client-ca, or say --insecure \
         if that network is trusted"
    )]
    NotLoopback(SocketAddr),
    /// The bucket of the service of the seed programs has no proper name.
    #[error("the bucket of io.grpc.KeyValueService: {0}")]
    Bucket(shoal_engine::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The schema that reflection would serve is damaged.
    #[error("cannot serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A server that listens. Connections wait until [`Self::run`].
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: ServerOptions,
}

impl Server {
    /// Listens on `options.listen`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ServeError::NotLoopback`], [`ServeError::Bucket`], [`ServeError::Listen`].
    pub async fn bind(options: ServerOptions) -> Result<Self, ServeError> {
        let address = options.listen;
        check_bucket(&options.kv_bucket).map_err(ServeError::Bucket)?;
        let is_closed = address.ip().to_canonical().is_loopback() || options.security.is_safe();
        if !options.insecure && !is_closed {
            return Err(ServeError::NotLoopback(address));
        }
        let failed = |error| ServeError::Listen { address, error };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, options })
    }

    /// The address that is listened on, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.options.security.is_encrypted()
    }

    /// Serves `store` until `shutdown` ends; then takes no more connections and requests, waits for those under way at
    /// most [`Limits::drain_max`], and cuts the rest. The store stays open: closing it is the caller's business.
    ///
    /// # Errors
    /// [`ServeError::Reflection`].
    pub async fn run(self, store: Store, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self { listener, options, .. } = self;
        let ServerOptions { insecure, security, kv_bucket, gzip, gzip_answers, .. } = options;
        let ServerOptions { web_origins, limits, .. } = options;
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
            flow: Flow::new(limits.bytes_in_flight_max, limits.connection_bytes_in_flight_max),
            patience: Patience::new(&limits),
            room_wait_max: limits.room_wait_max,
            free_space_permits: Arc::new(Semaphore::new(READERS_MAX)),
            draining: drain.subscribe(),
        });
        let mut connections = Connections {
            tasks: JoinSet::new(),
            dispatch: Arc::clone(&dispatch),
            admission: Admission::new(limits.connections_max, limits.unauthenticated_max),
            limits: Arc::new(limits),
            drain: drain.subscribe(),
        };
        let admission = Arc::clone(&connections.admission);
        let doubt = async {
            while changes.changed().await.is_ok() {
                admission.doubt_all();
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = shutdown => {}
            () = doubt => {}
            () = connections.accept(&listener) => {}
            () = tell_health(&dispatch, &store) => {}
        }
        drop(listener);
        dispatch.standard.set_serving(false).await;
        drain.send_replace(true);
        dispatch.standard.end_watches().await;
        connections.finish().await;
        Ok(())
    }
}

/// Sets the health to "not serving" when the store stops taking writes, which is for good. Never ends.
async fn tell_health(dispatch: &Dispatch, store: &Store) {
    let mut looks = interval(HEALTH_PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reason = loop {
        looks.tick().await;
        if let Some(reason) = store.stat().poisoned {
            break reason;
        }
    };
    tracing::error!("the store takes no more writes: {reason}");
    dispatch.standard.set_serving(false).await;
    std::future::pending().await
}

struct Connections {
    tasks: JoinSet<()>,
    dispatch: Arc<Dispatch>,
    admission: Arc<Admission>,
    limits: Arc<Limits>,
    drain: watch::Receiver<bool>,
}

impl Connections {
    /// Accepts connections. Never ends.
    async fn accept(&mut self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.add(stream, peer),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    let evicted = self.admission.evict(EVICTED_FOR_FILES) as u64;
                    self.dispatch.counters.connections_evicted.fetch_add(evicted, Ordering::Relaxed);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn add(&mut self, stream: TcpStream, peer: SocketAddr) {
        while self.tasks.try_join_next().is_some() {}
        let counters = &self.dispatch.counters;
        let entered = self.admission.enter();
        let connections_max = self.limits.connections_max;
        if entered.evicts {
            counters.connections_evicted.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                %peer,
                "there are {connections_max} connections: the oldest one without credentials is closed for a new one"
            );
        }
        let Some(place) = entered.place else {
            counters.connections_refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%peer, "closed: there are {connections_max} connections, all of them with credentials");
            return;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "closed: it ended at once");
            return;
        }
        let (dispatch, limits) = (Arc::clone(&self.dispatch), Arc::clone(&self.limits));
        let drain = self.drain.clone();
        let serve = async move {
            dispatch.counters.connections.fetch_add(1, Ordering::Relaxed);
            let _counted = Counted(&dispatch);
            let its = Arc::clone(&place);
            let served = connection::serve(stream, peer, its, Arc::clone(&dispatch), &limits, drain);
            match place.hold(served).await {
                Ok(()) => {}
                Err(Leaves::Evicted) => tracing::debug!(%peer, "closed: a new connection took its place"),
                Err(Leaves::Overdue) => {
                    dispatch.counters.connections_overdue.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(%peer, "closed: it showed no credentials in time");
                }
            }
        };
        self.tasks.spawn(serve);
    }

    /// Waits for the requests under way, for a while.
    async fn finish(mut self) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(self.limits.drain_max, ended).await.is_err() {
            let cut = self.tasks.len();
            tracing::warn!("{cut} connection(s) still had requests under way after the time to finish: cut");
            self.tasks.shutdown().await;
        }
    }
}

/// Counts a connection down when it ends, however it ends.
struct Counted<'a>(&'a Dispatch);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
