//! The rules of the house that neither the compiler nor clippy checks.
//!
//! Each submodule is a family of rules: [`manifests`] (dependencies and lock files), [`order`] (modules of a large crate), [`sources`] (every
//! `.rs` file), [`docs`] (links, limits, tables, decisions), [`names`] (files, items and options in text exist), [`rules`] (invariants are
//! asserted and broken somewhere), [`types`] (one meaning for a public type), [`words`] (habits of language), [`commits`] (subjects).
//! `tidy.toml` has the exceptions, each with its reason. The rules read text, not syntax: [`source`] separates code, comments and tests.

mod commits;
mod docs;
mod exceptions;
mod manifests;
mod names;
mod order;
mod prose;
mod rules;
mod source;
mod sources;
mod types;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) use docs::links;

/// A violation and where it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    /// 1-based; 0 stands for the file as a whole.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// The repository as the rules read it.
struct Tree {
    root: PathBuf,
    /// All files, as paths relative to the root with `/`, sorted; without build output and hidden folders except `.ci`.
    files: Vec<String>,
    /// The texts of those that hold text, by path.
    texts: BTreeMap<String, String>,
    /// The `.rs` files, by path; without generated code, which follows the rules of its generator.
    sources: BTreeMap<String, source::Source>,
}

/// Ends of names of files that hold text.
const TEXTS: [&str; 12] =
    [".rs", ".md", ".toml", ".proto", ".py", ".go", ".java", ".sh", ".yml", ".ci/run", ".json", "Dockerfile"];

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let files = files(root)?;
        let mut texts = BTreeMap::new();
        for path in files.iter().filter(|path| TEXTS.iter().any(|end| path.ends_with(end))) {
            texts.insert(path.clone(), read(root, path)?);
        }
        let rust = texts.iter().filter(|(path, _)| path.ends_with(".rs") && !path.contains("/generated/"));
        let sources = rust.map(|(path, text)| (path.clone(), source::Source::parse(text))).collect();
        Ok(Self { root: root.to_path_buf(), files, texts, sources })
    }

    /// The documents: path and text.
    fn docs(&self) -> impl Iterator<Item = (&String, &String)> {
        self.texts.iter().filter(|(path, _)| path.ends_with(".md"))
    }
}

/// All violations below `root`, in the order of their places.
pub(crate) fn findings(root: &Path) -> Result<Vec<Finding>> {
    let tree = Tree::read(root)?;
    let exceptions = exceptions::Exceptions::read(root)?;
    let mut findings = manifests::check(&tree)?;
    findings.extend(order::check(&tree));
    findings.extend(sources::check(&tree, &exceptions));
    findings.extend(docs::check(&tree)?);
    findings.extend(names::check(&tree, &exceptions));
    findings.extend(rules::check(&tree));
    findings.extend(types::check(&tree));
    findings.extend(words::check(&tree, &exceptions));
    findings.extend(commits::check(root));
    findings.sort();
    Ok(findings)
}

/// The habits of language and their counts, a line each.
pub(crate) fn words(root: &Path) -> Result<Vec<words::Count>> {
    Ok(words::counts(&Tree::read(root)?))
}

fn files(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            if name == "target"
                || name == "node_modules"
                || (name != ".ci" && name.to_string_lossy().starts_with('.'))
            {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some(path) = entry.path().strip_prefix(root)?.to_str() {
                found.push(path.replace('\\', "/"));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(root: &Path, path: &str) -> Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let findings = findings(root).unwrap();
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    /// A small workspace with the given files, and its findings.
    pub(super) fn findings_in(files: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        findings(root.path()).unwrap().iter().map(Finding::to_string).collect()
    }
}
