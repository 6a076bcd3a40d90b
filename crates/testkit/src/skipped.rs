//! Lists the parts that a test skips because the machine lacks something.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Logs the reason why a test skips a part. Cargo shows the output of failed tests only, so CI names a file in the variable `CI_SKIPPED`,
/// and prints the lines of that file at its end.
///
/// # Panics
/// If the file cannot be written.
pub fn skipped(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(file) = std::env::var_os("CI_SKIPPED") {
        note(Path::new(&file), why);
    }
}

/// Appends a line with one write, because other tests append as well.
fn note(file: &Path, why: &str) {
    let noted = OpenOptions::new().create(true).append(true).open(file);
    let line = format!("skipped: {}\n", why.replace('\n', " "));
    let noted = noted.and_then(|mut file| file.write_all(line.as_bytes()));
    assert!(noted.is_ok(), "{}: {noted:?}", file.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_note_is_a_line() {
        let file = std::env::temp_dir().join(format!("shoal-skipped-{}", std::process::id()));
        note(&file, "no tool");
        note(&file, "no\ndevice");
        let text = std::fs::read_to_string(&file);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(text.unwrap(), "skipped: no tool\nskipped: no device\n");
    }
}
