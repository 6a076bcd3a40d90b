//! `--case` and `--variant`: the selected names of a benchmark.

use anyhow::{Result, bail};

/// The names in `names` that `wanted` selects: exact names, or prefixes followed by `*`. An empty `wanted` selects all.
///
/// # Errors
/// An entry of `wanted` selects nothing.
pub fn select<'a>(what: &str, names: &[&'a str], wanted: &[String]) -> Result<Vec<&'a str>> {
    let matches = |wanted: &str, name: &str| match wanted.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == wanted,
    };
    if let Some(stranger) = wanted.iter().find(|wanted| !names.iter().any(|name| matches(wanted, name))) {
        bail!("there is no {what} {stranger:?}; there are {}", names.join(", "));
    }
    let is_wanted = |name: &&str| wanted.is_empty() || wanted.iter().any(|wanted| matches(wanted, name));
    Ok(names.iter().copied().filter(is_wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_by_name_and_by_beginning() {
        let select = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&wanted| wanted.into()).collect();
            select("case", &["a-1", "a-2", "b"], &wanted)
        };
        assert_eq!(select(&[]).unwrap(), ["a-1", "a-2", "b"]);
        assert_eq!(select(&["b", "a-1"]).unwrap(), ["a-1", "b"]);
        assert_eq!(select(&["a-*"]).unwrap(), ["a-1", "a-2"]);
        assert!(select(&["b", "c"]).unwrap_err().to_string().contains("\"c\""));
        assert!(select(&["c*"]).is_err());
    }
}
