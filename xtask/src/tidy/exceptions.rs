//! `tidy.toml`: which files may break which rule, and why.
//!
//! A table a rule, in it a file (`*` stands for any part of a name) and the reason. An entry without a reason is
//! refused. The lists should shrink: a file that is named under `unsafe` or `lines` without need is a violation itself
//! ([`super::sources`]).

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The rules that may have exceptions, as they are called in `tidy.toml`.
pub(super) const RULES: [&str; 4] = ["unsafe", "lines", "time", "fs"];

pub(super) struct Exceptions(Vec<(String, String)>);

impl Exceptions {
    /// Reads the file at `root`; without one there are no exceptions.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let path = root.join("tidy.toml");
        if !path.exists() {
            return Ok(Self(Vec::new()));
        }
        let text = std::fs::read_to_string(path).context("cannot read tidy.toml")?;
        Self::parse(&text).context("tidy.toml")
    }

    fn parse(text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for (rule, files) in text.parse::<toml::Table>()? {
            if !RULES.contains(&rule.as_str()) {
                bail!("there is no rule {rule:?}; there are {RULES:?}");
            }
            for (file, reason) in files.as_table().with_context(|| format!("{rule} must be a table"))? {
                if reason.as_str().is_none_or(|reason| reason.trim().len() < 10) {
                    bail!("{rule}: {file} needs a reason");
                }
                entries.push((rule.clone(), file.clone()));
            }
        }
        Ok(Self(entries))
    }

    /// Whether `file` may break `rule`.
    pub(super) fn allow(&self, rule: &str, file: &str) -> bool {
        self.0.iter().any(|(of, pattern)| of == rule && matches(pattern, file))
    }

    /// Whether the list of `rule` names just this file.
    pub(super) fn name(&self, rule: &str, file: &str) -> bool {
        self.0.iter().any(|(of, pattern)| of == rule && pattern == file)
    }
}

/// Whether `text` is `pattern`, where one `*` in it stands for anything but a slash.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|middle| !middle.contains('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_need_a_known_rule_and_a_reason() {
        let exceptions = Exceptions::parse("[unsafe]\n'a/src/*.rs' = 'touches raw memory'").unwrap();
        assert!(exceptions.allow("unsafe", "a/src/frame.rs"));
        assert!(!exceptions.allow("unsafe", "a/src/sub/frame.rs"));
        assert!(!exceptions.allow("lines", "a/src/frame.rs"));
        assert!(Exceptions::parse("[unsafe]\n'a.rs' = ''").is_err());
        assert!(Exceptions::parse("[unsave]\n'a.rs' = 'touches raw memory'").is_err());
    }
}
