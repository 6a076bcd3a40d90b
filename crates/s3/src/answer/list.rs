//! Lists of objects, versions, uploads, parts and buckets, written as their entries come.
//!
//! Entries and common prefixes are written in the order in which the store finds them, and everything that is known at the
//! end follows them: parsers take the elements of a list in any order.

use super::xml::XmlWriter;
use crate::access::acl::Owned;
use crate::body::checksum::ChecksumAlgorithm;
use crate::object::etag::ObjectEtag;
use crate::object::metadata::StoredChecksum;
use crate::request::list::{KeyListQuery, ListKind, PartListQuery, token_of_key, upload_id_text};
use crate::text::percent_encode_path;
use crate::time::iso_of;

/// A list is sent in pieces of about this many bytes.
pub const LIST_PIECE_BYTES: usize = 64 << 10;

/// An object of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListedObject {
    /// The ETag.
    pub etag: ObjectEtag,
    /// The checksum.
    pub checksum: Option<StoredChecksum>,
    /// Bytes of the value.
    pub bytes: u64,
    /// The date in nanoseconds.
    pub modified_ns: u64,
}

/// An upload of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListedUpload<'a> {
    /// The number of the upload.
    pub upload: u64,
    /// The date of its creation, in nanoseconds.
    pub created_ns: u64,
    /// The key that started it.
    pub initiator: Owned<'a>,
    /// The algorithm of its checksums, and whether they are composite.
    pub checksum: Option<(ChecksumAlgorithm, bool)>,
}

/// Writes a list of keys.
#[derive(Debug)]
pub struct KeyListWriter<'a> {
    xml: XmlWriter,
    query: &'a KeyListQuery,
    owner: Owned<'a>,
    count: u64,
}

impl<'a> KeyListWriter<'a> {
    /// The start of a list of `bucket`.
    #[must_use]
    pub fn new(bucket: &str, query: &'a KeyListQuery, owner: Owned<'a>) -> Self {
        let mut list = Self { xml: XmlWriter::document(), query, owner, count: 0 };
        list.xml.open_root(list.root());
        let is_uploads = matches!(query.kind, ListKind::Uploads { .. });
        list.xml.leaf(if is_uploads { "Bucket" } else { "Name" }, bucket);
        list.name("Prefix", &query.prefix);
        match &query.kind {
            ListKind::V1 => list.name("Marker", &query.after),
            ListKind::V2 { token, start_after, .. } => {
                if let Some(token) = token {
                    list.xml.leaf("ContinuationToken", token);
                }
                if let Some(start_after) = start_after {
                    list.name("StartAfter", start_after);
                }
            }
            ListKind::Versions => {
                list.name("KeyMarker", &query.after);
                list.xml.leaf("VersionIdMarker", "");
            }
            ListKind::Uploads { upload_marker } => {
                list.name("KeyMarker", &query.after);
                list.xml.leaf("UploadIdMarker", upload_marker.as_deref().unwrap_or(""));
            }
        }
        list.xml.number(if is_uploads { "MaxUploads" } else { "MaxKeys" }, query.max_keys as u64);
        if !query.delimiter.is_empty() {
            list.name("Delimiter", &query.delimiter);
        }
        if query.is_url {
            list.xml.leaf("EncodingType", "url");
        }
        list
    }

