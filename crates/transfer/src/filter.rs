//! The keys that take part in an import or export.

use shoal_base::glob;

/// Patterns that keys must and must not match. A pattern matches the whole key after the prefix: `*` any bytes (`/` too), `?` one byte,
/// `[a-z]` one of these.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// A key must match one of these, if there are any.
    pub include: Vec<String>,
    /// A key must match none of these.
    pub exclude: Vec<String>,
}

impl Filter {
    /// Returns true if the key that is `relative` after the prefix takes part.
    pub(crate) fn takes(&self, relative: &[u8]) -> bool {
        let is_one_of =
            |patterns: &[String]| patterns.iter().any(|pattern| glob::matches(pattern.as_bytes(), relative));
        (self.include.is_empty() || is_one_of(&self.include)) && !is_one_of(&self.exclude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_key_and_exclude_wins() {
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
