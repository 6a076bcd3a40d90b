//! Each invariant names its assertions and the injected bugs that break it, or the reason for having none.
//!
//! A row of `docs/invariants.md` has four cells: number, statement, assertions, and injected bugs with tests after a semicolon.
//! A file with an assertion names the invariant, and the bugs are exactly those whose comments name it. In all pages, a file
//! followed by items in parentheses has these items in its code.

use std::collections::{BTreeMap, BTreeSet};

use super::prose::paragraphs;
use super::{Finding, Tree};

const DOC: &str = "docs/invariants.md";
const BUGS: &str = "crates/common/src/injected_bug.rs";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = absent_items(tree);
    let (Some(doc), Some(bugs)) = (tree.texts.get(DOC), tree.texts.get(BUGS)) else { return findings };
    let bugs = bugs_of(bugs);
    let mut rules = BTreeSet::new();
    for (line, text) in (1..).zip(doc.lines()) {
        let cells: Vec<&str> = text.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        let Some(number) = cells[0].strip_prefix("INV-").and_then(|it| it.parse().ok()) else { continue };
        rules.insert(number);
        let wrong = match cells[..] {
            [_, _, asserted, broken] => {
                [check_asserted(tree, number, asserted), check_broken(&bugs, number, broken)].concat()
            }
            _ => vec!["the row has not four cells".to_owned()],
        };
        findings.extend(wrong.into_iter().map(|why| Finding::new(DOC, line, format!("INV-{number}: {why}"))));
    }
    for (bug, broken) in &bugs {
        let absent = broken.difference(&rules);
        findings.extend(absent.map(|rule| Finding::new(BUGS, 0, format!("{bug} breaks no row INV-{rule}"))));
    }
    findings
}

/// Items in parentheses after a file, as in "`FILE` (`f`, `g`)", that the file's code does not have.
fn absent_items(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_page = |path: &str| path.starts_with("docs/") && !path.starts_with("docs/measurements/");
    for (path, text) in tree.docs().filter(|(path, _)| is_page(path)) {
        for paragraph in paragraphs(text) {
            let lines: Vec<&str> = paragraph.lines().iter().map(|(_, line)| *line).collect();
            let text = lines.join(" ");
            let mut report = |why| findings.push(Finding::new(path, paragraph.lines()[0].0 + 1, why));
            for (before, after) in text.split(".rs` (").zip(text.split(".rs` (").skip(1)) {
                let file = format!("{}.rs", before.rsplit('`').next().unwrap_or_default());
                // Whether the file exists is checked in `names`.
                let Some(source) = tree.sources.get(&file) else { continue };
                let names = spans(after.split_once(')').map_or(after, |(list, _)| list));
                let items = names.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
                let absent = items.filter(|name| source.lines_with(name).next().is_none());
                absent.for_each(|name| report(format!("{file} has no {name}")));
            }
        }
    }
    findings
}

fn check_asserted(tree: &Tree, number: u32, cell: &str) -> Vec<String> {
    let files: Vec<&str> = spans(cell).filter(|span| span.ends_with(".rs")).collect();
    if files.is_empty() && !cell.starts_with("none: ") {
        return vec!["no file with an assertion, and no reason (\"none: ...\")".to_owned()];
    }
    let names_it = |file: &str| tree.texts.get(file).is_some_and(|text| rules_in(text).contains(&number));
    let silent = files.iter().filter(|file| !cell.starts_with("none: ") && !names_it(file));
    silent.map(|file| format!("{file} asserts it and does not name it")).collect()
}

fn check_broken(bugs: &BTreeMap<&str, BTreeSet<u32>>, number: u32, cell: &str) -> Vec<String> {
    let breaking = bugs.iter().filter(|(_, rules)| rules.contains(&number));
    let expected: BTreeSet<&str> = breaking.map(|(bug, _)| *bug).collect();
    let is_none = cell.starts_with("none: ");
    let named: BTreeSet<&str> =
        spans(cell.split(';').next().unwrap_or_default()).filter(|_| !is_none).collect();
    let mut wrong: Vec<String> =
        expected.difference(&named).map(|bug| format!("{bug} breaks it and is not named")).collect();
    wrong.extend(named.difference(&expected).map(|bug| format!("the comment of {bug} does not name it")));
    if named.is_empty() && !is_none {
        wrong.push("no injected bug, and no reason (\"none: ...\")".to_owned());
    }
    wrong
}

/// The injected bugs, and the rules that each one's comment names.
fn bugs_of(source: &str) -> BTreeMap<&str, BTreeSet<u32>> {
    let body = source.split_once("enum Bug {").and_then(|(_, rest)| rest.split_once("\n}"));
    let (mut bugs, mut rules) = (BTreeMap::new(), BTreeSet::new());
    for line in body.map_or("", |(body, _)| body).lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            rules.extend(rules_in(comment));
        } else if let Some(name) = line.strip_suffix(',') {
            bugs.insert(name, std::mem::take(&mut rules));
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

    #[test]
    fn rows_agree_with_the_code() {
        let bugs = "//! B.\nenum Bug {\n    /// R1, INV-2: a.\n    Bad,\n    /// R2: b.\n    Worse,\n    /// R9: c.\n    Other,\n}\n";
        let rows = "| INV-1 | a | `crates/pool/src/a.rs` (release) | `Bad`; `any_test` |\n\
            | INV-2 | b | none: a flush leaves no trace in memory | `Bad`, `Worse` |\n\
            | INV-3 | c | `crates/pool/src/a.rs` | `Worse` |\n| INV-4 | d | - | none: a reason |\n| INV-5 | e |\n";
        let files =
            [(DOC, rows), (BUGS, bugs), ("crates/pool/src/a.rs", "//! INV-1, and R2.\nfn any_test() {}\n")];
        let all = findings_in(&files);
        let found: Vec<&str> = all.iter().filter_map(|finding| finding.split("md:").nth(1)).collect();
        let expected = [
            "3: INV-3: crates/pool/src/a.rs asserts it and does not name it",
            "3: INV-3: the comment of Worse does not name it",
            "4: INV-4: no file with an assertion, and no reason (\"none: ...\")",
            "5: INV-5: the row has not four cells",
            "5: a row of 2 cells in a table of 4",
        ];
        assert_eq!(found, expected);
        assert!(all.contains(&format!("{BUGS}: Other breaks no row INV-9")), "{all:?}");
    }

    #[test]
    fn items_are_in_the_code_of_the_file_before_them() {
        let row = "| x | a | `crates/pool/src/a.rs` (`says`, `is_gone`: no `x.y`) |\n";
        let code = "//! A, which was is_gone.\nfn says() {}\n";
        let all = findings_in(&[("docs/x.md", row), ("crates/pool/src/a.rs", code)]);
        let found: Vec<&String> = all.iter().filter(|finding| finding.contains(".rs has no ")).collect();
        assert_eq!(found, ["docs/x.md:1: crates/pool/src/a.rs has no is_gone"]);
    }
}
