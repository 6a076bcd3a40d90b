//! The figures of the server for the pages: `live` has those of each second, `space` the map of the device, `requests` slow requests,
//! connections and damage, `texts` the log, the configuration and the report. `routes` are the entries of the router's table.

pub(crate) mod limits;
mod live;
mod requests;
mod routes;
mod space;
mod texts;

use std::sync::Arc;

use bytes::Bytes;
use shoal_server::ReportSource;

use self::limits::FigureLimits;
pub(crate) use self::live::Sources;
use self::live::{Sampler, Timing};
pub(crate) use self::routes::{ROUTES, may_operate, set_file_name};
use self::space::SpaceMaps;
use crate::answer::ApiResult;

/// The figures of a server.
pub(crate) struct Figures {
    sources: Sources,
    sampler: Sampler,
    maps: SpaceMaps,
    report: ReportSource,
}

impl Figures {
    /// The figures of `sources`, with the texts of `report`, within `limits`. Nothing is read before a page asks.
    pub(crate) fn new(sources: Sources, report: ReportSource, limits: FigureLimits) -> Self {
        let maps = SpaceMaps::new(Arc::clone(&sources.clock), limits);
        let sampler = Sampler::new(sources.clone(), maps.clone(), (Timing::default(), limits.history_bytes));
        Self { sources, sampler, maps, report }
    }

    /// A map of the space with at most `cells` cells, as JSON.
    async fn map(&self, cells: u64) -> ApiResult<Bytes> {
        let Sources { store, clock, .. } = &self.sources;
        self.maps.draw(store, clock, cells).await
    }
}
