//! The lock files of other workspaces (comparisons, fuzzers, schedules) name the dependencies that our crates have now: with
//! one that does not, `cargo build --locked` refuses there, and CI builds only the schedules.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::layers::{dependencies, is_member};
use super::{Finding, Tree, read};

type Names<'a> = BTreeSet<&'a str>;

/// Crates that a crate needs when it is built for another workspace: without those for development.
struct Needs<'a> {
    always: Names<'a>,
    /// Those that only a feature needs: a lock file has them where it is on.
    optional: Names<'a>,
}

impl<'a> Needs<'a> {
    fn of(manifest: &'a toml::Table) -> Self {
        let is_optional =
            |value: &toml::Value| value.get("optional").and_then(toml::Value::as_bool) == Some(true);
        let all = dependencies(manifest).into_iter().filter(|(development, ..)| !development);
        let (optional, always): (Vec<_>, Vec<_>) = all.partition(|(_, _, value)| is_optional(value));
        let names =
            |some: Vec<(bool, &'a str, &'a toml::Value)>| some.into_iter().map(|(_, name, _)| name).collect();
        Self { always: names(always), optional: names(optional) }
    }

    /// Those that `locked` lacks, and those that it has for nothing.
    fn other_than<'b>(&'b self, locked: &'b Names<'a>) -> Vec<&'a str> {
        let surplus =
            locked.iter().filter(|name| !self.always.contains(*name) && !self.optional.contains(*name));
        self.always.difference(locked).chain(surplus).copied().collect()
    }
}

pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut manifests = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| is_member(path)) {
        manifests.push(text.parse::<toml::Table>().with_context(|| format!("{path} is not valid TOML"))?);
    }
    let needs: BTreeMap<&str, Needs> = manifests
        .iter()
        .filter_map(|manifest| Some((name(manifest.get("package")?)?, Needs::of(manifest))))
        .collect();
    let mut findings = Vec::new();
    // Every step of CI checks the one at the root.
    for path in tree.files.iter().filter(|path| path.ends_with("/Cargo.lock")) {
        let lock: toml::Table =
            read(&tree.root, path)?.parse().with_context(|| format!("{path} is not valid TOML"))?;
        findings.extend(stale(&lock, &needs).into_iter().map(|why| Finding::new(path, 0, why)));
    }
    Ok(findings)
}

fn name(package: &toml::Value) -> Option<&str> {
    package.get("name").and_then(toml::Value::as_str)
}

/// Our crates whose dependencies in `lock` are others than their manifests say, a line each.
fn stale<'a>(lock: &'a toml::Table, needs: &BTreeMap<&str, Needs<'a>>) -> Vec<String> {
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let ours = packages.filter(|package| package.get("source").is_none());
    ours.filter_map(|package| {
        let name = name(package)?;
        let entries = package.get("dependencies").and_then(toml::Value::as_array).into_iter().flatten();
        // "NAME", or "NAME VERSION" where the lock has several versions.
        let locked: Names =
            entries.filter_map(|entry| entry.as_str()?.split(' ').next()).collect();
        let differ = needs.get(name)?.other_than(&locked);
        (!differ.is_empty()).then(|| {
            format!("says otherwise than the manifest of {name}: {} (`cargo metadata` there brings it up to date)", differ.join(", "))
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_lacks_a_dependency_or_has_one_too_many_is_found() {
        let manifest: toml::Table =
            "[package]\nname = 'ours'\n[dependencies]\na = '1'\nb = '1'\nd = { optional = true }\n[dev-dependencies]\nc = '1'"
                .parse()
                .unwrap();
        let needs = BTreeMap::from([("ours", Needs::of(&manifest))]);
        let differ = |dependencies: &str| {
            let lock = format!(
                "[[package]]\nname = 'a'\nsource = 'registry'\n[[package]]\nname = 'ours'\ndependencies = [{dependencies}]"
            );
            stale(&lock.parse().unwrap(), &needs)
        };
        for well in ["'a', 'b 1.2.3'", "'a', 'b', 'd'"] {
            assert_eq!(differ(well), Vec::<String>::new());
        }
        for (dependencies, wrong) in
            [("'a'", "of ours: b "), ("'a', 'b', 'c'", "of ours: c "), ("", "of ours: a, b ")]
        {
            let found = differ(dependencies);
            assert!(found.len() == 1 && found[0].contains(wrong), "{dependencies}: {found:?}");
        }
    }
}
