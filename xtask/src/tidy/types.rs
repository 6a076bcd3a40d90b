//! A public type name has one meaning: no two crates of the workspace define the same one.
//!
//! `Error` and `Result` are excepted: by Rust's convention each crate has its own. A re-export is no definition.

use std::collections::BTreeMap;

use super::manifests::is_member;
use super::{Finding, Tree};

/// Names that each crate may define.
const CONVENTIONS: [&str; 2] = ["Error", "Result"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut first: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut findings = Vec::new();
    for (path, source) in &tree.sources {
        let Some((package, _)) = path.split_once("/src/") else { continue };
        if !is_member(&format!("{package}/Cargo.toml")) {
            continue;
        }
        for (line, code) in source.code.iter().enumerate().filter(|(line, _)| !source.test[*line]) {
            let Some(name) = public_type(code).filter(|name| !CONVENTIONS.contains(name)) else { continue };
            let (owner, place) = *first.entry(name).or_insert((package, path));
            if owner != package {
                let message = format!("`{name}` is a type of {place}, too: name each after the thing it is");
                findings.push(Finding::new(path, line + 1, message));
            }
        }
    }
    findings
}

/// The name of the public type that a line of code defines.
fn public_type(code: &str) -> Option<&str> {
    let rest = code.trim_start().strip_prefix("pub ")?;
    let (kind, rest) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    let end = rest.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(rest.len());
    ["struct", "enum", "trait", "type", "union"].contains(&kind).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::findings_in;

    #[test]
    fn a_public_type_of_two_crates_is_found() {
        let one = "//! A.\npub struct Ticket<T>(T);\npub enum Error {}\npub(crate) struct Own;\n// pub struct Words;\n";
        let two = "//! B.\npub use one::Ticket as Other;\npub type Ticket = u8;\npub enum Error {}\nstruct Own;\npub trait Words {}\n";
        let findings = findings_in(&[("crates/a/src/lib.rs", one), ("crates/b/src/lib.rs", two)]);
        let found: Vec<_> = findings.iter().filter(|it| it.contains("too: name each")).collect();
        assert!(found.len() == 1 && found[0].starts_with("crates/b/src/lib.rs:3: `Ticket`"), "{findings:?}");
    }
}
