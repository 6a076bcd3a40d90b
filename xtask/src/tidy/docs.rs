//! Links of documents lead somewhere, and the list of limits is complete.

use std::path::Path;

use anyhow::Result;

use super::prose::prose;
use super::{Finding, Tree};

/// Where the shared limits are, and where they are listed.
const LIMITS_SOURCE: &str = "crates/base/src/limits.rs";
const LIMITS_DOC: &str = "docs/limits.md";
/// The pages of the book, in order.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The pages of `docs` itself have at most this many bytes together. The summary is no page: it grows with the folders below.
const PAGES_BYTES_MAX: usize = 122_000;
/// The folder of the decisions.
const DECISIONS_FOLDER: &str = "docs/adr/";
/// The sections of a decision. Others may follow each of them.
const DECISION_SECTIONS: [&str; 5] = ["Decision", "Because", "Options", "Costs", "Wrong if"];

pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = check_limits(tree);
    findings.extend(check_summary(tree));
    let is_page = |path: &str| path.starts_with("docs/") && path.matches('/').count() == 1 && path != SUMMARY;
    let pages = tree.docs().filter(|(path, _)| is_page(path));
    let bytes: usize = pages.map(|(_, text)| text.len()).sum();
    if bytes > PAGES_BYTES_MAX {
        findings.push(Finding::new("docs", 0, format!("{bytes} bytes of pages, at most {PAGES_BYTES_MAX}")));
    }
    for (path, text) in tree.docs() {
        findings.extend(check_decision(path, text));
        findings.extend(check_tables(path, text));
        for (line, text) in prose(text) {
            for target in links(text) {
                if !resolves(&tree.root, path, target)? {
                    let message = format!("the link to {target} leads nowhere");
                    findings.push(Finding::new(path, line + 1, message));
                }
            }
        }
    }
    Ok(findings)
}

/// Every shared limit is listed.
fn check_limits(tree: &Tree) -> Vec<Finding> {
    let Some(source) = tree.texts.get(LIMITS_SOURCE) else { return Vec::new() };
    let listed = tree.texts.get(LIMITS_DOC).map_or("", String::as_str);
    let names = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'))
        .map(|(name, _)| name);
    let missing = names.filter(|name| !listed.contains(&format!("`{name}`")));
    missing
        .map(|name| Finding::new(LIMITS_DOC, 0, format!("does not list {name} of {LIMITS_SOURCE}")))
        .collect()
}

/// The book has every page of `docs`, and each once. That its links lead somewhere is checked as of every document.
fn check_summary(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.texts.get(SUMMARY) else { return Vec::new() };
    let listed: Vec<&str> = summary.lines().flat_map(links).collect();
    let pages = tree.docs().filter_map(|(path, _)| path.strip_prefix("docs/"));
    let times = pages.map(|page| (page, listed.iter().filter(|link| **link == page).count()));
    times
        .filter(|(page, times)| *times != 1 && !SUMMARY.ends_with(page))
        .map(|(page, times)| Finding::new(SUMMARY, 0, format!("lists {page} {times} times instead of once")))
        .collect()
}

/// A decision has the sections of the template, in its order.
fn check_decision(path: &str, text: &str) -> Option<Finding> {
    if !path.starts_with(DECISIONS_FOLDER) {
        return None;
    }
    let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut rest = headings.iter();
    let missing = DECISION_SECTIONS.iter().find(|section| !rest.any(|heading| heading == *section))?;
    let sections = DECISION_SECTIONS.join(", ");
    Some(Finding::new(path, 0, format!("has no section {missing} in its place: the template is {sections}")))
}

/// Rows of a table have as many cells as its head.
fn check_tables(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The last row's line, and the cells of the head.
    let mut table = None;
    for (line, row) in prose(text).into_iter().filter(|(_, row)| row.starts_with('|')) {
        let found = cells(row);
        let head = table.filter(|(last, _)| last + 1 == line).map_or(found, |(_, head)| head);
        if found != head {
            let why = format!("a row of {found} cells in a table of {head}");
            findings.push(Finding::new(path, line + 1, why));
        }
        table = Some((line, head));
    }
    findings
}

