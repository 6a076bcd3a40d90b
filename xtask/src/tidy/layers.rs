//! Arrows between crates only point down, and only the frontends know a network.
//!
//! Holds the order of `docs/TOUR.md` against every `Cargo.toml`: a crate may use crates of a lower rank. Development
//! dependencies obey it too (but see [`TESTED_THROUGH`]); `testkit` and `storekit` may be used only by them.

use anyhow::{Context, Result};

use super::{Finding, Tree};

/// The layers, bottom up. Crates of one rank do not know each other.
const RANKS: [&[&str]; 11] = [
    &["shoal-base"],
    &["shoal-buffer", "shoal-device", "shoal-space"],
    &["shoal-device-sim"],
    &["shoal-pool"],
    &["shoal-engine", "shoal-api", "shoal-frontend"],
    &["shoal-backup", "shoal-resp", "shoal-metrics"],
    &["shoal-client", "shoal-server", "shoal-space-service"],
    &["shoal-redis", "shoal-s3"],
    &["shoal-bench"],
    &["shoal", "shoal-experiments"],
    &["xtask"],
];

/// The kits of tests, each with the crates that it may use. A crate of these layers may use a kit for development only.
const TEST_KITS: [(&str, &[&str]); 2] = [
    ("shoal-testkit", &["shoal-base", "shoal-device", "shoal-device-sim"]),
    ("shoal-storekit", &["shoal-base", "shoal-device", "shoal-device-sim", "shoal-engine", "shoal-testkit"]),
];

/// Crates of which the first may use the second in its tests: a server is tested through its client.
const TESTED_THROUGH: [(&str, &str); 2] =
    [("shoal-server", "shoal-client"), ("shoal-device", "shoal-device-sim")];

/// Crates that may name tokio or tonic; those below and beside them are independent of a runtime and a network.
pub(super) const NETWORKED: [&str; 11] = [
    "shoal-api",
    "shoal-storekit",
    "shoal-metrics",
    "shoal-frontend",
    "shoal-client",
    "shoal-server",
    "shoal-space-service",
    "shoal-s3",
    "shoal-bench",
    "shoal",
    "shoal-experiments",
];

/// Whether `name` is the crate tokio or tonic or one of their families.
pub(super) fn is_network_crate(name: &str) -> bool {
    ["tokio", "tonic"].iter().any(|family| {
        name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
    })
}

pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| is_member(path)) {
        let manifest: toml::Table = text.parse().with_context(|| format!("{path} is not valid TOML"))?;
        let name = manifest
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(toml::Value::as_str)
            .with_context(|| format!("{path} has no package name"))?;
        let inherits_lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        if inherits_lints.and_then(toml::Value::as_bool) != Some(true) {
            findings.push(Finding::new(
                path,
                0,
                "must inherit the workspace's lints (`[lints] workspace = true`)",
            ));
        }
        for (development, dependency, value) in dependencies(&manifest) {
            let why = arrow(name, dependency, development).or_else(|| loose(dependency, value));
            findings.extend(why.map(|why| Finding::new(path, 0, why)));
        }
    }
    Ok(findings)
}

/// A manifest of the workspace; crates elsewhere (comparisons, fuzzers) are workspaces of their own.
pub(super) fn is_member(path: &str) -> bool {
    matches!(
        path.split('/').collect::<Vec<_>>()[..],
        ["crates", _, "Cargo.toml"] | ["cli" | "experiments" | "xtask", "Cargo.toml"]
    )
}

/// Every dependency: whether it is for development only, its name, and what the manifest says of it.
pub(super) fn dependencies(manifest: &toml::Table) -> Vec<(bool, &str, &toml::Value)> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let mut found = Vec::new();
    for table in tables.chain([manifest]) {
        for (section, development) in
            [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            let entries = table.get(section).and_then(toml::Value::as_table);
            found.extend(
                entries.into_iter().flatten().map(|(name, value)| (development, name.as_str(), value)),
            );
        }
    }
    found
}

