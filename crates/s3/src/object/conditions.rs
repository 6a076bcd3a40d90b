//! Conditions of requests, as pure functions of the object's present ETag, length and date.

use http::HeaderMap;

use super::etag::etag_list_has;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::time::{parse_http_date, parse_iso};

/// The verdict on a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadVerdict {
    /// The object is answered.
    Proceed,
    /// 304: the client has this value.
    NotModified,
    /// 412.
    Failed,
}

/// Conditions of a GET, a HEAD, or the source of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadConditions {
    if_match: Option<String>,
    if_none_match: Option<String>,
    modified_since: Option<u64>,
    unmodified_since: Option<u64>,
}

impl ReadConditions {
    /// The conditions of a GET or a HEAD. A date that cannot be read is no condition.
    ///
    /// # Errors
    /// `InvalidArgument` for a header that occurs twice.
    pub fn parse(headers: &HeaderMap) -> S3Result<Self> {
        Self::with_prefix(headers, "")
    }

    /// The conditions on the source of a copy.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of_copy_source(headers: &HeaderMap) -> S3Result<Self> {
        Self::with_prefix(headers, "x-amz-copy-source-")
    }

    fn with_prefix(headers: &HeaderMap, prefix: &str) -> S3Result<Self> {
        let text = |name: &str| -> S3Result<Option<String>> {
            Ok(header(headers, &format!("{prefix}{name}"))?.map(ToOwned::to_owned))
        };
        let date =
            |name: &str| -> S3Result<Option<u64>> { Ok(text(name)?.as_deref().and_then(parse_http_date)) };
        Ok(Self {
            if_match: text("if-match")?,
            if_none_match: text("if-none-match")?,
            modified_since: date("if-modified-since")?,
            unmodified_since: date("if-unmodified-since")?,
        })
    }

    /// Judges in the order of RFC 9110: an ETag has precedence over a date of its kind. Dates count to the second.
    #[must_use]
    pub fn judge(&self, etag: &str, modified_s: u64) -> ReadVerdict {
        let is_same = match (&self.if_match, self.unmodified_since) {
            (Some(list), _) => etag_list_has(list, etag, false),
            (None, Some(since)) => modified_s <= since,
            (None, None) => true,
        };
        let is_new = match (&self.if_none_match, self.modified_since) {
            (Some(list), _) => !etag_list_has(list, etag, true),
            (None, Some(since)) => modified_s > since,
            (None, None) => true,
        };
        match (is_same, is_new) {
            (false, _) => ReadVerdict::Failed,
            (true, false) => ReadVerdict::NotModified,
            (true, true) => ReadVerdict::Proceed,
        }
    }

    /// Judges the source of a copy, which has no 304.
    ///
    /// # Errors
    /// `PreconditionFailed`.
    pub fn check_source(&self, etag: &str, modified_s: u64) -> S3Result<()> {
        match self.judge(etag, modified_s) {
            ReadVerdict::Proceed => Ok(()),
            _ => Err(failed("x-amz-copy-source-if-*")),
        }
    }
}

/// The condition of a put, a copy or the completion of an upload, on the object that it replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// None.
    #[default]
    Always,
    /// `If-None-Match`: no object, or for a list of ETags none with one of them.
    NoneMatch(String),
    /// `If-Match`: an object with one of the ETags, or any for a star.
    Match(String),
}

impl WriteCondition {
    /// Reads the condition.
    ///
    /// # Errors
    /// `NotImplemented` if there are two.
    pub fn parse(headers: &HeaderMap) -> S3Result<Self> {
        match (header(headers, "if-match")?, header(headers, "if-none-match")?) {
            (Some(_), Some(_)) => Err(S3Error::not_implemented("If-Match together with If-None-Match")),
            (Some(list), None) => Ok(Self::Match(list.to_owned())),
            (None, Some(list)) => Ok(Self::NoneMatch(list.to_owned())),
            (None, None) => Ok(Self::Always),
        }
    }

    /// Returns true if the condition is that there is no object: the store decides it without reading an ETag.
    #[must_use]
    pub fn is_if_missing(&self) -> bool {
        matches!(self, Self::NoneMatch(list) if list == "*")
    }