    fn root(&self) -> &'static str {
        match self.query.kind {
            ListKind::V1 | ListKind::V2 { .. } => "ListBucketResult",
            ListKind::Versions => "ListVersionsResult",
            ListKind::Uploads { .. } => "ListMultipartUploadsResult",
        }
    }

    /// A key or a part of one, encoded as the request wants it.
    fn name(&mut self, element: &str, name: &[u8]) {
        if !self.query.is_url {
            return self.xml.bytes(element, name);
        }
        let mut encoded = String::new();
        percent_encode_path(&mut encoded, name);
        self.xml.leaf(element, encoded);
    }

    /// An object. In a list of versions it is the only version of its key.
    pub fn object(&mut self, key: &[u8], object: &ListedObject) {
        self.count += 1;
        let is_versions = self.query.kind == ListKind::Versions;
        let element = if is_versions { "Version" } else { "Contents" };
        self.xml.raw("<").raw(element).raw(">");
        self.name("Key", key);
        if is_versions {
            self.xml.leaf("VersionId", "null");
            self.xml.flag("IsLatest", true);
        }
        self.xml.leaf("LastModified", iso_of(object.modified_ns));
        self.xml.leaf("ETag", object.etag.to_string());
        if let Some(checksum) = &object.checksum {
            self.xml.leaf("ChecksumAlgorithm", checksum.value.algorithm().name());
            self.xml.leaf("ChecksumType", checksum.type_name());
        }
        self.xml.number("Size", object.bytes);
        if !matches!(self.query.kind, ListKind::V2 { with_owner: false, .. }) {
            self.owner.write(&mut self.xml, "Owner");
        }
        self.xml.leaf("StorageClass", "STANDARD");
        self.xml.close(element);
    }

    /// An upload.
    pub fn upload(&mut self, key: &[u8], upload: &ListedUpload<'_>) {
        self.count += 1;
        self.xml.raw("<Upload>");
        self.name("Key", key);
        self.xml.leaf("UploadId", upload_id_text(upload.upload));
        upload.initiator.write(&mut self.xml, "Initiator");
        self.owner.write(&mut self.xml, "Owner");
        self.xml.leaf("StorageClass", "STANDARD");
        self.xml.leaf("Initiated", iso_of(upload.created_ns));
        write_algorithm(&mut self.xml, upload.checksum);
        self.xml.close("Upload");
    }

    /// A common prefix.
    pub fn prefix(&mut self, prefix: &[u8]) {
        self.count += 1;
        self.xml.raw("<CommonPrefixes>");
        self.name("Prefix", prefix);
        self.xml.close("CommonPrefixes");
    }

    /// Takes the bytes written so far, once there are enough of them to send.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        (self.xml.pending() >= LIST_PIECE_BYTES).then(|| self.xml.take())
    }

    /// Finishes the list. `last` is the last key or common prefix of a page that another one follows.
    #[must_use]
    pub fn finish(self, last: Option<&[u8]>) -> Vec<u8> {
        self.end(last, None)
    }

    /// Finishes a list of uploads. `last` is the key and the number of the last upload of a page that another one follows.
    #[must_use]
    pub fn finish_uploads(self, last: Option<(&[u8], u64)>) -> Vec<u8> {
        self.end(last.map(|(key, _)| key), last.map(|(_, upload)| upload))
    }

    fn end(mut self, last: Option<&[u8]>, upload: Option<u64>) -> Vec<u8> {
        self.xml.flag("IsTruncated", last.is_some());
        match (&self.query.kind, last) {
            (ListKind::V2 { .. }, last) => {
                self.xml.number("KeyCount", self.count);
                if let Some(last) = last {
                    self.xml.leaf("NextContinuationToken", token_of_key(last));
                }
            }
            (_, None) => {}
            // Without a delimiter the last key is the marker, as clients of this version know.
            (ListKind::V1, Some(_)) if self.query.delimiter.is_empty() => {}
            (ListKind::V1, Some(last)) => self.name("NextMarker", last),
            (ListKind::Versions, Some(last)) => {
                self.name("NextKeyMarker", last);
                self.xml.leaf("NextVersionIdMarker", "null");
            }
            (ListKind::Uploads { .. }, Some(last)) => {
                self.name("NextKeyMarker", last);
                self.xml.leaf("NextUploadIdMarker", upload.map(upload_id_text).unwrap_or_default());
            }
        }
        self.xml.close(self.root());
        self.xml.finish()
    }
}

fn write_algorithm(xml: &mut XmlWriter, checksum: Option<(ChecksumAlgorithm, bool)>) {
    if let Some((algorithm, is_composite)) = checksum {
        xml.leaf("ChecksumAlgorithm", algorithm.name());
        xml.leaf("ChecksumType", if is_composite { "COMPOSITE" } else { "FULL_OBJECT" });
    }
}

