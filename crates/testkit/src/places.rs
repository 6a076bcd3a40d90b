//! Lists of the places that a new command or method changes, in the comments of a source file, held against the repository.

use std::path::Path;

/// The files of the list in `source`: its comment lines "- `PATH`: ...".
fn files(source: &str) -> Vec<&str> {
    let items = source.lines().filter_map(|line| line.trim_start_matches(['/', '!']).strip_prefix(" - `"));
    items.filter_map(|item| item.split_once("`:")).map(|(path, _)| path).collect()
}

/// Letters and digits in lower case: `GetStream`, `get_stream` and `getstream` are one name.
fn plain(text: &str) -> String {
    text.chars().filter(|it| it.is_ascii_alphanumeric()).map(|it| it.to_ascii_lowercase()).collect()
}

/// Returns the files of the list in `source` below `root` that do not have `name`, the example of the list.
///
/// # Panics
/// If a file cannot be read, or there is no list.
#[must_use]
pub fn lacking<'a>(root: &Path, source: &'a str, name: &str) -> Vec<&'a str> {
    let files = files(source);
    assert!(!files.is_empty(), "the source has a list of places");
    let text = |path: &str| {
        std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    files.into_iter().filter(|path| !plain(&text(path)).contains(&plain(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_the_name_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [("a.rs", "fn get_stream() {}"), ("b.md", "GetStream"), ("c.md", "Stream")] {
            std::fs::write(folder.path().join(path), text).unwrap();
        }
        let list =
            "//! Places:\n//! - `a.rs`: code;\n//! - `b.md`: words;\n//! - `c.md`: more.\n//! `d` is none.\n";
        assert_eq!(lacking(folder.path(), list, "GetStream"), ["c.md"]);
        assert!(lacking(folder.path(), list, "stream").is_empty());
    }
}
