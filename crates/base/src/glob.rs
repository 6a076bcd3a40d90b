//! Patterns of keys: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and a backslash before a literal character. They are the patterns of KEYS and SCAN
//! of Redis, and match bytes: a star also matches slashes.

/// Returns true if `text` matches `pattern`.
///
/// Takes at most the product of their lengths: only the last `*` is ever retried.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The places to continue from if a byte after the last star does not match.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(at..).unwrap_or(&[]);
        if let [b'*', ..] = rest {
            star = Some((at + 1, from));
            at += 1;
            continue;
        }
        match text.get(from) {
            None => return rest.is_empty(),
            Some(&byte) => {
                if let Some(used) = one(rest, byte) {
                    at += used;
                    from += 1;
                    continue;
                }
            }
        }
        let Some((behind, tried)) = star else { return false };
        star = Some((behind, tried + 1));
        (at, from) = (behind, tried + 1);
    }
}

/// The length of the element at the start of `pattern` if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', set @ ..] => in_set(set, byte).map(|used| used + 1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// The length of a set if `byte` is in it. A set without its end reaches to the end of the pattern.
fn in_set(set: &[u8], byte: u8) -> Option<usize> {
    let negated = set.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match set.get(at..).unwrap_or(&[]) {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                let (low, high) = (first.min(last), first.max(last));
                found |= (low..=high).contains(&&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

/// The place of a set without its end, or of a last backslash: probably a mistake of its author.
#[must_use]
pub fn cut_at(pattern: &[u8]) -> Option<usize> {
    let (mut at, mut set) = (0, None);
    loop {
        at += match (pattern.get(at..).unwrap_or(&[]), set) {
            ([], set) => return set,
            ([b'\\'], None) => return Some(at),
            ([b'\\', ..], _) => 2,
            ([b'[', b'^', ..], None) => {
                set = Some(at);
                2
            }
            ([b'[', ..], None) => {
                set = Some(at);
                1
            }
            ([b']', ..], Some(_)) => {
                set = None;
                1
            }
            ([_, b'-', _, ..], Some(_)) => 3,
            _ => 1,
        };
    }
}

/// The bytes at the start of every text that matches.
#[must_use]
pub fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        rest = match rest {
            [] | [b'*' | b'?' | b'[', ..] | [b'\\'] => return prefix,
            [b'\\', literal, behind @ ..] | [literal, behind @ ..] => {
                prefix.push(*literal);
                behind
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("foo*", "foobar", true),
            ("*bar", "foobar", true),
            ("f*b?r", "foobar", true),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("[abc", "c", true),
            ("a*a*b", "aaaaaaaaaaab", true),
            ("**", "x", true),
            ("?", "", false),
            ("[]", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn truncated_pattern_is_reported_with_position() {
        for (pattern, place) in [
            ("", None),
            ("a[b-d]*", None),
            ("a\\[", None),
            ("x[", Some(1)),
            ("[^", Some(0)),
            ("[a-]", Some(0)),
            ("[a\\]", Some(0)),
            ("[]][b", Some(3)),
            ("a\\", Some(1)),
        ] {
            assert_eq!(cut_at(pattern.as_bytes()), place, "{pattern}");
        }
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let (pattern, text) = ("a*".repeat(50) + "b", "a".repeat(5_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }

    /// The same, by its definition.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            _ => match (text.first(), one(pattern, *text.first().unwrap_or(&0))) {
                (Some(_), Some(used)) => slow(&pattern[used..], &text[1..]),
                _ => false,
            },
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?\\[\\]^\\\\-]{0,8}", text in "[ab-]{0,8}") {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            let expected = slow(pattern, text);
            prop_assert_eq!(matches(pattern, text), expected);
            if expected {
                prop_assert!(text.starts_with(&literal_prefix(pattern)));
            }
        }
    }
}
