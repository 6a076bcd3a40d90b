//! The documents that answer operations other than lists.

use super::list::ListedPart;
use super::xml::XmlWriter;
use crate::object::etag::ObjectEtag;
use crate::object::metadata::StoredChecksum;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::list::upload_id_text;
use crate::time::iso_of;

/// The document of CopyObject (`is_part` is false) or UploadPartCopy.
#[must_use]
pub fn copy_result(
    is_part: bool,
    etag: &ObjectEtag,
    modified_ns: u64,
    checksum: Option<&StoredChecksum>,
) -> Vec<u8> {
    XmlWriter::of(if is_part { "CopyPartResult" } else { "CopyObjectResult" }, |xml| {
        xml.leaf("LastModified", iso_of(modified_ns));
        xml.leaf("ETag", etag.to_string());
        write_checksum(xml, checksum, !is_part);
    })
}

fn write_checksum(xml: &mut XmlWriter, checksum: Option<&StoredChecksum>, with_type: bool) {
    if let Some(checksum) = checksum {
        xml.leaf(checksum.value.algorithm().element(), checksum.text());
        if with_type {
            xml.leaf("ChecksumType", checksum.type_name());
        }
    }
}

/// The document of CreateMultipartUpload.
#[must_use]
pub fn upload_result(bucket: &str, key: &[u8], upload: u64) -> Vec<u8> {
    XmlWriter::of("InitiateMultipartUploadResult", |xml| {
        xml.leaf("Bucket", bucket);
        xml.bytes("Key", key);
        xml.leaf("UploadId", upload_id_text(upload));
    })
}

/// The document of CompleteMultipartUpload. `location` is the URL of the object.
#[must_use]
pub fn complete_result(
    location: &str,
    (bucket, key): (&str, &[u8]),
    etag: &ObjectEtag,
    checksum: Option<&StoredChecksum>,
) -> Vec<u8> {
    XmlWriter::of("CompleteMultipartUploadResult", |xml| {
        xml.leaf("Location", location);
        xml.leaf("Bucket", bucket);
        xml.bytes("Key", key);
        xml.leaf("ETag", etag.to_string());
        write_checksum(xml, checksum, true);
    })
}

/// The document of a POST form that asks for the status 201.
#[must_use]
pub fn post_result(location: &str, bucket: &str, key: &str, etag: &ObjectEtag) -> Vec<u8> {
    let mut xml = XmlWriter::document();
    xml.element("PostResponse", |xml| {
        xml.leaf("Location", location);
        xml.leaf("Bucket", bucket);
        xml.leaf("Key", key);
        xml.leaf("ETag", etag.to_string());
    });
    xml.finish()
}

/// The document of DeleteObjects: each key with the version that the request named, and its error. Keys that are gone are
/// left out if the request is quiet.
#[must_use]
pub fn delete_result(results: &[(&str, Option<&str>, Option<S3Error>)], is_quiet: bool) -> Vec<u8> {
    XmlWriter::of("DeleteResult", |xml| {
        for (key, version, error) in results {
            if error.is_none() && is_quiet {
                continue;
            }
            xml.element(if error.is_some() { "Error" } else { "Deleted" }, |xml| {
                xml.leaf("Key", key);
                if let Some(version) = version {
                    xml.leaf("VersionId", version);
                }
                if let Some(error) = error {
                    xml.leaf("Code", error.code.name());
                    xml.leaf("Message", &error.message);
                }
            });
        }
    })
}

/// The document of GetBucketLocation: empty for the first region.
#[must_use]
pub fn location_result(region: &str) -> Vec<u8> {
    XmlWriter::of("LocationConstraint", |xml| xml.text(if region == "us-east-1" { "" } else { region }))
}

/// The document of GetBucketPolicyStatus.
#[must_use]
pub fn policy_status(is_public: bool) -> Vec<u8> {
    XmlWriter::of("PolicyStatus", |xml| xml.flag("IsPublic", is_public))
}

/// The attributes that a request may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedAttributes {
    etag: bool,
    checksum: bool,
    /// The parts of the object.
    pub(crate) parts: bool,
    storage_class: bool,
    bytes: bool,
}

