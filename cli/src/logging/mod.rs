//! The program's log: lines on standard error, for people or as JSON.
//!
//! A server writes the lines on a separate thread ([`queue`]), so that an unread standard error delays no other
//! thread. No cause may fill the log ([`limit`]), and the messages of libraries about the peer of a connection are
//! below the default level.

mod limit;
mod queue;

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Usage;
use crate::logging::limit::Limit;
use crate::logging::queue::{LogQueue, QueueWriter};

/// Libraries whose warnings are about data from a peer: the operator can do nothing about them.
const LIBRARIES: [&str; 8] =
    ["h2", "hyper", "hyper_util", "rustls", "tokio_rustls", "tonic", "tonic_reflection", "tower"];

/// At the end of the program the longest wait without progress: then standard error is not being read.
const FLUSH_SILENCE_MAX: Duration = Duration::from_secs(2);

/// The destination of a server's lines.
static SERVER: OnceLock<Server> = OnceLock::new();

struct Server {
    queue: Arc<LogQueue>,
    limit: Arc<Limit>,
    format: LogFormat,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line, for programs.
    Json,
}

/// Starts logging with `filter` (a level, or filters by module), for a command: its lines are written at once. To be
/// called once, as [`start_server`].
pub(crate) fn start(filter: &str) -> anyhow::Result<()> {
    init(parse(filter)?, Arc::default(), LogFormat::Text, io::stderr);
    Ok(())
}

/// As [`start`], for a server: a separate thread writes the lines. The program finishes with [`finish`].
pub(crate) fn start_server(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = parse(filter)?;
    let limit = Arc::<Limit>::default();
    let queue = LogQueue::to_stderr(limit.clone())?;
    init(filter, limit.clone(), format, QueueWriter(queue.clone()));
    // The standard library's own hook would wait for the reader of standard error.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        tracing::error!("the thread {} panicked: {panic}", thread.name().unwrap_or("without a name"));
    }));
    // The program starts once.
    let _ = SERVER.set(Server { queue, limit, format });
    Ok(())
}

/// Writes `line` after those of a server; false if no server's log was started.
pub(crate) fn say(line: &str) -> bool {
    let Some(server) = SERVER.get() else { return false };
    match server.format {
        LogFormat::Text => server.queue.push(format!("{line}\n").into_bytes()),
        // Every line is an object, the last words, too. No filter and no limit applies to them.
        LogFormat::Json => {
            let timestamp = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
            let object =
                json!({"timestamp": timestamp, "level": "ERROR", "message": line, "target": "shoal"});
            server.queue.push(format!("{object}\n").into_bytes());
        }
    }
    true
}

/// The last lines of a server's log.
pub(crate) fn recent() -> String {
    let lines = SERVER.get().map(|server| server.queue.recent()).unwrap_or_default();
    String::from_utf8_lossy(&lines).into_owned()
}

/// Waits until all logged lines are written, while standard error is being read.
pub(crate) fn finish() {
    if let Some(server) = SERVER.get() {
        server.limit.report_all();
        server.queue.flush(FLUSH_SILENCE_MAX);
    }
}

fn init<W>(filter: Targets, limit: Arc<Limit>, format: LogFormat, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let all = tracing_subscriber::registry().with(filter).with(limit::Limited(limit));
    match format {
        LogFormat::Text => {
            let is_terminal = io::stderr().is_terminal();
            all.with(fmt::layer().with_writer(writer).with_ansi(is_terminal).with_target(false)).init();
        }
        LogFormat::Json => {
            let lines =
                fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
            all.with(lines.with_writer(writer)).init();
        }
    }
}

fn parse(filter: &str) -> anyhow::Result<Targets> {
    let wrong = |why: &dyn Display| {
        Usage(format!("--log {filter:?}: {why}; write error, warn, info, debug or trace")).into()
    };
    let parts: Vec<&str> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if let Some(part) = parts.iter().find(|part| part.starts_with('=') || part.contains('[')) {
        return Err(wrong(&format_args!("{part:?} names no module")));
    }
    with_libraries(&parts).parse().map_err(|error: ParseError| wrong(&error))
}

/// The filter of these parts for this program only: a level alone is that of Shoal's own modules, and libraries log
/// errors only, unless a part names the library. `off` is off for all.
fn with_libraries(parts: &[&str]) -> String {
    // Of two parts for one module the later one counts.
    let quiet = LIBRARIES.map(|library| format!("{library}=error")).join(",");
    let level_of = |part: &str| part.parse::<LevelFilter>().ok();
    let level = parts.iter().copied().filter_map(level_of).next_back();
    let first = match level {
        Some(level) if level >= LevelFilter::DEBUG => format!("info,{quiet},shoal={level}"),
        Some(LevelFilter::OFF) => "off".to_owned(),
        Some(level) => format!("{level},{quiet}"),
        None => quiet,
    };
    let modules = parts.iter().copied().filter(|part| level_of(part).is_none());
    std::iter::once(first.as_str()).chain(modules).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_they_are_asked() {
        assert!(with_libraries(&["info"]).starts_with("info,h2=error,"));
        assert_eq!(with_libraries(&["off"]), "off");
        let debug = with_libraries(&["debug"]);
        assert!(debug.starts_with("info,h2=error,") && debug.ends_with(",shoal=debug"), "{debug}");
        let shown = |filter: &str| parse(filter).unwrap().to_string();
        assert!(shown("info,h2=trace").contains("h2=trace") && !shown("info,h2=trace").contains("h2=error"));
        assert!(
            shown("h2=trace,debug").contains("h2=trace") && !shown("h2=trace,debug").contains("h2=error")
        );
        assert!(shown("warn,shoal_engine=debug").contains("h2=error"));
        assert!(shown("info, trace").contains("shoal=trace"), "{}", shown("info, trace"));
        assert_eq!(shown("off,,"), "off");
        for wrong in ["info,=", "=info", "x=loud", "info,[span]=debug"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
