//! The head of the answer to a GET or a HEAD of an object: status, headers, and the bytes to send.

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use shoal_engine::{Metadata, ObjectPart};

use crate::object::conditions::{ReadConditions, ReadVerdict};
use crate::object::etag::ObjectEtag;
use crate::object::metadata::{S3Metadata, StoredChecksum, attribute};
use crate::object::range::{ValueRange, if_range_holds, requested};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::{USER_METADATA_PREFIX, header};
use crate::request::list::part_number;
use crate::request::query::QueryParameters;
use crate::request::words;
use crate::time::{SECOND_NS, http_date_of};

/// The type of an object without one.
const DEFAULT_TYPE: &str = "binary/octet-stream";

/// Headers of the answer that a signed request may set.
const OVERRIDES: [(&str, &str); 6] = [
    ("response-content-type", "content-type"),
    ("response-content-language", "content-language"),
    ("response-expires", "expires"),
    ("response-cache-control", "cache-control"),
    ("response-content-disposition", "content-disposition"),
    ("response-content-encoding", "content-encoding"),
];

/// A GET or a HEAD of an object.
#[derive(Clone, Debug, Default)]
pub struct ObjectRead {
    conditions: ReadConditions,
    range: Option<String>,
    if_range: Option<String>,
    part: Option<u16>,
    with_checksum: bool,
    overrides: Vec<(HeaderName, HeaderValue)>,
}

/// The properties of the object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectFacts<'a> {
    /// Its metadata.
    pub metadata: &'a Metadata,
    /// The ETag.
    pub etag: ObjectEtag,
    /// Bytes of the value.
    pub bytes: u64,
    /// The date in nanoseconds.
    pub modified_ns: u64,
    /// The parts of an object that was uploaded in parts; empty for another one.
    pub parts: &'a [ObjectPart],
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct ObjectAnswer {
    /// 200, 206 or 304.
    pub status: StatusCode,
    /// The headers, that of the length included.
    pub headers: HeaderMap,
    /// The bytes of the value that a GET sends; `None` for none.
    pub range: Option<ValueRange>,
}

