//! Modules of a crate do not import each other in a circle.
//!
//! The rule holds in each folder: its files, and its folders as wholes. A module and those inside of it may use each other,
//! since the parent declares and re-exports its children. `tidy.toml` [circles] says how many modules of a folder are in
//! circles; the number may only fall.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::exceptions::Exceptions;
use super::modules::{Modules, home};
use super::{Finding, Tree};

/// The files that crates begin with.
const ROOTS: [&str; 3] = ["src/lib.rs", "src/main.rs", "main.rs"];

/// In one folder: which child uses which, and where it does so first.
type Graph = BTreeMap<String, BTreeMap<String, (String, usize)>>;

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    // By folder: the modules in circles, and the findings.
    let mut found: BTreeMap<String, (usize, Vec<Finding>)> =
        exceptions.counts("circles").map(|(folder, _)| (folder.to_owned(), (0, Vec::new()))).collect();
    for (folder, graph) in folders(tree) {
        for circle in circles(&graph) {
            let (count, findings) = found.entry(folder.clone()).or_default();
            *count += circle.len();
            findings.push(finding(&folder, &graph, &circle));
        }
    }
    let mut findings = Vec::new();
    for (folder, (count, circles)) in found {
        let allowed = exceptions.count("circles", &folder).unwrap_or_default();
        if count > allowed {
            findings.extend(circles);
        } else if count < allowed {
            let message =
                format!("{count} modules are in circles: tidy.toml [circles] must not allow {allowed}");
            findings.push(Finding::new(&folder, 0, message));
        }
    }
    findings
}

/// Every use between two modules of one circle, a line each, those of [`check`]'s exceptions too.
pub(super) fn all_uses(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for (folder, graph) in folders(tree) {
        for circle in circles(&graph) {
            lines.push(format!("{folder}: {} modules import each other", circle.len()));
            for (from, uses) in graph.iter().filter(|(from, _)| circle.contains(*from)) {
                for (to, (file, line)) in uses.iter().filter(|(to, _)| circle.contains(*to)) {
                    lines.push(format!("  {from} uses {to} at {file}:{line}"));
                }
            }
        }
    }
    lines
}

/// The graph of every folder of every crate.
fn folders(tree: &Tree) -> Vec<(String, Graph)> {
    let mut found = Vec::new();
    for root in tree.sources.keys().filter(|file| is_root(tree, file)) {
        let modules = Modules::read(tree, root);
        let graphs = graphs(&modules).into_iter();
        found.extend(graphs.map(|(path, graph)| (home(modules.file(&path), path.is_empty()), graph)));
    }
    found
}

fn is_root(tree: &Tree, file: &str) -> bool {
    let Some(name) = ROOTS.iter().find(|name| file.ends_with(*name)) else { return false };
    let folder = file.strip_suffix(name).unwrap_or_default();
    tree.files.binary_search(&format!("{folder}Cargo.toml")).is_ok()
}

/// The graph of each folder, by the path of its module.
fn graphs(modules: &Modules) -> BTreeMap<Vec<String>, Graph> {
    let mut graphs: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
    for used in modules.uses() {
        let common = used.from.iter().zip(&used.to).take_while(|(from, to)| from == to).count();
        let (Some(from), Some(to)) = (used.from.get(common), used.to.get(common)) else { continue };
        let graph = graphs.entry(used.from[..common].to_vec()).or_default();
        let place = (used.file.to_owned(), used.line + 1);
        graph.entry(from.clone()).or_default().entry(to.clone()).or_insert(place);
    }
    graphs
}

/// The sets of modules each of which reaches all others of its set.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|name| (name, reach(graph, name))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (name, there) in &reached {
        if !there.contains(name) || found.iter().any(|circle| circle.contains(*name)) {
            continue;
        }
        let back = there.iter().filter(|other| reached.get(*other).is_some_and(|back| back.contains(name)));
        found.push(back.map(|other| (*other).clone()).collect());
    }
    found
}

fn reach<'a>(graph: &'a Graph, from: &'a String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        open.extend(graph.get(name).into_iter().flat_map(BTreeMap::keys).filter(|to| found.insert(*to)));
    }
    found
}

/// The shortest way from a module back to itself.
fn shortest(graph: &Graph, circle: &BTreeSet<String>) -> Vec<String> {
    circle.iter().filter_map(|name| back_to(graph, name)).min_by_key(Vec::len).unwrap_or_default()
}