/// The cells of a row of a table. Code and backslashes hide a bar.
fn cells(row: &str) -> usize {
    let mut in_code = false;
    let mut before = ' ';
    let mut bars = 0;
    for c in row.trim_end().chars() {
        match c {
            '`' => in_code = !in_code,
            '|' if before != '\\' && !in_code => bars += 1,
            _ => {}
        }
        before = c;
    }
    bars - 1
}

/// The targets of inline links: `[text](target)`.
pub(crate) fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// Whether a link in the document `path` leads to a file, and to a heading in it where it names one. Other sites are
/// not asked.
fn resolves(root: &Path, path: &str, target: &str) -> Result<bool> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(true);
    }
    let (file, heading) =
        target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let found = match file {
        "" => root.join(path),
        file => root.join(path).parent().unwrap_or(root).join(file),
    };
    match heading {
        Some(heading) if found.is_file() => {
            let text = std::fs::read_to_string(found)?;
            Ok(prose(&text).iter().any(|(_, line)| line.starts_with('#') && anchor(line) == heading))
        }
        _ => Ok(found.exists()),
    }
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    #[test]
    fn links_resolve() {
        let text = "# A b, c\n[good](docs/x.md) [good](#a-b-c) [web](https://example.org/)\n```\n[code](nowhere)\n```\n";
        let page = "# X\n[up](../README.md#a-b-c)\n";
        assert!(findings_in(&[("README.md", text), ("docs/x.md", page)]).is_empty());
        let bad = "[bad](elsewhere)\n[bad](docs/x.md#other)\n";
        assert_eq!(findings_in(&[("README.md", bad), ("docs/x.md", "# X\n")]).len(), 2);
    }

    #[test]
    fn every_shared_limit_is_listed() {
        let source =
            ("crates/base/src/limits.rs", "//! L.\npub const A_MAX: u8 = 1;\npub const B_MAX: u8 = 2;\n");
        let findings = findings_in(&[source, ("docs/limits.md", "`A_MAX` is 1, B_MAX is 2.\n")]);
        assert_eq!(findings, ["docs/limits.md: does not list B_MAX of crates/base/src/limits.rs"]);
    }

    #[test]
    fn decisions_follow_the_template() {
        let summary = ("docs/SUMMARY.md", "[A](adr/a.md) [B](adr/b.md)\n");
        let whole = "# A\n\n## Decision\n\n## Because\n\n## Options\n\n## Costs\n\n## Proof\n\n## Wrong if\n";
        let part = "# B\n\n## Decision\n\n## Options\n\n## Because\n";
        let findings = findings_in(&[summary, ("docs/adr/a.md", whole), ("docs/adr/b.md", part)]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].starts_with("docs/adr/b.md: has no section Options in its place"),
            "{findings:?}"
        );
    }

    #[test]
    fn rows_have_as_many_cells_as_the_head() {
        let table =
            "# A\n| a | b |\n|---|---|\n| `x|y` | 1 \\| 2 |\n| only |\n| c | d |\n\n| e |\n|---|\n| f |\n";
        assert_eq!(findings_in(&[("docs/a.md", table)]), ["docs/a.md:5: a row of 1 cells in a table of 2"]);
    }

    #[test]
    fn the_book_has_every_page_once() {
        let summary = ("docs/SUMMARY.md", "- [A](a.md)\n- [B](b/b.md)\n- [B](b/b.md)\n");
        let pages = [summary, ("docs/a.md", "# A\n"), ("docs/b/b.md", "# B\n"), ("docs/c.md", "# C\n")];
        let findings = findings_in(&pages);
        let expected = ["b/b.md 2 times", "c.md 0 times"];
        assert_eq!(findings, expected.map(|what| format!("docs/SUMMARY.md: lists {what} instead of once")));
    }
}
