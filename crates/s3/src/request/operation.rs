//! The table of operations: each request is one row of it.
//!
//! A request is matched by its level, its method, the first subresource among its query names, and its headers. A
//! subresource, method or header of a feature that Shoal does not have answers `NotImplemented` with its name; it is never
//! ignored. Query names that S3 does not know are ignored.

use http::{HeaderMap, Method};
use shoal_frontend::access::Action;

use super::error::{ErrorCode, S3Error, S3Result};
use super::query::QueryParameters;
use super::target::BucketAndKey;

/// The longest XML body: DeleteObjects, and CompleteMultipartUpload with 10,000 parts.
pub const XML_BYTES_MAX: usize = 4 << 20;

/// The longest XML body of a configuration.
pub const CONFIGURATION_BYTES_MAX: usize = 1 << 20;

/// The longest body of a few elements.
pub const SMALL_BYTES_MAX: usize = 64 << 10;

/// The part of a target that an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetLevel {
    /// All buckets.
    Service,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
}

/// The body that an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// None: a body is drained and ignored.
    None,
    /// A document of at most this many bytes, read whole.
    Document(usize),
    /// The bytes of an object or a part.
    Stream,
}

/// The support for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It works on the store.
    Served,
    /// The answer is always that of a bucket without this configuration (`answer::result::absent`).
    Absent,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OperationRow {
    /// The operation.
    pub operation: S3Operation,
    /// The method of its requests.
    pub method: &'static str,
    /// The part of the target that it works on.
    pub level: TargetLevel,
    /// The subresource in the query; empty for none.
    pub marker: &'static str,
    /// A header that the request must have; empty for none.
    pub header: &'static str,
    /// The permission that it asks for.
    pub action: Action,
    /// The body that it reads.
    pub body: BodyKind,
    /// Whether it is served.
    pub support: Support,
}

