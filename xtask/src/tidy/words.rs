//! Habits of language that make a text hard to read for people from other projects: counts per 1,000 words of comments and documents.
//!
//! Each habit has a ceiling in `tidy.toml` [words], which only falls: a count above it is a violation, and so is a ceiling that is
//! well above its count. The rule counts words, not meanings: a place is a "where", too.

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

/// The count of a habit per 1,000 words.
pub(crate) struct Count {
    name: &'static str,
    instead: &'static str,
    per_thousand: f64,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:10} {:5.2}  write: {}", self.name, self.per_thousand, self.instead)
    }
}

pub(super) fn check(tree: &Tree, exceptions: &Exceptions) -> Vec<Finding> {
    let ceiling = |name: &str| exceptions.reason("words", name)?.split(':').next()?.trim().parse().ok();
    let findings = counts(tree).into_iter().filter_map(|Count { name, instead, per_thousand }| {
        let ceiling: f64 = ceiling(name)?;
        let message = if per_thousand > ceiling {
            format!("{name:?} {per_thousand:.2} times in 1,000 words, at most {ceiling}: write {instead}")
        } else if per_thousand < ceiling - SLACK {
            format!("the ceiling of {name:?} can fall to {:.2}", per_thousand + SLACK / 2.0)
        } else {
            return None;
        };
        Some(Finding::new("tidy.toml", 0, message))
    });
    findings.collect()
}

/// The counts of all habits in the comments and documents of `tree`.
pub(super) fn counts(tree: &Tree) -> Vec<Count> {
    let comments = tree.sources.values().flat_map(comments);
    let docs = tree.docs().filter(|(path, _)| !path.starts_with(LOGS));
    let texts: Vec<String> = comments
        .chain(docs.flat_map(|(_, text)| paragraphs(text)))
        .map(|paragraph| normal(paragraph.lines()))
        .collect();
    let words: usize = texts.iter().map(|text| text.split_whitespace().count()).sum();
    let count = |phrase: &str| -> usize {
        let phrase = format!(" {phrase} ");
        texts.iter().map(|text| text.matches(&phrase).count()).sum()
    };
    HABITS
        .iter()
        .map(|&(name, instead, phrases)| {
            let found: usize = phrases.split('|').map(count).sum();
            Count { name, instead, per_thousand: 1_000.0 * found as f64 / words.max(1) as f64 }
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
    }
}
