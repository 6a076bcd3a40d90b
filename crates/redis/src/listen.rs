//! The frontend as a whole: it listens, starts its threads, and shuts down in order. Next: `dispatch/mod.rs`, the work of a
//! thread.

use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Poll;
use rustix::process::{Resource, getrlimit, setrlimit};
use shoal_engine::{Bucket, Environment, Store};

use crate::dispatch::{Accepting, Dispatch};
use crate::frontend::Frontend;
use crate::mailbox::Mailbox;
use crate::options::RedisOptions;

/// Dispatch threads, at most.
const THREADS_MAX: usize = 64;
/// File descriptors needed besides those of connections.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Pause before a failed dispatch thread restarts.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// The reason why the frontend does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address was refused.
    #[error(transparent)]
    Listen(#[from] shoal_frontend::ListenError),
    /// The name of the bucket is invalid.
    #[error("{0}")]
    Bucket(shoal_engine::Error),
    /// A thread could not be started.
    #[error("cannot start a dispatch thread: {0}")]
    Thread(std::io::Error),
}

/// A frontend that listens. Connections wait until [`Self::start`].
pub struct RedisServer {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    options: RedisOptions,
    bucket: Bucket,
}

impl RedisServer {
    /// Listens on `options.listen` and `options.listen_also`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn bind(options: RedisOptions) -> Result<Self, StartError> {
        let address = options.listen;
        let proven = options.tls.as_ref().is_some_and(|tls| tls.asks_certificates);
        let is_closed = options.insecure || options.asks() || proven;
        let lacks = ("authenticated", "give --key-file or --password-file");
        let bucket = Bucket::new(&options.bucket).map_err(StartError::Bucket)?;
        let listeners = shoal_frontend::listen_on_all(address, &options.listen_also, is_closed, lacks)?;
        let addresses: std::io::Result<Vec<_>> = listeners.iter().map(TcpListener::local_addr).collect();
        let addresses = addresses.map_err(StartError::Thread)?;
        Ok(Self { listeners, addresses, options, bucket })
    }

    /// The first listening address, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses.first().copied().unwrap_or(self.options.listen)
    }

    /// The listening addresses.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves the objects of `bucket`, regardless of the options.
    #[must_use]
    pub fn with_bucket(mut self, bucket: Bucket) -> Self {
        bucket.name().clone_into(&mut self.options.bucket);
        self.bucket = bucket;
        self
    }

    /// The bucket whose objects are the keys.
    #[must_use]
    pub fn bucket(&self) -> &str {
        self.bucket.name()
    }

    /// Returns true if clients speak TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.options.tls.is_some()
    }

    /// Serves `store` on separate threads until it is stopped. The store stays open: the caller closes it.
    ///
    /// # Errors
    /// [`StartError::Thread`].
    pub fn start(self, store: Store, environment: Environment) -> Result<Running, StartError> {
        let Self { listeners, addresses, mut options, bucket } = self;
        allow_descriptors(options.limits.connections_max as u64);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = options.threads.unwrap_or(cores).clamp(1, THREADS_MAX);
        options.threads = Some(threads);
        let frontend = Frontend::new(store, options, bucket, addresses, environment);
        let polls: Vec<Poll> =
            (0..threads).map(|_| Poll::new()).collect::<Result<_, _>>().map_err(StartError::Thread)?;
        let mailboxes = polls.iter().map(|poll| Mailbox::new(poll.registry())).collect::<Result<Vec<_>, _>>();
        let mailboxes = mailboxes.map_err(StartError::Thread)?;
        let mut running = Running { mailboxes: mailboxes.clone(), threads: Vec::new() };
        // The first thread accepts for all.
        let mut listeners = Some(Arc::<[TcpListener]>::from(listeners));
        for (poll, mailbox) in polls.into_iter().zip(&mailboxes) {
            let accepts = listeners.take().map(|listeners| (listeners, mailboxes.clone()));
            if let Some((listeners, _)) = &accepts {
                Accepting::register(listeners, poll.registry()).map_err(StartError::Thread)?;
            }
            let mut thread = Thread { frontend: frontend.clone(), mailbox: mailbox.clone(), poll, accepts };
            let thread = std::thread::Builder::new().name("shoal-redis".into()).spawn(move || thread.run());
            running.threads.push(thread.map_err(StartError::Thread)?);
        }
        Ok(running)
    }
}

/// The listeners, and the threads of their connections.
type Accepts = (Arc<[TcpListener]>, Vec<Arc<Mailbox>>);

/// A dispatch thread, which restarts after a failure.
struct Thread {
    frontend: Arc<Frontend>,
    mailbox: Arc<Mailbox>,
    poll: Poll,
    accepts: Option<Accepts>,
}

impl Thread {
    /// Serves until it is stopped. A panic, or a failure of the poll, closes the thread's connections, whose clients reconnect,
    /// and the thread restarts: no client waits for a dead thread.
    fn run(&mut self) {
        while !self.mailbox.is_stopped() {
            match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::error!("a dispatch thread of the Redis frontend restarts: {error}")
                }
                Err(_) => {
                    tracing::error!("a dispatch thread of the Redis frontend panicked, and restarts")
                }
            }
            std::thread::sleep(RESTART_PAUSE);
        }
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let accepting = self.accepts.clone();
        let accepting = accepting.map(|(listeners, mailboxes)| Accepting::new(listeners, mailboxes));
        Dispatch::new(self.frontend.clone(), self.mailbox.clone(), &mut self.poll, accepting).run()
    }
}

/// Raises the limit of file descriptors to the number that the connections need, if the system allows it.
fn allow_descriptors(connections: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = connections + DESCRIPTORS_BESIDE;
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        tracing::warn!("only {} of {wanted} file descriptors are allowed", limit.current.unwrap_or(0));
    }
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit of file descriptors could not be raised: {error}");
    }
}

/// A running frontend.
pub struct Running {
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Closes all connections and threads, and waits for them. The store finishes writes in flight.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for mailbox in &self.mailboxes {
            mailbox.send(|mail| mail.stop = true);
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a dispatch thread of the Redis frontend panicked");
            }
        }
    }
}
