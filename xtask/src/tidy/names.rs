//! Documents and comments name things that exist: files, items of the code, options of the programs.
//!
//! A file is named by its path or a part of it; a bare name must exist somewhere. An item is a code span with `::` or `()`, or
//! one word in the form of a Rust name; each of its words must occur in some code, which finds names that are gone without a
//! list of all items. An option is a code span that starts with `--`, or a word of a command line of one of the repository's
//! programs; their code must have a literal or a field of that name. `tidy.toml` lists names of other programs in [foreign] and
//! files about the past in [names].

use std::collections::BTreeSet;

use super::exceptions::Exceptions;
use super::prose::{Paragraph, comments, fenced, paragraphs};
use super::{Finding, Tree};

/// Ends of the names of files that are checked wherever they stand.
const FILES: [&str; 3] = [".rs", ".md", ".proto"];

/// Folders of the repository; a word that starts with one is a path.
const FOLDERS: &str = ".ci/ cli/ clients/ compare/ crates/ docs/ experiments/ fuzz/ models/ xtask/";

/// Paths that begin with one of these names are another library's.
const LIBRARIES: &str = "std core alloc tokio tonic rustls libc clap mio parking_lot";

/// Programs of the repository, as command lines begin with them.
const OWN_PROGRAMS: [&str; 5] = ["shoal", "./shoal", "experiments", "cargo x", "xtask"];

/// Folders of the programs that define options.
const OPTIONS: &str = ".ci/ cli/src/ clients/ compare/src/ crates/bench/src/ crates/buffer/src/bin/ \
    experiments/ models/ schedules/ xtask/src/";

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let known = Known::read(tree, exceptions);
    let mut findings = Vec::new();
    let mut report = |path: &str, wrong: Vec<(usize, String)>| {
        findings.extend(wrong.into_iter().map(|(line, message)| Finding::new(path, line + 1, message)));
    };
    for (path, text) in tree.docs().filter(|(path, _)| !exceptions.allow("names", path)) {
        for paragraph in paragraphs(text) {
            report(path, known.missing(path, &paragraph));
        }
        for (line, text) in fenced(text) {
            let missing = known.missing_options(text);
            report(path, missing.into_iter().map(|message| (line, message)).collect());
        }
    }
    for (path, source) in tree.sources.iter().filter(|(path, _)| !exceptions.allow("names", path)) {
        for comment in comments(source) {
            report(path, known.missing(path, &comment));
        }
    }
    findings
}

/// The names that exist.
struct Known<'a> {
    tree: &'a Tree,
    exceptions: &'a Exceptions,
    /// Words of all code, with those in strings.
    words: BTreeSet<&'a str>,
    /// Words of the code that defines options, with dashes.
    options: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn read(tree: &'a Tree, exceptions: &'a Exceptions) -> Self {
        let mut words = BTreeSet::new();
        let mut options = BTreeSet::from(["--help", "--version"]);
        for (path, text) in tree.texts.iter().filter(|(path, _)| !path.ends_with(".md")) {
            let comments = tree.sources.get(path).map(|source| &source.comments);
            // The code of a line ends where its comment starts.
            let code = text.lines().enumerate().map(|(line, text)| {
                let comment = comments.and_then(|lines| lines.get(line)?.find(|c: char| c != ' '));
                comment.and_then(|begin| text.get(..begin)).unwrap_or(text)
            });
            let code: Vec<&str> = code.collect();
            let ends = |c: char| !c.is_alphanumeric() && c != '_';
            words.extend(code.iter().flat_map(|line| line.split(ends)));
            // Behind a backslash a word starts with the letter of the escape.
            let escaped = code.iter().flat_map(|line| line.split('\\').skip(1));
            words.extend(escaped.filter_map(|rest| rest.get(1..)?.split(ends).next()));
            if OPTIONS.split(' ').any(|folder| path.starts_with(folder))
                && !path.starts_with("xtask/src/tidy/")
            {
                let ends = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_');
                options.extend(code.iter().flat_map(|line| line.split(ends)));
            }
        }
        Self { tree, exceptions, words, options }
    }

    /// The missing names in `paragraph` of the file `path`, by line.
    fn missing(&self, path: &str, paragraph: &Paragraph<'_>) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (line, text) in paragraph.lines() {
            for word in text.split(|c: char| {
                c.is_whitespace() || matches!(c, '`' | '(' | ')' | '[' | ']' | ',' | ';' | '"')
            }) {
                let word = word.trim_end_matches(['.', ':']).trim_end_matches("'s");
                if is_file(word) && !self.is_foreign(word) && !self.has_file(path, word) {
                    found.push((*line, format!("there is no file {word}")));
                }
            }
        }
        for (line, span) in paragraph.code_spans() {
            if self.is_foreign(&span) {
                continue;
            }
            if let Some(name) = item(&span)
                && name.first().is_none_or(|first| LIBRARIES.split(' ').all(|library| library != *first))
                && let Some(word) =
                    name.iter().find(|word| !self.words.contains(*word) && !self.is_foreign(word))
            {
                found.push((line, format!("`{span}`: no code has the name {word}")));
            }
            let missing = self.missing_options(&span);
            found.extend(missing.into_iter().map(|message| (line, message)));
        }
        found
    }

    fn is_foreign(&self, name: &str) -> bool {
        self.exceptions.name("foreign", name)
    }

    fn has_file(&self, from: &str, name: &str) -> bool {
        let name = name.trim_start_matches("./");
        let end = format!("/{name}");
        let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
        self.tree.root.join(name).exists()
            || self.tree.root.join(folder).join(name).exists()
            || self.tree.files.iter().any(|file| file.ends_with(&end))
    }

    /// The options of a command line, or of a span that is an option, that no program has.
    fn missing_options(&self, line: &str) -> Vec<String> {
        let line = line.trim().trim_start_matches("$ ");
        let program = line.split_whitespace().next().unwrap_or_default();
        let own = OWN_PROGRAMS
            .iter()
            .any(|own| line.strip_prefix(own).is_some_and(|rest| rest.starts_with([' ', '`'])));
        let line = match line.split_once(" -- ") {
            Some((_, behind)) if !own => behind,
            _ if own || program.starts_with("--") => line,
            _ => return Vec::new(),
        };
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_'));
        let options = words.filter(|word| {
            word.starts_with("--") && word.as_bytes().get(2).is_some_and(u8::is_ascii_lowercase)
        });
        // A literal with or without dashes, or a field of clap's structures.
        let is_known = |option: &str| {
            let name = &option[2..];
            [option, name, &name.replace('-', "_")].iter().any(|word| self.options.contains(word))
        };
        let missing = options.filter(|option| !is_known(option) && !self.is_foreign(option));
        missing.map(|option| format!("no program has the option {option}")).collect()
    }
}

