//! Manifests of the workspace (networks, kits of tests, versions, lints) and the lock files that follow them.
//!
//! With a stale lock file, `cargo build --locked` fails in a separate workspace (comparisons, fuzzers, models, schedules), and CI builds
//! only the models and the schedules.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::{Finding, Tree, read};

/// Crates that may use tokio or tonic; all others are independent of a runtime and a network.
const NETWORKED: &str = "shoal-api shoal-storekit shoal-metrics shoal-frontend shoal-http shoal-client shoal-server \
    shoal-space-service shoal-archive shoal-s3 shoal-console shoal-transfer shoal-bench shoal shoal-experiments";

/// The kits of tests: other crates use them for development only.
const TEST_KITS: [&str; 2] = ["shoal-testkit", "shoal-storekit"];

/// The dependencies of a crate outside development, and whether each is optional.
type Needs<'a> = BTreeMap<&'a str, bool>;

pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let parse =
        |path: &str, text: &str| text.parse::<Table>().with_context(|| format!("{path} is not valid TOML"));
    let members = tree.texts.iter().filter(|(path, _)| is_member(path));
    let manifests = members.map(|(path, text)| Ok((path, parse(path, text)?))).collect::<Result<Vec<_>>>()?;
    let mut findings = Vec::new();
    let mut needs: BTreeMap<&str, Needs<'_>> = BTreeMap::new();
    for (path, manifest) in &manifests {
        let name =
            manifest.get("package").and_then(name).with_context(|| format!("{path} has no package name"))?;
        findings.extend(wrong(name, manifest).into_iter().map(|why| Finding::new(path, 0, why)));
        let built = dependencies(manifest).into_iter().filter(|(development, ..)| !development);
        let is_optional = |value: &Value| value.get("optional").and_then(Value::as_bool) == Some(true);
        needs.insert(name, built.map(|(_, name, value)| (name, is_optional(value))).collect());
    }
    // Every step of CI checks the one at the root.
    for path in tree.files.iter().filter(|path| path.ends_with("/Cargo.lock")) {
        let lock = parse(path, &read(&tree.root, path)?)?;
        findings.extend(stale(&lock, &needs).into_iter().map(|why| Finding::new(path, 0, why)));
    }
    Ok(findings)
}

/// What is wrong with a manifest, one line each.
fn wrong(name: &str, manifest: &Table) -> Vec<String> {
    let is_inherited = |value: Option<&Value>| {
        value.and_then(|value| value.get("workspace")).and_then(Value::as_bool) == Some(true)
    };
    let mut wrong = Vec::new();
    if !is_inherited(manifest.get("lints")) {
        wrong.push("must inherit the workspace's lints (`[lints] workspace = true`)".to_owned());
    }
    for (development, to, value) in dependencies(manifest) {
        let is_network = to.starts_with("tokio") || to.starts_with("tonic");
        if is_network && !NETWORKED.split(' ').any(|other| other == name) {
            wrong.push(format!("{name} may not use {to}: only {NETWORKED} use a network"));
        }
        if TEST_KITS.contains(&to) && !development && !TEST_KITS.contains(&name) {
            wrong.push(format!("{name} may use {to} for development only"));
        }
        if !is_inherited(Some(value)) {
            wrong.push(format!("{to} must be taken from the workspace (`{to}.workspace = true`)"));
        }
    }
    wrong
}

/// A manifest of the workspace; crates elsewhere (comparisons, fuzzers) are separate workspaces.
pub(super) fn is_member(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["crates", _, "Cargo.toml"] | ["cli" | "experiments" | "xtask", "Cargo.toml"])
}

/// Every dependency: whether it is for development only, its name, and its entry in the manifest.
fn dependencies(manifest: &Table) -> Vec<(bool, &str, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table));
    let mut found = Vec::new();
    for table in tables.chain([manifest]) {
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let entries = table.get(section).and_then(Value::as_table).into_iter().flatten();
            found.extend(entries.map(|(name, value)| (section.starts_with("dev"), name.as_str(), value)));
        }
    }
    found
}

fn name(package: &Value) -> Option<&str> {
    package.get("name").and_then(Value::as_str)
}

/// One line for each crate whose dependencies in `lock` differ from its manifest.
fn stale(lock: &Table, needs: &BTreeMap<&str, Needs<'_>>) -> Vec<String> {
    let array = |value: Option<&'_ Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for package in array(lock.get("package")).iter().filter(|package| package.get("source").is_none()) {
        let Some((name, needs)) = name(package).and_then(|name| Some((name, needs.get(name)?))) else {
            continue;
        };
        let entries = array(package.get("dependencies"));
        // "NAME", or "NAME VERSION" if the lock has several versions.
        let locked: BTreeSet<&str> =
            entries.iter().filter_map(|entry| entry.as_str()?.split(' ').next()).collect();
        let missing = needs.iter().filter(|(name, optional)| !**optional && !locked.contains(*name));
        let surplus = locked.iter().filter(|name| !needs.contains_key(*name));
        let differ: Vec<&str> = missing.map(|(name, _)| *name).chain(surplus.copied()).collect();
        if !differ.is_empty() {
            let differ = differ.join(", ");
            found.push(format!(
                "differs from the manifest of {name}: {differ} (`cargo metadata` there updates it)"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    #[test]
    fn manifests_are_read_with_all_their_tables() {
        let manifest = "[package]\nname = 'shoal-pool'\n[lints]\nworkspace = true\n\
            [target.'cfg(unix)'.dependencies]\nshoal-testkit.workspace = true\ntokio-util.workspace = true\n\
            [dev-dependencies]\nlibc = '0.2'\nshoal-storekit.workspace = true";
        let server = "[package]\nname = 'shoal-server'\n[dependencies]\ntokio.workspace = true";
        let findings =
            findings_in(&[("crates/pool/Cargo.toml", manifest), ("crates/server/Cargo.toml", server)]);
        let expected =
            ["libc.workspace", "may not use tokio-util", "shoal-testkit for development only", "lints"];
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        assert!(findings.iter().zip(expected).all(|(found, part)| found.contains(part)), "{findings:?}");
    }

    #[test]
    fn a_lock_that_lacks_a_dependency_or_has_one_too_many_is_found() {
        let ours = "[package]\nname = 'ours'\n[lints]\nworkspace = true\n[dependencies]\na.workspace = true\nb.workspace = true\n\
            d = { workspace = true, optional = true }\n[dev-dependencies]\nc.workspace = true";
        for (dependencies, wrong) in [
            ("'a', 'b 1.2.3'", None),
            ("'a', 'b', 'd'", None),
            ("'a'", Some("of ours: b ")),
            ("'a', 'b', 'c'", Some("of ours: c ")),
            ("", Some("of ours: a, b ")),
        ] {
            let other = "[[package]]\nname = 'a'\nsource = 'registry'";
            let lock = format!("{other}\n[[package]]\nname = 'ours'\ndependencies = [{dependencies}]");
            let found = findings_in(&[("crates/ours/Cargo.toml", ours), ("fuzz/Cargo.lock", &lock)]);
            assert_eq!(found.len(), usize::from(wrong.is_some()), "{dependencies}: {found:?}");
            assert!(wrong.is_none_or(|wrong| found[0].contains(wrong)), "{dependencies}: {found:?}");
        }
    }
}
