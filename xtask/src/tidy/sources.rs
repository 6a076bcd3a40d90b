//! The rules of every `.rs` file.

use super::exceptions::Exceptions;
use super::layers::{NETWORKED, is_network_crate};
use super::source::{Source, has_word};
use super::{Finding, Tree};

/// Longest file without an exception, in lines without tests.
const LINES_MAX: usize = 800;

/// Longest function without an exception, in lines from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// An `unsafe` is explained at most so many lines above it.
const SAFETY_LINES_MAX: usize = 10;

/// Words in comments that mark unfinished work.
const MARKERS: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// Beginnings of functions' names that lack a subject.
const NAMELESS_FUNCTIONS: [&str; 5] = ["who_", "what_", "whoever_", "whatever_", "whose_"];

/// Macros that are for a developer's eyes only.
const MACROS: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];

/// Folders whose code takes the clock, the disk and randomness as arguments.
const BELOW_THE_BINARIES: [&str; 9] =
    ["base", "buffer", "device", "space", "pool", "engine", "api", "client", "server"];

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in &tree.sources {
        let file = File { path, source, exceptions };
        findings.extend(file.check_text(&tree.texts[path]));
        findings.extend(file.check_length());
        findings.extend(file.check_functions());
        findings.extend(file.check_function_names());
        findings.extend(file.check_unsafe());
        findings.extend(file.check_environment());
        findings.extend(file.check_network());
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

    /// Functions of the product and its tools that a reader cannot overlook.
    fn check_functions(&self) -> Vec<Finding> {
        let is_product = self.path.contains("/src/") && !self.path.split('/').any(|part| part == "tests");
        if self.is_development() || self.path.ends_with("_tests.rs") || !is_product {
            return Vec::new();
        }
        let allowed = self.exceptions.allow("functions", self.path);
        let long = self.source.functions().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        let findings: Vec<Finding> = long
            .map(|(line, lines)| {
                self.at(
                    line,
                    format!("a function of {lines} lines, at most {FUNCTION_LINES_MAX}: name its parts"),
                )
            })
            .collect();
        match (allowed, findings.is_empty()) {
            (false, _) => findings,
            (true, false) => Vec::new(),
            (true, true) if self.exceptions.name("functions", self.path) => {
                let message = "has no long function: remove it from tidy.toml [functions]";
                vec![Finding::new(self.path, 0, message)]
            }
            (true, true) => Vec::new(),
        }
    }

    /// Names of functions, those of tests first of all, are sentences whose subject is a thing with a name.
    fn check_function_names(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (line, code) in self.source.code.iter().enumerate() {
            let words: Vec<&str> = code.split_whitespace().collect();
            let names = words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1]);
            let begins = |name: &str| NAMELESS_FUNCTIONS.iter().find(|begin| name.starts_with(**begin));
            for begin in names.filter_map(begins) {
                findings.push(
                    self.at(line, format!("a function whose name begins with `{begin}`: name the thing")),
                );
            }
        }
        findings
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

    /// Names of network crates, which features or re-exports could bring in past the manifests.
    fn check_network(&self) -> Vec<Finding> {
        let Some(folder) = self.folder() else { return Vec::new() };
        if NETWORKED.contains(&format!("shoal-{folder}").as_str()) {
            return Vec::new();
        }
        let names =
            |code: &String| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_network_crate);
        let lines = self.source.code.iter().enumerate().filter(|(_, code)| names(code));
        lines
            .map(|(line, _)| self.at(line, "names tokio or tonic: only the frontends know a network"))
            .collect()
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
    fn long_functions_need_an_exception_and_tests_do_not_count() {
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
        let exception = ("tidy.toml", "[functions]\n'crates/pool/src/a.rs' = 'one table of 80 rows'");
        assert!(findings_in(&[("crates/pool/src/a.rs", &file(71)), exception]).is_empty());
        assert!(findings_in(&[("crates/pool/src/a.rs", "//! A.\n"), exception])[0].contains("remove it"));
    }

    #[test]
    fn names_of_functions_begin_with_a_name() {
        let code = "//! A.\n// fn who_asks() {}\npub async fn what_is_read<T>() {}\nfn whatsoever() {}\nmod tests {\n    \
            fn whoever_waits_is_woken() { what_is_there(); }\n    fn a_reader_sees_what_is_there() {}\n}\n\
            const A: &str = \"fn whose_it_is() {}\";\ntype B = fn(what_is: u8);\n";
        for path in ["crates/pool/src/a.rs", "crates/pool/tests/a.rs"] {
            let findings = findings_of(path, code);
            let lines: Vec<&str> = findings.iter().filter_map(|finding| finding.split(':').nth(1)).collect();
            assert_eq!(lines, ["3", "6"], "{findings:?}");
        }
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
