//! The options of the console, and the parts of the server that it shows.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use shoal_engine::{Environment, Store};
use shoal_frontend::Security;
use shoal_http::ServerLimits;
use shoal_metrics::{Health, Metrics};
use shoal_s3::S3Service;
use shoal_server::{Backups, ReportSource};

use crate::figures::limits::MEMORY_BYTES_MAX;
use crate::keys::KeyBook;

/// The options of the console.
#[derive(Clone)]
pub struct ConsoleOptions {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of the same name, which get the same port.
    pub listen_also: Vec<SocketAddr>,
    /// True if callers from other machines may come in although nothing is encrypted, or nobody has to sign in.
    pub insecure: bool,
    /// TLS, and the keys and tokens that sign in.
    pub security: Security,
    /// The counts of the requests.
    pub metrics: Arc<Metrics>,
    /// Bounds.
    pub limits: ServerLimits,
    /// Memory of the figures, from [`MEMORY_BYTES_MIN`](crate::MEMORY_BYTES_MIN) to [`MEMORY_BYTES_MAX`](crate::MEMORY_BYTES_MAX): with less, the
    /// history is shorter and the map is coarser.
    pub memory_bytes: u64,
    /// Clock and randomness.
    pub environment: Environment,
}

impl Default for ConsoleOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7414).into(),
            listen_also: Vec::new(),
            insecure: false,
            security: Security::default(),
            metrics: Arc::default(),
            limits: ServerLimits::default(),
            memory_bytes: MEMORY_BYTES_MAX,
            environment: Environment::default(),
        }
    }
}

/// The parts of the server that the console shows.
#[derive(Clone)]
pub struct ConsoleParts {
    /// The store.
    pub store: Store,
    /// The operations on its objects.
    pub objects: S3Service,
    /// The URL of the S3 frontend; `None` if it is off.
    pub s3_url: Option<String>,
    /// The file of keys; `None` if the server has none.
    pub keys: Option<Arc<dyn KeyBook>>,
    /// The state of the server around them.
    pub sources: ConsoleSources,
}

/// The state of the server that the console shows, besides its counts.
#[derive(Clone, Debug, Default)]
pub struct ConsoleSources {
    /// Its stage.
    pub health: Health,
    /// Its configuration and its log.
    pub report: ReportSource,
    /// Its backups, whose number is bounded.
    pub backups: Backups,
}