    /// Judges by the ETag of the present object.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` for `If-Match` without an object.
    pub fn judge(&self, present: Option<&str>) -> S3Result<()> {
        match (self, present) {
            (Self::Always, _) | (Self::NoneMatch(_), None) => Ok(()),
            (Self::Match(_), None) => Err(ErrorCode::NoSuchKey.into()),
            (Self::Match(list), Some(etag)) if etag_list_has(list, etag, false) => Ok(()),
            (Self::NoneMatch(list), Some(etag)) if !etag_list_has(list, etag, true) => Ok(()),
            (Self::Match(_), Some(_)) => Err(failed("If-Match")),
            (Self::NoneMatch(_), Some(_)) => Err(failed("If-None-Match")),
        }
    }
}

/// The properties of an object that a delete may ask for.
#[derive(Clone, Copy, Debug)]
pub struct PresentObject<'a> {
    /// The ETag, in quotes.
    pub etag: &'a str,
    /// Bytes of the value.
    pub bytes: u64,
    /// The date, in seconds.
    pub modified_s: u64,
}

/// The conditions of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteConditions {
    /// The ETag, or a star.
    pub etag: Option<String>,
    /// The length of the value.
    pub bytes: Option<u64>,
    /// The date, in seconds.
    pub modified_s: Option<u64>,
}

impl DeleteConditions {
    /// Reads the conditions of DeleteObject.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn parse(headers: &HeaderMap) -> S3Result<Self> {
        let etag = header(headers, "if-match")?.map(ToOwned::to_owned);
        let bytes = header(headers, "x-amz-if-match-size")?.map(parse_size).transpose()?;
        let modified = header(headers, "x-amz-if-match-last-modified-time")?.map(parse_date).transpose()?;
        Ok(Self { etag, bytes, modified_s: modified })
    }

    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Judges by the present object. A delete of nothing always succeeds.
    ///
    /// # Errors
    /// `PreconditionFailed`.
    pub fn judge(&self, present: Option<&PresentObject<'_>>) -> S3Result<()> {
        let Some(object) = present else { return Ok(()) };
        if self.etag.as_ref().is_some_and(|etag| !etag_list_has(etag, object.etag, false)) {
            return Err(failed("If-Match"));
        }
        if self.bytes.is_some_and(|bytes| bytes != object.bytes) {
            return Err(failed("x-amz-if-match-size"));
        }
        if self.modified_s.is_some_and(|modified| modified != object.modified_s) {
            return Err(failed("x-amz-if-match-last-modified-time"));
        }
        Ok(())
    }
}

/// The length in a condition of a delete.
pub(crate) fn parse_size(text: &str) -> S3Result<u64> {
    text.parse().map_err(|_| S3Error::argument("x-amz-if-match-size", text, "The size is no number."))
}

/// The date in a condition of a delete: an HTTP date, or in documents one of ISO 8601.
pub(crate) fn parse_date(text: &str) -> S3Result<u64> {
    let wrong = || S3Error::argument("x-amz-if-match-last-modified-time", text, "The date cannot be read.");
    parse_http_date(text).or_else(|| parse_iso(text)).ok_or_else(wrong)
}