/// A part of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListedPart {
    /// The number.
    pub number: u16,
    /// ETag, checksum, length and date.
    pub object: ListedObject,
}

/// The document of a page of parts.
#[must_use]
pub fn part_list(
    (bucket, key): (&str, &[u8]),
    upload: &ListedUpload<'_>,
    query: &PartListQuery,
    (parts, is_truncated): (&[ListedPart], bool),
    owner: Owned<'_>,
) -> Vec<u8> {
    XmlWriter::of("ListPartsResult", |xml| {
        xml.leaf("Bucket", bucket);
        xml.bytes("Key", key);
        xml.leaf("UploadId", upload_id_text(upload.upload));
        upload.initiator.write(xml, "Initiator");
        owner.write(xml, "Owner");
        xml.leaf("StorageClass", "STANDARD");
        xml.number("PartNumberMarker", query.after.into());
        let last = parts.last().map_or(query.after, |part| part.number);
        xml.number("NextPartNumberMarker", last.into());
        xml.number("MaxParts", query.max_parts as u64);
        xml.flag("IsTruncated", is_truncated);
        write_algorithm(xml, upload.checksum);
        for part in parts {
            xml.element("Part", |xml| {
                xml.number("PartNumber", part.number.into());
                xml.leaf("LastModified", iso_of(part.object.modified_ns));
                xml.leaf("ETag", part.object.etag.to_string());
                xml.number("Size", part.object.bytes);
                if let Some(checksum) = &part.object.checksum {
                    xml.leaf(checksum.value.algorithm().element(), checksum.text());
                }
            });
        }
    })
}