/// Whether a word names a file that should exist.
fn is_file(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_'));
    let ends = FILES.iter().any(|end| word.len() > end.len() && word.ends_with(end));
    let path = FOLDERS.split(' ').any(|folder| word.starts_with(folder)) && !word.ends_with('/');
    plain && (ends || path) && !word.starts_with('/') && !word.contains("CRATE") && !word.contains("YYYY")
}

/// The words of a span that names an item: `a::b`, `a()`, `TwoHumps`, `two_words`.
fn item(span: &str) -> Option<Vec<&str>> {
    let head = match span.find(['(', '<', '!']) {
        Some(at) if span[at..].starts_with('(') && !span.ends_with([')', '?']) => return None,
        Some(at) => &span[..at],
        None => span,
    };
    let head = head.trim_start_matches('&').trim_start_matches("mut ").trim_end_matches("::");
    let words: Vec<&str> = head.split("::").collect();
    let is_name = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let (first, rest) = words.split_first()?;
    let call = span.contains('(');
    let capitals = first.chars().filter(char::is_ascii_uppercase).count();
    let lower = first.chars().any(|c| c.is_ascii_lowercase());
    let humps = capitals >= 2 && lower && first.starts_with(|c: char| c.is_ascii_uppercase());
    let form = !rest.is_empty() || call || humps || first.contains('_');
    (form && words.iter().all(is_name)).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    const CODE: &str = "//! A.\npub struct TwoHumps;\nimpl TwoHumps {\n    pub fn two_words() {}\n}\n";
    const OPTIONS_OF: &str = "//! B.\nstruct Options {\n    /// Where.\n    #[arg(long, value_name = \"X\")]\n    data_dir: u8,\n    \
        #[arg(\n        long = \"other\",\n    )]\n    this: u8,\n}\n";

    fn findings_of(path: &str, text: &str) -> Vec<String> {
        findings_in(&[("crates/pool/src/a.rs", CODE), ("cli/src/b.rs", OPTIONS_OF), (path, text)])
    }

    #[test]
    fn files_exist() {
        let good = "`crates/pool/src/a.rs`, src/a.rs and a.rs; `crates/CRATE/src/x.rs`, any `.rs` file, `cert.pem`.\n";
        assert_eq!(findings_of("docs/x.md", good), Vec::<String>::new());
        let findings = findings_of("docs/x.md", "In `crates/pool/src/c.rs`,\nnot in c.rs.\n");
        assert_eq!(
            findings,
            ["docs/x.md:1: there is no file crates/pool/src/c.rs", "docs/x.md:2: there is no file c.rs"]
        );
        assert_eq!(findings_of("crates/pool/src/d.rs", "//! As `x/c.rs` says.\n").len(), 1);
    }

    #[test]
    fn items_exist() {
        let good = "`TwoHumps::two_words()`, `two_words(a, b)`, `std::mem::take`, `1 + 2()`, `Vec<TwoHumps>`, `SET key`.\n";
        assert_eq!(findings_of("docs/x.md", good), Vec::<String>::new());
        let bad = "`TwoHumps::three()`, `ThreeHumps`, `three_words` and `three()`.\n";
        assert_eq!(findings_of("docs/x.md", bad).len(), 4);
        assert_eq!(
            findings_of("crates/pool/src/d.rs", "//! Not a definition: `three_words()`, three_words.\n")
                .len(),
            1
        );
        let foreign = (
            "tidy.toml",
            "[foreign]\n'three()' = 'a system call'\n[names]\n'docs/old.md' = 'a record of the past'",
        );
        assert!(
            findings_in(&[("docs/x.md", "`three()`\n"), ("docs/old.md", "`four()`\n"), foreign]).is_empty()
        );
    }

    #[test]
    fn options_exist() {
        let good = "`--data-dir X`, `shoal serve --other=1`, `cargo x --help`, `cargo build --release`, `a --b`.\n```\n$ shoal x --other\ngit log --oneline\n```\n";
        assert_eq!(findings_of("docs/x.md", good), Vec::<String>::new());
        let bad = "`--none-such`\n`shoal --x 1`\n```\nshoal --data\ncargo run -- --data-dir --none\n```\n";
        assert_eq!(findings_of("docs/x.md", bad).len(), 4);
    }
}
