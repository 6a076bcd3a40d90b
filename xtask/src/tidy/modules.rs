//! The modules of a crate and the paths between them, read from the text of its sources.
//!
//! A module is a file; the items of an inline `mod` belong to the file. Code under `#[cfg(test)]` does not count. A path is
//! followed through `use` declarations, so that a re-export leads to the file that defines the item. Paths that a macro
//! makes are not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;
use super::source::Source;

/// How many re-exports a path is followed through.
const REEXPORTS_MAX: usize = 8;

/// A crate: its modules by their path from the root, which is the empty path.
pub(super) struct Modules {
    modules: BTreeMap<Vec<String>, Module>,
}

struct Module {
    file: String,
    /// The names that `use` declarations bring in, with the paths they stand for.
    uses: BTreeMap<String, Vec<String>>,
    /// The paths of `use a::*`.
    globs: Vec<Vec<String>>,
    /// Names of items that the file defines.
    items: BTreeSet<String>,
    /// Every path of the code, with its 0-based line.
    paths: Vec<(Vec<String>, usize)>,
}

/// One module uses another: their paths from the root, and the 0-based line of the use.
pub(super) struct Use<'a> {
    pub(super) from: &'a [String],
    pub(super) to: Vec<String>,
    pub(super) file: &'a str,
    pub(super) line: usize,
}

impl Modules {
    /// The modules below the crate's root file (`lib.rs` or `main.rs`).
    pub(super) fn read(tree: &Tree, root_file: &str) -> Self {
        let mut modules = BTreeMap::new();
        let mut open = vec![(Vec::new(), root_file.to_owned())];
        while let Some((path, file)) = open.pop() {
            let Some(source) = tree.sources.get(&file) else { continue };
            let declared = declarations(source, &tree.texts[&file]);
            for (name, other) in declared {
                let candidates = match other {
                    Some(other) => vec![format!("{}/{other}", folder(&file))],
                    None => {
                        let home = home(&file, path.is_empty());
                        vec![format!("{home}/{name}.rs"), format!("{home}/{name}/mod.rs")]
                    }
                };
                let found = candidates.into_iter().find(|file| tree.sources.contains_key(file));
                open.extend(found.map(|file| (child(&path, &name), file)));
            }
            modules.insert(path, Module::read(source, file));
        }
        Self { modules }
    }

    /// The file of a module.
    pub(super) fn file(&self, path: &[String]) -> &str {
        &self.modules[path].file
    }

    /// Every use of one file by another.
    pub(super) fn uses(&self) -> Vec<Use<'_>> {
        let mut found = Vec::new();
        for (from, module) in &self.modules {
            for (path, line) in &module.paths {
                if let Some(to) = self.resolve(from, path, 0).filter(|to| to != from) {
                    found.push(Use { from, to, file: &module.file, line: *line });
                }
            }
        }
        found
    }

    /// The module whose file defines what `path` names in the module `from`; none for what other crates define.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from.split_last()?.1.to_vec(),
            _ if depth > REEXPORTS_MAX => return None,
            _ => {
                let module = &self.modules[from];
                let known = self.modules.contains_key(&child(from, first)) || module.uses.contains_key(first);
                if !known {
                    return None;
                }
                rest = path;
                from.to_vec()
            }
        };
        while let Some((name, behind)) = rest.split_first() {
            if name == "super" {
                at = at.split_last()?.1.to_vec();
            } else if self.modules.contains_key(&child(&at, name)) {
                at.push(name.clone());
            } else {
                return self.follow(&at, name, behind, depth);
            }
            rest = behind;
        }
        Some(at)
    }

    /// Goes on from the item `name` of the module `at`: through a re-export, or it ends here.
    fn follow(&self, at: &[String], name: &str, behind: &[String], depth: usize) -> Option<Vec<String>> {
        let module = &self.modules[at];
        if depth > REEXPORTS_MAX || module.items.contains(name) {
            return Some(at.to_vec());
        }
        if let Some(path) =
            module.uses.get(name).filter(|path| path.first().is_none_or(|first| first != name))
        {
            let path: Vec<String> = path.iter().chain(behind).cloned().collect();
            return self.resolve(at, &path, depth + 1);
        }
        for glob in &module.globs {
            let Some(target) = self.resolve(at, glob, depth + 1).filter(|target| target != at) else {
                continue;
            };
            let holds = &self.modules[&target];
            if holds.items.contains(name)
                || holds.uses.contains_key(name)
                || self.modules.contains_key(&child(&target, name))
            {
                let path: Vec<String> = std::iter::once(name.to_owned()).chain(behind.to_vec()).collect();
                let path = [vec!["self".to_owned()], path].concat();
                return self.resolve(&target, &path, depth + 1);
            }
        }
        Some(at.to_vec())
    }
}

