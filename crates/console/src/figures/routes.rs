//! The routes of the figures.

use bytes::Bytes;
use futures_util::stream as streams;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, Method, StatusCode};
use shoal_frontend::access::{ALL_KEYS, Action, Actions, Principal, WHOLE_STORE};
use shoal_transfer::support_report::archive_name;

use super::live::heat_edges_us;
use super::space::{CELLS, RUNS_MAX, range};
use super::{requests, texts};
use crate::answer::{ApiError, ApiResult, empty, json, stream, whole};
use crate::call::{Answering, ApiCall, Route};
use crate::state::ConsoleState;

const JSON: &str = "application/json";
/// Cells of a map, and lines of the log, unless the request names a number.
const CELLS_DEFAULT: u64 = 4_096;
const LINES_DEFAULT: u64 = 500;
const LINES_MAX: u64 = 100_000;
/// Bytes of a piece of the history.
const PIECE_BYTES: usize = 64 << 10;

pub(crate) const ROUTES: &[Route] = &[
    Route { method: Method::GET, path: "live", name: "Live", answer: live },
    Route { method: Method::GET, path: "history", name: "History", answer: history },
    Route { method: Method::GET, path: "space", name: "Space", answer: space },
    Route { method: Method::GET, path: "space/cell", name: "SpaceCell", answer: space_cell },
    Route { method: Method::GET, path: "census", name: "Census", answer: census },
    Route { method: Method::POST, path: "census", name: "StartCensus", answer: start_census },
    Route { method: Method::DELETE, path: "census", name: "StopCensus", answer: stop_census },
    Route { method: Method::GET, path: "slow", name: "SlowRequests", answer: slow },
    Route { method: Method::GET, path: "log", name: "Log", answer: log },
    Route { method: Method::GET, path: "config", name: "Config", answer: config },
    Route { method: Method::GET, path: "connections", name: "Connections", answer: connections },
    Route { method: Method::GET, path: "archived", name: "Archived", answer: archive },
    Route { method: Method::GET, path: "damage", name: "Damage", answer: damage },
    Route { method: Method::GET, path: "report", name: "Report", answer: report },
];

/// Checks that the party may see figures: it may list everything, or is an administrator.
///
/// # Errors
/// 403.
pub(crate) fn may_look(principal: &Principal) -> ApiResult<()> {
    let check = |action| principal.check(Actions::of(&[action]), WHOLE_STORE, ALL_KEYS);
    check(Action::List).or_else(|denied| check(Action::Admin).map_err(|_| denied))?;
    Ok(())
}

/// Checks that the party is an administrator.
///
/// # Errors
/// 403.
pub(crate) fn may_operate(principal: &Principal) -> ApiResult<()> {
    Ok(principal.check(Actions::of(&[Action::Admin]), WHOLE_STORE, ALL_KEYS)?)
}

/// A number of the query, or `default`.
fn number(call: &ApiCall<'_>, name: &str, default: u64) -> ApiResult<u64> {
    let Some(text) = call.query(name) else { return Ok(default) };
    text.parse().map_err(|_| ApiError::bad(format!("{name}={text:?} is no number")))
}

/// Runs work that takes some milliseconds or waits for the disk on a separate thread.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> ApiResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("an error of the program: {error}"))
    })
}

/// Names the file that a browser makes of the answer.
pub(crate) fn set_file_name(answer: &mut shoal_http::HttpAnswer, name: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        answer.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
}

fn live<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        let page = state.figures.sampler.join().map_err(|error| {
            let problem = format!("the figures cannot be sampled: {error}; try again later");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem)
        })?;
        let over = call.admitted.over(state);
        let events = streams::unfold((page, over), |(mut page, mut over)| async move {
            let event = tokio::select! {
                () = &mut over => None,
                event = page.next() => event,
            };
            event.map(|event| (Ok(event), (page, over)))
        });
        Ok(stream("text/event-stream", Box::pin(events), call.permit))
    })
}

/// The pieces of the history's document.
struct HistoryPieces {
    samples: std::vec::IntoIter<Bytes>,
    start: Vec<u8>,
    is_first: bool,
    is_over: bool,
}

impl HistoryPieces {
    fn new(samples: Vec<Bytes>) -> Self {
        let edges: Vec<String> = heat_edges_us().map(|us| us.to_string()).collect();
        let start = format!("{{\"heat_edges_us\":[{}],\"samples\":[", edges.join(",")).into_bytes();
        Self { samples: samples.into_iter(), start, is_first: true, is_over: false }
    }
}

