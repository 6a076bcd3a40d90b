//! Documents and comments as paragraphs, and the code spans in them.

use super::source::Source;

/// Text that belongs together: a paragraph, an item of a list, a row of a table, or a comment. Each line with its 0-based
/// number.
pub(super) struct Paragraph<'a>(Vec<(usize, &'a str)>);

impl<'a> Paragraph<'a> {
    pub(super) fn lines(&self) -> &[(usize, &'a str)] {
        &self.0
    }

    /// The texts between backticks, with the lines where they begin. A span may go on in the next line.
    pub(super) fn code_spans(&self) -> Vec<(usize, String)> {
        let text: Vec<(usize, char)> = self
            .0
            .iter()
            .flat_map(|(line, text)| text.trim().chars().chain([' ']).map(|c| (*line, c)))
            .collect();
        let ticks = |at: usize| text[at..].iter().take_while(|(_, c)| *c == '`').count();
        let mut spans = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let open = ticks(at);
            let begin = at + open;
            at = begin.max(at + 1);
            if open == 0 {
                continue;
            }
            let mut end = begin;
            while end < text.len() && ticks(end) != open {
                end += ticks(end).max(1);
            }
            if end < text.len() {
                let span: String = text[begin..end].iter().map(|(_, c)| c).collect();
                spans.push((text[begin].0, span.trim().to_owned()));
                at = end + open;
            }
        }
        spans
    }
}

/// The lines of a document outside fenced code, with their 0-based numbers.
pub(super) fn prose(text: &str) -> Vec<(usize, &str)> {
    part(text, false)
}

/// The lines of a document inside fenced code, with their 0-based numbers.
pub(super) fn fenced(text: &str) -> Vec<(usize, &str)> {
    part(text, true)
}

fn part(text: &str, inside: bool) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced == inside {
            lines.push((index, line));
        }
    }
    lines
}

/// The paragraphs of a document.
pub(super) fn paragraphs(text: &str) -> Vec<Paragraph<'_>> {
    group(prose(text))
}

/// The comments of a source: lines below one another without code between them, code in examples aside.
pub(super) fn comments(source: &Source) -> Vec<Paragraph<'_>> {
    let mut lines = Vec::new();
    let mut fenced = false;
    for (line, comment) in source.comments.iter().enumerate() {
        let comment = comment.trim();
        let text = comment.trim_start_matches(['/', '!', '*']).trim();
        if comment.is_empty() {
            fenced = false;
        } else if text.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((line, text));
        }
    }
    group(lines)
}

fn group(lines: Vec<(usize, &str)>) -> Vec<Paragraph<'_>> {
    let mut found: Vec<Paragraph<'_>> = Vec::new();
    let mut last = None;
    for (line, text) in lines {
        let text = text.trim();
        let goes_on = last == Some(line) && !begins(text);
        match found.last_mut().filter(|_| goes_on) {
            Some(paragraph) => paragraph.0.push((line, text)),
            None => found.push(Paragraph(vec![(line, text)])),
        }
        last = Some(line + 1);
    }
    found
}

/// Whether a line begins a paragraph of its own, or is empty.
fn begins(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.is_empty()
        || line.starts_with(['|', '#'])
        || line.starts_with("- ")
        || line.starts_with("* ")
        || (number.len() < line.len() && number.starts_with(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(paragraphs: &[Paragraph<'_>]) -> Vec<(usize, String)> {
        paragraphs.iter().flat_map(Paragraph::code_spans).collect()
    }

    #[test]
    fn spans_continue_across_lines_not_paragraphs() {
        let text = "a `b\nc` d `open\n\n`e`\n```\n`f`\n```\n- `g\n- ``h ` i``\n";
        let expected = [(0, "b c"), (3, "e"), (8, "h ` i")].map(|(line, span)| (line, span.to_owned()));
        assert_eq!(spans(&paragraphs(text)), expected);
        assert_eq!(fenced(text), [(5, "`f`")]);
    }

    #[test]
    fn comments_are_paragraphs() {
        let source = Source::parse(
            "//! A `b::\n//! c`.\n\nfn d() {} // `e\nfn f() {}\n/// `g`\n/// ```\n/// `h`\n/// ```\n",
        );
        let expected = [(0, "b:: c"), (5, "g")].map(|(line, span)| (line, span.to_owned()));
        assert_eq!(spans(&comments(&source)), expected);
    }
}
