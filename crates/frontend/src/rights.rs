//! The rights of a token: reading only, or certain buckets only, or both.

/// Maximum number of buckets in the rights of one token.
pub const BUCKETS_OF_TOKEN_MAX: usize = 64;

/// The word for reading only.
const READ_ONLY: &str = "read-only";
/// The start of the word that names a bucket.
const BUCKET: &str = "bucket=";

/// The rights of the holder of a credential. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    read_only: bool,
    /// The buckets that it may reach; empty: all of them.
    buckets: Vec<Box<str>>,
}

/// The holder of a credential lacks the right for its request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// It may only read.
    #[error("the token is read-only: it may not write")]
    ReadOnly,
    /// It may not reach the bucket.
    #[error("the token has no access to the bucket {asked:?}: it is for {allowed}")]
    Bucket {
        /// The bucket of the request.
        asked: Box<str>,
        /// The buckets of the token.
        allowed: Box<str>,
    },
    /// The request is about the whole store.
    #[error("the request is about the whole store, and the token is for {allowed}")]
    WholeStore {
        /// The buckets of the token.
        allowed: Box<str>,
    },
}

impl Rights {
    /// Parses rights, separated by commas: `read-only`, and `bucket=NAME` for each bucket.
    ///
    /// # Errors
    /// A text about an unknown or repeated word, or about too many buckets.
    pub fn parse(words: &str) -> Result<Self, String> {
        let mut rights = Self::default();
        for word in words.split(',') {
            match word.strip_prefix(BUCKET) {
                None if word == READ_ONLY && !rights.read_only => rights.read_only = true,
                Some(bucket) if !bucket.is_empty() && !rights.names(bucket) => {
                    rights.buckets.push(bucket.into());
                }
                _ => {
                    return Err(format!(
                        "{word:?} is not a right, or is repeated: write read-only, bucket=NAME, or several with commas"
                    ));
                }
            }
        }
        if rights.buckets.len() > BUCKETS_OF_TOKEN_MAX {
            return Err(format!("a token is for at most {BUCKETS_OF_TOKEN_MAX} buckets"));
        }
        Ok(rights)
    }

    /// Returns true if nothing is forbidden.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        !self.read_only && self.buckets.is_empty()
    }

    /// The buckets that the rights name; none if they are for all.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        self.buckets.iter().map(|bucket| &**bucket)
    }

    /// Checks that objects of `bucket` may be read.
    ///
    /// # Errors
    /// [`NotAllowed`] for another bucket.
    pub fn allow_read(&self, bucket: &str) -> Result<(), NotAllowed> {
        if self.buckets.is_empty() || self.names(bucket) {
            return Ok(());
        }
        Err(NotAllowed::Bucket { asked: bucket.into(), allowed: self.allowed() })
    }

    /// Checks that objects of `bucket` may be written and deleted. Objects that may be written may be read.
    ///
    /// # Errors
    /// [`NotAllowed`] for another bucket, or if only reading is allowed.
    pub fn allow_write(&self, bucket: &str) -> Result<(), NotAllowed> {
        self.allow_read(bucket)?;
        if self.read_only { Err(NotAllowed::ReadOnly) } else { Ok(()) }
    }

    /// Checks that everything in the store may be read: all buckets, and the figures of the whole store.
    ///
    /// # Errors
    /// [`NotAllowed`] if only some buckets may be reached.
    pub fn allow_read_all(&self) -> Result<(), NotAllowed> {
        if self.buckets.is_empty() {
            return Ok(());
        }
        Err(NotAllowed::WholeStore { allowed: self.allowed() })
    }

    /// Checks that the store and its server may be administered.
    ///
    /// # Errors
    /// [`NotAllowed`] unless everything is allowed.
    pub fn allow_administration(&self) -> Result<(), NotAllowed> {
        self.allow_read_all()?;
        if self.read_only { Err(NotAllowed::ReadOnly) } else { Ok(()) }
    }

    fn names(&self, bucket: &str) -> bool {
        self.buckets.iter().any(|its| **its == *bucket)
    }

    fn allowed(&self) -> Box<str> {
        let word = if self.buckets.len() == 1 { "the bucket" } else { "the buckets" };
        format!("{word} {}", self.buckets.join(", ")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_allowed_unless_words_forbid_it() {
        let all = Rights::default();
        assert!(all.is_everything() && all.allow_administration().is_ok() && all.allow_write("a").is_ok());

        let reads = Rights::parse("read-only").unwrap();
        assert!(reads.allow_read("a").is_ok() && reads.allow_read_all().is_ok());
        assert_eq!(reads.allow_write("a"), Err(NotAllowed::ReadOnly));
        assert_eq!(reads.allow_administration(), Err(NotAllowed::ReadOnly));

        let films = Rights::parse("bucket=films,bucket=maps").unwrap();
        assert!(films.allow_write("films").is_ok() && films.allow_write("maps").is_ok());
        for other in ["", "film", "films2", "default", "FILMS"] {
            assert!(films.allow_read(other).is_err() && films.allow_write(other).is_err(), "{other}");
        }
        assert!(films.allow_read_all().is_err() && films.allow_administration().is_err());
        let words = films.allow_read("x").unwrap_err().to_string();
        assert!(words.contains("\"x\"") && words.contains("the buckets films, maps"), "{words}");

        let both = Rights::parse("bucket=films,read-only").unwrap();
        assert!(both.allow_read("films").is_ok() && both.allow_write("films") == Err(NotAllowed::ReadOnly));
        assert!(both.allow_read("x").is_err() && !both.is_everything());
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
            assert!(Rights::parse(wrong).is_err(), "{wrong:?}");
        }
        let many: Vec<String> = (0..=BUCKETS_OF_TOKEN_MAX).map(|at| format!("bucket=b{at}")).collect();
        assert!(Rights::parse(&many.join(",")).is_err());
        assert!(Rights::parse(&many[1..].join(",")).is_ok());
    }
}
