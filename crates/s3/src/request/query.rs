//! The query of a request: names and values, percent-decoded once.
//!
//! In a query a plus sign is a space, as in S3 and in forms; clients that mean a plus send `%2B`.

use super::error::{ErrorCode, S3Error, S3Result};
use crate::text::percent_decode;

/// Most parameters of a query: a presigned upload has about twenty.
pub const PARAMETERS_MAX: usize = 64;

/// The parameters of a query, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryParameters(Vec<(String, Vec<u8>)>);

impl QueryParameters {
    /// Reads the part of a target after the question mark.
    ///
    /// # Errors
    /// `InvalidURI` for broken escapes, names that are not UTF-8 and too many parameters.
    pub fn parse(query: Option<&str>) -> S3Result<Self> {
        let mut parameters = Vec::new();
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            if parameters.len() == PARAMETERS_MAX {
                let why = format!("A query has at most {PARAMETERS_MAX} parameters.");
                return Err(S3Error::new(ErrorCode::InvalidURI, why));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8(decode(name)?).map_err(|_| ErrorCode::InvalidURI)?;
            parameters.push((name, decode(value)?));
        }
        Ok(Self(parameters))
    }

    /// The value of the first parameter with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_slice())
    }

    /// The value as text.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not UTF-8.
    pub fn text(&self, name: &str) -> S3Result<Option<&str>> {
        let text =
            |value| str::from_utf8(value).map_err(|_| S3Error::argument(name, "", "The value is not UTF-8."));
        self.get(name).map(text).transpose()
    }

    /// The value as a decimal number.
    ///
    /// # Errors
    /// `InvalidArgument` if it is none.
    pub fn number(&self, name: &str) -> S3Result<Option<u64>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number
            .map(Some)
            .ok_or_else(|| S3Error::argument(name, text, "The value is not a number in its range."))
    }

    /// Returns true if the query has a parameter with this name, with or without a value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All parameters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }
}

fn decode(text: &str) -> S3Result<Vec<u8>> {
    let spaced: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    percent_decode(&spaced).ok_or_else(|| ErrorCode::InvalidURI.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_values_are_decoded_once() {
        let query =
            QueryParameters::parse(Some("prefix=a+b%2Bc%2525%FF&acl&max-keys=10&&prefix=2&n%61me=")).unwrap();
        assert_eq!(query.get("prefix"), Some(&b"a b+c%25\xff"[..]));
        assert!(query.has("acl") && query.has("name") && !query.has("policy"));
        assert_eq!(query.number("max-keys"), Ok(Some(10)));
        assert_eq!(query.number("marker"), Ok(None));
        assert_eq!(query.text("prefix").unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(query.iter().count(), 5);
        for bad in ["-1", "+1", "1x", "99999999999999999999"] {
            let query = QueryParameters::parse(Some(&format!("n={}", bad.replace('+', "%2B")))).unwrap();
            assert_eq!(query.number("n").unwrap_err().code, ErrorCode::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn the_number_of_parameters_is_bounded() {
        assert!(QueryParameters::parse(Some(&"a&".repeat(64))).is_ok());
        assert!(QueryParameters::parse(Some(&"a&".repeat(65))).is_err());
        assert!(QueryParameters::parse(Some("a=%4")).is_err());
        assert!(QueryParameters::parse(Some("%FF=1")).is_err());
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(query: String) {
            let _ = QueryParameters::parse(Some(&query));
        }
    }
}
