//! `shoal report`: one archive for a support case: figures, space, configuration, the last lines of the log, and the
//! machine.
//!
//! The archive holds no secrets: options name files with passwords, tokens and keys, and these files are not read. Keys
//! of objects may occur in the log's lines. `missing.txt` names each part that the report could not get.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;
use shoal_client::Stat;
use shoal_transfer::objects::Objects;
use shoal_transfer::support_report::{SupportReport, archive_name};

use crate::arguments::target::StoreArguments;
use crate::commands::stat::store_json;
use crate::output::Output;
use crate::output::space_map::read_space;
use crate::output::summary::Summary;
use crate::store::file::Access;

const EXAMPLES: &str = "Examples:
  shoal report                                      of this machine's server
  shoal report --log-file /var/log/shoal.log        with the end of its log file, if the last lines are not enough
  shoal report --data shoal.data                    of a store that no server has open
  tar -tzf shoal-report-*.tar.gz                    list its content before you send it

The archive has figures, the space map, the options in effect (files with secrets are named and not read), the last lines
of the server's log, and the machine's kernel, cores and memory. The log may contain keys of objects.";

/// Bytes that a report takes from the end of a log file.
const LOG_BYTES_MAX: u64 = 4 << 20;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Write the archive here; a file that exists is not overwritten [default: ./shoal-report-TIME.tar.gz].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// Add the end of this file, for a server that logs into a file.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArguments,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut report = SupportReport::of_this_machine();
    if let Some(path) = &arguments.log_file {
        let log = end_of(path).with_context(|| format!("cannot read {}", path.display()));
        report.add("log-file.log", log);
    }
    match arguments.store.open(Access::Read).await {
        Ok(objects) => {
            add_store(&mut report, &objects).await;
            report.note("the store could not be closed", objects.close().await.map_err(Into::into));
        }
        Err(error) => report.note("the store could not be reached", Err(error)),
    }
    let path = arguments.output.unwrap_or_else(|| archive_name().into());
    let names = write(report, &path)?;
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({ "report": path.display().to_string(), "parts": names }))?;
    } else {
        output.line(&format!("{}: {}", path.display(), names.join(", ")))?;
    }
    output.finish()
}

/// The last lines of a file.
fn end_of(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if start > 0 { text.split_once('\n').map_or(text.clone(), |(_, rest)| rest.to_owned()) } else { text })
}

/// Adds the texts about the store, and of its server if it has one.
async fn add_store(report: &mut SupportReport, objects: &Objects) {
    let stat = objects.stat().await.context("cannot get the figures");
    if let Ok(stat) = &stat {
        report.add("summary.txt", Ok(summary(stat)));
    }
    let map = read_space(objects, None).await.context("cannot read the free runs");
    report.add("space.json", map.map(|map| format!("{:#}\n", map.json())));
    report.add("figures.json", stat.map(|stat| format!("{:#}\n", store_json(&stat, None))));
    match objects.report().await {
        Ok(parts) => parts.into_iter().for_each(|(name, text)| report.add(&name, Ok(text))),
        Err(error) => report.note(
            "the server's configuration and log",
            Err(anyhow!("{error} (an older server does not send them)")),
        ),
    }
}

/// Writes the archive for its owner only, and returns the names of its files.
fn write(report: SupportReport, path: &Path) -> anyhow::Result<Vec<String>> {
    let what = || format!("cannot write the report {}; --output names another file", path.display());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(what)?;
    let (file, names) = report.write(file).with_context(what)?;
    file.sync_all().with_context(what)?;
    Ok(names)
}

fn summary(stat: &Stat) -> String {
    Summary::new(stat).lines().into_iter().map(|(name, text)| format!("{name:13} {text}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn report_archive_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.tar.gz");
        let names = write(SupportReport::of_this_machine(), &path).unwrap();
        assert_eq!(names, ["machine.txt"]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = write(SupportReport::of_this_machine(), &path);
        assert!(again.unwrap_err().to_string().contains("--output"), "it exists");
    }

    #[test]
    fn end_of_a_log_is_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let line = "x".repeat(99) + "\n";
        fs::write(&path, line.repeat(50_000)).unwrap();
        let end = end_of(&path).unwrap();
        assert!(end.len() as u64 <= LOG_BYTES_MAX && end.starts_with(&line) && end.ends_with('\n'));
        fs::write(&path, "short").unwrap();
        assert_eq!(end_of(&path).unwrap(), "short");
    }
}
