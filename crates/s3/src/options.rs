//! The options of the S3 frontend.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use shoal_engine::Environment;
use shoal_frontend::Security;
use shoal_http::ServerLimits;
use shoal_metrics::Metrics;

use crate::body::check::EtagScheme;

/// The region of a store whose operator names none: it is the default of clients.
pub const DEFAULT_REGION: &str = "us-east-1";

/// The life of an open upload for which the operator names none. Uploads take days over slow lines, and hold their space.
pub const UPLOAD_LIFE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The options of the S3 frontend.
#[derive(Clone)]
pub struct S3Options {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of the same name, which get the same port.
    pub listen_also: Vec<SocketAddr>,
    /// True if callers from other machines may come in although nothing is encrypted.
    pub insecure: bool,
    /// TLS, and the keys that requests are signed with.
    pub security: Security,
    /// The region that signatures name.
    pub region: String,
    /// Domains below which the first part of a host name is a bucket.
    pub domains: Vec<String>,
    /// Domains below which the first part of a host name is a bucket whose website is served.
    pub website_domains: Vec<String>,
    /// The ETags of objects.
    pub etags: EtagScheme,
    /// An upload in parts that is open for longer is aborted; `None`: never.
    pub upload_life: Option<Duration>,
    /// The counts of the requests.
    pub metrics: Arc<Metrics>,
    /// Bounds.
    pub limits: ServerLimits,
    /// Clock and randomness.
    pub environment: Environment,
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7413).into(),
            listen_also: Vec::new(),
            insecure: false,
            security: Security::default(),
            region: DEFAULT_REGION.to_owned(),
            domains: Vec::new(),
            website_domains: Vec::new(),
            etags: EtagScheme::default(),
            upload_life: Some(UPLOAD_LIFE),
            metrics: Arc::default(),
            limits: ServerLimits::default(),
            environment: Environment::default(),
        }
    }
}
