//! The modules at the top of a crate form a list: each uses only those listed before it.
//!
//! The compiler holds the walls between crates; this rule holds those inside a crate. No subsystem of the engine names the
//! store, no step of the pool names the pages that change in place, and no verb of a frontend names its connection.
//! A path through a re-export at the root counts as a use of the module that the item comes from.

use std::collections::BTreeMap;

use super::source::Source;
use super::{Finding, Tree};

/// The source folder of a crate, and its modules, bottom up.
const ORDERS: [(&str, &str); 7] = [
    ("crates/engine/src/", "testing bucket store growth read write maintenance recovery"),
    ("crates/tablets/src/", "counters tablet checkpoint growth compaction gc apply"),
    (
        "crates/pool/src/",
        "sync counters error latency budget requests memory unit damaged resident policy table shared pool \
         evict fetch fresh writer write_back in_place",
    ),
    (
        "crates/http/src/",
        "limits flow admission capacity counts serve min_rate body timing connection frontend",
    ),
    ("crates/server/src/", "auth failure convert wire timing answer call operations options dispatch listen"),
    (
        "crates/redis/src/",
        "mailbox socket tls decimal cursors clients memory options answer timing stored_answer working_set \
         frontend shared command connection dispatch listen",
    ),
    (
        "crates/transfer/src/",
        "text support_report filter attributes report objects copying work import export redis tree tarball",
    ),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    ORDERS.iter().flat_map(|(folder, order)| check_crate(tree, folder, order)).collect()
}

fn check_crate(tree: &Tree, folder: &str, order: &str) -> Vec<Finding> {
    let Some(lib) = tree.sources.get(&format!("{folder}lib.rs")) else { return Vec::new() };
    let rank = |module: &str| order.split(' ').position(|name| name == module);
    let has_file = |file: &str| tree.sources.contains_key(&format!("{folder}{file}.rs"));
    let reexports = reexports(lib);
    let mut findings = Vec::new();
    for (file, source) in &tree.sources {
        let Some(inner) = file.strip_prefix(folder).filter(|inner| *inner != "lib.rs") else { continue };
        let path: Vec<&str> = inner.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        // Fixtures and tests use all modules.
        if path[0] == "testing" || path.iter().any(|name| *name == "tests" || name.ends_with("_tests")) {
            continue;
        }
        for (name, line) in names_from_root(&product_code(source), path.len()) {
            let (from, to) = (path[0], reexports.get(&name).unwrap_or(&name));
            let why = match (rank(from), rank(to)) {
                (Some(from), Some(to)) if to <= from => continue,
                // An item of the root, or of another crate.
                (_, None) if !has_file(to) && !has_file(&format!("{to}/mod")) => continue,
                (Some(_), Some(_)) => format!("{from} may not use {to}, which is above it"),
                _ => format!("{from} uses {to}: one of them has no place in the order"),
            };
            findings.push(Finding::new(file, line + 1, format!("{why} (xtask/src/tidy/order.rs)")));
        }
    }
    findings
}

/// The code outside tests; its lines keep their numbers.
fn product_code(source: &Source) -> String {
    let lines = source.code.iter().zip(&source.test).map(|(code, test)| if *test { "" } else { code });
    lines.collect::<Vec<_>>().join("\n")
}

/// The items that the root file re-exports, each with its module.
fn reexports(lib: &Source) -> BTreeMap<String, String> {
    let code = product_code(lib);
    let statements = code.split(';').filter_map(|statement| statement.split_once("use "));
    let words = statements.map(|(_, path)| path.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()));
    words
        .filter_map(|mut words| Some((words.next()?.to_owned(), words)))
        .flat_map(|(module, words)| words.map(move |word| (word.to_owned(), module.clone())))
        .collect()
}

/// The first names of all paths from the crate's root in a file `depth` modules below it, with their 0-based lines.
fn names_from_root(code: &str, depth: usize) -> Vec<(String, usize)> {
    let (up, mut found) = ("super::".repeat(depth), Vec::new());
    for prefix in ["crate::", &up] {
        for (at, _) in code.match_indices(prefix) {
            let (before, rest) = (&code[..at], &code[at + prefix.len()..]);
            let is_longer = before.ends_with(|c| is_word(c) || c == ':') || before.ends_with("(in ");
            if !is_longer && !rest.starts_with("super::") {
                let line = before.matches('\n').count();
                found.extend(first_names(rest).into_iter().map(|name| (name, line)));
            }
        }
    }
    found
}

/// The name at the start of `rest`, or each first name of a list in braces.
fn first_names(rest: &str) -> Vec<String> {
    let word = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
    if !rest.starts_with('{') {
        return vec![word(rest)];
    }
    let (mut depth, mut names) = (0, Vec::new());
    for (at, sign) in rest.match_indices(['{', '}', ',']) {
        match sign {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 1 && sign != "}" {
            names.push(word(&rest[at + 1..]));
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    #[test]
    fn a_module_uses_only_those_before_it() {
        let root = "//! A.\nmod bucket;\nmod more;\nmod growth;\npub use growth::{\n    Inner,\n};\n";
        let list =
            "//! A.\nuse crate::{common, bucket::{A, growth}};\n\nuse crate::{\n    bucket, Inner,\n};\n";
        let above = "//! A.\npub(in crate::growth) fn a(b: super::super::write::B) {}\nuse super::c;\n";
        let findings = findings_in(&[
            ("crates/engine/src/lib.rs", root),
            ("crates/engine/src/store/mod.rs", list),
            ("crates/engine/src/store/deep.rs", above),
            ("crates/engine/src/bucket.rs", "//! A.\n#[cfg(test)]\nmod tests {\n    use crate::growth;\n}\n"),
            ("crates/engine/src/more.rs", "//! A.\nuse crate::bucket;\n"),
            ("crates/engine/src/growth.rs", "//! A.\npub(crate) struct Inner;\n"),
            ("crates/engine/src/write.rs", "//! A.\npub(crate) struct B;\n"),
        ]);
        assert_eq!(findings.len(), 3, "{findings:?}");
        let expected = [
            "more.rs:2: more uses bucket: one of them has no place",
            "store/deep.rs:2: store may not use write",
            "store/mod.rs:4: store may not use growth",
        ];
        for (finding, expected) in findings.iter().zip(expected) {
            assert!(finding.contains(expected), "{findings:?}");
        }
    }
}
