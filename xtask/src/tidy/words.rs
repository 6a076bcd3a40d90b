//! Habits of language that make a text hard to read for people from other projects: counts per 1,000 words of comments and documents.
//!
//! Each habit has a ceiling in `tidy.toml` [words], which only falls: a count above it is a violation, and so is a ceiling that is
//! well above its count. Documents alone have a lower one. The rule counts words, not meanings.

use std::fmt;

use super::exceptions::Exceptions;
use super::prose::{comments, paragraphs};
use super::{Finding, Tree};

/// Habits: the name in `tidy.toml`, the words to write instead, and the phrases that are counted, in lower case.
const HABITS: [(&str, &str, &str); 7] = [
    ("where", "if, when; where is for places", "where"),
    ("what", "the noun", "what|who|whom|whoever|whatever|that which|those who|those that"),
    ("says", "returns, reports, logs", "say|says|said|tell|tells|told|give|gives|given|gave"),
    (
        "begin",
        "start, continue, finish, complete",
        "begin|begins|began|begun|goes on|go on|going on|went on|is through|ends",
    ),
    (
        "lies",
        "is stored at, before, after, follows",
        "lie|lies|lay|lain|stand|stands|stood|behind|in front of",
    ),
    ("so many", "a number, or the limit's name", "so many|so much|so long|as much as|as many as|as long as"),
    ("of its own", "separate, only, except", "of its own|of their own|of one's own|nothing but|but for"),
];

/// Logs keep the words of their day.
const LOGS: &str = "docs/measurements/";

/// How far a ceiling may be above its count, per 1,000 words.
const SLACK: f64 = 0.1;

/// How often documents alone may have a habit, per 1,000 words, and the occurrences that are always allowed.
const DOCS_MAX: (f64, usize) = (0.3, 5);

/// The counts of a habit per 1,000 words: in comments and documents, and in documents alone.
pub(crate) struct Count {
    name: &'static str,
    instead: &'static str,
    all: f64,
    docs: f64,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, instead, all, docs } = self;
        write!(f, "{name:10} {all:5.2}  in documents {docs:5.2}  write: {instead}")
    }
}

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let ceiling = |name: &str| exceptions.reason("words", name)?.split(':').next()?.trim().parse().ok();
    let mut findings = Vec::new();
    for Count { name, instead, all, docs } in counts(tree) {
        let mut report = |message| findings.push(Finding::new("tidy.toml", 0, message));
        if docs > DOCS_MAX.0 {
            report(format!("{name:?} {docs:.2} times in 1,000 words of documents: write {instead}"));
        }
        match ceiling(name) {
            Some(ceiling) if all > ceiling => {
                report(format!("{name:?} {all:.2} times in 1,000 words, at most {ceiling}: write {instead}"));
            }
            Some(ceiling) if all < ceiling - SLACK => {
                report(format!("the ceiling of {name:?} can fall to {:.2}", all + SLACK / 2.0));
            }
            _ => {}
        }
    }
    findings
}

/// The counts of all habits in the comments and documents of `tree`.
pub(super) fn counts(tree: &Tree) -> Vec<Count> {
    let comments = tree.sources.values().flat_map(comments).map(|paragraph| normal(paragraph.lines()));
    let docs = tree.docs().filter(|(path, _)| !path.starts_with(LOGS)).flat_map(|(_, text)| paragraphs(text));
    let docs: Vec<String> = docs.map(|paragraph| normal(paragraph.lines())).collect();
    let comments: Vec<String> = comments.collect();
    let words = |texts: &[String]| texts.iter().map(|text| text.split_whitespace().count()).sum::<usize>();
    let (in_docs, in_comments) = (words(&docs), words(&comments));
    let rate = |found: usize, words: usize| 1_000.0 * found as f64 / words.max(1) as f64;
    HABITS
        .iter()
        .map(|&(name, instead, phrases)| {
            let phrases: Vec<String> = phrases.split('|').map(|phrase| format!(" {phrase} ")).collect();
            let count = |texts: &[String]| -> usize {
                texts.iter().flat_map(|text| phrases.iter().map(|phrase| text.matches(phrase).count())).sum()
            };
            let found = count(&docs);
            let all = rate(found + count(&comments), in_docs + in_comments);
            let docs = if found > DOCS_MAX.1 { rate(found, in_docs) } else { 0.0 };
            Count { name, instead, all, docs }
        })
        .collect()
}

/// The words of a paragraph in lower case, one space between them, without code spans.
fn normal(lines: &[(usize, &str)]) -> String {
    let mut is_code = false;
    let mut text = String::from(" ");
    for c in lines.iter().flat_map(|(_, line)| line.chars().chain([' '])) {
        is_code ^= c == '`';
        match c {
            c if is_code || c == '`' => {}
            c if c.is_alphanumeric() || c == '\'' => text.extend(c.to_lowercase()),
            _ if text.ends_with(' ') => {}
            _ => text.push(' '),
        }
    }
    text.push(' ');
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_in;

    #[test]
    fn habits_have_ceilings_that_only_fall() {
        let filler = "word ".repeat(492);
        let page = format!("# A\n\n{filler}\n\nWhere a page goes on, `where` is not.\n");
        let found = |ceilings: &str| findings_in(&[("docs/a.md", &page), ("tidy.toml", ceilings)]);
        assert!(found("[words]\n'where' = '2.0: a ceiling'\n'begin' = '2.0: a ceiling'\n").is_empty());
        let findings = found("[words]\n'where' = '1.5: a ceiling'\n'begin' = '9.0: a ceiling'\n");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("\"where\" 2.00 times"), "{findings:?}");
        assert!(findings[1].contains("can fall to 2.05"), "{findings:?}");
        let findings = findings_in(&[("docs/a.md", &page.replace("word word", "word where"))]);
        assert!(findings[0].contains("of documents: write if, when"), "{findings:?}");
    }
}
