//! Figures about the store and the server.

use shoal_api::v1;
use shoal_base::histogram::Durations;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::object::{Figure, FrontendFigures, RequestFigures, Stat};

impl Client {
    /// Stops the relocation of values in the background until the server's next start, or resumes it.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn pause_relocation(&self, pause: bool) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.retry
                .read(|| async {
                    self.transport.call::<v1::Moving>(v1::MovingRequest { pause }).await?;
                    Ok(())
                })
                .await
        })
    }

    /// The server's texts for a support case, with their names: configuration and log, without secrets.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn report(&self) -> Boxed<'_, Result<Vec<(String, String)>>> {
        Box::pin(async move {
            self.retry
                .read(|| async {
                    let report = self.transport.call::<v1::Report>(v1::ReportRequest {}).await?;
                    Ok(report.parts.into_iter().map(|part| (part.name, part.text)).collect())
                })
                .await
        })
    }

    /// Figures about the store and the server.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Denied`](crate::Error::Denied).
    pub fn stat(&self) -> Boxed<'_, Result<Stat>> {
        Box::pin(async move {
            self.retry
                .read(|| async {
                    let stat = self.transport.call::<v1::Stat>(v1::StatRequest {}).await?;
                    let figure = |figure: v1::Figure| Figure {
                        name: figure.name,
                        unit: figure.unit,
                        value: figure.value,
                    };
                    Ok(Stat {
                        server_version: stat.server_version,
                        read_only: Some(stat.read_only_reason).filter(|reason| !reason.is_empty()),
                        uptime_ns: stat.uptime_ns,
                        block_bytes: stat.block_bytes,
                        objects: stat.objects,
                        blocks: stat.blocks,
                        free_blocks: stat.free_blocks,
                        figures: stat.figures.into_iter().map(figure).collect(),
                        frontends: stat.frontends.into_iter().map(frontend).collect(),
                    })
                })
                .await
        })
    }
}

fn frontend(figures: v1::FrontendFigures) -> FrontendFigures {
    let request = |request: v1::RequestFigures| RequestFigures {
        operation: request.operation,
        result: request.result,
        durations: Durations::of(&request.buckets, request.sum_ns),
    };
    FrontendFigures { name: figures.name, requests: figures.requests.into_iter().map(request).collect() }
}
