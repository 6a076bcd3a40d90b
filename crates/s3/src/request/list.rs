//! The parameters of lists: of objects, versions, uploads and parts, and the tokens that continue them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use shoal_base::limits::LIST_PAGE_MAX;

use super::error::{ErrorCode, S3Error, S3Result};
use super::headers::header;
use super::query::QueryParameters;

/// The first byte of a token.
const TOKEN_VERSION: u8 = 1;

/// The highest number of a part.
const PART_MAX: u64 = 10_000;

/// The kind of a list of keys, with the parameters that its answer repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// ListObjects.
    V1,
    /// ListObjectsV2.
    V2 {
        /// The token, as it came.
        token: Option<String>,
        /// The start that the request names.
        start_after: Option<Vec<u8>>,
        /// Owners are answered.
        with_owner: bool,
    },
    /// ListObjectVersions.
    Versions,
    /// ListMultipartUploads; with the upload after whose id a list continues within the marker's key.
    Uploads {
        /// The id, as it came.
        upload_marker: Option<String>,
    },
}

/// The request of a list of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyListQuery {
    /// The kind.
    pub kind: ListKind,
    /// The start of all keys.
    pub prefix: Vec<u8>,
    /// Keys with it after the prefix are answered as a common prefix; empty for none.
    pub delimiter: Vec<u8>,
    /// The list starts after this key or common prefix; empty for the start.
    pub after: Vec<u8>,
    /// Most keys and common prefixes of the page, at most 1,000.
    pub max_keys: usize,
    /// Names are percent-encoded in the answer.
    pub is_url: bool,
}

impl KeyListQuery {
    /// Reads ListObjects, or ListObjectsV2 for `list-type=2`.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn objects(query: &QueryParameters) -> S3Result<Self> {
        match query.text("list-type")? {
            None => Self::read(query, ListKind::V1, "max-keys", bytes(query, "marker")),
            Some("2") => {
                let token = query.text("continuation-token")?.map(ToOwned::to_owned);
                let start_after = query.get("start-after").map(ToOwned::to_owned);
                let with_owner =
                    query.text("fetch-owner")?.is_some_and(|text| text.eq_ignore_ascii_case("true"));
                let after = match token.as_deref().filter(|token| !token.is_empty()) {
                    Some(token) => key_of_token(token)?,
                    None => start_after.clone().unwrap_or_default(),
                };
                Self::read(query, ListKind::V2 { token, start_after, with_owner }, "max-keys", after)
            }
            Some(other) => {
                Err(S3Error::argument("list-type", other, "Invalid List Type specified in Request"))
            }
        }
    }

    /// Reads ListObjectVersions.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn versions(query: &QueryParameters) -> S3Result<Self> {
        let after = bytes(query, "key-marker");
        if query.get("version-id-marker").is_some_and(|marker| !marker.is_empty()) && after.is_empty() {
            let why = "A version-id marker cannot be specified without a key marker.";
            return Err(S3Error::argument("version-id-marker", "", why));
        }
        Self::read(query, ListKind::Versions, "max-keys", after)
    }

    /// Reads ListMultipartUploads.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn uploads(query: &QueryParameters) -> S3Result<Self> {
        let after = bytes(query, "key-marker");
        let marker = query.text("upload-id-marker")?.filter(|_| !after.is_empty()).map(ToOwned::to_owned);
        Self::read(query, ListKind::Uploads { upload_marker: marker }, "max-uploads", after)
    }

    fn read(query: &QueryParameters, kind: ListKind, max: &str, after: Vec<u8>) -> S3Result<Self> {
        let is_url = match query.text("encoding-type")? {
            None | Some("") => false,
            Some("url") => true,
            Some(other) => {
                return Err(S3Error::argument(
                    "encoding-type",
                    other,
                    "Invalid Encoding Method specified in Request",
                ));
            }
        };
        let (prefix, delimiter) = (bytes(query, "prefix"), bytes(query, "delimiter"));
        Ok(Self { kind, prefix, delimiter, after, max_keys: page(query, max)?, is_url })
    }
}

