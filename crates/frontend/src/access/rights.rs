//! The words of a file of tokens, `read-only` and `bucket=NAME`, as grants.

use super::{Action, Actions, Grant, GrantSet};

/// Maximum number of buckets in the rights of one token.
pub const BUCKETS_OF_TOKEN_MAX: usize = 64;

/// The word for reading only.
const READ_ONLY: &str = "read-only";
/// The start of the word that names a bucket.
const BUCKET: &str = "bucket=";

const READS: Actions = Actions::of(&[Action::Read, Action::List]);
const READS_AND_WRITES: Actions = Actions::of(&[Action::Read, Action::List, Action::Write, Action::Delete]);

/// Translates rights, separated by commas: `read-only`, and `bucket=NAME` for each bucket.
///
/// # Errors
/// A text about an unknown or repeated word, or about too many buckets.
pub fn grants_of_rights(words: &str) -> Result<GrantSet, String> {
    let (mut is_read_only, mut buckets) = (false, Vec::new());
    for word in words.split(',') {
        match word.strip_prefix(BUCKET) {
            None if word == READ_ONLY && !is_read_only => is_read_only = true,
            Some(bucket) if !bucket.is_empty() && !buckets.contains(&bucket) => buckets.push(bucket),
            _ => {
                return Err(format!(
                    "{word:?} is not a right, or is repeated: write read-only, bucket=NAME, or several with commas"
                ));
            }
        }
    }
    if buckets.len() > BUCKETS_OF_TOKEN_MAX {
        return Err(format!("a token is for at most {BUCKETS_OF_TOKEN_MAX} buckets"));
    }
    let actions = if is_read_only { READS } else { READS_AND_WRITES };
    if buckets.is_empty() {
        return Ok(GrantSet::new([Grant::of_all(actions)]));
    }
    Ok(GrantSet::new(buckets.into_iter().map(|bucket| Grant::of_bucket(actions, bucket))))
}

#[cfg(test)]
mod tests {
    use super::super::{ALL_KEYS, Principal, PrincipalId, WHOLE_STORE, may};
    use super::*;

    fn allowed(words: &str, action: Action, bucket: &str) -> bool {
        let principal = Principal::new(PrincipalId::Token(1), &grants_of_rights(words).unwrap());
        may(&principal, action, bucket, ALL_KEYS).is_ok()
    }

    #[test]
    fn words_become_grants() {
        for (words, action, bucket, expected) in [
            ("read-only", Action::Read, "a", true),
            ("read-only", Action::List, WHOLE_STORE, true),
            ("read-only", Action::Read, WHOLE_STORE, true),
            ("read-only", Action::Write, "a", false),
            ("read-only", Action::Delete, "a", false),
            ("read-only", Action::Admin, WHOLE_STORE, false),
            ("bucket=films,bucket=maps", Action::Write, "films", true),
            ("bucket=films,bucket=maps", Action::Delete, "maps", true),
            ("bucket=films,bucket=maps", Action::List, WHOLE_STORE, false),
            ("bucket=films", Action::Bucket, "films", false),
            ("bucket=films", Action::Read, "film", false),
            ("bucket=films", Action::Read, "films2", false),
            ("bucket=films", Action::Read, "FILMS", false),
            ("bucket=films,read-only", Action::Read, "films", true),
            ("bucket=films,read-only", Action::Write, "films", false),
            ("bucket=films,read-only", Action::Read, "x", false),
            // No pattern here: it is one name, which no bucket has.
            ("bucket=f*", Action::Read, "films", false),
        ] {
            assert_eq!(allowed(words, action, bucket), expected, "{words} {action:?} {bucket}");
        }
        assert_eq!(grants_of_rights("bucket=a,bucket=b").unwrap().buckets().collect::<Vec<_>>(), ["a", "b"]);
    }

    /// A mistyped right must not turn into the right to everything.
    #[test]
    fn unknown_rights_are_rejected() {
        for wrong in [
            "",
            ",",
            "readonly",
            "read-only,",
            "READ-ONLY",
            "bucket=",
            "bucket",
            "read-only,read-only",
            "bucket=a,bucket=a",
            "read-only bucket=a",
        ] {
            assert!(grants_of_rights(wrong).is_err(), "{wrong:?}");
        }
        let many: Vec<String> = (0..=BUCKETS_OF_TOKEN_MAX).map(|at| format!("bucket=b{at}")).collect();
        assert!(grants_of_rights(&many.join(",")).is_err());
        assert!(grants_of_rights(&many[1..].join(",")).is_ok());
    }
}
