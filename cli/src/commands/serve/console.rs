//! The console of a server: its address, and its parts.

use std::sync::Arc;

use anyhow::Context;
use shoal_console::{ConsoleError, ConsoleOptions, ConsoleParts, ConsoleServer, ConsoleSources, KeyBook};
use shoal_engine::Store;
use shoal_http::Capacity;
use shoal_metrics::Metrics;
use shoal_s3::{S3Options, S3Service};
use shoal_server::{ListenError, Security};

use super::frontends::{Addresses, is_in_use, limits};
use super::settings::{DEFAULT_CONSOLE, Settings};
use crate::failure::Usage;

/// A console that listens, and the options of the operations that it has on objects.
pub(super) struct Console {
    pub(super) server: ConsoleServer,
    pub(super) objects: S3Options,
    /// The URL of the S3 frontend; none if it is off.
    pub(super) s3_url: Option<String>,
    /// The file of keys; none if there is none, or until it is known.
    pub(super) keys: Option<Arc<dyn KeyBook>>,
    /// The state of the server; that of one without a store until it is known.
    pub(super) sources: ConsoleSources,
}

/// Takes the addresses of the console. Returns none if no option names an address, and another program has the default one.
pub(super) fn bind(
    (settings, is_named): (&Settings, bool),
    security: &Security,
    metrics: &Arc<Metrics>,
    (listen, others): &Addresses,
) -> anyhow::Result<Option<ConsoleServer>> {
    let options = ConsoleOptions {
        listen: *listen,
        listen_also: others.clone(),
        insecure: settings.insecure,
        security: security.clone(),
        metrics: Arc::clone(metrics),
        limits: limits(settings),
        memory_bytes: settings.memory.console,
        ..ConsoleOptions::default()
    };
    match ConsoleServer::bind(options) {
        Err(ConsoleError::Listen(error)) if !is_named && is_in_use(&error) => {
            tracing::warn!(
                "the console is off: another program listens on {DEFAULT_CONSOLE}; --console names another address"
            );
            Ok(None)
        }
        Err(error @ ConsoleError::Listen(ListenError::NotLoopback { .. })) => {
            Err(Usage(error.to_string()).into())
        }
        result => {
            result.map(Some).context("no server was started; --console names another address, or is off")
        }
    }
}

impl Console {
    /// Serves until `shutdown` completes. `sweeps`: no other frontend deletes the objects that have come to their end.
    pub(super) async fn serve(
        self,
        store: Store,
        (objects, sweeps): (S3Service, bool),
        capacity: Arc<Capacity>,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let swept = sweeps.then(|| objects.sweep());
        let parts =
            ConsoleParts { store, objects, s3_url: self.s3_url, keys: self.keys, sources: self.sources };
        let sweep = async {
            match swept {
                Some(swept) => swept.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.server.run(parts, capacity, shutdown) => {}
            () = sweep => {}
        }
    }
}
