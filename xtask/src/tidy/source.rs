//! A Rust source as lines of code and of comments, with the lines that only tests see marked.
//!
//! Not a parser: it knows comments, strings, character literals and braces. Code that a macro makes is not seen.

/// A source file, taken apart. The lines of all views correspond.
pub(super) struct Source {
    /// The code: comments and the insides of strings are blank.
    pub(super) code: Vec<String>,
    /// The comments: everything else is blank.
    pub(super) comments: Vec<String>,
    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub(super) test: Vec<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Code,
    LineComment,
    /// With the depth of nesting.
    BlockComment(usize),
    /// A string without escapes that ends with `"` and so many `#`.
    RawString(usize),
    String,
    Char,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let (code, comments) = split(text);
        let code: Vec<String> = code.lines().map(str::to_owned).collect();
        let comments = comments.lines().map(str::to_owned).collect();
        let test = test_lines(&code);
        Self { code, comments, test }
    }

    /// Lines that are not for tests only.
    pub(super) fn product_lines(&self) -> usize {
        self.test.iter().filter(|&&test| !test).count()
    }

    /// The functions that are not for tests only: the 0-based line of the signature, and the lines to the end of the body. A function
    /// ends at the brace that stands where its signature begins, as rustfmt writes it.
    pub(super) fn functions(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let outside_tests = self.code.iter().enumerate().filter(|(line, _)| !self.test[*line]);
        let signatures = outside_tests.filter(|(_, code)| is_signature(code));
        signatures.filter_map(|(line, code)| {
            let indent = code.len() - code.trim_start().len();
            let lines = self.code[line..].iter().enumerate();
            let mut ends = lines.filter(|(index, code)| {
                let here = code.len() - code.trim_start().len() == indent;
                (here && code.trim_start().starts_with('}') && !code.trim_end().ends_with('{'))
                    || ((here || *index == 0) && code.trim_end().ends_with(['}', ';']))
            });
            ends.next().map(|(index, _)| (line, index + 1))
        })
    }

    /// The 0-based lines of code with `word` as a whole word.
    pub(super) fn lines_with<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.iter().enumerate().filter(move |(_, line)| has_word(line, word)).map(|(index, _)| index)
    }
}

/// Whether a line of code begins a function.
fn is_signature(code: &str) -> bool {
    let before = code.split(" fn ").next().filter(|before| before.len() < code.len());
    let words = before.map(|before| {
        before.split_whitespace().all(|word| {
            word.starts_with("pub")
                || matches!(word, "const" | "async" | "unsafe" | "extern" | "in")
                || word.ends_with(')')
        })
    });
    code.trim_start().starts_with("fn ") || words.unwrap_or(false)
}

/// Whether `word` stands in `text` as a whole word.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// The code and the comments, each with everything else blanked.
fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let (mut code, mut comments) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    let mut mode = Mode::Code;
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let (next, taken) = step(mode, &chars, at);
        for &c in &chars[at..at + taken] {
            let in_comment = |mode| matches!(mode, Mode::LineComment | Mode::BlockComment(_));
            let line_break = c == '\n';
            comments.push(if line_break || in_comment(mode) || in_comment(next) { c } else { ' ' });
            code.push(if line_break || (mode == Mode::Code && next == Mode::Code) { c } else { ' ' });
        }
        assert!(taken > 0, "no progress at {c:?}");
        (mode, at) = (next, at + taken);
    }
    (code, comments)
}

