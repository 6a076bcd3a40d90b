//! Which keys take part in an import or export: `--include` and `--exclude`.

use clap::Args;
use glob::Pattern;

/// The keys that take part. A pattern is about the whole key behind the prefix.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only keys that match one of these, without the prefix: * any bytes (/ too), ? one byte, [a-z]. May be given several
    /// times.
    #[arg(long, value_name = "GLOB", value_parser = pattern)]
    include: Vec<Pattern>,
    /// No keys that match one of these, whatever --include says. May be given several times.
    #[arg(long, value_name = "GLOB", value_parser = pattern)]
    exclude: Vec<Pattern>,
}

impl Filter {
    /// Whether the key that is `relative` behind the prefix takes part.
    pub(crate) fn takes(&self, relative: &[u8]) -> bool {
        if self.include.is_empty() && self.exclude.is_empty() {
            return true;
        }
        let name = as_text(relative);
        let is_one_of = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(&name));
        (self.include.is_empty() || is_one_of(&self.include)) && !is_one_of(&self.exclude)
    }
}

/// A character for each byte: keys need not be UTF-8.
fn as_text(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

fn pattern(text: &str) -> Result<Pattern, String> {
    // One star matches what two match, and two may not stand in a word.
    let mut stars = as_text(text.as_bytes());
    while stars.contains("**") {
        stars = stars.replace("**", "*");
    }
    Pattern::new(&stars).map_err(|error| format!("{} (at byte {})", error.msg, error.pos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> Filter {
        let patterns = |texts: &[&str]| texts.iter().map(|text| pattern(text).unwrap()).collect();
        Filter { include: patterns(include), exclude: patterns(exclude) }
    }

    #[test]
    fn a_pattern_is_about_the_whole_key_and_exclude_wins() {
        for (include, exclude, key, takes) in [
            (&[][..], &[][..], &b"a"[..], true),
            (&["*.jpg"], &[], b"2024/a.jpg", true),
            (&["*.jpg"], &[], b"a.jpg/", false),
            (&["*"], &[], b".hidden/x", true),
            (&["a"], &[], b"x/a", false),
            (&["**/a."], &[], b"x/a.", true),
            (&["a**b***"], &[], b"a/x/b", true),
            (&["*.jpg", "b*"], &[], b"b", true),
            (&["*.jpg", "*.png"], &["tmp/*"], b"tmp/a.png", false),
            (&[], &["*\u{e4}??"], "x\u{e4}\u{f6}".as_bytes(), false),
            (&["?"], &[], b"\xff", true),
            (&["a"], &["a"], b"a", false),
            (&["[a-c][*]"], &[], b"b*", true),
            (&["[!a-c]"], &[], b"b", false),
        ] {
            assert_eq!(filter(include, exclude).takes(key), takes, "{include:?} {exclude:?} {key:?}");
        }
        let refused = pattern("x[").unwrap_err();
        assert!(refused.contains("at byte 1"), "{refused}");
    }
}
