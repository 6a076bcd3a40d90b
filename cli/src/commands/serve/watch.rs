//! The server's counters and the listener of `--metrics`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use shoal_metrics::{AuditLog, Health, Listener, Metrics, RequestLogs};
use shoal_server::ReportSource;

use crate::logging;
use crate::process::resolve::{in_words, resolve};

pub(super) const DEFAULT_METRICS: &str = "127.0.0.1:7415";

/// The settings of counters and logs of requests.
#[derive(Default)]
pub(super) struct WatchSettings {
    /// The address of the metrics as configured; none: the default.
    pub(super) address: Option<String>,
    /// Requests of this duration or longer get a line in the log.
    pub(super) slow: Option<Duration>,
    /// Writes a line in the log for every request.
    pub(super) logs_access: bool,
    /// The file of the audit log.
    pub(super) audit_log: Option<PathBuf>,
    /// The options in force, without secrets, for a report.
    pub(super) configuration: String,
}

impl WatchSettings {
    /// The counters of a server, without its audit log.
    pub(super) fn metrics(&self) -> Arc<Metrics> {
        self.metrics_with(None)
    }

    /// The counters of the server, with its audit log.
    ///
    /// # Errors
    /// The audit log cannot be written.
    pub(super) fn audited_metrics(&self) -> anyhow::Result<Arc<Metrics>> {
        let Some(path) = &self.audit_log else { return Ok(self.metrics()) };
        let audit = AuditLog::open(path).with_context(|| format!("--audit-log {}", path.display()))?;
        Ok(self.metrics_with(Some(audit)))
    }

    fn metrics_with(&self, audit: Option<Arc<AuditLog>>) -> Arc<Metrics> {
        let logs = RequestLogs { access: self.logs_access, audit };
        Arc::new(Metrics::new(!self.is_off(), self.slow, logs))
    }

    /// The texts of a report: the configuration and the last lines of the log.
    pub(super) fn report(&self) -> ReportSource {
        let configuration = self.configuration.clone();
        ReportSource::new(move || {
            vec![
                ("configuration.toml".to_owned(), configuration.clone()),
                ("server.log".to_owned(), logging::recent()),
            ]
        })
    }

    fn is_off(&self) -> bool {
        self.address.as_deref() == Some("off")
    }

    /// Checks the address of the metrics without listening there.
    ///
    /// # Errors
    /// It is none.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        if let Some(address) = self.address.as_deref().filter(|_| !self.is_off()) {
            resolve(address, DEFAULT_METRICS).await.context("--metrics")?;
        }
        Ok(())
    }

    /// Binds the address of the metrics. Returns none if they are off, or if the default address is taken.
    ///
    /// # Errors
    /// A configured address cannot be bound.
    pub(super) async fn bind(&self) -> anyhow::Result<Option<Listener>> {
        if self.is_off() {
            return Ok(None);
        }
        let given = self.address.as_deref();
        let (first, others) =
            resolve(given.unwrap_or(DEFAULT_METRICS), DEFAULT_METRICS).await.context("--metrics")?;
        match Listener::bind(first, &others) {
            Ok(listener) => {
                let is_reachable = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
                if listener.addresses().iter().any(is_reachable) {
                    let addresses = in_words(listener.addresses());
                    tracing::warn!(
                        "--metrics {addresses}: other machines reach it, and it asks for no credentials; it serves figures, and \
                         no keys or values"
                    );
                }
                Ok(Some(listener))
            }
            Err(error) if given.is_none() => {
                tracing::warn!(
                    "no metrics: {error}; --metrics HOST:PORT names another address, --metrics off none"
                );
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| {
                format!("no server was started: --metrics {first}: cannot listen there; name another address, or off")
            }),
        }
    }
}

/// The running listener of the metrics, which stops when this is dropped.
pub(super) struct Watching {
    health: Health,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Watching {
    /// Starts the listener; the store is not open yet.
    pub(super) fn start(listener: Option<Listener>, metrics: &Arc<Metrics>) -> Self {
        let health = Health::default();
        let task = listener.map(|listener| tokio::spawn(listener.run(Arc::clone(metrics), health.clone())));
        Self { health, task }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // The store can be closed only when no clone of it is left.
        self.health.stops();
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(address: &str) -> WatchSettings {
        WatchSettings { address: Some(address.into()), ..WatchSettings::default() }
    }

    #[tokio::test]
    async fn a_given_address_must_be_free() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let error = settings(&address).bind().await.err().unwrap();
        assert!(error.to_string().contains("--metrics") && error.to_string().contains(&address), "{error}");
        assert!(settings("off").bind().await.unwrap().is_none());
        assert!(!settings("off").metrics().is_on());
        let free = settings("127.0.0.1:0").bind().await.unwrap().unwrap();
        assert_ne!(free.addresses()[0].port(), 0);
        let error = settings("nonsense").bind().await.err().unwrap();
        assert!(error.to_string().contains("--metrics") && error.is::<crate::failure::Usage>(), "{error:#}");
    }
}
