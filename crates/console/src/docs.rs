//! The pages of the documentation for operators: warnings and operations of the console link to them, and their text is that of this version.

/// Path and text of a page of `docs/`.
macro_rules! page {
    ($path:literal) => {
        (concat!("/docs/", $path), include_bytes!(concat!("../../../docs/", $path)) as &[u8])
    };
}

/// The pages.
pub(crate) const PAGES: [(&str, &[u8]); 15] = [
    page!("operate/archive.md"),
    page!("operate/backup.md"),
    page!("operate/commands.md"),
    page!("operate/credentials.md"),
    page!("operate/grow.md"),
    page!("operate/install.md"),
    page!("operate/logs.md"),
    page!("operate/metrics.md"),
    page!("operate/network-devices.md"),
    page!("operate/security.md"),
    page!("operate/sizing.md"),
    page!("operate/transfer.md"),
    page!("operate/troubles.md"),
    page!("operate/upgrade.md"),
    page!("repair.md"),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_for_operators_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate");
        let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = found.map(|name| name.into_string().unwrap()).collect();
        // The console's pages are about itself.
        names.retain(|name| name.ends_with(".md") && !name.starts_with("console"));
        assert!(names.len() > 10);
        for name in names {
            let path = format!("/docs/operate/{name}");
            assert!(PAGES.iter().any(|(page, text)| *page == path && !text.is_empty()), "{path} is missing");
        }
    }
}
