//! Subjects of commits fit into a line of `git log --oneline`. Of a merge nothing is asked: git wrote its subject.

use std::path::Path;
use std::process::Command;

use super::Finding;

/// The longest subject, in characters.
const SUBJECT_CHARACTERS_MAX: usize = 65;

/// Judges the last 20 commits; none if `root` is no checkout, or git cannot read it.
pub(super) fn check(root: &Path) -> Vec<Finding> {
    if !root.join(".git").exists() {
        return Vec::new();
    }
    let words = ["log", "-20", "--no-merges", "--format=%h %s"];
    let log = Command::new("git").arg("-C").arg(root).args(words).output();
    log.map_or_else(|_| Vec::new(), |log| long_subjects(&String::from_utf8_lossy(&log.stdout)))
}

/// The subjects of `log` (a line for each commit: hash, space, subject) that are too long.
fn long_subjects(log: &str) -> Vec<Finding> {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let counted = commits.map(|(hash, subject)| (hash, subject.chars().count()));
    let long = counted.filter(|(_, characters)| *characters > SUBJECT_CHARACTERS_MAX);
    let why =
        |characters| format!("its subject has {characters} characters, at most {SUBJECT_CHARACTERS_MAX}");
    long.map(|(hash, characters)| Finding::new(&format!("commit {hash}"), 0, why(characters))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_subject_is_found() {
        let log = format!("a1 {}\nb2 {}\nc3\n", "\u{fc}".repeat(65), "\u{fc}".repeat(66));
        let found: Vec<String> = long_subjects(&log).iter().map(Finding::to_string).collect();
        assert_eq!(found, ["commit b2: its subject has 66 characters, at most 65"]);
    }
}
