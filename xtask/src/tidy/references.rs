//! The repository explains itself: nothing in it refers to texts outside of it.
//!
//! `docs/sources.md` introduces the public texts that Shoal answers. A file that speaks of "the seed" links that page;
//! everything else names the source itself (RAMCloud's Buffer, the key-value service of the gRPC series, ...).

use super::exceptions::Exceptions;
use super::{Finding, Tree};

/// The page that introduces the sources.
const SOURCES: &str = "docs/sources.md";

/// Texts outside of the repository.
const OUTSIDE: [&str; 13] = [
    "../shared",
    "work/shared",
    "shared/",
    "engine.md",
    "design.md",
    "allocator.md",
    "bufferpool.md",
    "deps.md",
    "grpc-kv.md",
    "losf-peers.md",
    "object-storage.md",
    "ramcloud.md",
    "style.md",
];

/// How a text speaks of a source without naming it. A seed of random numbers is something else.
const NAMELESS: [&str; 14] = [
    "the seed's",
    "the seeds'",
    "in the seed ",
    "seed programs",
    "the seed says",
    "the seed compares",
    "the seed weighs",
    "the seed does",
    "the seed has ",
    "the seed asks",
    "the seed names",
    "the seed calls",
    "as in the seed",
    "than the seed",
];

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        if path == SOURCES || path.starts_with("xtask/src/tidy/") || exceptions.allow("sources", path) {
            continue;
        }
        let linked = text.contains("sources.md");
        for (line, text) in text.lines().enumerate() {
            let lower = text.to_lowercase();
            let outside = OUTSIDE.iter().find(|name| names(text, name)).map(|name| (*name).to_owned());
            let nameless =
                NAMELESS.iter().find(|name| !linked && lower.contains(*name)).map(|name| (*name).to_owned());
            if let Some(what) = outside.or_else(|| numbered(&lower)).or(nameless) {
                let message = format!("{what:?}: name the source, or link docs/sources.md");
                findings.push(Finding::new(path, line + 1, message));
            }
        }
    }
    findings
}

/// Whether `word` names a text outside of the repository: this module reports it.
pub(super) fn is_outside(word: &str) -> bool {
    OUTSIDE.iter().any(|name| names(word, name))
}

/// Whether `line` names the file or folder, not another one whose name ends so.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '/') && !name.starts_with('.'))
    })
}

/// A source by its number: `seed 000`.
fn numbered(line: &str) -> Option<String> {
    ["seed 00", "seeds 00"].iter().find_map(|start| {
        let digit = line.split_once(start)?.1.chars().next()?;
        digit.is_ascii_digit().then(|| format!("{start}{digit}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    #[test]
    fn texts_outside_are_not_named() {
        let code = "//! A (engine.md, \"The idea\").\n// As seeds 000 and 002 say.\n// The seed's load.\n// As the seed does.\n// `shared/deps.md`.\n";
        let findings = findings_in(&[("crates/pool/src/a.rs", code)]);
        assert_eq!(findings.iter().filter(|finding| finding.contains("name the source")).count(), 5);
        let fine = "//! A: a seed of random numbers, the sequence of `seed`.\nfn a(seed: u64) {}\n";
        assert!(findings_in(&[("crates/pool/src/a.rs", fine)]).is_empty());
    }

    #[test]
    fn a_file_that_links_the_sources_may_speak_of_the_seed() {
        let page = "The seed's load ([sources](sources.md)).\n";
        assert!(
            findings_in(&[("docs/x.md", page), ("docs/sources.md", "Seed 000, ../shared.\n")]).is_empty()
        );
        let exception = ("tidy.toml", "[sources]\n'docs/x.md' = 'a record of another day'");
        assert!(findings_in(&[("docs/x.md", "In the seed this is so.\n"), exception]).is_empty());
    }
}
