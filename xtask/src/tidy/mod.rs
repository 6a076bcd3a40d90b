//! The rules of the house that neither the compiler nor clippy checks.
//!
//! Each submodule is one family of rules: [`layers`] (arrows only point down), [`sources`] (what every `.rs` file
//! obeys), [`docs`] (links and paths that the documents name). Exceptions stand in `tidy.toml`, each with its reason.
//! It reads text, not syntax: [`source`] tells code, comments and tests apart, which is enough for these rules.

mod docs;
mod exceptions;
mod layers;
mod source;
mod sources;

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};

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

/// All violations below `root`, in the order of their places.
pub(crate) fn findings(root: &Path) -> Result<Vec<Finding>> {
    let files = files(root)?;
    let exceptions = exceptions::Exceptions::read(root)?;
    let mut findings = layers::check(root, &files)?;
    findings.extend(sources::check(root, &files, &exceptions)?);
    findings.extend(docs::check(root, &files)?);
    findings.sort();
    Ok(findings)
}

/// All files below `root` as paths relative to it with `/`, sorted; without build output and hidden folders.
fn files(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            if name == "target" || name.to_string_lossy().starts_with('.') {
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

    /// A small workspace with the given files, and what tidy says of it.
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
