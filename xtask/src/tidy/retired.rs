//! Names that were given up stay away: as whole words, in code, comments and documents.
//!
//! `tidy.toml` [retired] lists them, each with its successor. Logs and decisions may speak of the past. [`super::names`] finds a name in
//! a document that no code has; this rule finds one that comes back into the code.

use super::exceptions::Exceptions;
use super::{Finding, Tree};

/// Files and folders that keep the names of their day, and the list itself.
const PAST: [&str; 5] =
    ["CHANGELOG.md", "docs/adr/", "docs/measurements/", "tidy.toml", "xtask/src/tidy/retired.rs"];

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let texts = tree.texts.iter().filter(|(path, _)| !PAST.iter().any(|past| path.starts_with(past)));
    let lines = texts.flat_map(|(path, text)| text.lines().enumerate().map(move |line| (path, line)));
    let findings = lines.flat_map(|(path, (line, text))| {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let retired =
            words.filter_map(|word| exceptions.reason("retired", word).map(|reason| (word, reason)));
        retired.map(move |(word, reason)| {
            Finding::new(path, line + 1, format!("{word} is a name that was given up: {reason}"))
        })
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    #[test]
    fn names_that_were_given_up_are_found_as_whole_words() {
        let list = ("tidy.toml", "[retired]\nput_later = 'it is called try_put'");
        let code = "//! A: `put_later`, put_later_on.\nfn put_later() {}\n";
        let past = ("docs/adr/a.md", "Once put_later.\n");
        let findings = findings_in(&[("crates/pool/src/a.rs", code), past, list]);
        let message = "put_later is a name that was given up: it is called try_put";
        let expected = [1, 2].map(|line| format!("crates/pool/src/a.rs:{line}: {message}"));
        assert_eq!(findings, expected);
    }
}
