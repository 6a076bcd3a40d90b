//! The modules at the top of a crate stand in an order: each uses only those before it.
//!
//! [`circles`](super::circles) would allow any order that has no circle. This one says which module is whose ground: no
//! subsystem of the engine names the store that its verbs share, no step of the pool names the pages that change in
//! place, and no verb of a frontend names the connection that calls it.

use super::modules::{Modules, home};
use super::{Finding, Tree};

/// The root file of a crate, and its modules, bottom up.
const ORDERS: [(&str, &[&str]); 4] = [
    (
        "crates/engine/src/lib.rs",
        &[
            "testing",
            "counters",
            "space",
            "log",
            "value",
            "memtable",
            "tablet",
            "image",
            "checkpoint",
            "compaction",
            "gc",
            "apply",
            "store",
            "growth",
            "read",
            "write",
            "maintenance",
            "recovery",
        ],
    ),
    (
        "crates/pool/src/lib.rs",
        &[
            "sync",
            "counters",
            "error",
            "latency",
            "requests",
            "memory",
            "unit",
            "damaged",
            "resident",
            "policy",
            "table",
            "shared",
            "pool",
            "evict",
            "fetch",
            "fresh",
            "writer",
            "write_back",
            "in_place",
        ],
    ),
    (
        "crates/server/src/lib.rs",
        &[
            "admission",
            "read_cache",
            "auth",
            "failure",
            "convert",
            "wire",
            "flow",
            "timing",
            "answer",
            "call",
            "operations",
            "options",
            "dispatch",
            "connection",
            "listen",
        ],
    ),
    (
        "crates/redis/src/lib.rs",
        &[
            "mailbox",
            "socket",
            "tls",
            "number",
            "cursors",
            "clients",
            "memory",
            "options",
            "answer",
            "timing",
            "kept",
            "working_set",
            "frontend",
            "shared",
            "command",
            "connection",
            "dispatch",
            "listen",
        ],
    ),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    ORDERS
        .iter()
        .filter(|(root, _)| tree.sources.contains_key(*root))
        .flat_map(|(root, order)| check_crate(tree, root, order))
        .collect()
}

fn check_crate(tree: &Tree, root: &str, order: &[&str]) -> Vec<Finding> {
    let modules = Modules::read(tree, root);
    let folder = home(root, true);
    let rank = |module: &str| order.iter().position(|name| *name == module);
    let mut findings = Vec::new();
    for used in modules.uses() {
        let (Some(from), Some(to)) = (used.from.first(), used.to.first()) else { continue };
        let why = match (rank(from), rank(to)) {
            (Some(from), Some(to)) if to <= from => continue,
            (Some(_), Some(_)) => format!("{from} may not use {to}, which stands above it in {folder}"),
            _ => format!("{from} uses {to}: one of them has no place in the order of {folder}"),
        };
        findings.push(Finding::new(used.file, used.line + 1, format!("{why} (xtask/src/tidy/order.rs)")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;
    use super::ORDERS;

    const MANIFEST: &str = "[package]\nname = 'shoal-engine'\n[lints]\nworkspace = true\n";

    #[test]
    fn a_module_uses_only_those_before_it() {
        let findings = findings_in(&[
            ("crates/engine/Cargo.toml", MANIFEST),
            ("crates/engine/src/lib.rs", "//! A.\nmod checkpoint;\nmod log;\nmod more;\nmod store;\n"),
            ("crates/engine/src/checkpoint.rs", "//! A.\nuse crate::log;\n\nuse crate::store::Inner;\n"),
            ("crates/engine/src/log.rs", "//! A.\n#[cfg(test)]\nmod tests {\n    use crate::store;\n}\n"),
            ("crates/engine/src/more.rs", "//! A.\nuse crate::log;\n"),
            ("crates/engine/src/store.rs", "//! A.\npub(crate) struct Inner;\n"),
        ]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("crates/engine/src/checkpoint.rs:4: checkpoint may not use store"),
            "{findings:?}"
        );
        assert!(findings[1].contains("more uses log: one of them has no place"), "{findings:?}");
    }

    #[test]
    fn each_order_has_a_bottom_and_a_top() {
        for (root, order) in ORDERS {
            let name = root.split('/').nth(1).unwrap();
            let manifest = MANIFEST.replace("engine", name);
            let (low, high) = (order[0], order[order.len() - 1]);
            let file = |module: &str| root.replace("lib", module);
            let findings = findings_in(&[
                (&root.replace("src/lib.rs", "Cargo.toml"), &manifest),
                (root, &format!("//! A.\nmod {low};\nmod {high};\n")),
                (&file(low), &format!("//! A.\nuse crate::{high};\n")),
                (&file(high), "//! A.\n"),
            ]);
            let expected = format!("{}:2: {low} may not use {high}", file(low));
            assert!(findings.len() == 1 && findings[0].starts_with(&expected), "{findings:?}");
        }
    }
}