impl ObjectRead {
    /// Reads the request. `is_signed` is false for an anonymous one.
    ///
    /// # Errors
    /// `InvalidArgument`; `InvalidRequest` for a part with a range, and for headers that an anonymous request wants.
    pub fn parse(headers: &HeaderMap, query: &QueryParameters, is_signed: bool) -> S3Result<Self> {
        let text =
            |name: &str| -> S3Result<Option<String>> { Ok(header(headers, name)?.map(ToOwned::to_owned)) };
        let (range, part) = (text("range")?, part_number(query)?);
        if range.is_some() && part.is_some() {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter",
            ));
        }
        let mut overrides = Vec::new();
        for (parameter, name) in OVERRIDES {
            let Some(value) = query.get(parameter) else { continue };
            if !is_signed {
                let why = "Request specific response headers cannot be used for anonymous GET requests.";
                return Err(S3Error::new(ErrorCode::InvalidRequest, why));
            }
            let wrong = |_| S3Error::argument(parameter, "", "The value cannot be a header.");
            overrides.push((HeaderName::from_static(name), HeaderValue::from_bytes(value).map_err(wrong)?));
        }
        let mode = header(headers, "x-amz-checksum-mode")?;
        Ok(Self {
            conditions: ReadConditions::parse(headers)?,
            range,
            if_range: text("if-range")?,
            part,
            with_checksum: mode.is_some_and(|mode| mode.eq_ignore_ascii_case("ENABLED")),
            overrides,
        })
    }

    /// Returns true if it asks for a part: the answer depends on the parts of the object.
    pub(crate) fn is_of_part(&self) -> bool {
        self.part.is_some()
    }

    /// Returns true if the answer is the whole value of any object: there is no condition and no range.
    pub(crate) fn is_of_all(&self) -> bool {
        self.conditions == ReadConditions::default() && self.range.is_none() && self.part.is_none()
    }

    /// Decides the answer.
    ///
    /// # Errors
    /// `PreconditionFailed`, `InvalidRange`, `InvalidPart`.
    pub fn answer(&self, object: &ObjectFacts<'_>) -> S3Result<ObjectAnswer> {
        let (etag, modified_s) = (object.etag.to_string(), object.modified_ns / SECOND_NS);
        match self.conditions.judge(&etag, modified_s) {
            ReadVerdict::Failed => return Err(ErrorCode::PreconditionFailed.into()),
            ReadVerdict::NotModified => {
                let mut headers = self.headers(object);
                let kept = [ETAG, LAST_MODIFIED, CACHE_CONTROL, VARY]
                    .map(|name| headers.remove(&name).map(|it| (name, it)));
                let headers = kept.into_iter().flatten().collect();
                return Ok(ObjectAnswer { status: StatusCode::NOT_MODIFIED, headers, range: None });
            }
            ReadVerdict::Proceed => {}
        }
        let range = self.range(object, &etag, modified_s)?;
        let mut headers = self.headers(object);
        if range.is_none() || self.part.is_some() {
            self.add_checksum(&mut headers, object);
        }
        let whole = (object.bytes > 0).then_some(ValueRange { first: 0, bytes: object.bytes });
        let sent = range.or(whole);
        insert(&mut headers, CONTENT_LENGTH, &sent.map_or(0, |range| range.bytes).to_string());
        if let Some(range) = range {
            insert(&mut headers, CONTENT_RANGE, &range.content_range(object.bytes));
        }
        if self.part.is_some() && !object.parts.is_empty() {
            set(&mut headers, "x-amz-mp-parts-count", &object.parts.len().to_string());
        }
        let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        Ok(ObjectAnswer { status, headers, range: sent })
    }

    /// The range to answer with 206; `None` for the whole value.
    fn range(&self, object: &ObjectFacts<'_>, etag: &str, modified_s: u64) -> S3Result<Option<ValueRange>> {
        if let Some(part) = self.part {
            return part_range(part, object);
        }
        let Some(range) = &self.range else { return Ok(None) };
        if self.if_range.as_ref().is_some_and(|value| !if_range_holds(value, etag, modified_s)) {
            return Ok(None);
        }
        requested(range, object.bytes)
    }

    /// The headers of the whole object.
    fn headers(&self, object: &ObjectFacts<'_>) -> HeaderMap {
        let metadata = object.metadata;
        let mut out = HeaderMap::new();
        insert(&mut out, ETAG, &object.etag.to_string());
        insert(&mut out, LAST_MODIFIED, &http_date_of(object.modified_ns / SECOND_NS));
        let content_type =
            Some(metadata.content_type.as_str()).filter(|it| !it.is_empty()).unwrap_or(DEFAULT_TYPE);
        insert(&mut out, CONTENT_TYPE, content_type);
        set(&mut out, "accept-ranges", "bytes");
        for (tag, name) in attribute::HEADERS {
            let value = metadata.attributes.get(tag).map(HeaderValue::from_bytes);
            if let Some(Ok(value)) = value {
                out.insert(HeaderName::from_static(name), value);
            }
        }
        add_user_metadata(&mut out, metadata);
        let tags = metadata.tags().pairs().len();
        if tags > 0 {
            set(&mut out, "x-amz-tagging-count", &tags.to_string());
        }
        for (name, value) in &self.overrides {
            out.insert(name.clone(), value.clone());
        }
        out
    }

    /// The checksum is one of the whole value or of a part, so another range has none. The type is that of the object.
    fn add_checksum(&self, out: &mut HeaderMap, object: &ObjectFacts<'_>) {
        let Some(whole) = object.metadata.checksum().filter(|_| self.with_checksum) else { return };
        let part = self.part.and_then(|number| object.parts.get(usize::from(number).checked_sub(1)?));
        let sent = match part {
            Some(part) => StoredChecksum::of_attribute(&part.checksum),
            None => Some(whole),
        };
        if let Some(sent) = sent {
            set(out, sent.value.algorithm().header(), &sent.text());
            set(out, "x-amz-checksum-type", whole.type_name());
        }
    }
}

/// The bytes of a part. An object that was not uploaded in parts has one.
fn part_range(part: u16, object: &ObjectFacts<'_>) -> S3Result<Option<ValueRange>> {
    let index = usize::from(part).saturating_sub(1);
    let (first, bytes) = match object.parts.get(index) {
        Some(part) => (part.first, part.bytes),
        None if index == 0 && object.parts.is_empty() => (0, object.bytes),
        None => return Err(ErrorCode::InvalidPart.into()),
    };
    Ok((bytes > 0).then_some(ValueRange { first, bytes }))
}

