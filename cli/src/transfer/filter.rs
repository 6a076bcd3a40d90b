//! Which keys take part in an import or export: `--include` and `--exclude`.

use clap::Args;
use shoal_base::glob;

/// The keys that take part. A pattern is about the whole key after the prefix.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only keys that match one of these, without the prefix: * any bytes (/ too), ? one byte, [a-z]. Repeatable.
    #[arg(long, value_name = "PATTERN", value_parser = whole)]
    include: Vec<String>,
    /// No keys that match one of these, even if they match --include. Repeatable.
    #[arg(long, value_name = "PATTERN", value_parser = whole)]
    exclude: Vec<String>,
}

impl Filter {
    /// Returns true if the key that is `relative` after the prefix takes part.
    pub(crate) fn takes(&self, relative: &[u8]) -> bool {
        let is_one_of =
            |patterns: &[String]| patterns.iter().any(|pattern| glob::matches(pattern.as_bytes(), relative));
        (self.include.is_empty() || is_one_of(&self.include)) && !is_one_of(&self.exclude)
    }
}

/// A pattern whose sets are all closed.
fn whole(pattern: &str) -> Result<String, String> {
    match glob::cut_at(pattern.as_bytes()) {
        None => Ok(pattern.to_owned()),
        Some(at) => Err(format!(
            "at byte {at} it has a set without `]`, or a last backslash: write `\\[` or `\\\\` for the byte"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_about_the_whole_key_and_exclude_wins() {
        for (include, exclude, key, takes) in [
            (&[][..], &[][..], &b"a"[..], true),
            (&["*.jpg"], &[], b"2024/a.jpg", true),
            (&["*.jpg"], &[], b"a.jpg/", false),
            (&["*"], &[], b".hidden/x", true),
            (&["a"], &[], b"x/a", false),
            (&["**/a."], &[], b"x/a.", true),
            (&["*.jpg", "b*"], &[], b"b", true),
            (&["*.jpg", "*.png"], &["tmp/*"], b"tmp/a.png", false),
            (&[], &["*\u{e4}??"], "x\u{e4}\u{f6}".as_bytes(), false),
            (&["?"], &[], b"\xff", true),
            (&["a"], &["a"], b"a", false),
            (&["[a-c]\\*"], &[], b"b*", true),
            (&["[^a-c]"], &[], b"b", false),
        ] {
            let owned = |patterns: &[&str]| patterns.iter().map(|&pattern| pattern.to_owned()).collect();
            let filter = Filter { include: owned(include), exclude: owned(exclude) };
            assert_eq!(filter.takes(key), takes, "{include:?} {exclude:?} {key:?}");
        }
    }
}
