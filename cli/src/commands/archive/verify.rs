//! `shoal archive verify`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use shoal_archive::verify::{VerifyProgress, verify};
use shoal_transfer::text::counted;

use super::{read, subject};
use crate::arguments::archive::ArchiveArguments;
use crate::arguments::size::Size;
use crate::failure::Reported;
use crate::output::progress::{Ticker, drawn};
use crate::output::{Output, warn};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    archive: ArchiveArguments,
    /// Read all bytes, and check all checksums. Without it: the first 128 bytes of each segment, and the lengths of the parts of bases.
    #[arg(long)]
    full: bool,
    /// Print one JSON object, and no progress.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let reader = read(&arguments.archive).await?;
    let progress = Arc::new(VerifyProgress::default());
    let shown = (!arguments.json).then(|| show(&progress));
    let mut problems = Vec::new();
    let mut tell = |problem: String| {
        warn(&format!("shoal: {problem}"));
        problems.push(problem);
    };
    let found = verify(&reader, arguments.full, &progress, &mut tell).await;
    let count = found.with_context(|| format!("{} was not verified to its end", subject(&arguments.archive)));
    if let Some((ticker, bar)) = shown {
        drop(ticker);
        bar.iter().for_each(indicatif::ProgressBar::finish_and_clear);
    }
    let count = count?;
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (objects, bytes) = (get(&progress.objects), get(&progress.bytes));
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({
            "full": arguments.full, "objects": objects, "bytes": bytes, "problems": problems,
        }))?;
    } else {
        let end = match count {
            0 => "no problems".to_owned(),
            _ => counted(count, "problem"),
        };
        output.line(&format!("verified {}, {} read: {end}", counted(objects, "object"), Size(bytes)))?;
    }
    output.finish()?;
    if count == 0 { Ok(()) } else { Err(Reported.into()) }
}

fn show(progress: &Arc<VerifyProgress>) -> (Ticker, Option<indicatif::ProgressBar>) {
    let (progress, started) = (progress.clone(), Instant::now());
    let bar = drawn("{spinner} {wide_msg}");
    let shown = bar.clone();
    let ticker = Ticker::start(bar.is_some(), move || {
        let (objects, bytes) =
            (progress.objects.load(Ordering::Relaxed), progress.bytes.load(Ordering::Relaxed));
        let rate = bytes as f64 / started.elapsed().as_secs_f64().max(1e-3) / 1e6;
        let message = format!("verify: {}, {}, {rate:.1} MB/s", counted(objects, "object"), Size(bytes));
        match &bar {
            Some(bar) => {
                bar.set_message(message);
                bar.tick();
            }
            None => warn(&message),
        }
    });
    (ticker, shown)
}