/// User metadata as headers. A pair whose name cannot be one is only counted: another frontend may have written it.
fn add_user_metadata(out: &mut HeaderMap, metadata: &Metadata) {
    let mut missing = 0_usize;
    for (name, value) in &metadata.user {
        let name = HeaderName::try_from(format!("{USER_METADATA_PREFIX}{name}"));
        let value = HeaderValue::from_str(&words::encode(value));
        match (name, value) {
            (Ok(name), Ok(value)) => _ = out.append(name, value),
            _ => missing += 1,
        }
    }
    if missing > 0 {
        set(out, "x-amz-missing-meta", &missing.to_string());
    }
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    insert(headers, HeaderName::from_static(name), value);
}

/// A value that cannot be a header is left out.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
        headers.insert(name, value);
    }
}

/// The headers with ETag and checksum in the answer to a put or a part.
#[must_use]
pub fn written_headers(etag: &ObjectEtag, checksum: Option<&StoredChecksum>) -> HeaderMap {
    let mut out = HeaderMap::new();
    insert(&mut out, ETAG, &etag.to_string());
    if let Some(checksum) = checksum {
        set(&mut out, checksum.value.algorithm().header(), &checksum.text());
        set(&mut out, "x-amz-checksum-type", checksum.type_name());
    }
    out
}