/// Why the crate `from` may not use the crate `to`, if it may not.
fn arrow(from: &str, to: &str, development: bool) -> Option<String> {
    if is_network_crate(to) {
        return (!NETWORKED.contains(&from)).then(|| {
            format!("{from} may not use {to}: only {} know a network or a runtime", NETWORKED.join(", "))
        });
    }
    if !to.starts_with("shoal") {
        return None;
    }
    let kit = |name| TEST_KITS.into_iter().find(|(kit, _)| *kit == name);
    if let Some((_, uses)) = kit(from) {
        return (!uses.contains(&to)).then(|| format!("{from} may use only {}", uses.join(", ")));
    }
    if let Some((_, uses)) = kit(to) {
        if !development {
            return Some(format!("{from} may use {to} for development only"));
        }
        let is_below = uses.iter().filter_map(|used| rank(used)).max() >= rank(from);
        return is_below.then(|| format!("{from} may not use {to}, which uses it"));
    }
    if development && TESTED_THROUGH.contains(&(from, to)) {
        return None;
    }
    match (rank(from), rank(to)) {
        (Some(upper), Some(lower)) if lower < upper => None,
        (Some(_), Some(_)) => Some(format!("{from} may not use {to}: arrows between crates only point down")),
        (None, _) => {
            Some(format!("{from} has no place in the order of the layers (xtask/src/tidy/layers.rs)"))
        }
        (_, None) => Some(format!("{to} has no place in the order of the layers (xtask/src/tidy/layers.rs)")),
    }
}

fn rank(name: &str) -> Option<usize> {
    RANKS.iter().position(|crates| crates.contains(&name))
}

/// Versions are named once, in the workspace's manifest.
fn loose(dependency: &str, value: &toml::Value) -> Option<String> {
    let inherited = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
    (!inherited)
        .then(|| format!("{dependency} must be taken from the workspace (`{dependency}.workspace = true`)"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;
    use super::*;

    #[test]
    fn arrows_point_down() {
        assert_eq!(arrow("shoal-engine", "shoal-pool", false), None);
        assert_eq!(arrow("shoal", "shoal-bench", false), None);
        assert!(arrow("shoal-pool", "shoal-engine", false).is_some());
        assert!(
            arrow("shoal-space", "shoal-device", false).is_some(),
            "layers of one rank do not know each other"
        );
        assert!(arrow("shoal-new", "shoal-base", false).is_some(), "a new crate must be placed");
        assert_eq!(arrow("shoal-server", "shoal-client", true), None, "for tests");
        assert!(arrow("shoal-server", "shoal-client", false).is_some());
        assert_eq!(arrow("shoal-engine", "shoal-testkit", true), None);
        assert!(arrow("shoal-engine", "shoal-testkit", false).is_some());
        assert!(arrow("shoal-testkit", "shoal-engine", false).is_some());
        assert_eq!(arrow("shoal-storekit", "shoal-engine", false), None);
        assert_eq!(arrow("shoal-backup", "shoal-storekit", true), None);
        assert!(arrow("shoal-engine", "shoal-storekit", true).is_some());
        assert!(arrow("shoal-engine", "tokio", true).is_some());
        assert!(arrow("shoal-engine", "tonic-prost", false).is_some());
        assert_eq!(arrow("shoal-server", "tokio-stream", false), None);
    }

    #[test]
    fn manifests_are_read_with_all_their_tables() {
        let manifest = "[package]\nname = 'shoal-pool'\n[lints]\nworkspace = true\n\
            [target.'cfg(unix)'.dependencies]\nshoal-engine.workspace = true\n[dev-dependencies]\nlibc = '0.2'";
        let findings = findings_in(&[
            ("crates/pool/Cargo.toml", manifest),
            ("crates/x/Cargo.toml", "[package]\nname = 'shoal-base'"),
        ]);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].contains("libc.workspace = true"));
        assert!(findings[1].contains("arrows between crates only point down"));
        assert!(findings[2].contains("lints"));
    }
}
