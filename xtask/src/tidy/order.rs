//! The modules at the top of a crate form a list: each uses only those listed before it.
//!
//! The compiler holds the walls between crates; this rule holds those inside a crate. No subsystem of the engine names the
//! store, no step of the pool names the pages that change in place, and no verb of a frontend names its connection.
//! A path through a re-export at the root counts as a use of the module that the item comes from.

use std::collections::BTreeMap;

use super::source::Source;
use super::{Finding, Tree};

/// The root file of a crate, and its modules, bottom up.
const ORDERS: [(&str, &str); 5] = [
    (
        "crates/engine/src/lib.rs",
        "testing counters space log value memtable tablet image checkpoint compaction gc apply store growth \
         read write maintenance recovery",
    ),
    (
        "crates/pool/src/lib.rs",
        "sync counters error latency requests memory unit damaged resident policy table shared pool \
         evict fetch fresh writer write_back in_place",
    ),
    (
        "crates/server/src/lib.rs",
        "admission read_cache auth failure convert wire flow timing answer call operations options \
         dispatch connection listen",
    ),
    (
        "crates/redis/src/lib.rs",
        "mailbox socket tls number cursors clients memory options answer timing kept working_set \
         frontend shared command connection dispatch listen",
    ),
    (
        "crates/transfer/src/lib.rs",
        "text filter attributes report objects copying work import export redis tree tarball",
    ),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    ORDERS
        .iter()
        .filter_map(|(root, order)| Some((root, order, tree.sources.get(*root)?)))
        .flat_map(|(root, order, lib)| check_crate(tree, root, order, &reexports(lib)))
        .collect()
}

fn check_crate(tree: &Tree, root: &str, order: &str, reexports: &BTreeMap<String, String>) -> Vec<Finding> {
    let folder = root.trim_end_matches("lib.rs");
    let rank = |module: &str| order.split(' ').position(|name| name == module);
    let mut findings = Vec::new();
    for (file, source) in tree.sources.iter().filter(|(file, _)| *file != root) {
        let Some(inner) = file.strip_prefix(folder) else { continue };
        let path: Vec<&str> = inner.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        if path.iter().any(|name| *name == "tests" || name.ends_with("_tests")) {
            continue;
        }
        let from = path[0];
        // Fixtures use all modules.
        if from == "testing" {
            continue;
        }
        for (name, line) in names_from_root(&product_code(source), path.len()) {
            let to = reexports.get(&name).unwrap_or(&name);
            let why = match (rank(from), rank(to)) {
                (Some(from), Some(to)) if to <= from => continue,
                // An item of the root itself.
                (_, None)
                    if !tree.sources.contains_key(&format!("{folder}{to}.rs"))
                        && !tree.sources.contains_key(&format!("{folder}{to}/mod.rs")) =>
                {
                    continue;
                }
                (Some(_), Some(_)) => format!("{from} may not use {to}, which is above it in {folder}"),
                _ => format!("{from} uses {to}: one of them has no place in the order of {folder}"),
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
    let up = "super::".repeat(depth);
    let mut found = Vec::new();
    for prefix in ["crate::", &up] {
        for (at, _) in code.match_indices(prefix) {
            let (before, rest) = (&code[..at], &code[at + prefix.len()..]);
            if before.ends_with(|c| is_word(c) || c == ':')
                || before.ends_with("(in ")
                || rest.starts_with("super::")
            {
                continue;
            }
            let line = before.matches('\n').count();
            found.extend(first_names(rest).into_iter().map(|name| (name, line)));
        }
    }
    found
}

/// The name at the start of `rest`, or each first name of a list in braces.
fn first_names(rest: &str) -> Vec<String> {
    let word = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
    let Some(list) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut names) = (1, vec![word(list)]);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(word(&list[at + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
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
        let manifest = "[package]\nname = 'shoal-engine'\n[lints]\nworkspace = true\n";
        let findings = findings_in(&[
            ("crates/engine/Cargo.toml", manifest),
            (
                "crates/engine/src/lib.rs",
                "//! A.\nmod log;\nmod more;\nmod store;\npub use store::{\n    Inner,\n};\n",
            ),
            (
                "crates/engine/src/value/mod.rs",
                "//! A.\nuse crate::{common, log::{A, store}};\n\nuse crate::{\n    log, Inner,\n};\n",
            ),
            (
                "crates/engine/src/value/deep.rs",
                "//! A.\npub(in crate::store) fn a(b: super::super::write::B) {}\nuse super::c;\n",
            ),
            ("crates/engine/src/log.rs", "//! A.\n#[cfg(test)]\nmod tests {\n    use crate::store;\n}\n"),
            ("crates/engine/src/more.rs", "//! A.\nuse crate::log;\n"),
            ("crates/engine/src/store.rs", "//! A.\npub(crate) struct Inner;\n"),
            ("crates/engine/src/write.rs", "//! A.\npub(crate) struct B;\n"),
        ]);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].contains("more.rs:2: more uses log: one of them has no place"), "{findings:?}");
        assert!(findings[1].contains("value/deep.rs:2: value may not use write"), "{findings:?}");
        assert!(findings[2].contains("value/mod.rs:4: value may not use store"), "{findings:?}");
    }
}