macro_rules! operations {
    ($($method:ident $level:ident $marker:literal $header:literal $name:ident $action:ident $body:expr, $support:ident;)*) => {
        /// The operations of S3 that have a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are those of S3's reference")]
        pub enum S3Operation { $($name),* }

        impl S3Operation {
            /// The name in S3's reference.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }

        /// All rows. Of two rows that match a request, the first one counts.
        pub const OPERATIONS: &[OperationRow] = &[$(OperationRow {
            operation: S3Operation::$name,
            method: stringify!($method),
            level: TargetLevel::$level,
            marker: $marker,
            header: $header,
            action: Action::$action,
            body: $body,
            support: Support::$support,
        }),*];
    };
}

use BodyKind::{Document, None as NoBody, Stream};

operations! {
    GET Service "" "" ListBuckets List NoBody, Served;
    OPTIONS Bucket "" "" PreflightBucket Read NoBody, Served;
    OPTIONS Object "" "" PreflightObject Read NoBody, Served;

    GET Bucket "location" "" GetBucketLocation List NoBody, Served;
    GET Bucket "uploads" "" ListMultipartUploads List NoBody, Served;
    GET Bucket "versions" "" ListObjectVersions List NoBody, Served;
    POST Bucket "delete" "" DeleteObjects Delete Document(XML_BYTES_MAX), Served;
    GET Bucket "tagging" "" GetBucketTagging Bucket NoBody, Served;
    PUT Bucket "tagging" "" PutBucketTagging Bucket Document(SMALL_BYTES_MAX), Served;
    DELETE Bucket "tagging" "" DeleteBucketTagging Bucket NoBody, Served;
    GET Bucket "acl" "" GetBucketAcl Bucket NoBody, Served;
    PUT Bucket "acl" "" PutBucketAcl Bucket Document(SMALL_BYTES_MAX), Served;
    GET Bucket "policy" "" GetBucketPolicy Bucket NoBody, Served;
    PUT Bucket "policy" "" PutBucketPolicy Bucket Document(20 << 10), Served;
    DELETE Bucket "policy" "" DeleteBucketPolicy Bucket NoBody, Served;
    GET Bucket "policyStatus" "" GetBucketPolicyStatus Bucket NoBody, Served;
    GET Bucket "cors" "" GetBucketCors Bucket NoBody, Served;
    PUT Bucket "cors" "" PutBucketCors Bucket Document(SMALL_BYTES_MAX), Served;
    DELETE Bucket "cors" "" DeleteBucketCors Bucket NoBody, Served;
    GET Bucket "lifecycle" "" GetBucketLifecycleConfiguration Bucket NoBody, Served;
    PUT Bucket "lifecycle" "" PutBucketLifecycleConfiguration Bucket Document(CONFIGURATION_BYTES_MAX), Served;
    DELETE Bucket "lifecycle" "" DeleteBucketLifecycle Bucket NoBody, Served;
    GET Bucket "website" "" GetBucketWebsite Bucket NoBody, Served;
    PUT Bucket "website" "" PutBucketWebsite Bucket Document(SMALL_BYTES_MAX), Served;
    DELETE Bucket "website" "" DeleteBucketWebsite Bucket NoBody, Served;
    GET Bucket "publicAccessBlock" "" GetPublicAccessBlock Bucket NoBody, Served;
    PUT Bucket "publicAccessBlock" "" PutPublicAccessBlock Bucket Document(SMALL_BYTES_MAX), Served;
    DELETE Bucket "publicAccessBlock" "" DeletePublicAccessBlock Bucket NoBody, Served;
    GET Bucket "ownershipControls" "" GetBucketOwnershipControls Bucket NoBody, Served;
    PUT Bucket "ownershipControls" "" PutBucketOwnershipControls Bucket Document(SMALL_BYTES_MAX), Served;
    DELETE Bucket "ownershipControls" "" DeleteBucketOwnershipControls Bucket NoBody, Served;
    GET Bucket "versioning" "" GetBucketVersioning List NoBody, Absent;
    GET Bucket "accelerate" "" GetBucketAccelerateConfiguration Bucket NoBody, Absent;
    GET Bucket "encryption" "" GetBucketEncryption Bucket NoBody, Absent;
    GET Bucket "logging" "" GetBucketLogging Bucket NoBody, Absent;
    GET Bucket "notification" "" GetBucketNotificationConfiguration Bucket NoBody, Absent;
    GET Bucket "object-lock" "" GetObjectLockConfiguration Bucket NoBody, Absent;
    GET Bucket "replication" "" GetBucketReplication Bucket NoBody, Absent;
    GET Bucket "requestPayment" "" GetBucketRequestPayment Bucket NoBody, Absent;
    GET Bucket "list-type" "" ListObjectsV2 List NoBody, Served;
    GET Bucket "" "" ListObjects List NoBody, Served;
    HEAD Bucket "" "" HeadBucket List NoBody, Served;
    PUT Bucket "" "" CreateBucket Bucket Document(SMALL_BYTES_MAX), Served;
    DELETE Bucket "" "" DeleteBucket Bucket NoBody, Served;
    POST Bucket "" "content-type" PostObject Write Stream, Served;

    POST Object "uploads" "" CreateMultipartUpload Write NoBody, Served;
    PUT Object "uploadId" "x-amz-copy-source" UploadPartCopy Write NoBody, Served;
    PUT Object "uploadId" "" UploadPart Write Stream, Served;
    GET Object "uploadId" "" ListParts List NoBody, Served;
    POST Object "uploadId" "" CompleteMultipartUpload Write Document(XML_BYTES_MAX), Served;
    DELETE Object "uploadId" "" AbortMultipartUpload Write NoBody, Served;
    GET Object "attributes" "" GetObjectAttributes Read NoBody, Served;
    GET Object "tagging" "" GetObjectTagging Read NoBody, Served;
    PUT Object "tagging" "" PutObjectTagging Write Document(SMALL_BYTES_MAX), Served;
    DELETE Object "tagging" "" DeleteObjectTagging Write NoBody, Served;
    GET Object "acl" "" GetObjectAcl Read NoBody, Served;
    PUT Object "acl" "" PutObjectAcl Write Document(SMALL_BYTES_MAX), Served;
    GET Object "" "" GetObject Read NoBody, Served;
    HEAD Object "" "" HeadObject Read NoBody, Served;
    PUT Object "" "x-amz-copy-source" CopyObject Write NoBody, Served;
    PUT Object "" "" PutObject Write Stream, Served;
    DELETE Object "" "" DeleteObject Delete NoBody, Served;
}

/// Subresources of features that Shoal does not have, or has for GET alone, with the feature's name.
const LATER: &[(&str, &str)] = &[
    ("abac", "Attribute-based access control"),
    ("accelerate", "Transfer acceleration"),
    ("analytics", "Storage analytics"),
    ("encryption", "Server-side encryption"),
    ("intelligent-tiering", "Intelligent tiering"),
    ("inventory", "Inventory"),
    ("legal-hold", "Object lock"),
    ("logging", "Access logging into a bucket"),
    ("metadataConfiguration", "Metadata tables"),
    ("metadataInventoryTable", "Metadata tables"),
    ("metadataJournalTable", "Metadata tables"),
    ("metadataTable", "Metadata tables"),
    ("metrics", "Metrics of a bucket"),
    ("notification", "Notifications"),
    ("object-lock", "Object lock"),
    ("renameObject", "RenameObject"),
    ("replication", "Replication"),
    ("requestPayment", "Requester pays"),
    ("restore", "RestoreObject"),
    ("retention", "Object lock"),
    ("select", "SelectObjectContent"),
    ("session", "Directory buckets"),
    ("torrent", "Torrents"),
    ("versioning", "Versioning"),
];

/// Headers of features that Shoal does not have: a name, or its start before a star, and the feature. `x-amz-bypass-governance-retention` is
/// none: no object is retained.
const LATER_HEADERS: &[(&str, &str)] = &[
    ("x-amz-server-side-encryption*", "Server-side encryption"),
    ("x-amz-copy-source-server-side-encryption*", "Server-side encryption"),
    ("x-amz-object-lock-*", "Object lock"),
    ("x-amz-checksum-md5", "A checksum of this algorithm"),
    ("x-amz-checksum-sha512", "A checksum of this algorithm"),
    ("x-amz-checksum-xxhash*", "A checksum of this algorithm"),
    ("x-amz-grant-*", "An access control list in headers, except x-amz-acl,"),
    ("x-amz-mfa", "MFA delete"),
    ("x-amz-write-offset-bytes", "Appending by PutObject"),
    ("x-amz-rename-source*", "RenameObject"),
];

/// Finds the row of a request.
///
/// # Errors
/// `NotImplemented` with the feature's name, `MethodNotAllowed`.
pub fn row_of(
    method: &Method,
    target: &BucketAndKey,
    query: &QueryParameters,
    headers: &HeaderMap,
) -> S3Result<&'static OperationRow> {
    let level = match target {
        BucketAndKey::Service => TargetLevel::Service,
        BucketAndKey::Bucket(_) => TargetLevel::Bucket,
        BucketAndKey::Object(..) => TargetLevel::Object,
    };
    let marker = if method == Method::OPTIONS { "" } else { marker_of(level, query) };
    let fits = |row: &&OperationRow| {
        row.level == level
            && row.method == method.as_str()
            && row.marker == marker
            && (row.header.is_empty() || headers.contains_key(row.header))
    };
    let later = LATER.iter().find(|(name, _)| *name == marker && !marker.is_empty());
    match (OPERATIONS.iter().find(fits), later) {
        (Some(row), _) => {
            refuse_versions(query)?;
            refuse_later_headers(headers)?;
            Ok(row)
        }
        (None, Some((name, feature))) => {
            Err(S3Error::not_implemented(&format!("{feature} ({method} with ?{name})")))
        }
        (None, None) => Err(S3Error::from(ErrorCode::MethodNotAllowed).with("Method", method.as_str())),
    }
}