/// The headers of an error's document, beside its length.
#[must_use]
pub fn error_headers(error: &S3Error) -> HeaderMap {
    let mut out = HeaderMap::new();
    set(&mut out, "content-type", "application/xml");
    let field = |wanted: &str| error.fields.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    match (error.code, field("ActualObjectSize"), field("Region")) {
        (ErrorCode::InvalidRange, Some(bytes), _) => {
            insert(&mut out, CONTENT_RANGE, &format!("bytes */{bytes}"))
        }
        (_, _, Some(region)) => set(&mut out, "x-amz-bucket-region", region),
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::body::checksum::{ChecksumAlgorithm, ChecksumValue};
    use crate::object::metadata::StoredChecksum;
    use crate::object::tags::TagSet;
    use crate::testing::headers_of;

    const ETAG_TEXT: &str = "\"00000000000000000000000000000000\"";

    fn metadata() -> Metadata {
        let mut metadata = Metadata::default();
        let value = ChecksumValue::parse(ChecksumAlgorithm::Crc32, "y/Q5Jg==").unwrap();
        metadata.set_of_value(&ObjectEtag::Md5([0; 16]), Some(StoredChecksum { value, parts: None }));
        metadata.attributes.set(attribute::CACHE_CONTROL, Some(b"no-cache"));
        metadata.set_tags(&TagSet::parse_header("a=1&b=2").unwrap());
        metadata.user.push(("k".to_owned(), Bytes::from_static("é".as_bytes())));
        metadata.user.push(("no header".to_owned(), Bytes::from_static(b"v")));
        metadata
    }

    fn answer_of(
        parts: &[ObjectPart],
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<ObjectAnswer, ErrorCode> {
        let query = QueryParameters::parse(Some(query)).unwrap();
        let read = ObjectRead::parse(&headers_of(headers), &query, true).map_err(|error| error.code)?;
        let metadata = metadata();
        let bytes = 100;
        let etag = metadata.etag(1, bytes);
        let facts = ObjectFacts { metadata: &metadata, etag, bytes, modified_ns: 0, parts };
        read.answer(&facts).map_err(|error| error.code)
    }

    #[test]
    fn a_whole_object_has_all_headers() {
        let answer =
            answer_of(&[], "response-content-type=a/b", &[("x-amz-checksum-mode", "ENABLED")]).unwrap();
        assert_eq!((answer.status.as_u16(), answer.range), (200, Some(ValueRange { first: 0, bytes: 100 })));
        for (name, value) in [
            ("etag", ETAG_TEXT),
            ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("content-type", "a/b"),
            ("content-length", "100"),
            ("accept-ranges", "bytes"),
            ("cache-control", "no-cache"),
            ("x-amz-meta-k", "=?UTF-8?B?w6k=?="),
            ("x-amz-missing-meta", "1"),
            ("x-amz-tagging-count", "2"),
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-type", "FULL_OBJECT"),
        ] {
            assert_eq!(answer.headers[name], value, "{name}");
        }
        let plain = answer_of(&[], "", &[]).unwrap().headers;
        assert!(!plain.contains_key("x-amz-checksum-crc32"));
        assert_eq!(plain["content-type"], DEFAULT_TYPE);
    }

    #[test]
    fn ranges_and_conditions_decide_the_status() {
        let mode = ("x-amz-checksum-mode", "ENABLED");
        let part = answer_of(&[], "", &[("range", "bytes=10-19"), mode]).unwrap();
        assert_eq!((part.status.as_u16(), part.range), (206, Some(ValueRange { first: 10, bytes: 10 })));
        assert_eq!(
            (&part.headers["content-range"], &part.headers["content-length"]),
            (&"bytes 10-19/100".parse().unwrap(), &"10".parse().unwrap())
        );
        assert!(!part.headers.contains_key("x-amz-checksum-crc32"));
        for (headers, status) in [
            (&[("range", "bytes=100-")][..], Err(ErrorCode::InvalidRange)),
            (&[("range", "bytes=0-1,3-4")], Ok(200)),
            (&[("range", "bytes=0-9"), ("if-range", ETAG_TEXT)], Ok(206)),
            (&[("range", "bytes=0-9"), ("if-range", "\"other\"")], Ok(200)),
            (&[("if-match", "\"other\"")], Err(ErrorCode::PreconditionFailed)),
            (&[("if-none-match", ETAG_TEXT), ("range", "bytes=100-")], Ok(304)),
        ] {
            let answer = answer_of(&[], "", headers);
            assert_eq!(answer.map(|answer| answer.status.as_u16()), status, "{headers:?}");
        }
        let same = answer_of(&[], "", &[("if-none-match", ETAG_TEXT)]).unwrap();
        assert_eq!((same.range, same.headers.len()), (None, 3));
    }

    #[test]
    fn parts_are_ranges() {
        let part = |number, first, bytes, text| {
            let value = ChecksumValue::parse(ChecksumAlgorithm::Crc32, text).unwrap();
            let checksum = StoredChecksum { value, parts: None }.attribute();
            ObjectPart { number, first, bytes, checksum }
        };
        let parts = [part(1, 0, 60, "y/Q5Jg=="), part(2, 60, 40, "4waSgw=="), part(9, 100, 0, "AAAAAA==")];
        for (query, parts, expected) in [
            ("partNumber=1", &parts[..], Ok((206, Some(ValueRange { first: 0, bytes: 60 })))),
            ("partNumber=2", &parts, Ok((206, Some(ValueRange { first: 60, bytes: 40 })))),
            ("partNumber=4", &parts, Err(ErrorCode::InvalidPart)),
            ("partNumber=1", &[], Ok((206, Some(ValueRange { first: 0, bytes: 100 })))),
            ("partNumber=2", &[], Err(ErrorCode::InvalidPart)),
        ] {
            let answer = answer_of(parts, query, &[]);
            assert_eq!(
                answer.as_ref().map(|it| (it.status.as_u16(), it.range)).map_err(|code| *code),
                expected,
                "{query}"
            );
            if let Ok(answer) = answer {
                assert_eq!(answer.headers.contains_key("x-amz-mp-parts-count"), !parts.is_empty());
            }
        }
        let part = answer_of(&parts, "partNumber=2", &[("x-amz-checksum-mode", "ENABLED")]).unwrap();
        assert_eq!(part.headers["x-amz-checksum-crc32"], "4waSgw==", "that of the part");
        assert_eq!(part.headers["x-amz-checksum-type"], "FULL_OBJECT");
        let both = answer_of(&parts, "partNumber=1", &[("range", "bytes=0-1")]);
        assert_eq!(both.err(), Some(ErrorCode::InvalidRequest));
    }

    #[test]
    fn anonymous_requests_set_no_headers() {
        let query = QueryParameters::parse(Some("response-content-type=a/b")).unwrap();
        let error = ObjectRead::parse(&HeaderMap::new(), &query, false).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        let query = QueryParameters::parse(Some("response-content-type=a%0Ab")).unwrap();
        assert!(ObjectRead::parse(&HeaderMap::new(), &query, true).is_err());
    }

    #[test]
    fn errors_have_the_headers_that_clients_learn_from() {
        let error = requested("bytes=7-", 5).unwrap_err();
        assert_eq!(error_headers(&error)["content-range"], "bytes */5");
        let error = S3Error::from(ErrorCode::AuthorizationHeaderMalformed).with("Region", "eu");
        assert_eq!(error_headers(&error)["x-amz-bucket-region"], "eu");
        let value = ChecksumValue::parse(ChecksumAlgorithm::Crc32, "y/Q5Jg==").unwrap();
        let headers =
            written_headers(&ObjectEtag::Md5([0; 16]), Some(&StoredChecksum { value, parts: None }));
        assert_eq!((headers.len(), &headers["etag"]), (3, &ETAG_TEXT.parse().unwrap()));
    }
}