impl WantedAttributes {
    /// Reads `x-amz-object-attributes`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is absent, empty, or has an unknown name.
    pub fn parse(header: Option<&str>) -> S3Result<Self> {
        let mut wanted = Self::default();
        for name in header.unwrap_or("").split(',').map(str::trim) {
            match name {
                "ETag" => wanted.etag = true,
                "Checksum" => wanted.checksum = true,
                "ObjectParts" => wanted.parts = true,
                "StorageClass" => wanted.storage_class = true,
                "ObjectSize" => wanted.bytes = true,
                name => {
                    let why = "Invalid attribute name specified.";
                    return Err(S3Error::argument("x-amz-object-attributes", name, why));
                }
            }
        }
        Ok(wanted)
    }

    /// The document of GetObjectAttributes. `parts` are all parts of an object that was uploaded in parts, and the page
    /// starts after the part `after`.
    #[must_use]
    pub fn document(
        &self,
        etag: &ObjectEtag,
        bytes: u64,
        checksum: Option<&StoredChecksum>,
        parts: &[ListedPart],
        (after, max_parts): (u16, usize),
    ) -> Vec<u8> {
        XmlWriter::of("GetObjectAttributesResponse", |xml| {
            if self.etag {
                // The only place in which an ETag has no quotes.
                xml.leaf("ETag", etag.to_string().trim_matches('"'));
            }
            if self.checksum && checksum.is_some() {
                xml.element("Checksum", |xml| write_checksum(xml, checksum, true));
            }
            if self.parts && !parts.is_empty() {
                xml.element("ObjectParts", |xml| write_parts(xml, parts, after, max_parts));
            }
            if self.storage_class {
                xml.leaf("StorageClass", "STANDARD");
            }
            if self.bytes {
                xml.number("ObjectSize", bytes);
            }
        })
    }
}

fn write_parts(xml: &mut XmlWriter, parts: &[ListedPart], after: u16, max_parts: usize) {
    let page: Vec<&ListedPart> = parts.iter().filter(|part| part.number > after).collect();
    let is_truncated = page.len() > max_parts;
    let page = &page[..page.len().min(max_parts)];
    xml.number("PartsCount", parts.len() as u64);
    xml.number("PartNumberMarker", after.into());
    xml.number("NextPartNumberMarker", page.last().map_or(after, |part| part.number).into());
    xml.number("MaxParts", max_parts as u64);
    xml.flag("IsTruncated", is_truncated);
    // Parts without checksums are not listed, as S3 does it.
    for part in page.iter().filter(|part| part.object.checksum.is_some()) {
        xml.element("Part", |xml| {
            xml.number("PartNumber", part.number.into());
            xml.number("Size", part.object.bytes);
            write_checksum(xml, part.object.checksum.as_ref(), false);
        });
    }
}

