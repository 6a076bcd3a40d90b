//! The charts for the choice of a store: one for each question, drawn from the table that `shoal-compare charts` printed.
//!
//! A row of the table is a question's word, a store, and the answer; a row of growth starts with the store, as
//! `shoal-compare scale` prints it. Stores whose names have spaces are written with underscores.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::plot::{Axis, BarChart};
use crate::scale::chart::{curves_of, draw, proper_name, short};

/// Stores that a title names, the best first.
const NAMED_MAX: usize = 4;

/// A question with one number for each store.
pub struct Question {
    /// Its word in a table, and the name of its chart.
    pub word: &'static str,
    /// The title of the axis, and its unit.
    axis: (&'static str, &'static str),
    is_more_better: bool,
    /// The text around the answer of a store, in the title: of the first, and of all others.
    says: [&'static str; 2],
    label: fn(f64) -> String,
}

/// The questions with bars; growth is the fifth, and has lines.
pub const QUESTIONS: [Question; 4] = [
    Question {
        word: "puts",
        axis: ("durable puts", "1/s"),
        is_more_better: true,
        says: ["{store} makes {answer} small puts a second durable", "{store} {answer}"],
        label: short,
    },
    Question {
        word: "gets",
        axis: ("gets from memory", "1/s"),
        is_more_better: true,
        says: ["{store} answers {answer} gets a second", "{store} {answer}"],
        label: short,
    },
    Question {
        word: "room",
        axis: ("bytes on the disk for a live byte", ""),
        is_more_better: false,
        says: ["A half deleted, {store} takes {answer} bytes for each that is left", "{store} {answer}"],
        label: hundredths,
    },
    Question {
        word: "flips",
        axis: ("flips after which a get was wrong without an error", ""),
        is_more_better: false,
        says: ["Of the bits that flipped {store} hides {answer}", "{store} {answer}"],
        label: whole,
    },
];

fn hundredths(number: f64) -> String {
    format!("{number:.2}")
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

impl Question {
    /// The answers in a table, the best first; equal ones in the table's order.
    fn answers(&self, table: &str) -> Vec<(String, f64)> {
        let answer = |line: &str| {
            let mut words = line.split_whitespace();
            let (word, store, answer) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
            (word == self.word).then(|| (proper_name(store).replace('_', " "), answer))
        };
        let mut answers: Vec<(String, f64)> = table.lines().filter_map(answer).collect();
        answers.sort_by(|one, other| {
            let order = one.1.total_cmp(&other.1);
            if self.is_more_better { order.reverse() } else { order }
        });
        answers
    }

    /// The chart in one sentence.
    fn title(&self, answers: &[(String, f64)]) -> String {
        let says = |(at, (store, answer)): (usize, &(String, f64))| {
            let text = self.says[at.min(1)];
            text.replace("{store}", store).replace("{answer}", &(self.label)(*answer))
        };
        answers.iter().take(NAMED_MAX).enumerate().map(says).collect::<Vec<_>>().join(", ")
    }

    fn draw(&self, directory: &Path, answers: &[(String, f64)]) -> Result<PathBuf> {
        let names: Vec<&str> = answers.iter().map(|(store, _)| &store[..]).collect();
        let (what, unit) = self.axis;
        let chart = BarChart::new(&self.title(answers), "", Axis::new(what, unit), &names);
        let mut chart = chart.with_values(self.label);
        chart.add("", answers.iter().map(|(_, answer)| Some(*answer)));
        chart.write(directory, &format!("question-{}", self.word))
    }
}

/// Draws a chart into `directory` for each question that `table` answers; returns their paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw_all(directory: &Path, table: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for question in &QUESTIONS {
        let answers = question.answers(table);
        if !answers.is_empty() {
            paths.push(question.draw(directory, &answers)?);
        }
    }
    let curves = curves_of(table);
    if !curves.is_empty() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the folder {}", directory.display()))?;
        let path = directory.join("question-growth.svg");
        draw(&path, &curves)?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# a note about puts shoal 7\ncase variant answer\nputs shoal 14598 1\nputs ext4 4945\nputs sqlite -\n\
        flips SQLite 1327\nflips shoal 0\nflips fjall_(flushed) 0\nroom shoal 1.03\nroom rocksdb 2.031\nshoal 1000 5\nshoal 2000 6\n";

    #[test]
    fn chart_title_states_the_result() {
        let title = |at: usize| QUESTIONS[at].title(&QUESTIONS[at].answers(TABLE));
        assert_eq!(title(0), "Shoal makes 15k small puts a second durable, ext4 4.9k");
        assert_eq!(title(1), "");
        assert_eq!(title(2), "A half deleted, Shoal takes 1.03 bytes for each that is left, RocksDB 2.03");
        assert_eq!(title(3), "Of the bits that flipped Shoal hides 0, fjall (flushed) 0, SQLite 1327");
    }

    #[test]
    fn each_question_that_is_answered_has_a_chart() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<_> = draw_all(&folder.path().join("charts"), TABLE)
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(
            names,
            ["question-puts.svg", "question-room.svg", "question-flips.svg", "question-growth.svg"]
        );
        let flips = std::fs::read_to_string(folder.path().join("charts/question-flips.svg")).unwrap();
        // The values are printed above the bars: a bar of 0 has no other sign.
        assert!(flips.contains("1327") && flips.matches(">\n0\n<").count() >= 2, "{flips}");
        assert!(draw_all(folder.path(), "nothing").unwrap().is_empty());
    }

    #[test]
    fn book_charts_match_their_table() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let table = std::fs::read_to_string(docs.join("measurements/runs/2026-11-25-questions.txt")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let paths = draw_all(folder.path(), &table).unwrap();
        assert_eq!(paths.len(), QUESTIONS.len() + 1);
        for path in paths {
            let kept = docs.join("charts").join(path.file_name().unwrap());
            let same = std::fs::read(&path).unwrap() == std::fs::read(&kept).unwrap_or_default();
            let told = "cd compare && cargo run --release -- charts --from ../docs/measurements/runs/2026-11-25-questions.txt --out ../docs/charts";
            assert!(same, "{} is drawn anew by: {told}", kept.display());
        }
    }
}
