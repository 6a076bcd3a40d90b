//! Ranges of a value: the header `Range`, a part's `x-amz-copy-source-range`, and `If-Range`.

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::time::parse_http_date;

/// Bytes of a value: the first one, and their number, which is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRange {
    /// The first byte.
    pub first: u64,
    /// Their number.
    pub bytes: u64,
}

impl ValueRange {
    /// The value of `Content-Range`.
    #[must_use]
    pub fn content_range(&self, value_bytes: u64) -> String {
        format!("bytes {}-{}/{value_bytes}", self.first, self.first + self.bytes - 1)
    }
}

/// The range that a header asks for of a value of `value_bytes` bytes. `None` means all of it: the header is not one range
/// of bytes, and then it is ignored.
///
/// # Errors
/// `InvalidRange` if no byte of the value is in the range.
pub fn requested(header: &str, value_bytes: u64) -> S3Result<Option<ValueRange>> {
    let Some((first, last)) = one_range(header) else { return Ok(None) };
    let range = match (first, last) {
        (Some(first), last) => {
            let end = last.map_or(value_bytes, |last| last.saturating_add(1).min(value_bytes));
            end.checked_sub(first).map(|bytes| ValueRange { first, bytes })
        }
        (None, suffix) => {
            let bytes = suffix.unwrap_or(0).min(value_bytes);
            Some(ValueRange { first: value_bytes - bytes, bytes })
        }
    };
    match range.filter(|range| range.bytes > 0) {
        Some(range) => Ok(Some(range)),
        None => {
            let error = S3Error::from(ErrorCode::InvalidRange).with("RangeRequested", header);
            Err(error.with("ActualObjectSize", value_bytes.to_string()))
        }
    }
}

/// First and last byte of `bytes=0-9`, `bytes=5-` or `bytes=-5`; the last form has the length in the second place.
fn one_range(header: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, range) = header.trim().split_once('=')?;
    let (first, last) = range.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
    let number = |text: &str| -> Option<Option<u64>> {
        match text.trim() {
            "" => Some(None),
            text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(Some(text.parse().unwrap_or(u64::MAX)))
            }
            _ => None,
        }
    };
    match (number(first)?, number(last)?) {
        (None, None) => None,
        (Some(first), Some(last)) if last < first => None,
        range => Some(range),
    }
}

/// The range of a source that becomes a part: it must have a first and a last byte, and be inside of the source.
///
/// # Errors
/// `InvalidArgument` for another form, `InvalidRange` outside of the source.
pub fn of_copy_source(header: &str, value_bytes: u64) -> S3Result<ValueRange> {
    let Some((Some(first), Some(last))) = one_range(header) else {
        let why = "The x-amz-copy-source-range value must be of the form bytes=first-last.";
        return Err(S3Error::argument("x-amz-copy-source-range", header, why));
    };
    if last >= value_bytes {
        return Err(S3Error::from(ErrorCode::InvalidRange).with("ActualObjectSize", value_bytes.to_string()));
    }
    Ok(ValueRange { first, bytes: last - first + 1 })
}

/// Returns true if a range may be answered: the value is still the one that `If-Range` names by its ETag or its date.
#[must_use]
pub fn if_range_holds(header: &str, etag: &str, modified_s: u64) -> bool {
    let header = header.trim();
    if header.starts_with('"') || header.starts_with("W/") {
        return header == etag;
    }
    parse_http_date(header) == Some(modified_s)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(header: &str, bytes: u64) -> Result<Option<(u64, u64)>, ErrorCode> {
        let range = requested(header, bytes).map_err(|error| error.code)?;
        Ok(range.map(|range| (range.first, range.bytes)))
    }

    #[test]
    fn each_form_of_a_range() {
        for (header, expected) in [
            ("bytes=0-9", Ok(Some((0, 10)))),
            ("bytes=5-5", Ok(Some((5, 1)))),
            ("bytes=90-", Ok(Some((90, 10)))),
            ("bytes=90-1000", Ok(Some((90, 10)))),
            ("Bytes = 90 - 99", Ok(Some((90, 10)))),
            ("bytes=-10", Ok(Some((90, 10)))),
            ("bytes=-1000", Ok(Some((0, 100)))),
            ("bytes=-99999999999999999999", Ok(Some((0, 100)))),
            ("bytes=100-", Err(ErrorCode::InvalidRange)),
            ("bytes=99999999999999999999-", Err(ErrorCode::InvalidRange)),
            ("bytes=-0", Err(ErrorCode::InvalidRange)),
            // Several ranges, other units and nonsense: the whole value.
            ("bytes=0-1,5-6", Ok(None)),
            ("lines=0-1", Ok(None)),
            ("bytes=5-4", Ok(None)),
            ("bytes=-", Ok(None)),
            ("bytes=a-b", Ok(None)),
            ("bytes", Ok(None)),
        ] {
            assert_eq!(of(header, 100), expected, "{header}");
        }
        for header in ["bytes=0-", "bytes=-1", "bytes=40-50"] {
            assert_eq!(of(header, 0), Err(ErrorCode::InvalidRange), "{header}");
        }
        assert_eq!(ValueRange { first: 5, bytes: 10 }.content_range(100), "bytes 5-14/100");
    }

    #[test]
    fn the_range_of_a_copy_is_inside_of_its_source() {
        assert_eq!(of_copy_source("bytes=0-99", 100), Ok(ValueRange { first: 0, bytes: 100 }));
        assert_eq!(of_copy_source("bytes=0-100", 100).unwrap_err().code, ErrorCode::InvalidRange);
        for header in ["bytes=5-", "bytes=-5", "0-5", "bytes=0-5,7-8", "bytes=7-5"] {
            assert_eq!(of_copy_source(header, 100).unwrap_err().code, ErrorCode::InvalidArgument, "{header}");
        }
    }

    #[test]
    fn if_range_names_the_value() {
        let date = "Fri, 24 May 2013 00:00:00 GMT";
        assert!(if_range_holds("\"a\"", "\"a\"", 1) && !if_range_holds("\"b\"", "\"a\"", 1));
        assert!(!if_range_holds("W/\"a\"", "\"a\"", 1));
        assert!(
            if_range_holds(date, "\"a\"", 1_369_353_600) && !if_range_holds(date, "\"a\"", 1_369_353_601)
        );
    }

    proptest! {
        #[test]
        fn a_range_is_inside_of_the_value(header in "(bytes=)?[0-9]{0,20}-[0-9,a]{0,20}", bytes: u64) {
            if let Ok(Some(range)) = requested(&header, bytes) {
                prop_assert!(range.bytes > 0 && range.first.checked_add(range.bytes).is_some_and(|end| end <= bytes));
            }
            let _ = of_copy_source(&header, bytes);
        }
    }
}
