//! What every `.rs` file obeys.

use std::path::Path;

use anyhow::Result;

use super::exceptions::Exceptions;
use super::layers::{NETWORKED, is_network_crate};
use super::source::{Source, has_word};
use super::{Finding, read};

/// Longest file without an exception, in lines without tests.
const LINES_MAX: usize = 800;

/// An `unsafe` is explained at most so many lines above it.
const SAFETY_LINES_MAX: usize = 10;

/// Words in comments that mark unfinished work.
const MARKERS: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// Macros that are for a developer's eyes only.
const MACROS: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];

/// Folders whose code takes the clock, the disk and randomness as arguments.
const BELOW_THE_BINARIES: [&str; 9] =
    ["base", "buffer", "device", "space", "pool", "engine", "api", "client", "server"];

pub(super) fn check(root: &Path, files: &[String], exceptions: &Exceptions) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| path.ends_with(".rs")) {
        let text = read(root, path)?;
        let file = File { path, source: Source::parse(&text), exceptions };
        findings.extend(file.check_text(&text));
        findings.extend(file.check_length());
        findings.extend(file.check_unsafe());
        findings.extend(file.check_environment());
        findings.extend(file.check_network());
    }
    Ok(findings)
}

struct File<'a> {
    path: &'a str,
    source: Source,
    exceptions: &'a Exceptions,
}

