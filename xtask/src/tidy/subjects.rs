//! Sentences of comments and documents begin with the name of a thing, not with "what" or "who".
//!
//! A question may begin so, and a heading, and code. The rule reads text, not grammar: it sees a capital word at the beginning of a
//! sentence, not a clause inside of one.

use super::exceptions::Exceptions;
use super::prose::{Paragraph, comments, paragraphs};
use super::{Finding, Tree};

/// Words with which a sentence does not begin.
const NAMELESS: [&str; 7] = ["What", "Who", "Whoever", "Whose", "Whom", "Whatever", "That which"];

/// Marks that stand between the end of a sentence and the next one, or before the first.
const BETWEEN: [char; 8] = [' ', '*', '_', '(', ')', '"', '-', '>'];

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let sources = tree.sources.iter().map(|(path, source)| (path, comments(source)));
    let docs = tree.docs().map(|(path, text)| (path, paragraphs(text)));
    let all = sources.chain(docs).filter(|(path, _)| !exceptions.allow("subjects", path));
    let findings = all.flat_map(|(path, paragraphs)| {
        let found: Vec<(usize, &str)> = paragraphs.iter().flat_map(nameless).collect();
        found.into_iter().map(move |(line, word)| {
            Finding::new(path, line + 1, format!("a sentence that begins with \"{word}\": name the thing"))
        })
    });
    findings.collect()
}

/// The sentences that begin without a name: their 0-based lines, and the words.
fn nameless(paragraph: &Paragraph<'_>) -> Vec<(usize, &'static str)> {
    let (mut text, mut lines) = (String::new(), Vec::new());
    let mut is_code = false;
    for (line, words) in paragraph.lines() {
        lines.push((text.len(), *line));
        if words.starts_with('#') {
            text.push('.');
            continue;
        }
        for c in words.chars().chain([' ']) {
            is_code ^= c == '`';
            text.push(if is_code { '`' } else { c });
        }
    }
    let begins = |at: usize| {
        let before = text[..at].trim_end_matches(BETWEEN);
        before.is_empty() || before.ends_with(['.', ':', ';', '?', '!', '|'])
    };
    let line_of = |at: usize| lines.iter().rev().find(|(from, _)| *from <= at).map_or(0, |(_, line)| *line);
    let mut found = Vec::new();
    for word in NAMELESS {
        for (at, _) in text.match_indices(word) {
            let rest = &text[at + word.len()..];
            if rest.starts_with([' ', ',', '\'']) && begins(at) && !is_question(rest) {
                found.push((line_of(at), word));
            }
        }
    }
    found
}

/// Whether the first sentence of `text` ends with a question mark.
fn is_question(text: &str) -> bool {
    let mut ends = text.match_indices(['.', '?', '!', '|']);
    let goes_on = |at: usize| text[at + 1..].starts_with(|c: char| c.is_alphanumeric());
    ends.find(|(at, _)| !goes_on(*at)).is_some_and(|(_, mark)| mark == "?")
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    /// The lines of `path` that have a finding.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let findings = findings_in(&[(path, text)]);
        findings.iter().filter_map(|finding| finding.split(':').nth(1)?.parse().ok()).collect()
    }

    #[test]
    fn sentences_of_comments_begin_with_a_name() {
        let code = "//! What it is.\n//!\n//! Text. Who\n//! reads it: Whatever.\n\n/// What goes on\n/// is one.\n\
            ///\n/// # Errors\n/// What is wrong.\nfn a() {\n    // That which is written.\n    b(); // Whose?\n}\n";
        assert_eq!(lines("crates/pool/src/a.rs", code), [1, 3, 6, 10, 12]);
    }

    #[test]
    fn sentences_of_documents_begin_with_a_name() {
        let text = "# What it is\n\nText; and what is. **What is\nleft.**\n\n- Who reads.\n- a: What b\n1. Whom.\n\n\
            | A | Who may |\n| --- | --- |\n| c | What is d? |\n```\nWhat is code.\n```\n";
        assert_eq!(lines("docs/x.md", text), [3, 6, 7, 10]);
    }

    #[test]
    fn questions_code_and_other_words_may_begin_so() {
        let text = "What is it? It is [a. b] `x. What y`. Whatsoever. What::Get is code. In What one finds. \
            What costs 1.5 s at 2.5 GHz? [What it is](x.md).\n";
        assert!(lines("docs/x.md", text).is_empty());
    }

    #[test]
    fn exempt_files_may_begin_so() {
        let exempt = ("tidy.toml", "[subjects]\n'docs/adr/*.md' = 'decisions of their day'");
        let files = [("docs/adr/a.md", "What was.\n"), ("docs/b.md", "What is.\n"), exempt];
        let expected = "docs/b.md:1: a sentence that begins with \"What\": name the thing";
        assert_eq!(findings_in(&files), [expected]);
    }
}