/// The row of a request to a website.
///
/// # Errors
/// `MethodNotAllowed`.
pub(crate) fn row_of_page(method: &Method) -> S3Result<&'static OperationRow> {
    let plain = |row: &&OperationRow| {
        let is_read = matches!(
            row.operation,
            S3Operation::GetObject | S3Operation::HeadObject | S3Operation::PreflightObject
        );
        is_read && row.method == method.as_str()
    };
    let found = OPERATIONS.iter().find(plain);
    found.ok_or_else(|| S3Error::from(ErrorCode::MethodNotAllowed).with("Method", method.as_str()))
}

/// The first subresource among the query names. `list-type` is one of buckets, and `uploadId` one of objects.
fn marker_of(level: TargetLevel, query: &QueryParameters) -> &'static str {
    let known = |name: &str| {
        let rows = OPERATIONS.iter().filter(|row| row.level == level).map(|row| row.marker);
        rows.chain(LATER.iter().map(|(name, _)| *name)).find(|marker| *marker == name && !name.is_empty())
    };
    query.iter().find_map(|(name, _)| known(name)).unwrap_or("")
}

/// Only the null version exists.
fn refuse_versions(query: &QueryParameters) -> S3Result<()> {
    match query.get("versionId") {
        None | Some(b"null") => Ok(()),
        Some(_) => Err(S3Error::not_implemented("Versioning (versionId other than null)")),
    }
}