impl Module {
    fn read(source: &Source, file: String) -> Self {
        let tokens = tokens(source);
        let mut module = Self {
            file,
            uses: BTreeMap::new(),
            globs: Vec::new(),
            items: BTreeSet::new(),
            paths: Vec::new(),
        };
        // Depths of braces at which inline modules began.
        let (mut depth, mut inline) = (0_usize, Vec::new());
        let mut at = 0;
        while let Some(&(token, line)) = tokens.get(at) {
            match token {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    inline.pop_if(|begun| *begun == depth);
                }
                "mod" if is_at(&tokens, at + 2, "{") => inline.push(depth),
                "struct" | "enum" | "union" | "trait" | "fn" | "const" | "static" | "type" => {
                    module.items.extend(tokens.get(at + 1).map(|&(name, _)| name.to_owned()));
                }
                "use" => {
                    let mut leaves = Vec::new();
                    at = use_tree(&tokens, at + 1, &[], &mut leaves);
                    for (leaf, name) in leaves {
                        module.add_use(leaf, name, line, inline.len());
                    }
                    continue;
                }
                _ if is_name(token) && begins_path(&tokens, at) => {
                    let mut names = vec![token.to_owned()];
                    while is_at(&tokens, at + 1, "::")
                        && tokens.get(at + 2).is_some_and(|&(name, _)| is_name(name))
                    {
                        names.push(tokens[at + 2].0.to_owned());
                        at += 2;
                    }
                    module.paths.push((outside(names, inline.len()), line));
                }
                _ => {}
            }
            at += 1;
        }
        module
    }

    /// Keeps a leaf of a `use` declaration that lies in so many inline modules; a glob has no name.
    fn add_use(&mut self, leaf: Vec<String>, name: Option<String>, line: usize, inline: usize) {
        let leaf = outside(leaf, inline);
        match name {
            None => self.globs.push(leaf.clone()),
            Some(name) if inline == 0 => drop(self.uses.insert(name, leaf.clone())),
            Some(_) => {}
        }
        self.paths.push((leaf, line));
    }
}

/// Whether a path of several names begins at token `at`; `pub(in a::b)` is none.
fn begins_path(tokens: &[(&str, usize)], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|at| tokens[at].0);
    let visibility = before(1) == Some("in") && before(2) == Some("(");
    is_at(tokens, at + 1, "::") && before(1) != Some("::") && !visibility
}

/// A path of an inline module that lies so deep in its file, seen from the file; empty where it does not leave the inline
/// module.
fn outside(path: Vec<String>, inline: usize) -> Vec<String> {
    if inline == 0 {
        return path;
    }
    let supers = path.iter().take_while(|name| *name == "super").count();
    match path.first().map(String::as_str) {
        Some("super") if supers >= inline => {
            let up = std::iter::repeat_n("super".to_owned(), supers - inline);
            let rest = path[supers..].iter().cloned();
            std::iter::once("self".to_owned()).chain(up).chain(rest).collect()
        }
        Some("super" | "self") => Vec::new(),
        _ => path,
    }
}

/// Reads a `use` tree that begins at token `at`: each leaf with the name it gets (none for a glob). Returns the place behind it.
fn use_tree(
    tokens: &[(&str, usize)],
    mut at: usize,
    prefix: &[String],
    leaves: &mut Vec<(Vec<String>, Option<String>)>,
) -> usize {
    let mut path = prefix.to_vec();
    if prefix.is_empty() && is_at(tokens, at, "::") {
        path.push("::".to_owned());
        at += 1;
    }
    let mut name = None;
    let mut done = false;
    while let Some(&(token, _)) = tokens.get(at) {
        match token {
            "::" => {}
            "{" => {
                at += 1;
                while !is_at(tokens, at, "}") && at < tokens.len() {
                    at = use_tree(tokens, at, &path, leaves);
                    if is_at(tokens, at, ",") {
                        at += 1;
                    }
                }
                done = true;
            }
            "*" => {
                leaves.push((path.clone(), None));
                done = true;
            }
            "as" => {
                name = tokens.get(at + 1).map(|&(name, _)| name.to_owned());
                at += 1;
            }
            "self" if !path.is_empty() => {}
            _ if is_name(token) => path.push(token.to_owned()),
            _ => break,
        }
        at += 1;
    }
    if !done && let Some(last) = path.last() {
        let name = name.unwrap_or_else(|| last.clone());
        leaves.push((path, Some(name)));
    }
    at
}

fn is_at(tokens: &[(&str, usize)], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|&(token, _)| token == text)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::` and single marks of the code that is not for tests, each with its 0-based line.
fn tokens(source: &Source) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for (line, code) in source.code.iter().enumerate().filter(|(line, _)| !source.test[*line]) {
        let mut rest = code.as_str();
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = match word {
                0 if rest.starts_with("::") => 2,
                0 => c.len_utf8(),
                word => word,
            };
            if !c.is_whitespace() {
                found.push((&rest[..length], line));
            }
            rest = &rest[length..];
        }
    }
    found
}

/// The modules that a file declares outside of tests, with the file that a `#[path]` names.
fn declarations(source: &Source, text: &str) -> Vec<(String, Option<String>)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (line, code) in source.code.iter().enumerate().filter(|(line, _)| !source.test[*line]) {
        let words: Vec<&str> = code.split_whitespace().collect();
        let [.., "mod", name] = words[..] else { continue };
        let Some(name) = name.strip_suffix(';') else { continue };
        let above = line.checked_sub(1).map(|above| lines[above].trim()).unwrap_or_default();
        let other = above.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"));
        found.push((name.to_owned(), other.map(str::to_owned)));
    }
    found
}

fn child(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The folder in which the modules lie that `file` declares.
pub(super) fn home(file: &str, is_root: bool) -> String {
    match file.strip_suffix("/mod.rs") {
        Some(folder) => folder.to_owned(),
        None if is_root => folder(file).to_owned(),
        None => file.trim_end_matches(".rs").to_owned(),
    }
}
