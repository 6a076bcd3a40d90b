//! `tidy.toml`: which files may break which rule, and why.
//!
//! One table for each rule, which maps a file (`*` matches any part of a name) to the reason. An entry without a reason is
//! refused. The lists should shrink: a file that `unsafe` names without need is a violation itself ([`super::sources`]).
//! `foreign` lists names of other programs instead of files; `words` lists habits of language, and the reason starts with the
//! ceiling.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The rules that may have exceptions, as they are called in `tidy.toml`.
const RULES: [&str; 6] = ["unsafe", "time", "fs", "names", "foreign", "words"];

/// Each with its rule, its file and its reason.
pub(super) struct Exceptions(Vec<(String, String, String)>);

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
                let Some(reason) = reason.as_str().filter(|reason| reason.trim().len() >= 10) else {
                    bail!("{rule}: {file} needs a reason");
                };
                entries.push((rule.clone(), file.clone(), reason.to_owned()));
            }
        }
        Ok(Self(entries))
    }

    /// Whether `file` may break `rule`.
    pub(super) fn allow(&self, rule: &str, file: &str) -> bool {
        self.0.iter().any(|(of, pattern, _)| of == rule && matches(pattern, file))
    }

    /// The reason that the list of `rule` gives for just this name.
    pub(super) fn reason(&self, rule: &str, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, entry, _)| of == rule && entry == name).map(|(.., reason)| reason.as_str())
    }

    /// Whether the list of `rule` names just this file.
    pub(super) fn name(&self, rule: &str, file: &str) -> bool {
        self.0.iter().any(|(of, pattern, _)| of == rule && pattern == file)
    }
}

/// Whether `text` is `pattern`, where one `*` in it stands for anything but a slash, and `/**` at its end for all below.
fn matches(pattern: &str, text: &str) -> bool {
    if let Some(folder) = pattern.strip_suffix("/**") {
        return text.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    }
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
        assert!(!exceptions.allow("fs", "a/src/frame.rs"));
        assert!(Exceptions::parse("[unsafe]\n'a.rs' = ''").is_err());
        assert!(Exceptions::parse("[unsave]\n'a.rs' = 'touches raw memory'").is_err());
    }
}