fn failed(condition: &'static str) -> S3Error {
    S3Error::from(ErrorCode::PreconditionFailed).with("Condition", condition)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::headers_of;

    const OLD: &str = "Thu, 23 May 2013 00:00:00 GMT";
    const NOW: &str = "Fri, 24 May 2013 00:00:00 GMT";
    const NOW_S: u64 = 1_369_353_600;

    #[test]
    fn reads_are_judged_in_the_order_of_rfc_9110() {
        use ReadVerdict::{Failed, NotModified, Proceed};
        for (headers, expected) in [
            (&[][..], Proceed),
            (&[("if-match", "\"a\"")], Proceed),
            (&[("if-match", "\"b\"")], Failed),
            (&[("if-none-match", "\"a\"")], NotModified),
            (&[("if-none-match", "W/\"a\", \"c\"")], NotModified),
            (&[("if-none-match", "\"b\"")], Proceed),
            (&[("if-modified-since", NOW)], NotModified),
            (&[("if-modified-since", OLD)], Proceed),
            (&[("if-unmodified-since", NOW)], Proceed),
            (&[("if-unmodified-since", OLD)], Failed),
            (&[("if-modified-since", "yesterday")], Proceed),
            // An ETag decides over a date of its kind.
            (&[("if-match", "\"a\""), ("if-unmodified-since", OLD)], Proceed),
            (&[("if-none-match", "\"b\""), ("if-modified-since", NOW)], Proceed),
            (&[("if-none-match", "\"a\""), ("if-modified-since", OLD)], NotModified),
            (&[("if-match", "\"b\""), ("if-none-match", "\"a\"")], Failed),
        ] {
            let conditions = ReadConditions::parse(&headers_of(headers)).unwrap();
            assert_eq!(conditions.judge("\"a\"", NOW_S), expected, "{headers:?}");
        }
        let source = |name, value| ReadConditions::of_copy_source(&headers_of(&[(name, value)])).unwrap();
        assert!(source("x-amz-copy-source-if-match", "a").check_source("\"a\"", NOW_S).is_ok());
        for (name, value) in [
            ("x-amz-copy-source-if-match", "b"),
            ("x-amz-copy-source-if-none-match", "a"),
            ("x-amz-copy-source-if-modified-since", NOW),
            ("x-amz-copy-source-if-unmodified-since", OLD),
        ] {
            let error = source(name, value).check_source("\"a\"", NOW_S).unwrap_err();
            assert_eq!(error.code, ErrorCode::PreconditionFailed, "{name}");
        }
    }

    #[test]
    fn writes_are_judged_by_the_present_object() {
        for (headers, present, expected) in [
            (&[][..], None, None),
            (&[("if-none-match", "*")], None, None),
            (&[("if-none-match", "*")], Some("\"a\""), Some(ErrorCode::PreconditionFailed)),
            (&[("if-none-match", "\"a\"")], Some("\"a\""), Some(ErrorCode::PreconditionFailed)),
            (&[("if-none-match", "\"b\"")], Some("\"a\""), None),
            (&[("if-match", "\"a\"")], Some("\"a\""), None),
            (&[("if-match", "*")], Some("\"a\""), None),
            (&[("if-match", "\"b\"")], Some("\"a\""), Some(ErrorCode::PreconditionFailed)),
            (&[("if-match", "\"a\"")], None, Some(ErrorCode::NoSuchKey)),
            (&[("if-match", "*")], None, Some(ErrorCode::NoSuchKey)),
        ] {
            let condition = WriteCondition::parse(&headers_of(headers)).unwrap();
            assert_eq!(
                condition.judge(present).err().map(|error| error.code),
                expected,
                "{headers:?} {present:?}"
            );
            assert_eq!(condition.is_if_missing(), headers == [("if-none-match", "*")]);
        }
        let both = headers_of(&[("if-match", "*"), ("if-none-match", "*")]);
        assert_eq!(WriteCondition::parse(&both).unwrap_err().code, ErrorCode::NotImplemented);
    }

    #[test]
    fn a_delete_of_nothing_succeeds_and_others_need_all_conditions() {
        let present = PresentObject { etag: "\"a\"", bytes: 5, modified_s: NOW_S };
        for (headers, holds) in [
            (&[("if-match", "*")][..], true),
            (&[("if-match", "\"a\""), ("x-amz-if-match-size", "5")], true),
            (&[("if-match", "\"b\"")], false),
            (&[("x-amz-if-match-size", "6")], false),
            (&[("x-amz-if-match-last-modified-time", NOW)], true),
            (&[("x-amz-if-match-last-modified-time", "2013-05-24T00:00:00Z")], true),
            (&[("x-amz-if-match-last-modified-time", OLD)], false),
        ] {
            let conditions = DeleteConditions::parse(&headers_of(headers)).unwrap();
            assert_eq!(conditions.judge(Some(&present)).is_ok(), holds, "{headers:?}");
            assert!(conditions.judge(None).is_ok() && !conditions.is_empty());
        }
        assert!(DeleteConditions::parse(&headers_of(&[("x-amz-if-match-size", "x")])).is_err());
    }

    proptest! {
        #[test]
        fn any_condition_is_read_or_refused(text in "[ -~]{0,30}") {
            for name in ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "x-amz-if-match-size"] {
                let headers = headers_of(&[(name, &text)]);
                let _ = ReadConditions::parse(&headers).map(|conditions| conditions.judge("\"a\"", NOW_S));
                let _ = WriteCondition::parse(&headers).map(|condition| condition.judge(Some("\"a\"")));
                let _ = DeleteConditions::parse(&headers);
            }
        }
    }
}
