//! The keys that are names below a folder. Any user who may write objects chooses keys, so none is trusted.

/// The names from the target folder down to the object; the last one is the object's own. `relative` is the key behind the
/// prefix, for a folder without the `/` at its end.
///
/// # Errors
/// Why it must not be written.
pub(crate) fn components(relative: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    if relative.is_empty() {
        return Err("nothing is left of its key behind the prefix");
    }
    if relative.starts_with(b"/") {
        return Err("its name is absolute (a prefix that is meant as a folder ends with '/')");
    }
    if relative.contains(&0) {
        return Err("its name has a NUL byte");
    }
    let components: Vec<&[u8]> = relative.split(|&byte| byte == b'/').collect();
    for component in &components {
        match *component {
            b"" => return Err("its name has an empty component"),
            b"." => return Err("its name has the component \".\""),
            b".." => return Err("its name has the component \"..\", which leads out of the folder"),
            _ => {}
        }
    }
    Ok(components)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_below_a_folder_are_taken() {
        assert_eq!(components(b"a").unwrap(), [b"a"]);
        assert_eq!(components(b"a/..b/c.").unwrap(), [&b"a"[..], b"..b", b"c."]);
        assert_eq!(components(b"\xff/ \n").unwrap(), [&b"\xff"[..], b" \n"]);
    }

    #[test]
    fn everything_else_is_refused() {
        for name in
            ["", "/", "/etc/passwd", "..", "../x", "a/../x", "a/..", ".", "a/./b", "a//b", "a/", "a\0b"]
        {
            assert!(components(name.as_bytes()).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_stays_below(name in "[a./]{0,12}") {
            if let Ok(components) = components(name.as_bytes()) {
                prop_assert!(components.iter().all(|it| !it.is_empty() && *it != b".." && *it != b"." && !it.contains(&b'/')));
                prop_assert_eq!(components.join(&b'/'), name.as_bytes());
            }
        }
    }
}
