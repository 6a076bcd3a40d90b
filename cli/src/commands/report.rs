//! `shoal report`: one archive for a support case: figures, space, configuration, the last lines of the log, and the
//! machine.
//!
//! The archive holds no secrets: options name files with passwords, tokens and keys, and these files are not read. Keys
//! of objects may occur in the log's lines. `missing.txt` names each part that the report could not get.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use shoal_client::Stat;
use shoal_transfer::objects::Objects;
use shoal_transfer::text::one_line;

use crate::arguments::target::StoreArguments;
use crate::commands::stat::store_json;
use crate::output::space_map::read_space;
use crate::output::summary::Summary;
use crate::output::{Output, show_time};
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
    let mut report = Report::default();
    report.about_machine();
    if let Some(path) = &arguments.log_file {
        let log = end_of(path).with_context(|| format!("cannot read {}", path.display()));
        report.add("log-file.log", log);
    }
    match arguments.store.open(Access::Read).await {
        Ok(objects) => {
            report.about_store(&objects).await;
            report.note("the store could not be closed", objects.close().await.map_err(Into::into));
        }
        Err(error) => report.note("the store could not be reached", Err(error)),
    }
    let path = arguments.output.unwrap_or_else(|| default_path(now_ns()));
    let names = report.write(&path)?;
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({ "report": path.display().to_string(), "parts": names }))?;
    } else {
        output.line(&format!("{}: {}", path.display(), names.join(", ")))?;
    }
    output.finish()
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn default_path(now_ns: u64) -> PathBuf {
    let time: String = show_time(now_ns).chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    format!("shoal-report-{time}.tar.gz").into()
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

/// The texts of a report, each with the name of its file.
#[derive(Default)]
struct Report {
    texts: Vec<(String, String)>,
    missing: Vec<String>,
}

impl Report {
    /// Adds a text, or the reason why it is missing.
    fn add(&mut self, name: &str, text: anyhow::Result<String>) {
        match text {
            Ok(text) => self.texts.push((name.to_owned(), text)),
            Err(error) => self.note(name, Err(error)),
        }
    }

    fn note(&mut self, what: &str, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.missing.push(format!("{what}: {}", one_line(&error)));
        }
    }

    fn about_machine(&mut self) {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}\n"));
        let memory: String = read("/proc/meminfo").lines().take(5).map(|line| format!("{line}\n")).collect();
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let text = format!(
            "report of       shoal {}\nwritten         {}\nkernel          {}cores           {cores}\n{memory}",
            env!("CARGO_PKG_VERSION"),
            show_time(now_ns()),
            read("/proc/version"),
        );
        self.texts.push(("machine.txt".into(), text));
    }

    async fn about_store(&mut self, objects: &Objects) {
        let stat = objects.stat().await.context("cannot get the figures");
        if let Ok(stat) = &stat {
            self.texts.push(("summary.txt".into(), summary(stat)));
        }
        let map = read_space(objects, None).await.context("cannot read the free runs");
        self.add("space.json", map.map(|map| format!("{:#}\n", map.json())));
        self.add("figures.json", stat.map(|stat| format!("{:#}\n", store_json(&stat, None))));
        match objects.report().await {
            Ok(parts) => self.texts.extend(parts.into_iter().map(|(name, text)| (file_name(&name), text))),
            Err(error) => self.note(
                "the server's configuration and log",
                Err(anyhow!("{error} (an older server does not send them)")),
            ),
        }
    }

    /// Writes the archive for its owner only, and returns the names of its files.
    fn write(mut self, path: &Path) -> anyhow::Result<Vec<String>> {
        if !self.missing.is_empty() {
            self.texts.push(("missing.txt".into(), self.missing.join("\n") + "\n"));
        }
        let what = || format!("cannot write the report {}; --output names another file", path.display());
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(what)?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        for (name, text) in &self.texts {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now_ns() / 1_000_000_000);
            let name = format!("shoal-report/{name}");
            archive.append_data(&mut header, name, text.as_bytes()).with_context(what)?;
        }
        let mut file = archive.into_inner().and_then(GzEncoder::finish).with_context(what)?;
        file.flush().and_then(|()| file.sync_all()).with_context(what)?;
        Ok(self.texts.into_iter().map(|(name, _)| name).collect())
    }
}

fn summary(stat: &Stat) -> String {
    Summary::new(stat).lines().into_iter().map(|(name, text)| format!("{name:13} {text}\n")).collect()
}

/// A server's name of a text as a safe name of a file in the archive's folder.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().take(100).map(plain).collect::<String>().trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn report_archive_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.tar.gz");
        let report = || {
            let mut report = Report::default();
            report.about_machine();
            report.add("b.txt", Err(anyhow!("it is gone")));
            report
        };
        assert_eq!(report().write(&path).unwrap(), ["machine.txt", "missing.txt"]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(report().write(&path).unwrap_err().to_string().contains("--output"), "it exists");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&path).unwrap()));
        let texts: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect();
        assert_eq!(texts[1], ("shoal-report/missing.txt".to_owned(), "b.txt: it is gone\n".to_owned()));
        assert!(texts[0].1.contains("cores") && texts[0].1.contains("MemTotal"), "{}", texts[0].1);
    }

    #[test]
    fn report_sanitizes_names_and_endings() {
        assert_eq!(file_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name("server.log"), "server.log");
        assert_eq!(default_path(0), PathBuf::from("shoal-report-19700101T000000Z.tar.gz"));
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
