//! The rules of every `.rs` file.

use super::exceptions::Exceptions;
use super::source::{Source, has_word};
use super::{Finding, Tree};

/// Longest file, in lines without tests.
const LINES_MAX: usize = 800;

/// Longest function, in lines from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Words in comments that mark unfinished work.
const MARKERS: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// Folders whose code takes the clock, the disk and randomness as arguments.
const BELOW_THE_BINARIES: &str =
    "base buffer device space pool common space-manager tree log value image engine api http client server";

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in &tree.sources {
        let file = File { path, source, exceptions };
        findings.extend(file.check_text(&tree.texts[path]));
        findings.extend(file.check_length());
        findings.extend(file.check_functions());
        findings.extend(file.check_unsafe());
        findings.extend(file.check_environment());
    }
    findings
}

struct File<'a> {
    path: &'a str,
    source: &'a Source,
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

    /// Whether the whole file is for tests, benchmarks or examples.
    fn is_development(&self) -> bool {
        let mut parts = self.path.rsplit('/');
        let name = parts.next().unwrap_or_default();
        name == "tests.rs" || parts.any(|folder| matches!(folder, "tests" | "benches" | "examples"))
    }

    fn check_text(&self, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !text.starts_with("//!") {
            findings.push(self.at(0, "starts without `//!`: name the file's subject and its invariants"));
        }
        for (line, comment) in self.source.comments.iter().enumerate() {
            if let Some(marker) = MARKERS.iter().find(|marker| has_word(comment, marker)) {
                findings.push(self.at(line, format!("{marker}: finish it or file an issue")));
            }
        }
        findings
    }

    fn check_length(&self) -> Option<Finding> {
        let lines = self.source.product_lines();
        let message =
            || format!("{lines} lines without tests, at most {LINES_MAX}: is it still one noun or verb?");
        (lines > LINES_MAX && !self.is_development()).then(|| Finding::new(self.path, 0, message()))
    }

    /// Functions of the product and its tools are short enough to read at once.
    fn check_functions(&self) -> Vec<Finding> {
        let is_product = self.path.contains("/src/") && !self.path.split('/').any(|part| part == "tests");
        if self.is_development() || self.path.ends_with("_tests.rs") || !is_product {
            return Vec::new();
        }
        let long = self.source.functions().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        let why =
            |lines| format!("a function of {lines} lines, at most {FUNCTION_LINES_MAX}: name its parts");
        long.map(|(line, lines)| self.at(line, why(lines))).collect()
    }

    fn check_unsafe(&self) -> Vec<Finding> {
        let mut lines = self.source.lines_with("unsafe").peekable();
        if self.exceptions.name("unsafe", self.path) && lines.peek().is_none() {
            return vec![self.at(0, "has no `unsafe`: remove it from tidy.toml [unsafe]")];
        }
        let outside = lines.filter(|_| !self.exceptions.allow("unsafe", self.path));
        let why = "`unsafe` outside the files that tidy.toml [unsafe] lists";
        outside.map(|line| self.at(line, why)).collect()
    }

    /// Clock and disk come in as arguments; only the clock's own file and the device layer name them.
    fn check_environment(&self) -> Vec<Finding> {
        let below =
            self.folder().is_some_and(|folder| BELOW_THE_BINARIES.split(' ').any(|name| name == folder));
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
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    fn findings_of(path: &str, text: &str) -> Vec<String> {
        findings_in(&[(path, text)])
    }

    #[test]
    fn headers_and_markers() {
        let findings = findings_of("crates/pool/src/a.rs", "// TODO: later\nfn a() {}\n");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings_of("crates/pool/src/a.rs", "//! A.\nconst A: &str = \"TODO\";\n").is_empty());
    }

    #[test]
    fn long_files_are_found_and_tests_do_not_count() {
        let long = format!("//! A.\n{}", "fn a() {}\n".repeat(800));
        assert!(findings_of("crates/pool/src/a.rs", &long)[0].contains("801 lines"));
        assert!(findings_of("crates/pool/tests/a.rs", &long).is_empty());
        let tests = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn a() {}\n".repeat(800));
        assert!(findings_of("crates/pool/src/a.rs", &tests).is_empty());
    }

    #[test]
    fn long_functions_are_found_and_tests_do_not_count() {
        let function = |lines: usize| {
            format!("    pub async fn b(\n    ) {{\n{}    }}\n", "        c();\n".repeat(lines - 3))
        };
        let file = |lines| format!("//! A.\nimpl A {{\n{}}}\ntrait C {{\n    fn d();\n}}\n", function(lines));
        assert!(findings_of("crates/pool/src/a.rs", &file(70)).is_empty());
        let findings = findings_of("crates/pool/src/a.rs", &file(71));
        assert!(findings[0].starts_with("crates/pool/src/a.rs:3: a function of 71 lines"), "{findings:?}");
        assert_eq!(findings.len(), 1, "{findings:?}");
        for path in ["crates/pool/tests/a.rs", "crates/pool/src/tests/a.rs", "crates/pool/src/a_tests.rs"] {
            assert!(findings_of(path, &file(71)).is_empty(), "{path}");
        }
        let test = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", function(71));
        assert!(findings_of("crates/pool/src/a.rs", &test).is_empty());
    }

    #[test]
    fn unsafe_is_listed() {
        let code = "//! A.\nfn a() {\n    unsafe { b() }\n}\n";
        let findings = findings_of("crates/pool/src/a.rs", code);
        assert!(findings[0].starts_with("crates/pool/src/a.rs:3: `unsafe` outside"), "{findings:?}");
        let exception = ("tidy.toml", "[unsafe]\n'crates/pool/src/*.rs' = 'frames are raw memory'");
        assert!(findings_in(&[("crates/pool/src/a.rs", code), exception]).is_empty());
        let stale = ("tidy.toml", "[unsafe]\n'crates/pool/src/a.rs' = 'frames are raw memory'");
        assert!(findings_in(&[("crates/pool/src/a.rs", "//! A.\n"), stale])[0].contains("remove it"));
    }

    #[test]
    fn clock_and_disk_are_arguments_below_the_binaries() {
        let code = "//! A.\nuse std::{fs, io};\nfn a() { Instant::now(); }\n";
        assert_eq!(findings_of("crates/engine/src/a.rs", code).len(), 2);
        for path in ["crates/engine/tests/a.rs", "cli/src/a.rs"] {
            assert!(findings_of(path, code).is_empty(), "{path}");
        }
        let test = "//! A.\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert!(findings_of("crates/engine/src/a.rs", test).is_empty());
    }
}
