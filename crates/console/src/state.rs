//! The state that all requests share.

use std::sync::Arc;

use shoal_engine::{Environment, Store};
use shoal_frontend::{MinRate, Security};
use shoal_metrics::FrontendMetrics;
use shoal_s3::S3Service;
use shoal_server::Backups;
use tokio::sync::watch;

use crate::assets::Assets;
use crate::figures::limits::FigureLimits;
use crate::figures::{Figures, Sources};
use crate::keys::KeyBook;
use crate::options::{ConsoleOptions, ConsoleParts, ConsoleSources};
use crate::session::Sessions;

/// The state that all requests share.
pub(crate) struct ConsoleState {
    pub(crate) store: Store,
    pub(crate) objects: S3Service,
    /// The URL of the S3 frontend; `None` if it is off.
    pub(crate) s3_url: Option<String>,
    /// The file of keys; `None` if the server has none.
    pub(crate) keys: Option<Arc<dyn KeyBook>>,
    pub(crate) security: Security,
    /// Callers from other machines are let in without credentials.
    pub(crate) insecure: bool,
    pub(crate) sessions: Sessions,
    pub(crate) figures: Figures,
    pub(crate) backups: Backups,
    pub(crate) assets: Assets,
    pub(crate) metrics: Arc<FrontendMetrics>,
    pub(crate) min_rate: MinRate,
    pub(crate) environment: Environment,
    /// Becomes true when the server stops.
    pub(crate) drain: watch::Receiver<bool>,
}

impl ConsoleState {
    /// The state of a console that shows `parts`.
    pub(crate) fn new(
        options: ConsoleOptions,
        parts: ConsoleParts,
        sessions: Sessions,
        drain: watch::Receiver<bool>,
    ) -> Self {
        let ConsoleOptions { security, insecure, metrics, limits, memory_bytes, environment, .. } = options;
        let ConsoleParts { store, objects, s3_url, keys, sources } = parts;
        let ConsoleSources { health, report, backups } = sources;
        let frontend = Arc::clone(metrics.console());
        let clock = Arc::clone(&environment.clock);
        let sources = Sources { store: store.clone(), metrics, health, clock };
        let figures = Figures::new(sources, report, FigureLimits::within(memory_bytes));
        Self {
            store,
            objects,
            s3_url,
            keys,
            security,
            insecure,
            sessions,
            figures,
            backups,
            assets: Assets::new(),
            metrics: frontend,
            min_rate: limits.min_rate,
            environment,
            drain,
        }
    }

    /// The second of the Unix epoch.
    pub(crate) fn now_s(&self) -> u64 {
        self.environment.clock.wall_ns() / 1_000_000_000
    }
}