/// The document of ListBuckets: names and dates of creation in nanoseconds. `next` is the token of another page.
#[must_use]
pub fn bucket_list(
    buckets: &[(String, u64)],
    prefix: Option<&str>,
    next: Option<&str>,
    owner: Owned<'_>,
) -> Vec<u8> {
    XmlWriter::of("ListAllMyBucketsResult", |xml| {
        owner.write(xml, "Owner");
        xml.element("Buckets", |xml| {
            for (name, created_ns) in buckets {
                xml.element("Bucket", |xml| {
                    xml.leaf("Name", name);
                    xml.leaf("CreationDate", iso_of(*created_ns));
                });
            }
        });
        for (name, value) in [("Prefix", prefix), ("ContinuationToken", next)] {
            if let Some(value) = value {
                xml.leaf(name, value);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::query::QueryParameters;

    const OWNER: Owned<'_> = Owned { id: "I", name: "N" };
    const OBJECT: ListedObject =
        ListedObject { etag: ObjectEtag::Md5([0; 16]), checksum: None, bytes: 5, modified_ns: 0 };

    /// The text of an element's first occurrence.
    fn text<'a>(xml: &'a str, element: &str) -> Option<&'a str> {
        let (_, rest) = xml.split_once(&format!("<{element}>"))?;
        rest.split_once(&format!("</{element}>")).map(|(text, _)| text)
    }

    fn list(query: &KeyListQuery, last: Option<&[u8]>) -> String {
        let mut list = KeyListWriter::new("b", query, OWNER);
        list.object(b"a b+/\xff", &OBJECT);
        list.prefix(b"c\n/");
        assert!(list.take().is_none());
        String::from_utf8(list.finish(last)).unwrap()
    }

    fn objects(query: &str) -> KeyListQuery {
        KeyListQuery::objects(&QueryParameters::parse(Some(query)).unwrap()).unwrap()
    }

    #[test]
    fn names_are_encoded_as_the_request_wants() {
        let plain = list(&objects("delimiter=/&prefix=p%26"), Some(b"c\n/"));
        assert_eq!(text(&plain, "Key"), Some("a b+/\u{FFFD}"));
        assert_eq!(text(&plain, "CommonPrefixes"), Some("<Prefix>c&#10;/</Prefix>"));
        assert_eq!(text(&plain, "Prefix"), Some("p&amp;"));
        assert_eq!(text(&plain, "NextMarker"), Some("c&#10;/"));
        let url = list(&objects("delimiter=/&encoding-type=url&marker=m%20"), Some(b"c\n/"));
        assert_eq!(text(&url, "Key"), Some("a%20b%2B/%FF"));
        assert_eq!(text(&url, "Marker"), Some("m%20"));
        assert_eq!(text(&url, "NextMarker"), Some("c%0A/"));
        assert_eq!(text(&url, "EncodingType"), Some("url"));
    }

    #[test]
    fn each_version_of_a_list_has_its_own_end() {
        let first = list(&objects(""), Some(b"k"));
        assert_eq!((text(&first, "IsTruncated"), text(&first, "NextMarker")), (Some("true"), None));
        assert!(text(&first, "Owner").is_some() && text(&first, "KeyCount").is_none());
        let second = list(&objects("list-type=2&start-after=s"), Some(b"k"));
        assert_eq!(text(&second, "NextContinuationToken"), Some(token_of_key(b"k").as_str()));
        assert_eq!((text(&second, "KeyCount"), text(&second, "StartAfter")), (Some("2"), Some("s")));
        assert!(text(&second, "Owner").is_none());
        assert!(text(&list(&objects("list-type=2&fetch-owner=true"), None), "Owner").is_some());
        let versions = KeyListQuery::versions(&QueryParameters::default()).unwrap();
        let versions = list(&versions, Some(b"k"));
        assert!(versions.contains("<VersionId>null</VersionId><IsLatest>true</IsLatest>"), "{versions}");
        assert_eq!(text(&versions, "NextVersionIdMarker"), Some("null"));
        assert!(versions.ends_with("</ListVersionsResult>"));
    }

    #[test]
    fn a_long_list_is_taken_in_pieces() {
        let query = objects("");
        let mut list = KeyListWriter::new("b", &query, OWNER);
        let mut pieces = 0;
        for _ in 0..1_000 {
            list.object(&[b'k'; 1_024], &OBJECT);
            pieces += usize::from(list.take().is_some_and(|piece| piece.len() < 2 * LIST_PIECE_BYTES));
        }
        assert!(pieces > 10);
        assert!(list.finish(None).len() < 2 * LIST_PIECE_BYTES);
    }

    #[test]
    fn uploads_parts_and_buckets() {
        let upload = ListedUpload {
            upload: 255,
            created_ns: 0,
            initiator: Owned { id: "starter", name: "starter" },
            checksum: Some((ChecksumAlgorithm::Sha1, true)),
        };
        let query = KeyListQuery::uploads(&QueryParameters::default()).unwrap();
        let mut list = KeyListWriter::new("b", &query, OWNER);
        list.upload(b"k", &upload);
        let uploads = String::from_utf8(list.finish_uploads(Some((b"k", 255)))).unwrap();
        assert_eq!(text(&uploads, "UploadId"), Some("00000000000000ff"));
        assert_eq!(text(&uploads, "NextUploadIdMarker"), Some("00000000000000ff"));
        assert_eq!(text(&uploads, "ChecksumType"), Some("COMPOSITE"));
        assert_eq!(text(&uploads, "Initiator"), Some("<ID>starter</ID><DisplayName>starter</DisplayName>"));
        let query = PartListQuery { after: 0, max_parts: 1 };
        let parts = [ListedPart { number: 7, object: OBJECT }];
        let parts =
            String::from_utf8(part_list(("b", b"k"), &upload, &query, (&parts, true), OWNER)).unwrap();
        assert_eq!(
            (text(&parts, "NextPartNumberMarker"), text(&parts, "IsTruncated")),
            (Some("7"), Some("true"))
        );
        let buckets = [("b".to_owned(), 0)];
        let buckets = String::from_utf8(bucket_list(&buckets, Some("p"), None, OWNER)).unwrap();
        assert_eq!(
            text(&buckets, "Bucket"),
            Some("<Name>b</Name><CreationDate>1970-01-01T00:00:00.000Z</CreationDate>")
        );
    }
}
