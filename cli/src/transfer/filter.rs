//! Which keys take part in an import or export: `--include` and `--exclude`.

use clap::Args;
use globset::{Glob, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The keys that take part. A pattern is about the whole key behind the prefix.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only keys that match one of these, without the prefix: * any bytes (/ too), ? one byte, [a-z], {jpg,png}. May be given
    /// several times.
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    include: Vec<GlobMatcher>,
    /// No keys that match one of these, whatever --include says. May be given several times.
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    exclude: Vec<GlobMatcher>,
}

impl Filter {
    /// Whether the key that is `relative` behind the prefix takes part.
    pub(crate) fn takes(&self, relative: &[u8]) -> bool {
        let name = OsStr::from_bytes(relative);
        let is_one_of = |globs: &[GlobMatcher]| globs.iter().any(|glob| glob.is_match(name));
        (self.include.is_empty() || is_one_of(&self.include)) && !is_one_of(&self.exclude)
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher, String> {
    // One matcher a pattern: sets of globs take shortcuts for names that end with a dot.
    Glob::new(pattern).map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> Filter {
        let globs = |patterns: &[&str]| patterns.iter().map(|pattern| glob(pattern).unwrap()).collect();
        Filter { include: globs(include), exclude: globs(exclude) }
    }

    #[test]
    fn a_pattern_is_about_the_whole_key_and_exclude_wins() {
        for (include, exclude, key, takes) in [
            (&[][..], &[][..], &b"a"[..], true),
            (&["*.jpg"], &[], b"2024/a.jpg", true),
            (&["*.jpg"], &[], b"a.jpg/", false),
            (&["a"], &[], b"x/a", false),
            (&["**/a."], &[], b"x/a.", true),
            (&["*.jpg", "b*"], &[], b"b", true),
            (&["*.{jpg,png}"], &["tmp/*"], b"tmp/a.png", false),
            (&[], &["*\u{e4}??"], "x\u{e4}\u{f6}".as_bytes(), false),
            (&["?"], &[], b"\xff", true),
            (&["a"], &["a"], b"a", false),
            (&["[a-c]\\*"], &[], b"b*", true),
        ] {
            assert_eq!(filter(include, exclude).takes(key), takes, "{include:?} {exclude:?} {key:?}");
        }
        assert!(glob("[").is_err() && glob("{a").is_err());
    }
}