/// The mode behind the next token, and how many characters it has.
fn step(mode: Mode, chars: &[char], at: usize) -> (Mode, usize) {
    let is = |text: &str| text.chars().enumerate().all(|(index, c)| chars.get(at + index) == Some(&c));
    match mode {
        Mode::Code if is("//") => (Mode::LineComment, 2),
        Mode::Code if is("/*") => (Mode::BlockComment(1), 2),
        Mode::Code if is("\"") => (Mode::String, 1),
        Mode::Code if is("'") && is_char_literal(chars, at) => (Mode::Char, 1),
        Mode::Code => match raw_string_hashes(chars, at) {
            Some((hashes, length)) => (Mode::RawString(hashes), length),
            None => (Mode::Code, 1),
        },
        Mode::LineComment if is("\n") => (Mode::Code, 1),
        Mode::BlockComment(depth) if is("/*") => (Mode::BlockComment(depth + 1), 2),
        Mode::BlockComment(1) if is("*/") => (Mode::Code, 2),
        Mode::BlockComment(depth) if is("*/") => (Mode::BlockComment(depth - 1), 2),
        Mode::String | Mode::Char if is("\\") => (mode, 2.min(chars.len() - at)),
        Mode::String if is("\"") => (Mode::Code, 1),
        Mode::Char if is("'") => (Mode::Code, 1),
        Mode::RawString(hashes) if is(&format!("\"{}", "#".repeat(hashes))) => (Mode::Code, 1 + hashes),
        _ => (mode, 1),
    }
}

/// Tells `'a'` from the lifetime `'a`.
fn is_char_literal(chars: &[char], at: usize) -> bool {
    chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'')
}

/// For the start of a raw string: its number of `#`, and the length of what opens it.
fn raw_string_hashes(chars: &[char], at: usize) -> Option<(usize, usize)> {
    let inside_word = at
        .checked_sub(1)
        .and_then(|before| chars.get(before))
        .is_some_and(|c| c.is_alphanumeric() || *c == '_');
    let prefix = match (chars.get(at)?, chars.get(at + 1)?) {
        ('r', _) => 1,
        ('b' | 'c', 'r') => 2,
        _ => return None,
    };
    let hashes = chars[at + prefix..].iter().take_while(|c| **c == '#').count();
    let opens = chars.get(at + prefix + hashes) == Some(&'"');
    (opens && !inside_word).then_some((hashes, prefix + hashes + 1))
}

/// Marks each item under `#[cfg(test)]`, for fuzzing too or not, from the attribute to the end of its braces or to its semicolon.
fn test_lines(code: &[String]) -> Vec<bool> {
    let mut test = vec![false; code.len()];
    let mut line = 0;
    while line < code.len() {
        let attribute = code[line].trim_start();
        if !attribute.starts_with("#[cfg(test)]") && !attribute.starts_with("#[cfg(any(test, fuzzing))]") {
            line += 1;
            continue;
        }
        let (mut depth, mut done) = (0_usize, false);
        while line < code.len() && !done {
            test[line] = true;
            for c in code[line].chars() {
                match c {
                    '{' => depth += 1,
                    '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                done |= depth == 0 && matches!(c, '}' | ';');
            }
            line += 1;
        }
    }
    test
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_comments_are_separated() {
        let text = r##"//! Head with "quotes".
let a = "// no comment \" unsafe"; // a comment
let b = r#"raw " unsafe"#; /* block /* nested */ still */ let c = 'x'; let d: &'static str = "e";
let e = '"'; let f = '\''; unsafe_thing(); let g = b"x";"##;
        let source = Source::parse(text);
        assert_eq!(source.code[0].trim(), "");
        assert!(source.comments[0].contains("Head with \"quotes\"."));
        assert!(source.code[1].starts_with("let a = "));
        assert_eq!(source.comments[1].trim(), "// a comment");
        assert!(source.code[2].contains("let c = ") && source.code[2].contains("&'static str"));
        assert_eq!(source.comments[2].trim(), "/* block /* nested */ still */");
        assert!(source.code[3].contains("unsafe_thing();"));
        assert_eq!(source.lines_with("unsafe").count(), 0);
    }

    #[test]
    fn test_items_are_marked() {
        let source = Source::parse(
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { }\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}\n",
        );
        assert_eq!(source.test, [false, true, true, true, true, false, true, true, false]);
        assert_eq!(source.product_lines(), 3);
    }
}
