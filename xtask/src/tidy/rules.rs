//! Each rule of `docs/invariants.md` says where it is asserted and which injected bugs break it, or why neither is possible.
//!
//! The table there and the code agree: a file with an assertion names the rule, and an injected bug stands in the rows of exactly
//! the rules that its comment names.

use std::collections::BTreeSet;

use super::source::has_word;
use super::{Finding, Tree};

const DOC: &str = "docs/invariants.md";
const BUGS: &str = "crates/common/src/injected_bug.rs";
/// A reason is at least this long.
const REASON_MIN: usize = 40;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(doc), Some(bugs)) = (tree.texts.get(DOC), tree.texts.get(BUGS)) else { return Vec::new() };
    let bugs = bugs_of(bugs);
    let (mut rules, mut checked, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    for (line, text) in (1..).zip(doc.lines()) {
        findings.extend(absent_names(tree, text).map(|message| Finding::new(DOC, line, message)));
        let cells: Vec<&str> = text.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        let Some(number) = cells[0].trim_matches('*').strip_prefix("INV-").and_then(|it| it.parse().ok())
        else {
            continue;
        };
        if cells[0].starts_with("**") {
            rules.push(number);
            continue;
        }
        checked.push(number);
        let wrong = match cells[..] {
            [_, asserted, broken] => {
                [check_asserted(tree, number, asserted), check_broken(&bugs, number, broken)].concat()
            }
            _ => vec![format!("INV-{number}: the row has not three cells")],
        };
        findings.extend(wrong.into_iter().map(|message| Finding::new(DOC, line, message)));
    }
    for number in rules.iter().filter(|number| !checked.contains(number)) {
        let message = format!("INV-{number} has no row that says where it is asserted and what breaks it");
        findings.push(Finding::new(DOC, 0, message));
    }
    let named = bugs.iter().flat_map(|bug| bug.rules.iter().map(move |rule| (bug, rule)));
    for (bug, rule) in named.filter(|(_, rule)| !rules.contains(rule)) {
        findings.push(Finding::new(BUGS, 0, format!("{} breaks INV-{rule}, which does not exist", bug.name)));
    }
    findings
}

/// Items in parentheses after the name of a file that the file does not have.
fn absent_names<'a>(tree: &'a Tree, row: &'a str) -> impl Iterator<Item = String> + 'a {
    let parts = row.split(".rs` (").zip(row.split(".rs` (").skip(1));
    parts.flat_map(move |(before, after)| {
        let file = format!("{}.rs", before.rsplit('`').next().unwrap_or_default());
        let text = tree.texts.get(&file);
        let names = spans(after.split_once(')').map_or(after, |(list, _)| list));
        let is_item = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let absent = names.filter(is_item).filter(move |name| text.is_none_or(|text| !has_word(text, name)));
        let message = absent.map(move |name| format!("{file} has no {name}"));
        message.collect::<Vec<_>>()
    })
}

fn check_asserted(tree: &Tree, number: u32, cell: &str) -> Vec<String> {
    if let Some(reason) = cell.strip_prefix("none: ") {
        return check_reason(number, reason);
    }
    let files: Vec<&str> = spans(cell).filter(|span| span.ends_with(".rs")).collect();
    if files.is_empty() {
        return vec![format!("INV-{number}: no file with an assertion, and no reason (\"none: ...\")")];
    }
    let is_named = |file: &&&str| tree.texts.get(**file).is_some_and(|text| rules_in(text).contains(&number));
    let silent = files.iter().filter(|file| !is_named(file));
    silent.map(|file| format!("INV-{number}: {file} asserts it and does not name it")).collect()
}