/// Refuses headers of features that Shoal does not have. The same fields occur in a POST form.
///
/// # Errors
/// `NotImplemented` with the header, `InvalidStorageClass`.
pub fn refuse_later_headers(headers: &HeaderMap) -> S3Result<()> {
    for name in headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with("x-amz-")) {
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        if let Some((_, feature)) = LATER_HEADERS.iter().find(|(pattern, _)| fits(pattern)) {
            return Err(S3Error::not_implemented(&format!("{feature} ({name})")));
        }
    }
    let wants_lock = headers.get("x-amz-bucket-object-lock-enabled");
    if wants_lock.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true")) {
        return Err(S3Error::not_implemented("Object lock (x-amz-bucket-object-lock-enabled)"));
    }
    match headers.get("x-amz-storage-class").map(http::HeaderValue::as_bytes) {
        None | Some(b"STANDARD" | b"REDUCED_REDUNDANCY") => Ok(()),
        Some(_) => Err(ErrorCode::InvalidStorageClass.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::headers_of;

    fn find(
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
    ) -> S3Result<&'static OperationRow> {
        let target = BucketAndKey::parse(path, None, &[]).unwrap();
        let query = QueryParameters::parse(Some(query)).unwrap();
        row_of(&Method::from_bytes(method.as_bytes()).unwrap(), &target, &query, &headers_of(headers))
    }

    fn name(method: &str, path: &str, query: &str, headers: &[(&str, &str)]) -> &'static str {
        find(method, path, query, headers).unwrap().operation.name()
    }

    /// The table in the clients' page.
    fn documented() -> String {
        let mut text = "| operation | request | grant | |\n|---|---|---|---|\n".to_owned();
        for row in OPERATIONS {
            let path = match row.level {
                TargetLevel::Service => "/",
                TargetLevel::Bucket => "/BUCKET",
                TargetLevel::Object => "/BUCKET/KEY",
            };
            let marker = if row.marker.is_empty() { String::new() } else { format!("?{}", row.marker) };
            let header = if row.header.is_empty() { String::new() } else { format!(" with {}", row.header) };
            let answer = match row.support {
                Support::Served => "",
                Support::Absent => "none",
            };
            let (name, method, action) = (row.operation.name(), row.method, row.action.name());
            text += &format!("| {name} | {method} {path}{marker}{header} | {action} | {answer} |\n");
        }
        text
    }

    /// A failure prints the table to be copied.
    #[test]
    fn the_table_of_the_page_is_the_one_of_the_code() {
        let page = include_str!("../../../../docs/clients/s3.md");
        let table = page.split_once("<!-- table: operations -->\n").unwrap().1;
        let table = table.split_once("\n\n").unwrap().0;
        assert!(format!("{table}\n") == documented(), "{}", documented());
    }

    #[test]
    fn each_row_is_found_by_its_own_request() {
        for row in OPERATIONS {
            let path = match row.level {
                TargetLevel::Service => "/",
                TargetLevel::Bucket => "/b",
                TargetLevel::Object => "/b/k",
            };
            let header = [(row.header, "v")];
            let headers = if row.header.is_empty() { &[][..] } else { &header };
            let found = find(row.method, path, &format!("x-id=1&{}=1&zz", row.marker), headers).unwrap();
            assert_eq!(found.operation, row.operation);
        }
        let names: HashSet<_> = OPERATIONS.iter().map(|row| row.operation).collect();
        assert_eq!(names.len(), OPERATIONS.len(), "an operation has one row");
    }

    #[test]
    fn headers_and_markers_choose_between_operations_of_one_method() {
        let copy = [("x-amz-copy-source", "/a/b")];
        for (method, path, query, headers, expected) in [
            ("PUT", "/b/k", "", &copy[..], "CopyObject"),
            ("PUT", "/b/k", "partNumber=1&uploadId=x", &copy, "UploadPartCopy"),
            ("PUT", "/b/k", "partNumber=1&uploadId=x", &[], "UploadPart"),
            ("GET", "/b/k", "partNumber=1", &[], "GetObject"),
            ("GET", "/b/k", "versionId=null", &[], "GetObject"),
            // A marker of buckets means nothing to an object.
            ("GET", "/b/k", "list-type=2", &[], "GetObject"),
            ("GET", "/b", "prefix=acl&list-type=2", &[], "ListObjectsV2"),
            ("GET", "/b", "acl&cors", &[], "GetBucketAcl"),
            ("GET", "/b", "cors&acl", &[], "GetBucketCors"),
            ("OPTIONS", "/b/k", "uploads", &[], "PreflightObject"),
        ] {
            assert_eq!(name(method, path, query, headers), expected, "{method} {path}?{query}");
        }
    }

    #[test]
    fn features_that_are_missing_answer_with_their_names() {
        for (method, path, query, headers, feature) in [
            ("PUT", "/b", "versioning", &[][..], "Versioning (PUT with ?versioning)"),
            ("GET", "/b/k", "torrent", &[], "Torrents"),
            ("POST", "/b/k", "restore", &[], "RestoreObject"),
            ("PUT", "/b/k", "retention", &[], "Object lock"),
            ("GET", "/b/k", "versionId=0123", &[], "Versioning"),
            (
                "PUT",
                "/b/k",
                "",
                &[("x-amz-server-side-encryption-customer-key", "v")],
                "Server-side encryption",
            ),
            ("PUT", "/b", "", &[("x-amz-bucket-object-lock-enabled", "true")], "Object lock"),
            ("PUT", "/b/k", "acl", &[("x-amz-grant-read", "id=1")], "An access control list in headers"),
            // A body that is not verified must not look like one that was.
            ("PUT", "/b/k", "", &[("x-amz-checksum-sha512", "x")], "A checksum of this algorithm"),
            ("PUT", "/b/k", "", &[("x-amz-checksum-xxhash64", "x")], "A checksum of this algorithm"),
        ] {
            let error = find(method, path, query, headers).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotImplemented, "{method} {path}?{query}");
            assert!(error.message.starts_with(feature), "{}", error.message);
        }
        for (method, path, query) in
            [("POST", "/b", ""), ("PATCH", "/b/k", ""), ("PUT", "/", ""), ("DELETE", "/b/k", "acl")]
        {
            assert_eq!(
                find(method, path, query, &[]).unwrap_err().code,
                ErrorCode::MethodNotAllowed,
                "{method} {path}"
            );
        }
        let class =
            |class| find("PUT", "/b/k", "", &[("x-amz-storage-class", class)]).map(|row| row.operation);
        assert_eq!(class("STANDARD"), Ok(S3Operation::PutObject));
        assert_eq!(class("GLACIER").unwrap_err().code, ErrorCode::InvalidStorageClass);
    }

    proptest! {
        #[test]
        fn any_query_finds_a_row_or_an_error(method in "[A-Z]{3,7}", query: String) {
            if let Ok(query) = QueryParameters::parse(Some(&query)) {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                for target in [BucketAndKey::Service, BucketAndKey::Bucket("b".into()), BucketAndKey::Object("b".into(), vec![1])] {
                    let _ = row_of(&method, &target, &query, &HeaderMap::new());
                }
            }
        }
    }
}
