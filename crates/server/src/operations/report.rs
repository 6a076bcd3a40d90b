//! Gives what a support case needs: texts that the program that runs the server has.

use std::sync::Arc;

use shoal_api::v1;

/// Gives texts with their names, without secrets, when somebody asks.
#[derive(Clone)]
pub struct ReportSource(Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>);

impl Default for ReportSource {
    /// There is nothing to tell.
    fn default() -> Self {
        Self::new(Vec::new)
    }
}

impl ReportSource {
    /// Asks `texts` each time.
    pub fn new(texts: impl Fn() -> Vec<(String, String)> + Send + Sync + 'static) -> Self {
        Self(Arc::new(texts))
    }

    pub(crate) fn report(&self) -> v1::ReportResponse {
        let part = |(name, text)| v1::ReportPart { name, text };
        v1::ReportResponse { parts: (self.0)().into_iter().map(part).collect() }
    }
}

impl std::fmt::Debug for ReportSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReportSource")
    }
}
