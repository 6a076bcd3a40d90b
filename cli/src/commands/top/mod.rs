//! `shoal top`: the figures of a running server, live: requests, rates and percentiles by frontend.
//!
//! It asks the server for its figures in a fixed period and draws them; if the server does not answer, the picture
//! shows that and the next period asks again. `q`, Escape and Ctrl-C quit. With `--once`, and if standard output is no
//! terminal, it prints one picture as text.

mod draw;

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use shoal_client::Stat;
use shoal_transfer::objects::Objects;
use shoal_transfer::text::one_line;
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::draw::{View, draw};
use crate::arguments::target::StoreArguments;
use crate::failure::Usage;
use crate::output::Output;
use crate::store::file::Access;

const EXAMPLES: &str = "\
Examples:
  shoal top                            this machine's server
  shoal top --server https://store:7411 --ca-file root.pem --token-file token
  shoal top --once                     one screen, as text

Keys: q quits, space pauses.";

/// Time between two looks for keys.
const KEY_PERIOD: Duration = Duration::from_millis(100);
/// Columns and lines of a picture that is printed as text; lines that nothing needs are left out.
const TEXT_SIZE: (u16, u16) = (100, 100);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The period of the requests to the server.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = every)]
    every: Duration,
    /// Print one screen as text, and exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    store: StoreArguments,
}

/// Checks a period for clap.
fn every(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|error| format!("{error}; write 2s or 500ms"))?;
    if every < KEY_PERIOD { Err("at least 100ms".into()) } else { Ok(every) }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.store.is_file() {
        return Err(Usage(
            "--data: a store that no server has open serves nobody; `shoal stat` shows it".into(),
        )
        .into());
    }
    let objects = arguments.store.over_one_connection().open(Access::Read).await?;
    let first = objects.stat().await.context("cannot get the figures of the server")?;
    if arguments.once || !stdout().is_terminal() {
        return print_once(&objects, first, arguments.every).await;
    }
    let (sender, figures) = mpsc::channel(1);
    let asking = tokio::spawn(ask(objects, arguments.every, sender));
    let drawn = tokio::task::spawn_blocking(move || show(first, figures)).await;
    asking.abort();
    drawn.context("the picture could not be drawn")?
}

/// One picture as text.
async fn print_once(objects: &Objects, first: Stat, every: Duration) -> anyhow::Result<()> {
    let mut view = View::new(first);
    sleep(every).await;
    view.take(objects.stat().await.context("cannot get the figures of the server")?);
    let mut output = Output::new();
    for line in as_text(&view) {
        output.line(&line)?;
    }
    output.finish()
}

/// The picture in lines, without colours and without empty lines at the end.
fn as_text(view: &View) -> Vec<String> {
    let (width, height) = TEXT_SIZE;
    let mut buffer = Buffer::empty(ratatui::layout::Rect::new(0, 0, width, height));
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    if terminal.draw(|frame| draw(frame, view, false)).is_ok() {
        buffer = terminal.backend().buffer().clone();
    }
    let row = |y: u16| {
        (0..width)
            .filter_map(|x| buffer.cell((x, y)).map(|cell| cell.symbol().to_owned()))
            .collect::<String>()
    };
    let mut lines: Vec<_> = (0..height).map(|y| row(y).trim_end().to_owned()).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Asks for the figures in each period, until the receiver is dropped.
async fn ask(objects: Objects, every: Duration, sender: mpsc::Sender<Result<Stat, String>>) {
    loop {
        sleep(every).await;
        let stat = objects.stat().await.map_err(|error| one_line(&error.into()));
        if sender.send(stat).await.is_err() {
            return;
        }
    }
}

/// Draws until a key quits, and then restores the terminal, after an error too.
fn show(first: Stat, mut figures: mpsc::Receiver<Result<Stat, String>>) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("this terminal cannot be drawn on")?;
    let mut view = View::new(first);
    let result = (|| -> anyhow::Result<()> {
        loop {
            terminal.draw(|frame| draw(frame, &view, true)).context("cannot draw")?;
            let until = Instant::now() + KEY_PERIOD;
            while poll(until.saturating_duration_since(Instant::now())).context("cannot read keys")? {
                match read().context("cannot read keys")? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                        KeyCode::Char(' ') => view.hold(),
                        _ => {}
                    },
                    _ => break,
                }
            }
            while let Ok(stat) = figures.try_recv() {
                match stat {
                    Ok(stat) => view.take(stat),
                    Err(error) => view.fail(error),
                }
            }
        }
    })();
    ratatui::restore();
    result
}

#[cfg(test)]
mod tests {
    use shoal_client::{Durations, Figure, FrontendFigures, RequestFigures};

    use super::*;

    #[test]
    fn a_picture_has_the_frontends_and_the_store() {
        let stat = |uptime_s: u64, gets: u64| Stat {
            server_version: "0.1.0".into(),
            block_bytes: 4096,
            objects: 1_234_567,
            uptime_ns: uptime_s * 1_000_000_000,
            blocks: 25_600,
            figures: [
                ("redis.connections", 50),
                ("redis.bucket.cache", 1),
                ("process.cpu_us", uptime_s * 1_500_000),
                ("process.resident", 300 << 20),
                ("process.threads", 12),
                ("file_system.room", 600 << 20),
            ]
            .map(|(name, value)| Figure { name: name.into(), unit: String::new(), value })
            .into(),
            frontends: vec![FrontendFigures {
                name: "redis".into(),
                requests: vec![RequestFigures {
                    operation: "get".into(),
                    result: "ok".into(),
                    durations: Durations::of(&[0, 0, 0, gets], 0),
                }],
            }],
            ..Stat::default()
        };
        let mut view = View::new(stat(10, 100));
        view.take(stat(12, 100_100));
        let text = as_text(&view).join("\n");
        for words in [
            "0.1.0",
            "redis",
            "get",
            "2 us",
            "1,234,567",
            "takes writes",
            "50 on bucket \"cache\"",
            "1.50 cores, 300.0 MiB of memory, 12 threads",
            "100.0 MiB in the file; 500.0 MiB free on its file system",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("up to"), "text has no curve: {text}");
        view.fail("it is gone".into());
        assert!(as_text(&view).join("\n").contains("it is gone"));
        view.hold();
        assert!(as_text(&view).join("\n").contains("held"));
        // An empty answer on a tiny terminal is drawn, too.
        let mut terminal = Terminal::new(TestBackend::new(10, 3)).unwrap();
        terminal.draw(|frame| draw(frame, &View::new(Stat::default()), true)).unwrap();
    }
}
