//! The archive of a report for a support case: texts about the machine, the store and the server.
//!
//! It holds no secrets: its texts name files with passwords, tokens and keys, and these files are not read. `missing.txt` names each
//! text that the report could not get.

use std::fs;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::text::one_line;

/// The texts of a report, each with the name of its file.
#[derive(Debug, Default)]
pub struct SupportReport {
    texts: Vec<(String, String)>,
    missing: Vec<String>,
}

/// Now, in nanoseconds of the Unix epoch.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The name of the archive of a report that is written now.
pub fn archive_name() -> String {
    name_at(now_ns())
}

fn show_time(ns: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
}

fn name_at(now_ns: u64) -> String {
    let time: String = show_time(now_ns).chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    format!("shoal-report-{time}.tar.gz")
}

impl SupportReport {
    /// A report with a text about the machine: its kernel, cores and memory.
    pub fn of_this_machine() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}\n"));
        let memory: String = read("/proc/meminfo").lines().take(5).map(|line| format!("{line}\n")).collect();
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let text = format!(
            "report of       shoal {}\nwritten         {}\nkernel          {}cores           {cores}\n{memory}",
            env!("CARGO_PKG_VERSION"),
            show_time(now_ns()),
            read("/proc/version"),
        );
        Self { texts: vec![("machine.txt".into(), text)], missing: Vec::new() }
    }

    /// Adds a text, or the reason why it is missing.
    pub fn add(&mut self, name: &str, text: anyhow::Result<String>) {
        match text {
            Ok(text) => self.texts.push((file_name(name), text)),
            Err(error) => self.note(name, Err(error)),
        }
    }

    /// Notes the reason why something is missing, if it is.
    pub fn note(&mut self, what: &str, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.missing.push(format!("{what}: {}", one_line(&error)));
        }
    }

    /// Writes the archive to `output`, and returns it with the names of the files in the archive.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write<W: Write>(mut self, output: W) -> io::Result<(W, Vec<String>)> {
        if !self.missing.is_empty() {
            self.texts.push(("missing.txt".into(), self.missing.join("\n") + "\n"));
        }
        let mut archive = tar::Builder::new(GzEncoder::new(output, Compression::default()));
        for (name, text) in &self.texts {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now_ns() / 1_000_000_000);
            archive.append_data(&mut header, format!("shoal-report/{name}"), text.as_bytes())?;
        }
        let output = archive.into_inner().and_then(GzEncoder::finish)?;
        Ok((output, self.texts.into_iter().map(|(name, _)| name).collect()))
    }
}

/// The name of a text as a safe name of a file in the archive's folder.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().take(100).map(plain).collect::<String>().trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn archive_has_all_texts_and_names_the_missing_ones() {
        let mut report = SupportReport::of_this_machine();
        report.add("../../server.log", Ok("a line\n".into()));
        report.add("b.txt", Err(anyhow!("it is gone")));
        let (bytes, names) = report.write(Vec::new()).unwrap();
        assert_eq!(names, ["machine.txt", "_.._server.log", "missing.txt"]);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let texts: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                assert_eq!(entry.header().mode().unwrap(), 0o600);
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect();
        assert_eq!(texts[1], ("shoal-report/_.._server.log".to_owned(), "a line\n".to_owned()));
        assert_eq!(texts[2], ("shoal-report/missing.txt".to_owned(), "b.txt: it is gone\n".to_owned()));
        assert!(texts[0].1.contains("cores") && texts[0].1.contains("MemTotal"), "{}", texts[0].1);
    }

    #[test]
    fn names_are_safe() {
        assert_eq!(file_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name("server.log"), "server.log");
        assert_eq!(name_at(0), "shoal-report-19700101T000000Z.tar.gz");
    }
}