impl File<'_> {
    /// A finding at a 0-based line.
    fn at(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding::new(self.path, line + 1, message)
    }

    /// The crate's folder, for files of a crate.
    fn folder(&self) -> Option<&str> {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next())
    }

    /// Whether the whole file is for tests, benchmarks, examples or the build.
    fn is_development(&self) -> bool {
        let mut parts = self.path.rsplit('/');
        let name = parts.next().unwrap_or_default();
        matches!(name, "tests.rs" | "build.rs")
            || parts.any(|folder| matches!(folder, "tests" | "benches" | "examples"))
    }

    fn check_text(&self, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !text.starts_with("//!") {
            findings
                .push(self.at(0, "begins without `//!`: what is this file, what must hold, what is it not?"));
        }
        for (line, text) in text.lines().enumerate() {
            if let Some(c) = text.chars().find(|c| !c.is_ascii()) {
                findings.push(self.at(line, format!("{c:?} is not ASCII")));
            }
        }
        for (line, comment) in self.source.comments.iter().enumerate() {
            if let Some(marker) = MARKERS.iter().find(|marker| has_word(comment, marker)) {
                findings.push(self.at(line, format!("{marker}: finish it or file an issue")));
            }
        }
        for (line, code) in self.source.code.iter().enumerate() {
            if let Some(name) = MACROS.iter().find(|name| has_word(code, name)) {
                findings.push(self.at(line, format!("{name} is not for the repository")));
            }
        }
        findings
    }

    fn check_length(&self) -> Option<Finding> {
        let lines = self.source.product_lines();
        let allowed = self.is_development() || self.exceptions.allow("lines", self.path);
        if lines > LINES_MAX && !allowed {
            let message =
                format!("{lines} lines without tests, at most {LINES_MAX}: is it still one noun or verb?");
            return Some(Finding::new(self.path, 0, message));
        }
        let stale = lines <= LINES_MAX && self.exceptions.name("lines", self.path);
        stale.then(|| Finding::new(self.path, 0, "is short enough: remove it from tidy.toml [lines]"))
    }

    fn check_unsafe(&self) -> Vec<Finding> {
        let allowed = self.exceptions.allow("unsafe", self.path);
        let mut findings = Vec::new();
        if self.exceptions.name("unsafe", self.path) && self.source.lines_with("unsafe").next().is_none() {
            findings.push(Finding::new(self.path, 0, "has no `unsafe`: remove it from tidy.toml [unsafe]"));
        }
        for line in self.source.lines_with("unsafe") {
            if !allowed {
                findings.push(self.at(line, "`unsafe` outside the files that tidy.toml [unsafe] lists"));
            } else if !self.explains_safety(line) {
                findings
                    .push(self.at(line, "`unsafe` without a `// SAFETY:` (or `# Safety`) comment above it"));
            }
        }
        findings
    }

    fn explains_safety(&self, line: usize) -> bool {
        let first = line.saturating_sub(SAFETY_LINES_MAX);
        self.source.comments[first..=line]
            .iter()
            .any(|comment| comment.contains("SAFETY:") || comment.contains("# Safety"))
    }

    /// Clock and disk come in as arguments; only the clock's own file and the device layer name them.
    fn check_environment(&self) -> Vec<Finding> {
        let below = self.folder().is_some_and(|folder| BELOW_THE_BINARIES.contains(&folder));
        if !below || self.is_development() {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for (line, code) in self.source.code.iter().enumerate() {
            if self.source.test[line] {
                continue;
            }
            let time = code.contains("Instant::now") || has_word(code, "SystemTime");
            if time && !self.exceptions.allow("time", self.path) {
                findings.push(self.at(line, "reads the clock: take a `shoal_base::Clock` as an argument"));
            }
            if has_word(code, "fs") && !self.exceptions.allow("fs", self.path) {
                findings.push(self.at(line, "uses the file system: only the device layer does"));
            }
        }
        findings
    }

    /// What the manifests forbid cannot be named; this finds it where features or re-exports bring it in.
    fn check_network(&self) -> Vec<Finding> {
        let Some(folder) = self.folder() else { return Vec::new() };
        if NETWORKED.contains(&format!("shoal-{folder}").as_str()) {
            return Vec::new();
        }
        let names =
            |code: &String| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_network_crate);
        let lines = self.source.code.iter().enumerate().filter(|(_, code)| names(code));
        lines.map(|(line, _)| self.at(line, "names tokio or tonic: only the faces know a network")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    fn findings_of(path: &str, text: &str) -> Vec<String> {
        findings_in(&[(path, text)])
    }

    #[test]
    fn headers_markers_and_characters() {
        let findings =
            findings_of("crates/pool/src/a.rs", "// TODO: later\nfn a() { dbg!(1); }\n// na\u{ef}ve\n");
        assert_eq!(findings.len(), 4, "{findings:?}");
        assert!(findings_of("crates/pool/src/a.rs", "//! A.\nconst A: &str = \"TODO dbg!(\";\n").is_empty());
    }

    #[test]
    fn long_files_need_an_exception_and_tests_do_not_count() {
        let long = format!("//! A.\n{}", "fn a() {}\n".repeat(800));
        assert!(findings_of("crates/pool/src/a.rs", &long)[0].contains("801 lines"));
        assert!(findings_of("crates/pool/tests/a.rs", &long).is_empty());
        let tests = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn a() {}\n".repeat(800));
        assert!(findings_of("crates/pool/src/a.rs", &tests).is_empty());
        let exception = ("tidy.toml", "[lines]\n'crates/pool/src/a.rs' = 'one table of 800 rows'");
        assert!(findings_in(&[("crates/pool/src/a.rs", &long), exception]).is_empty());
        assert!(findings_in(&[("crates/pool/src/a.rs", "//! A.\n"), exception])[0].contains("remove it"));
    }

    #[test]
    fn unsafe_is_listed_and_explained() {
        let code = "//! A.\nfn a() {\n    unsafe { b() }\n}\n";
        assert!(
            findings_of("crates/pool/src/a.rs", code)[0]
                .starts_with("crates/pool/src/a.rs:3: `unsafe` outside")
        );
        let exception = ("tidy.toml", "[unsafe]\n'crates/pool/src/*.rs' = 'frames are raw memory'");
        assert!(
            findings_in(&[("crates/pool/src/a.rs", code), exception])[0].contains("without a `// SAFETY:`")
        );
        let explained = code.replace("    unsafe", "    // SAFETY: b has no conditions.\n    unsafe");
        assert!(findings_in(&[("crates/pool/src/a.rs", &explained), exception]).is_empty());
        let stale = ("tidy.toml", "[unsafe]\n'crates/pool/src/a.rs' = 'frames are raw memory'");
        assert!(findings_in(&[("crates/pool/src/a.rs", "//! A.\n"), stale])[0].contains("remove it"));
    }

    #[test]
    fn clock_disk_and_network_are_arguments_below_the_binaries() {
        let code = "//! A.\nuse std::{fs, io};\nfn a() { Instant::now(); tokio::spawn(b); }\n";
        assert_eq!(findings_of("crates/engine/src/a.rs", code).len(), 3);
        assert_eq!(
            findings_of("crates/engine/tests/a.rs", code).len(),
            1,
            "tests may have a clock, but no tokio"
        );
        assert_eq!(findings_of("crates/server/src/a.rs", code).len(), 2);
        assert!(findings_of("cli/src/a.rs", code).is_empty());
        let test = "//! A.\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert!(findings_of("crates/engine/src/a.rs", test).is_empty());
    }
}
