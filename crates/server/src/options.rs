//! The options of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use shoal_engine::DEFAULT_BUCKET;
use shoal_frontend::Security;
use shoal_http::ServerLimits;
use shoal_metrics::Metrics;

use crate::operations::report::ReportSource;

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of the same name, which get the same port.
    pub listen_also: Vec<SocketAddr>,
    /// True if callers from other machines may come in without credentials, or without encryption.
    pub insecure: bool,
    /// TLS, and the credentials that callers have to show.
    pub security: Security,
    /// The bucket of `io.grpc.KeyValueService`.
    pub kv_bucket: String,
    /// True if requests may be compressed (gzip).
    pub gzip: bool,
    /// True if answers are compressed for clients that announce that they unpack gzip.
    pub gzip_answers: bool,
    /// The origins, as `https://example.com`, whose pages may call by gRPC-Web; `*` means all.
    pub web_origins: Vec<String>,
    /// The counts of the requests.
    pub metrics: Arc<Metrics>,
    /// The texts of a report for a support case.
    pub report: ReportSource,
    /// True if health checks need no credentials.
    pub open_health: bool,
    /// Bounds.
    pub limits: ServerLimits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7411).into(),
            listen_also: Vec::new(),
            insecure: false,
            security: Security::default(),
            kv_bucket: DEFAULT_BUCKET.into(),
            gzip: false,
            gzip_answers: false,
            web_origins: Vec::new(),
            metrics: Arc::default(),
            report: ReportSource::default(),
            open_health: false,
            limits: ServerLimits::default(),
        }
    }
}