fn check_broken(bugs: &[Bug<'_>], number: u32, cell: &str) -> Vec<String> {
    let expected: BTreeSet<&str> =
        bugs.iter().filter(|bug| bug.rules.contains(&number)).map(|bug| bug.name).collect();
    let named: BTreeSet<&str> = match cell.strip_prefix("none: ") {
        Some(reason) if expected.is_empty() => return check_reason(number, reason),
        _ => spans(cell).collect(),
    };
    let mut wrong = Vec::new();
    if named.is_empty() && expected.is_empty() {
        wrong.push(format!("INV-{number}: no injected bug, and no reason (\"none: ...\")"));
    }
    let missing =
        expected.difference(&named).map(|bug| format!("INV-{number}: {bug} breaks it and is not named"));
    wrong.extend(missing);
    let others =
        named.difference(&expected).map(|bug| format!("INV-{number}: the comment of {bug} does not name it"));
    wrong.extend(others);
    wrong
}

fn check_reason(number: u32, reason: &str) -> Vec<String> {
    let is_one = reason.len() >= REASON_MIN;
    if is_one { Vec::new() } else { vec![format!("INV-{number}: \"{reason}\" is no reason")] }
}

/// An injected bug, and the rules that its comment names.
struct Bug<'a> {
    name: &'a str,
    rules: BTreeSet<u32>,
}

fn bugs_of(source: &str) -> Vec<Bug<'_>> {
    let body = source.split_once("enum Bug {").and_then(|(_, rest)| rest.split_once("\n}"));
    let (mut bugs, mut rules) = (Vec::new(), BTreeSet::new());
    for line in body.map_or("", |(body, _)| body).lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            rules.extend(rules_in(comment));
        } else if let Some(name) = line.strip_suffix(',') {
            bugs.push(Bug { name, rules: std::mem::take(&mut rules) });
        }
    }
    bugs
}

/// The rules that a text names, as `R6` or `INV-6`.
fn rules_in(text: &str) -> BTreeSet<u32> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    let number = |word: &str| word.strip_prefix("INV-").or_else(|| word.strip_prefix('R'))?.parse().ok();
    words.filter_map(number).collect()
}

/// The code spans of a cell.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;
    use super::{BUGS, DOC};

    const BUGS_OF: &str = "//! B.\nenum Bug {\n    /// R1, INV-2: a.\n    Bad,\n    /// R2: b.\n    Worse,\n    /// c.\n    Other,\n}\n";
    const CODE: &str = "//! As INV-1 says, and R2.\n";

    fn findings_of(rows: &str) -> Vec<String> {
        let doc = format!("# I\n\n| **INV-1** | a | b |\n| **INV-2** | a | b |\n\n{rows}");
        let all = findings_in(&[(DOC, &doc), (BUGS, BUGS_OF), ("crates/pool/src/a.rs", CODE)]);
        all.into_iter().filter(|finding| finding.contains("INV-")).collect()
    }

    #[test]
    fn rules_say_where_they_are_checked_and_what_breaks_them() {
        let good = "| INV-1 | `crates/pool/src/a.rs` (release) | `Bad` |\n\
            | INV-2 | none: a flush leaves nothing in memory that could be looked at | `Bad`, `Worse` |\n";
        assert_eq!(findings_of(good), Vec::<String>::new());
        let bad = "| INV-1 | none: no | `Worse` |\n";
        assert_eq!(
            findings_of(bad),
            [
                "docs/invariants.md: INV-2 has no row that says where it is asserted and what breaks it",
                "docs/invariants.md:6: INV-1: \"no\" is no reason",
                "docs/invariants.md:6: INV-1: Bad breaks it and is not named",
                "docs/invariants.md:6: INV-1: the comment of Worse does not name it",
            ]
        );
        let unnamed = "| INV-1 | `crates/common/src/injected_bug.rs` | `Bad` |\n| INV-2 | somewhere | none: nothing that a test could see breaks it |\n";
        let findings = findings_of(unnamed);
        assert_eq!(findings.len(), 3, "{findings:?}");
    }

    #[test]
    fn items_are_in_the_file_before_them() {
        let row = "| x | a | `crates/pool/src/a.rs` (`says`, `is_gone`: no `x.y`), `crates/pool/src/b.rs` (`any`) |\n";
        let all =
            findings_in(&[(DOC, row), (BUGS, BUGS_OF), ("crates/pool/src/a.rs", "//! A.\nfn says() {}\n")]);
        let found: Vec<&String> = all.iter().filter(|finding| finding.contains(" has no ")).collect();
        assert_eq!(
            found,
            [
                "docs/invariants.md:1: crates/pool/src/a.rs has no is_gone",
                "docs/invariants.md:1: crates/pool/src/b.rs has no any",
            ]
        );
    }
}
