//! Tags of objects and buckets: sorted pairs, from a header or a document, and as the attribute that stores them.

use shoal_base::codec::{Reader, Truncated, put_prefixed};

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::query::QueryParameters;

/// Most tags of an object.
pub const OBJECT_TAGS_MAX: usize = 10;

/// Most tags of a bucket.
pub const BUCKET_TAGS_MAX: usize = 50;

/// Longest key of a tag, in characters.
const KEY_CHARS_MAX: usize = 128;

/// Longest value of a tag, in characters.
const VALUE_CHARS_MAX: usize = 256;

/// Tags, sorted by their keys, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagSet(Vec<(String, String)>);

impl TagSet {
    /// The tags of these pairs, at most `max`.
    ///
    /// # Errors
    /// `InvalidTag`.
    pub fn new(mut pairs: Vec<(String, String)>, max: usize) -> S3Result<Self> {
        let invalid = |why: &str| Err(S3Error::new(ErrorCode::InvalidTag, why));
        if pairs.len() > max {
            return invalid("There are too many tags.");
        }
        let is_long = |text: &str, most: usize| text.chars().count() > most;
        for (key, value) in &pairs {
            if key.is_empty() || is_long(key, KEY_CHARS_MAX) {
                return invalid("The TagKey you have provided is invalid");
            }
            if is_long(value, VALUE_CHARS_MAX) {
                return invalid("The TagValue you have provided is invalid");
            }
        }
        pairs.sort();
        if pairs.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return invalid("Cannot provide multiple Tags with the same key");
        }
        Ok(Self(pairs))
    }

    /// Reads the header `x-amz-tagging` of an object, which has the form of a query.
    ///
    /// # Errors
    /// `InvalidTag`, `InvalidArgument`.
    pub fn parse_header(text: &str) -> S3Result<Self> {
        let malformed = |_| {
            S3Error::argument("x-amz-tagging", text, "The header must be encoded as URL Query parameters.")
        };
        let query = QueryParameters::parse(Some(text)).map_err(malformed)?;
        let pair = |(name, value): (&str, &[u8])| Ok((name.to_owned(), String::from_utf8(value.to_vec())?));
        let pairs = query.iter().map(pair).collect::<Result<_, std::string::FromUtf8Error>>();
        let pairs = pairs.map_err(|_| S3Error::from(ErrorCode::InvalidTag))?;
        Self::new(pairs, OBJECT_TAGS_MAX)
    }

    /// Reads the stored attribute.
    ///
    /// # Errors
    /// [`Truncated`] for bytes that [`Self::attribute`] does not make.
    pub fn of_attribute(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let mut pairs = Vec::new();
        while !reader.is_empty() {
            let mut text = || String::from_utf8(reader.prefixed()?.to_vec()).map_err(|_| Truncated);
            pairs.push((text()?, text()?));
        }
        let is_sorted = pairs.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if is_sorted { Ok(Self(pairs)) } else { Err(Truncated) }
    }

    /// The attribute to store.
    #[must_use]
    pub fn attribute(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for text in self.0.iter().flat_map(|(key, value)| [key, value]) {
            put_prefixed(&mut out, text.as_bytes());
        }
        out
    }

    /// The pairs.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tags_are_sorted_bounded_and_unique() {
        let tags = TagSet::parse_header("b=2&a=x%20y+z&c").unwrap();
        let expected =
            [("a", "x y z"), ("b", "2"), ("c", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(tags.pairs(), expected);
        assert_eq!(TagSet::of_attribute(&tags.attribute()), Ok(tags));
        let (key, value) = ("é".repeat(128), "é".repeat(256));
        assert!(TagSet::parse_header(&format!("{key}={value}")).is_ok());
        for bad in [
            "a=1&a=2".to_owned(),
            "=1".to_owned(),
            format!("{key}x=1"),
            format!("a={value}x"),
            "a=%FF".to_owned(),
        ] {
            assert_eq!(TagSet::parse_header(&bad).unwrap_err().code, ErrorCode::InvalidTag, "{bad}");
        }
        assert_eq!(TagSet::parse_header("a=%4").unwrap_err().code, ErrorCode::InvalidArgument);
        let many: Vec<String> = (0..11).map(|number| format!("k{number}=1")).collect();
        assert!(TagSet::parse_header(&many[1..].join("&")).is_ok());
        assert!(TagSet::parse_header(&many.join("&")).is_err());
    }

    proptest! {
        #[test]
        fn any_attribute_is_read_or_refused(bytes: Vec<u8>) {
            if let Ok(tags) = TagSet::of_attribute(&bytes) {
                prop_assert_eq!(TagSet::of_attribute(&tags.attribute()), Ok(tags));
            }
        }
    }
}
