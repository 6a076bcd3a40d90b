//! `cargo x book`: the documents as a book, by mdBook. `docs/SUMMARY.md` has the chapters.
//!
//! mdBook takes one folder, and pages link to files all over the repository. So the chapters and the files that they link to are
//! copied to `target/book-source`, each at its own path, and that folder becomes `target/book`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tidy::links;

const SUMMARY: &str = "docs/SUMMARY.md";
const CONFIGURATION: &str = "docs/book.toml";
/// Named by the configuration.
const STYLE: &str = "docs/book.css";
const SOURCE: &str = "target/book-source";

/// Makes the book.
pub(crate) fn run() -> Result<()> {
    let root = super::root()?;
    let source = root.join(SOURCE);
    if source.exists() {
        fs::remove_dir_all(&source).with_context(|| format!("cannot empty {SOURCE}"))?;
    }
    let book = Book::read(&root)?;
    for file in &book.files {
        let to = source.join(file);
        fs::create_dir_all(to.parent().unwrap_or(&source))?;
        fs::copy(root.join(file), to).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    fs::write(source.join("SUMMARY.md"), &book.summary)?;
    fs::copy(root.join(CONFIGURATION), source.join("book.toml"))?;
    super::run("mdbook", &["build", SOURCE]).context("mdBook is needed: `cargo install mdbook --locked`")?;
    println!("target/book/index.html");
    Ok(())
}

/// The parts of the book, by their paths in the repository.
struct Book {
    /// The chapters, and files that they link to.
    files: BTreeSet<PathBuf>,
    /// The list of chapters as mdBook reads it at the root.
    summary: String,
}

impl Book {
    fn read(root: &Path) -> Result<Self> {
        let mut summary = read(root, Path::new(SUMMARY))?;
        let mut chapters = BTreeSet::new();
        let targets: BTreeSet<String> = summary.lines().flat_map(links).map(str::to_owned).collect();
        for target in targets {
            let path = place(Path::new(SUMMARY), &target);
            summary = summary.replace(&format!("]({target})"), &format!("]({})", path.display()));
            chapters.insert(path);
        }
        let mut files = chapters.clone();
        files.insert(STYLE.into());
        for chapter in &chapters {
            for target in read(root, chapter)?.lines().flat_map(links) {
                let path = place(chapter, target.split('#').next().unwrap_or_default());
                if target.contains("://") || !root.join(&path).is_file() {
                    continue;
                }
                let is_page = path.extension().is_some_and(|end| end == "md");
                if is_page && !chapters.contains(&path) && path != Path::new(SUMMARY) {
                    bail!(
                        "{} links to {}, which is no chapter: add it to {SUMMARY}",
                        chapter.display(),
                        path.display()
                    );
                }
                files.insert(path);
            }
        }
        Ok(Self { files, summary })
    }
}

fn read(root: &Path, path: &Path) -> Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
}

/// The path that a link in the page `page` leads to, without `..`.
fn place(page: &Path, target: &str) -> PathBuf {
    let mut found = PathBuf::new();
    for part in page.parent().unwrap_or(Path::new("")).join(target).components() {
        match part {
            Component::ParentDir => _ = found.pop(),
            part => found.push(part),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_a_place_of_the_repository() {
        assert_eq!(place(Path::new("docs/operate/a.md"), "../../deploy/x.yml"), Path::new("deploy/x.yml"));
        assert_eq!(place(Path::new("README.md"), "docs/a.md"), Path::new("docs/a.md"));
    }

    #[test]
    fn the_book_has_its_chapters_and_what_they_link_to() {
        let book = Book::read(&crate::root().unwrap()).unwrap();
        for file in ["README.md", "docs/concepts.md", "docs/charts/growth.svg", "experiments/README.md"] {
            assert!(book.files.contains(Path::new(file)), "{file}");
        }
        assert!(book.summary.contains("](docs/concepts.md)") && book.summary.contains("](README.md)"));
    }
}