fn bytes(query: &QueryParameters, name: &str) -> Vec<u8> {
    query.get(name).unwrap_or_default().to_vec()
}

/// The size of a page.
fn page(query: &QueryParameters, name: &str) -> S3Result<usize> {
    if query.get(name).is_none_or(<[u8]>::is_empty) {
        return Ok(LIST_PAGE_MAX);
    }
    let number = query.number(name)?.filter(|number| i32::try_from(*number).is_ok());
    let number = number.ok_or_else(|| S3Error::argument(name, "", "The number is not in its range."))?;
    Ok(usize::try_from(number).unwrap_or(LIST_PAGE_MAX).min(LIST_PAGE_MAX))
}

/// The token that continues a list after a key or a common prefix.
#[must_use]
pub fn token_of_key(key: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode([&[TOKEN_VERSION], key].concat())
}

/// The key of a token.
///
/// # Errors
/// `InvalidArgument` for a text that [`token_of_key`] does not make.
pub fn key_of_token(token: &str) -> S3Result<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    let key = bytes.as_deref().and_then(|bytes| bytes.strip_prefix(&[TOKEN_VERSION]));
    let why = "The continuation token provided is incorrect";
    key.map(ToOwned::to_owned).ok_or_else(|| S3Error::argument("continuation-token", token, why))
}

/// The request of a list of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartListQuery {
    /// The list starts after this number.
    pub after: u16,
    /// Most parts of the page, at most 1,000.
    pub max_parts: usize,
}

impl PartListQuery {
    /// Reads ListParts.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn parse(query: &QueryParameters) -> S3Result<Self> {
        let has_marker = query.get("part-number-marker").is_some_and(|marker| !marker.is_empty());
        let after =
            if has_marker { query.number("part-number-marker")?.unwrap_or(0).min(PART_MAX) } else { 0 };
        Ok(Self { after: u16::try_from(after).unwrap_or(u16::MAX), max_parts: page(query, "max-parts")? })
    }
}

impl PartListQuery {
    /// Reads the headers of GetObjectAttributes.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn of_headers(headers: &HeaderMap) -> S3Result<Self> {
        let number = |name: &str| -> S3Result<Option<u64>> {
            let Some(text) = header(headers, name)? else { return Ok(None) };
            let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
            number.map(Some).ok_or_else(|| S3Error::argument(name, text, "The value is no number."))
        };
        let after = number("x-amz-part-number-marker")?.unwrap_or(0).min(PART_MAX);
        let max_parts = number("x-amz-max-parts")?
            .map_or(LIST_PAGE_MAX, |most| usize::try_from(most).unwrap_or(LIST_PAGE_MAX).min(LIST_PAGE_MAX));
        Ok(Self { after: u16::try_from(after).unwrap_or(u16::MAX), max_parts })
    }
}

/// The number in an upload id: 16 hex digits.
///
/// # Errors
/// `NoSuchUpload` for another text, since no upload has it.
pub fn upload_id(query: &QueryParameters) -> S3Result<u64> {
    let bytes = query.get("uploadId").and_then(crate::text::unhex::<8>);
    bytes.map(u64::from_be_bytes).ok_or_else(|| ErrorCode::NoSuchUpload.into())
}

/// The upload id of a number.
#[must_use]
pub fn upload_id_text(upload: u64) -> String {
    format!("{upload:016x}")
}