impl Iterator for HistoryPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut piece = std::mem::take(&mut self.start);
        while piece.len() < PIECE_BYTES {
            let Some(sample) = self.samples.next() else {
                piece.extend_from_slice(b"]}");
                self.is_over = true;
                break;
            };
            if !std::mem::take(&mut self.is_first) {
                piece.push(b',');
            }
            piece.extend_from_slice(&sample);
        }
        Some(piece.into())
    }
}

fn history<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        let pieces = HistoryPieces::new(state.figures.sampler.history());
        Ok(stream(JSON, Box::pin(streams::iter(pieces.map(Ok))), call.permit))
    })
}

fn space<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        let cells = number(&call, "cells", CELLS_DEFAULT)?;
        if !CELLS.contains(&cells) {
            let (least, most) = (CELLS.start(), CELLS.end());
            return Err(ApiError::bad(format!("cells={cells}: a map has {least} to {most} cells")));
        }
        let map = state.figures.map(cells).await?;
        call.permit.grow(map.len())?;
        Ok(whole(StatusCode::OK, JSON, map, Some(call.permit)))
    })
}

fn space_cell<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        let (start, blocks) = (number(&call, "start", 0)?, number(&call, "blocks", 1)?);
        let (store, census) = (state.store.clone(), state.figures.maps.census.taken());
        let document = aside(move || range(&store, census.as_deref(), (start, blocks), RUNS_MAX)).await?;
        json(StatusCode::OK, &document, &call.permit)
    })
}

fn census<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        let with_buckets = call.query("buckets").as_deref() == Some("true");
        json(StatusCode::OK, &state.figures.maps.census.document(with_buckets), &call.permit)
    })
}

fn start_census<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        state.figures.maps.census.start(&state.store).map_err(|error| {
            let problem = format!("the trees cannot be walked over: {error}; try again later");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem)
        })?;
        Ok(empty(StatusCode::ACCEPTED))
    })
}

fn stop_census<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        state.figures.maps.census.cancel();
        Ok(empty(StatusCode::NO_CONTENT))
    })
}

fn slow<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        json(StatusCode::OK, &requests::slow(&state.figures.sources.metrics), &call.permit)
    })
}

fn log<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_operate(call.principal())?;
        let lines = number(&call, "lines", LINES_DEFAULT)?.min(LINES_MAX);
        json(StatusCode::OK, &texts::log(&state.figures.report, lines as usize), &call.permit)
    })
}

fn config<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_operate(call.principal())?;
        json(StatusCode::OK, &texts::config(&state.figures.report), &call.permit)
    })
}

fn connections<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        json(StatusCode::OK, &requests::connections(&state.figures.sources.metrics), &call.permit)
    })
}

fn archive<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        json(StatusCode::OK, &requests::archive(&state.figures.sources.metrics), &call.permit)
    })
}

fn damage<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_look(call.principal())?;
        json(StatusCode::OK, &requests::damage(&state.store), &call.permit)
    })
}

fn report<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_operate(call.principal())?;
        let figures = &state.figures;
        let map = figures.map(texts::REPORT_CELLS).await?;
        let (sources, texts) = (figures.sources.clone(), figures.report.clone());
        let archive = aside(move || texts::archive(&sources, &map, &texts)).await?;
        let archive = archive
            .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))?;
        call.permit.grow(archive.len())?;
        let mut answer = whole(StatusCode::OK, "application/gzip", archive.into(), Some(call.permit));
        set_file_name(&mut answer, &archive_name());
        Ok(answer)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn history_is_one_document_in_pieces() {
        let sample = format!("{{\"text\":\"{}\"}}", "x".repeat(999));
        for count in [0, 1, 2, 200] {
            let pieces: Vec<Bytes> = HistoryPieces::new(vec![sample.clone().into(); count]).collect();
            assert_eq!(pieces.len(), 1 + count * sample.len() / PIECE_BYTES, "{count}");
            let document: Value = serde_json::from_slice(&pieces.concat()).unwrap();
            assert_eq!(document["samples"].as_array().unwrap().len(), count);
            let edges = document["heat_edges_us"].as_array().unwrap();
            let of = |at: usize| edges[at].as_f64();
            assert_eq!((edges.len(), of(0), of(1), of(70)), (71, Some(1.0), Some(1.25), Some(1e7)));
        }
    }
}
