//! The texts of a report for a support case, which the program that runs the server provides.

use std::sync::Arc;

use shoal_api::v1;

use crate::auth::Authenticated;
use crate::failure::Failure;

/// Makes texts with their names, without secrets, for a report.
#[derive(Clone)]
pub struct ReportSource(Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>);

impl Default for ReportSource {
    /// No texts.
    fn default() -> Self {
        Self::new(Vec::new)
    }
}

impl ReportSource {
    /// Calls `texts` for each report.
    pub fn new(texts: impl Fn() -> Vec<(String, String)> + Send + Sync + 'static) -> Self {
        Self(Arc::new(texts))
    }

    /// The texts, now.
    #[must_use]
    pub fn texts(&self) -> Vec<(String, String)> {
        (self.0)()
    }

    pub(crate) fn report(
        &self,
        request: &Authenticated<v1::ReportRequest>,
    ) -> Result<v1::ReportResponse, Failure> {
        request.to_whole_store::<v1::Report>()?;
        let part = |(name, text)| v1::ReportPart { name, text };
        Ok(v1::ReportResponse { parts: self.texts().into_iter().map(part).collect() })
    }
}

impl std::fmt::Debug for ReportSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReportSource")
    }
}