/// The number of a part, 1 to 10,000.
///
/// # Errors
/// `InvalidArgument`.
pub fn part_number(query: &QueryParameters) -> S3Result<Option<u16>> {
    let Some(text) = query.text("partNumber")? else { return Ok(None) };
    let number = query.number("partNumber").ok().flatten().filter(|number| (1..=PART_MAX).contains(number));
    let why = "Part number must be an integer between 1 and 10000, inclusive";
    let number = number.and_then(|number| u16::try_from(number).ok());
    number.map(Some).ok_or_else(|| S3Error::argument("partNumber", text, why))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn query(text: &str) -> QueryParameters {
        QueryParameters::parse(Some(text)).unwrap()
    }

    fn objects(text: &str) -> Result<KeyListQuery, ErrorCode> {
        KeyListQuery::objects(&query(text)).map_err(|error| error.code)
    }

    #[test]
    fn both_versions_of_a_list_start_where_they_are_asked() {
        let list = objects("prefix=a%2F&delimiter=/&marker=m&max-keys=5&encoding-type=url").unwrap();
        assert_eq!(
            (list.prefix.as_slice(), list.delimiter.as_slice(), list.after.as_slice()),
            (&b"a/"[..], &b"/"[..], &b"m"[..])
        );
        assert_eq!((list.max_keys, list.is_url, &list.kind), (5, true, &ListKind::V1));
        let token = token_of_key(b"k\xff");
        assert_eq!(
            objects(&format!("list-type=2&start-after=a&continuation-token={token}")).unwrap().after,
            b"k\xff"
        );
        let empty = objects("list-type=2&start-after=a&continuation-token=&fetch-owner=true").unwrap();
        assert_eq!(empty.after, b"a");
        let (token, start_after) = (Some(String::new()), Some(b"a".to_vec()));
        assert_eq!(empty.kind, ListKind::V2 { token, start_after, with_owner: true });
        // The parameters of the other version mean nothing.
        assert_eq!(objects("list-type=2&marker=m").unwrap().after, b"");
    }

    #[test]
    fn pages_are_bounded_and_wrong_values_refused() {
        for (text, max_keys) in
            [("", 1_000), ("max-keys=", 1_000), ("max-keys=0", 0), ("max-keys=1001", 1_000)]
        {
            assert_eq!(objects(text).unwrap().max_keys, max_keys, "{text}");
        }
        for text in [
            "max-keys=blah",
            "max-keys=-1",
            "max-keys=2147483648",
            "encoding-type=base64",
            "list-type=3",
            "list-type=2&continuation-token=%21",
            "list-type=2&continuation-token=AmE",
        ] {
            assert_eq!(objects(text).err(), Some(ErrorCode::InvalidArgument), "{text}");
        }
        assert!(KeyListQuery::versions(&query("version-id-marker=null")).is_err());
        let uploads = KeyListQuery::uploads(&query("key-marker=k&upload-id-marker=u&max-uploads=7")).unwrap();
        assert_eq!((uploads.after, uploads.max_keys), (b"k".to_vec(), 7));
        assert_eq!(uploads.kind, ListKind::Uploads { upload_marker: Some("u".to_owned()) });
    }

    #[test]
    fn uploads_and_parts_have_numbers() {
        assert_eq!(upload_id(&query("uploadId=00000000000000ff")), Ok(255));
        assert_eq!(upload_id_text(255), "00000000000000ff");
        for text in ["", "uploadId=ff", "uploadId=00000000000000fg"] {
            assert_eq!(upload_id(&query(text)).unwrap_err().code, ErrorCode::NoSuchUpload, "{text}");
        }
        assert_eq!(part_number(&query("partNumber=10000")), Ok(Some(10_000)));
        assert_eq!(part_number(&query("")), Ok(None));
        for text in ["partNumber=0", "partNumber=10001", "partNumber=x", "partNumber="] {
            assert_eq!(part_number(&query(text)).unwrap_err().code, ErrorCode::InvalidArgument, "{text}");
        }
        let parts = PartListQuery::parse(&query("part-number-marker=7&max-parts=3")).unwrap();
        assert_eq!(parts, PartListQuery { after: 7, max_parts: 3 });
        assert_eq!(PartListQuery::parse(&query("part-number-marker=")).unwrap().after, 0);
    }

    proptest! {
        #[test]
        fn tokens_round_trip_and_any_text_is_read_or_refused(key: Vec<u8>, text: String) {
            prop_assert_eq!(key_of_token(&token_of_key(&key)), Ok(key));
            let _ = key_of_token(&text);
        }
    }
}