/// The answer for a configuration that no bucket has, by the name of its operation: a document, or an error.
///
/// # Errors
/// The code of a configuration that is absent.
pub fn absent(operation: crate::request::operation::S3Operation) -> S3Result<Vec<u8>> {
    use crate::request::operation::S3Operation as Of;
    let empty = |root: &str| Ok(XmlWriter::of(root, |_| {}));
    match operation {
        Of::GetBucketVersioning => empty("VersioningConfiguration"),
        Of::GetBucketAccelerateConfiguration => empty("AccelerateConfiguration"),
        Of::GetBucketLogging => empty("BucketLoggingStatus"),
        Of::GetBucketNotificationConfiguration => empty("NotificationConfiguration"),
        Of::GetBucketRequestPayment => {
            Ok(XmlWriter::of("RequestPaymentConfiguration", |xml| xml.leaf("Payer", "BucketOwner")))
        }
        Of::GetBucketEncryption => Err(ErrorCode::ServerSideEncryptionConfigurationNotFoundError.into()),
        Of::GetObjectLockConfiguration => Err(ErrorCode::ObjectLockConfigurationNotFoundError.into()),
        Of::GetBucketReplication => Err(ErrorCode::ReplicationConfigurationNotFoundError.into()),
        other => Err(S3Error::not_implemented(other.name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::list::ListedObject;
    use crate::body::checksum::{ChecksumAlgorithm, ChecksumValue};
    use crate::request::operation::{OPERATIONS, Support};

    const MD5: ObjectEtag = ObjectEtag::Md5([0; 16]);

    /// The content of the root element.
    fn content(document: Vec<u8>) -> String {
        let text = String::from_utf8(document).unwrap();
        let (_, rest) = text.split_once("?>\n").unwrap();
        rest[rest.find('>').unwrap() + 1..rest.rfind('<').unwrap()].to_owned()
    }

    fn checksum() -> StoredChecksum {
        StoredChecksum {
            value: ChecksumValue::parse(ChecksumAlgorithm::Crc32, "y/Q5Jg==").unwrap(),
            parts: None,
        }
    }

    #[test]
    fn results_of_writes() {
        let copy = content(copy_result(false, &MD5, 0, Some(&checksum())));
        assert_eq!(
            copy,
            "<LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>&quot;00000000000000000000000000000000&quot;</ETag>\
             <ChecksumCRC32>y/Q5Jg==</ChecksumCRC32><ChecksumType>FULL_OBJECT</ChecksumType>"
        );
        assert!(!content(copy_result(true, &MD5, 0, Some(&checksum()))).contains("ChecksumType"));
        assert_eq!(
            content(upload_result("b", b"k<", 10)),
            "<Bucket>b</Bucket><Key>k&lt;</Key><UploadId>000000000000000a</UploadId>"
        );
        assert!(
            content(complete_result("http://h/b/k", ("b", b"k"), &MD5, None))
                .starts_with("<Location>http://h/b/k</Location>")
        );
        assert!(content(post_result("l", "b", "k", &MD5)).contains("<Key>k</Key>"));
        assert_eq!(content(location_result("us-east-1")), "");
        assert_eq!(content(location_result("eu")), "eu");
        assert_eq!(content(policy_status(true)), "<IsPublic>true</IsPublic>");
    }

    #[test]
    fn a_quiet_delete_answers_errors_only() {
        let results = [("a", None, None), ("b", Some("null"), Some(S3Error::from(ErrorCode::AccessDenied)))];
        let error = "<Error><Key>b</Key><VersionId>null</VersionId><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
        assert_eq!(content(delete_result(&results, true)), error);
        assert_eq!(
            content(delete_result(&results, false)),
            format!("<Deleted><Key>a</Key></Deleted>{error}")
        );
    }

    #[test]
    fn attributes_are_those_asked_for() {
        let object = ListedObject { etag: MD5, checksum: Some(checksum()), bytes: 5, modified_ns: 0 };
        let parts = [1, 2, 3].map(|number| ListedPart { number, object });
        let wanted = WantedAttributes::parse(Some("ETag, ObjectParts,ObjectSize")).unwrap();
        let text = content(wanted.document(&MD5, 15, None, &parts, (1, 1)));
        assert!(
            text.starts_with(
                "<ETag>00000000000000000000000000000000</ETag><ObjectParts><PartsCount>3</PartsCount>"
            ),
            "{text}"
        );
        assert!(text.contains(
            "<NextPartNumberMarker>2</NextPartNumberMarker><MaxParts>1</MaxParts><IsTruncated>true<"
        ));
        assert!(
            text.ends_with("</ObjectParts><ObjectSize>15</ObjectSize>")
                && text.matches("<Part>").count() == 1
        );
        let checksum = WantedAttributes::parse(Some("Checksum,StorageClass")).unwrap();
        let text = content(checksum.document(&MD5, 15, Some(&self::checksum()), &[], (0, 1)));
        assert!(
            text.starts_with("<Checksum><ChecksumCRC32>")
                && text.ends_with("<StorageClass>STANDARD</StorageClass>")
        );
        for header in [None, Some(""), Some("Color"), Some("ETag,")] {
            assert!(WantedAttributes::parse(header).is_err(), "{header:?}");
        }
    }

    #[test]
    fn every_row_of_an_absent_configuration_has_its_answer() {
        for row in OPERATIONS {
            let is_known =
                absent(row.operation).err().is_none_or(|error| error.code != ErrorCode::NotImplemented);
            assert_eq!(is_known, row.support == Support::Absent, "{}", row.operation.name());
        }
    }
}
