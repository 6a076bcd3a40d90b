//! Uploads in parts, as pure functions: the checksum that an upload promises, and the object that its parts make.

use http::HeaderMap;
use shoal_base::limits::VALUE_BYTES_MAX;

use super::document::CompletedPart;
use crate::answer::list::ListedPart;
use crate::body::checksum::{ChecksumAlgorithm, ChecksumValue};
use crate::object::etag::{ObjectEtag, etag_list_has};
use crate::object::metadata::StoredChecksum;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;

/// The least bytes of a part; the last one may have fewer.
pub const PART_BYTES_MIN: u64 = 5 << 20;

/// The checksum of an upload: its parts have this algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadChecksum {
    /// The algorithm.
    pub algorithm: ChecksumAlgorithm,
    /// The object's checksum is that of its parts' checksums, and not of its value.
    pub is_composite: bool,
}

impl UploadChecksum {
    /// Reads the headers of CreateMultipartUpload.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub fn parse(headers: &HeaderMap) -> S3Result<Option<Self>> {
        let invalid = |why: &str| S3Error::new(ErrorCode::InvalidRequest, why);
        let kind = header(headers, "x-amz-checksum-type")?;
        let Some(name) = header(headers, "x-amz-checksum-algorithm")? else {
            let why =
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.";
            return if kind.is_some() { Err(invalid(why)) } else { Ok(None) };
        };
        let why = "Checksum algorithm provided is unsupported. Please try again with any of the valid types: \
            [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]";
        let algorithm = ChecksumAlgorithm::of_name(name).ok_or_else(|| invalid(why))?;
        let is_composite = match kind {
            None => algorithm != ChecksumAlgorithm::Crc64Nvme,
            Some("COMPOSITE") => true,
            Some("FULL_OBJECT") => false,
            Some(_) => return Err(invalid("Value for x-amz-checksum-type header is invalid.")),
        };
        let is_hash = matches!(algorithm, ChecksumAlgorithm::Sha1 | ChecksumAlgorithm::Sha256);
        let is_possible = if is_composite { algorithm != ChecksumAlgorithm::Crc64Nvme } else { !is_hash };
        let checksum = Self { algorithm, is_composite };
        let why = format!(
            "The {} checksum type cannot be used with the {} checksum algorithm.",
            checksum.type_name(),
            algorithm.name()
        );
        if is_possible { Ok(Some(checksum)) } else { Err(invalid(&why)) }
    }

    /// The name of the type.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        if self.is_composite { "COMPOSITE" } else { "FULL_OBJECT" }
    }

    /// The item that stores it with an upload: the algorithm, and 1 for a checksum of the whole object.
    pub(super) fn item(self) -> [u8; 2] {
        [self.algorithm as u8, u8::from(!self.is_composite)]
    }

    /// Reads the stored item.
    pub(super) fn of_item(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [algorithm, kind @ (0 | 1)] => {
                Some(Self { algorithm: ChecksumAlgorithm::of_number(*algorithm)?, is_composite: *kind == 0 })
            }
            _ => None,
        }
    }

    /// The checksum of an object of these parts; `None` if a part has none of the algorithm.
    fn of_parts(self, parts: &[ListedPart]) -> Option<StoredChecksum> {
        let value_of = |part: &ListedPart| {
            let value = part.object.checksum.map(|checksum| checksum.value);
            value.filter(|value| value.algorithm() == self.algorithm)
        };
        let values = parts.iter().map(value_of).collect::<Option<Vec<ChecksumValue>>>()?;
        if self.is_composite {
            let count = u16::try_from(parts.len()).ok()?;
            return Some(StoredChecksum { value: ChecksumValue::composite(&values)?, parts: Some(count) });
        }
        let mut whole = *values.first()?;
        for (part, value) in parts.iter().zip(&values).skip(1) {
            whole = whole.followed_by(value, part.object.bytes)?;
        }
        Some(StoredChecksum { value: whole, parts: None })
    }
}

/// The object that an upload makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedParts {
    /// The places of its parts in the list of all parts.
    pub used: Vec<usize>,
    /// The ETag.
    pub etag: ObjectEtag,
    /// The checksum.
    pub checksum: Option<StoredChecksum>,
    /// Bytes of the value.
    pub bytes: u64,
}