fn back_to(graph: &Graph, start: &String) -> Option<Vec<String>> {
    let mut before: BTreeMap<&String, &String> = BTreeMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(name) = open.pop_front() {
        for to in graph.get(name).into_iter().flat_map(BTreeMap::keys) {
            if before.contains_key(to) {
                continue;
            }
            before.insert(to, name);
            if to == start {
                let mut way = vec![start.clone()];
                let mut at = name;
                while at != start {
                    way.push(at.clone());
                    at = before[at];
                }
                way.push(start.clone());
                way.reverse();
                return Some(way);
            }
            open.push_back(to);
        }
    }
    None
}

fn finding(folder: &str, graph: &Graph, circle: &BTreeSet<String>) -> Finding {
    let way = shortest(graph, circle);
    let steps = way.iter().zip(&way[1..]).map(|(from, to)| {
        let (file, line) = &graph[from][to];
        format!("{from} uses {to} at {file}:{line}")
    });
    let steps: Vec<String> = steps.collect();
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    let message =
        format!("{} modules import each other ({}): {}", circle.len(), names.join(", "), steps.join(", "));
    Finding::new(folder, 0, message)
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    const MANIFEST: (&str, &str) =
        ("crates/space/Cargo.toml", "[package]\nname = 'shoal-space'\n[lints]\nworkspace = true\n");

    fn findings_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, String)> = files
            .iter()
            .map(|(path, code)| (format!("crates/space/src/{path}"), format!("//! A.\n{code}")))
            .collect();
        let mut all = vec![MANIFEST];
        all.extend(files.iter().map(|(path, code)| (path.as_str(), code.as_str())));
        findings_in(&all)
    }

    #[test]
    fn the_shortest_circle_is_named() {
        let findings = findings_of(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            ("a.rs", "use crate::b::B;\nuse crate::d;\n"),
            ("b.rs", "use super::{c::{self, C}, d::D};\n"),
            ("c.rs", "fn c() {\n    crate::b::b(); super::a::a()\n}\n"),
            ("d.rs", ""),
        ]);
        let expected = "crates/space/src: 3 modules import each other (a, b, c): b uses c at crates/space/src/b.rs:2, \
            c uses b at crates/space/src/c.rs:3";
        assert_eq!(findings, [expected]);
    }

    #[test]
    fn parents_and_tests_may_close_a_circle() {
        let findings = findings_of(&[
            ("lib.rs", "mod a;\nmod b;\nmod f;\npub use a::A;\n"),
            ("a.rs", "use crate::b::B;\npub struct A;\n#[cfg(test)]\nmod tests;\n"),
            ("a/tests.rs", "use crate::b::B;\n"),
            ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("f/mod.rs", "mod g;\npub struct F;\nuse g::G;\n"),
            ("f/g.rs", "use super::F;\nuse std::sync::Arc;\npub(in crate::f) struct G;\n"),
        ]);
        assert_eq!(findings, Vec::<String>::new());
    }

    #[test]
    fn a_reexport_leads_to_the_file_that_defines() {
        let files = [
            ("lib.rs", "mod a;\nmod f;\npub use a::A as B;\npub use f::*;\n"),
            ("a.rs", "use crate::G;\npub struct A;\n"),
            ("f/mod.rs", "mod g;\nmod h;\npub use g::{G, h};\n"),
            ("f/g.rs", "pub struct G;\npub fn h() { super::h::i() }\n"),
            ("f/h.rs", "use crate::B;\npub fn i() { super::G }\n"),
        ];
        let findings = findings_of(&files);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("crates/space/src: 2 modules import each other (a, f)"), "{findings:?}");
        assert!(
            findings[1].contains("crates/space/src/f: 2 modules import each other (g, h)"),
            "{findings:?}"
        );
    }

    #[test]
    fn exceptions_may_only_fall() {
        let with = |exceptions: &str| {
            findings_in(&[
                MANIFEST,
                ("crates/space/src/lib.rs", "//! A.\nmod a;\nmod b;\n"),
                ("crates/space/src/a.rs", "//! A.\nuse crate::b;\n"),
                ("crates/space/src/b.rs", "//! A.\nuse crate::a;\n"),
                ("tidy.toml", exceptions),
            ])
        };
        assert!(with("[circles]\n'crates/space/src' = '2 modules: to be parted'").is_empty());
        assert!(
            with("[circles]\n'crates/space/src' = '1 module: to be parted'")[0].contains("import each other")
        );
        assert!(
            with("[circles]\n'crates/space/src' = '3 modules: to be parted'")[0].contains("must not allow 3")
        );
        let gone =
            "[circles]\n'crates/space/src' = '2 modules: to be parted'\n'crates/x/src' = '2 modules: gone'";
        assert!(with(gone)[0].starts_with("crates/x/src: 0 modules"));
    }
}
