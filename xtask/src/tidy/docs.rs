//! Documents tell the truth: links lead somewhere, paths that they name exist, and the list of limits is complete.

use std::path::Path;

use anyhow::Result;

use super::{Finding, read};

/// Documents in which every path in backticks must exist.
const PATH_DOCS: [&str; 4] =
    ["docs/TOUR.md", "docs/invariants.md", "docs/life-of-a-get.md", "docs/life-of-a-put.md"];

/// Folders that such paths begin with.
const PATH_STARTS: [&str; 5] = ["crates/", "cli/", "docs/", "xtask/", ".ci/"];

/// Where the shared limits are, and where they are listed.
const LIMITS_SOURCE: &str = "crates/base/src/limits.rs";
const LIMITS_DOC: &str = "docs/limits.md";

pub(super) fn check(root: &Path, files: &[String]) -> Result<Vec<Finding>> {
    let mut findings = check_limits(root, files)?;
    for path in files.iter().filter(|path| path.ends_with(".md")) {
        let text = read(root, path)?;
        let lines = prose(&text);
        for (line, text) in &lines {
            for target in links(text) {
                if !resolves(root, path, target)? {
                    findings.push(Finding::new(
                        path,
                        line + 1,
                        format!("the link to {target} leads nowhere"),
                    ));
                }
            }
            if PATH_DOCS.contains(&path.as_str()) {
                let named =
                    code_spans(text).filter(|span| PATH_STARTS.iter().any(|start| span.starts_with(start)));
                let missing = named.filter(|span| !root.join(span).exists());
                findings.extend(
                    missing.map(|span| Finding::new(path, line + 1, format!("{span} does not exist"))),
                );
            }
        }
    }
    Ok(findings)
}

/// Every shared limit is listed.
fn check_limits(root: &Path, files: &[String]) -> Result<Vec<Finding>> {
    let is_there = |path: &str| files.iter().any(|file| file == path);
    if !is_there(LIMITS_SOURCE) {
        return Ok(Vec::new());
    }
    let listed = if is_there(LIMITS_DOC) { read(root, LIMITS_DOC)? } else { String::new() };
    let source = read(root, LIMITS_SOURCE)?;
    let names = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'))
        .map(|(name, _)| name);
    let missing = names.filter(|name| !listed.contains(&format!("`{name}`")));
    Ok(missing
        .map(|name| Finding::new(LIMITS_DOC, 0, format!("does not list {name} of {LIMITS_SOURCE}")))
        .collect())
}

/// The lines outside fenced code, with their 0-based numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((index, line));
        }
    }
    lines
}

/// The targets of inline links: `[text](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
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
    fn links_and_paths_resolve() {
        let text = "# A b, c\n[good](docs/x.md) [good](#a-b-c) [web](https://example.org/)\n```\n[code](nowhere)\n```\n";
        let page = "# X\n[up](../README.md#a-b-c) `crates/none.rs` `docs/x.md`\n";
        assert!(findings_in(&[("README.md", text), ("docs/x.md", page)]).is_empty());
        let bad = "[bad](docs/y.md)\n[bad](docs/x.md#other)\n";
        assert_eq!(findings_in(&[("README.md", bad), ("docs/x.md", "# X\n")]).len(), 2);
        let life = findings_in(&[("docs/life-of-a-put.md", "1. `crates/none.rs` and `cargo test`\n")]);
        assert_eq!(life, ["docs/life-of-a-put.md:1: crates/none.rs does not exist"]);
    }

    #[test]
    fn every_shared_limit_is_listed() {
        let source =
            ("crates/base/src/limits.rs", "//! L.\npub const A_MAX: u8 = 1;\npub const B_MAX: u8 = 2;\n");
        let findings = findings_in(&[source, ("docs/limits.md", "`A_MAX` is 1, B_MAX is 2.\n")]);
        assert_eq!(findings, ["docs/limits.md: does not list B_MAX of crates/base/src/limits.rs"]);
    }
}