/// Joins the parts that a CompleteMultipartUpload asks for. `asked` ascends, and so does `found`, the list of all parts
/// that exist.
///
/// # Errors
/// `InvalidPart`, `EntityTooSmall`, `EntityTooLarge`.
pub fn join_parts(
    asked: &[CompletedPart],
    found: &[ListedPart],
    checksum: Option<UploadChecksum>,
) -> S3Result<JoinedParts> {
    let (mut used, mut parts, mut bytes) =
        (Vec::with_capacity(asked.len()), Vec::with_capacity(asked.len()), 0_u64);
    for (index, part) in asked.iter().enumerate() {
        let place = found.binary_search_by_key(&part.number, |found| found.number).ok();
        let has_etag = |found: &ListedPart| etag_list_has(&part.etag, &found.object.etag.to_string(), false);
        let has_checksum = |found: &ListedPart| {
            part.checksum.is_none_or(|value| found.object.checksum.is_some_and(|found| found.value == value))
        };
        let place =
            place.filter(|place| found.get(*place).is_some_and(|it| has_etag(it) && has_checksum(it)));
        let Some((place, part)) = place.and_then(|place| Some((place, found.get(place)?))) else {
            let error = S3Error::from(ErrorCode::InvalidPart).with("PartNumber", part.number.to_string());
            return Err(error.with("ETag", part.etag.clone()));
        };
        if part.object.bytes < PART_BYTES_MIN && index + 1 < asked.len() {
            let error = S3Error::from(ErrorCode::EntityTooSmall).with("PartNumber", part.number.to_string());
            return Err(error.with("MinSizeAllowed", PART_BYTES_MIN.to_string()));
        }
        bytes = bytes.saturating_add(part.object.bytes);
        used.push(place);
        parts.push(*part);
    }
    if bytes > VALUE_BYTES_MAX {
        return Err(
            S3Error::from(ErrorCode::EntityTooLarge).with("MaxSizeAllowed", VALUE_BYTES_MAX.to_string())
        );
    }
    let etags: Vec<ObjectEtag> = parts.iter().map(|part| part.object.etag).collect();
    let checksum = checksum.and_then(|checksum| checksum.of_parts(&parts));
    Ok(JoinedParts { used, etag: ObjectEtag::of_parts(&etags), checksum, bytes })
}

