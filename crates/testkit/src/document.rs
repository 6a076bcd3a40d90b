//! Tables of `docs/format/`, which the tests of the formats hold to the code.

use std::collections::BTreeMap;

/// The rows of the table after `<!-- table: name -->`: field -> (offset, bytes). A field without a fixed offset has none.
///
/// # Panics
/// If there is no such table, or its fields have a gap.
#[must_use]
pub fn table(doc: &str, name: &str) -> BTreeMap<String, (usize, usize)> {
    let start = doc.find(&format!("<!-- table: {name} -->")).expect("the table is marked");
    let mut rows = BTreeMap::new();
    let mut next = 0;
    for line in doc[start..].lines().skip(3).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (Ok(offset), Ok(bytes)) = (cells[1].parse::<usize>(), cells[2].parse::<usize>()) else {
            continue;
        };
        assert_eq!(offset, next, "{name}: a gap or an overlap before {}", cells[3]);
        next = offset + bytes;
        rows.insert(cells[3].to_owned(), (offset, bytes));
    }
    assert!(rows.len() > 2, "{name} has rows");
    rows
}

#[cfg(test)]
mod tests {
    use super::table;

    const DOC: &str = "# A\n<!-- table: a -->\n| offset | bytes | field | meaning and rule |\n|---|---|---|---|\n\
        | 0 | 4 | crc | |\n| 4 | 2 | kind | |\n| 6 | - | rest | |\n| 6 | 1 | flags | |\n\nText.\n";

    #[test]
    fn rows_have_their_places() {
        let rows = table(DOC, "a");
        assert_eq!((rows.len(), rows["crc"], rows["flags"]), (3, (0, 4), (6, 1)));
    }

    #[test]
    #[should_panic(expected = "a gap or an overlap before kind")]
    fn a_gap_is_found() {
        let _ = table(&DOC.replace("| 4 | 2 |", "| 5 | 2 |"), "a");
    }
}