impl JoinedParts {
    /// Checks the claims of CompleteMultipartUpload about the object: its length, its checksum, and the type of the checksum, which is
    /// that of the upload. A composite checksum may have the number of parts after a hyphen.
    ///
    /// # Errors
    /// `InvalidRequest` for a wrong length or type, `BadDigest` for a wrong or malformed checksum.
    pub fn check_claims(&self, headers: &HeaderMap, upload: Option<UploadChecksum>) -> S3Result<()> {
        let kind = header(headers, "x-amz-checksum-type")?;
        if kind.is_some_and(|kind| upload.is_none_or(|upload| upload.type_name() != kind)) {
            let why = "The provided 'x-amz-checksum-type' header value does not match that of the upload.";
            return Err(S3Error::new(ErrorCode::InvalidRequest, why));
        }
        let size = header(headers, "x-amz-mp-object-size")?;
        if size.is_some_and(|text| text.parse() != Ok(self.bytes)) {
            let why =
                "The provided 'x-amz-mp-object-size' header value does not match the size of the parts.";
            return Err(S3Error::new(ErrorCode::InvalidRequest, why));
        }
        for algorithm in ChecksumAlgorithm::ALL {
            let Some(text) = header(headers, algorithm.header())? else { continue };
            let value = ChecksumValue::parse(algorithm, text.split('-').next().unwrap_or(text));
            let invalid = || format!("Value for {} header is invalid.", algorithm.header());
            let value = value.ok_or_else(|| S3Error::new(ErrorCode::BadDigest, invalid()))?;
            if self
                .checksum
                .is_none_or(|own| own.value != value || (text.contains('-') && own.text() != text))
            {
                let why =
                    format!("The {} you specified did not match the calculated checksum.", algorithm.name());
                return Err(S3Error::new(ErrorCode::BadDigest, why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::list::ListedObject;
    use crate::body::checksum::ChecksumHasher;
    use crate::testing::headers_of;

    fn of(algorithm: ChecksumAlgorithm, bytes: &[u8]) -> ChecksumValue {
        let mut hasher = ChecksumHasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    fn part(number: u16, value: &[u8], bytes: u64) -> ListedPart {
        let checksum = Some(StoredChecksum { value: of(ChecksumAlgorithm::Crc32, value), parts: None });
        let etag = ObjectEtag::Md5([number as u8; 16]);
        ListedPart { number, object: ListedObject { etag, checksum, bytes, modified_ns: 0 } }
    }

    fn asked(part: &ListedPart) -> CompletedPart {
        CompletedPart { number: part.number, etag: part.object.etag.to_string(), checksum: None }
    }

    const CRC32: ChecksumAlgorithm = ChecksumAlgorithm::Crc32;

    #[test]
    fn an_algorithm_has_the_types_that_it_can_have() {
        let parse = |algorithm: &str, kind: &str| {
            let pairs = [("x-amz-checksum-algorithm", algorithm), ("x-amz-checksum-type", kind)];
            let pairs: Vec<_> = pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            UploadChecksum::parse(&headers_of(&pairs)).map_err(|error| error.code)
        };
        assert_eq!(parse("", ""), Ok(None));
        for (algorithm, kind, is_composite) in [
            ("crc32", "", true),
            ("CRC32C", "FULL_OBJECT", false),
            ("CRC64NVME", "", false),
            ("SHA256", "COMPOSITE", true),
        ] {
            let found = parse(algorithm, kind).unwrap().map(|checksum| checksum.is_composite);
            assert_eq!(found, Some(is_composite), "{algorithm} {kind}");
        }
        for (algorithm, kind) in [
            ("CRC64NVME", "COMPOSITE"),
            ("SHA1", "FULL_OBJECT"),
            ("MD5", ""),
            ("", "COMPOSITE"),
            ("CRC32", "x"),
        ] {
            assert_eq!(parse(algorithm, kind), Err(ErrorCode::InvalidRequest), "{algorithm} {kind}");
        }
    }

    #[test]
    fn the_item_of_an_upload_is_read_again() {
        for algorithm in ChecksumAlgorithm::ALL {
            for is_composite in [false, true] {
                let checksum = UploadChecksum { algorithm, is_composite };
                assert_eq!(UploadChecksum::of_item(&checksum.item()), Some(checksum));
            }
        }
        for bytes in [&[][..], &[1], &[0, 0], &[1, 2], &[99, 0], &[1, 0, 0]] {
            assert_eq!(UploadChecksum::of_item(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn parts_are_joined_with_etag_and_checksum() {
        let found = [part(1, b"", PART_BYTES_MIN), part(2, b"1234", PART_BYTES_MIN), part(9, b"56789", 5)];
        let both = [asked(&found[1]), asked(&found[2])];
        let join = |is_composite| {
            join_parts(&both, &found, Some(UploadChecksum { algorithm: CRC32, is_composite })).unwrap()
        };
        let whole = join(false);
        assert_eq!((whole.used.as_slice(), whole.bytes), (&[1, 2][..], PART_BYTES_MIN + 5));
        assert_eq!(whole.etag, ObjectEtag::of_parts(&[found[1].object.etag, found[2].object.etag]));
        assert_eq!(whole.checksum, Some(StoredChecksum { value: of(CRC32, b"123456789"), parts: None }));
        let composite = join(true);
        assert!(composite.checksum.unwrap().text().ends_with("-2"));
        let other = UploadChecksum { algorithm: ChecksumAlgorithm::Sha1, is_composite: true };
        assert_eq!(join_parts(&both, &found, Some(other)).unwrap().checksum, None);
        // Quotes may be missing.
        let bare =
            CompletedPart { etag: asked(&found[2]).etag.trim_matches('"').to_owned(), ..asked(&found[2]) };
        assert!(join_parts(&[bare], &found, None).is_ok());
    }

    #[test]
    fn wrong_parts_are_refused() {
        let found = [part(1, b"", PART_BYTES_MIN - 1), part(2, b"1234", 5), part(3, b"", VALUE_BYTES_MAX)];
        let code = |asked: &[CompletedPart]| {
            join_parts(asked, &found, None).map(|joined| joined.bytes).map_err(|error| error.code)
        };
        let [first, second, third] = [0, 1, 2].map(|index: usize| asked(&found[index]));
        assert_eq!(code(std::slice::from_ref(&second)), Ok(5));
        assert_eq!(code(&[first, second.clone()]), Err(ErrorCode::EntityTooSmall));
        assert_eq!(
            code(&[third.clone(), CompletedPart { number: 4, ..second.clone() }]),
            Err(ErrorCode::InvalidPart)
        );
        assert_eq!(
            code(&[CompletedPart { etag: "x".to_owned(), ..second.clone() }]),
            Err(ErrorCode::InvalidPart)
        );
        let wrong = Some(of(CRC32, b"other"));
        assert_eq!(code(&[CompletedPart { checksum: wrong, ..second }]), Err(ErrorCode::InvalidPart));
        let large = [part(1, b"", VALUE_BYTES_MAX), part(2, b"", 1)];
        let both = large.each_ref().map(asked);
        assert_eq!(join_parts(&both, &large, None).unwrap_err().code, ErrorCode::EntityTooLarge);
    }

    #[test]
    fn claims_about_the_object_are_checked() {
        let found = [part(1, b"123456789", 9)];
        let checksum = UploadChecksum { algorithm: CRC32, is_composite: true };
        let joined = join_parts(&[asked(&found[0])], &found, Some(checksum)).unwrap();
        let text = joined.checksum.unwrap().text();
        let check = |name: &str, value: &str| {
            joined.check_claims(&headers_of(&[(name, value)]), Some(checksum)).map_err(|error| error.code)
        };
        assert_eq!(check("x-amz-checksum-crc32", &text), Ok(()));
        assert_eq!(check("x-amz-checksum-crc32", text.trim_end_matches("-1")), Ok(()));
        assert_eq!(check("x-amz-checksum-crc32", &text.replace("-1", "-2")), Err(ErrorCode::BadDigest));
        assert_eq!(check("x-amz-checksum-crc32", "y/Q5Jg=="), Err(ErrorCode::BadDigest));
        assert_eq!(check("x-amz-checksum-crc32", "x"), Err(ErrorCode::BadDigest));
        assert_eq!(check("x-amz-checksum-type", "COMPOSITE"), Ok(()));
        assert_eq!(check("x-amz-checksum-type", "FULL_OBJECT"), Err(ErrorCode::InvalidRequest));
        assert_eq!(check("x-amz-mp-object-size", "9"), Ok(()));
        assert_eq!(check("x-amz-mp-object-size", "8"), Err(ErrorCode::InvalidRequest));
    }
}
