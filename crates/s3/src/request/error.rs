//! Errors as S3 answers them: a code with its HTTP status, a message, and more fields for some codes.

use std::fmt;

use http::StatusCode;

use crate::answer::xml::XmlWriter;

macro_rules! error_codes {
    ($($name:ident $status:literal $message:literal)*) => {
        /// The codes of errors, by S3's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the name is the code, and the table has its message")]
        pub enum ErrorCode { $($name),* }

        impl ErrorCode {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code as clients read it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// The HTTP status of the answer.
            #[must_use]
            pub fn status(self) -> StatusCode {
                let number = match self { $(Self::$name => $status),* };
                StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }

            /// The message of an error without a better one.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $message),* }
            }
        }
    };
}

error_codes! {
    AccessControlListNotSupported 400 "The bucket does not allow ACLs: its owner owns all objects."
    AccessDenied 403 "Access Denied"
    AuthorizationHeaderMalformed 400 "The authorization header is malformed."
    AuthorizationQueryParametersError 400 "The query parameters of the signature are malformed."
    BadDigest 400 "The checksum of the request does not match the checksum of the bytes received."
    BucketAlreadyExists 409 "The bucket name is not available."
    BucketAlreadyOwnedByYou 409 "You already own this bucket."
    BucketNotEmpty 409 "The bucket is not empty."
    EntityTooLarge 400 "The upload is larger than the maximum allowed size."
    EntityTooSmall 400 "The upload is smaller than the minimum allowed size."
    HeadersTooLarge 431 "The request has too many header bytes."
    IllegalLocationConstraintException 400 "The location constraint is not this store's region."
    IncompleteBody 400 "The body does not have the announced number of bytes."
    InsufficientStorage 507 "The store is full."
    InternalError 500 "Internal error."
    InvalidAccessKeyId 403 "The access key id does not exist."
    InvalidArgument 400 "Invalid argument."
    InvalidBucketAclWithObjectOwnership 400 "The bucket has an ACL that lets others in: make it private first."
    InvalidBucketName 400 "The bucket name is not valid."
    InvalidChunkSizeError 400 "The chunks of the body are too small or too large."
    InvalidDigest 400 "The Content-MD5 or checksum is not valid."
    InvalidPart 400 "A part was not found, or its entity tag does not match."
    InvalidPartOrder 400 "The parts are not in ascending order."
    InvalidPolicyDocument 400 "The policy document is not valid."
    InvalidRange 416 "The requested range is not satisfiable."
    InvalidRequest 400 "Invalid request."
    InvalidStorageClass 400 "The storage class is not valid."
    InvalidTag 400 "The tag is not valid."
    InvalidToken 400 "Session tokens are not supported."
    InvalidURI 400 "The request target could not be parsed."
    KeyTooLongError 400 "A key has at most 1,024 bytes."
    MalformedACLError 400 "The XML is not a valid access control list."
    MalformedPOSTRequest 400 "The body is not a well-formed multipart/form-data form."
    MalformedPolicy 400 "The policy is not valid."
    MalformedTrailerError 400 "The trailers of the body are not well-formed, or not those announced."
    MalformedXML 400 "The XML is not well-formed, or does not have the expected form."
    MaxMessageLengthExceeded 400 "The request body is too long."
    MaxPostPreDataLengthExceeded 400 "The fields before the file are too long."
    MetadataTooLarge 400 "User metadata has at most 2,048 bytes."
    MethodNotAllowed 405 "The method is not allowed against this resource."
    MissingContentLength 411 "The request needs a Content-Length header."
    NoSuchBucket 404 "The bucket does not exist."
    NoSuchBucketPolicy 404 "The bucket has no policy."
    NoSuchCORSConfiguration 404 "The bucket has no CORS configuration."
    NoSuchKey 404 "The key does not exist."
    NoSuchLifecycleConfiguration 404 "The bucket has no lifecycle configuration."
    NoSuchPublicAccessBlockConfiguration 404 "The bucket has no public access block."
    NoSuchTagSet 404 "The bucket has no tags."
    NoSuchUpload 404 "The upload does not exist, or was completed or aborted."
    NoSuchWebsiteConfiguration 404 "The bucket has no website configuration."
    NotImplemented 501 "Not implemented."
    ObjectLockConfigurationNotFoundError 404 "The bucket has no object lock configuration."
    OperationAborted 409 "A conflicting operation is in progress. Try again."
    OwnershipControlsNotFoundError 404 "The bucket has no ownership controls."
    PreconditionFailed 412 "At least one of the conditions did not hold."
    QuotaExceeded 403 "The quota of the bucket is used up."
    ReplicationConfigurationNotFoundError 404 "The bucket has no replication configuration."
    RequestTimeTooSkewed 403 "The time of the request differs too much from the server's."
    RequestTimeout 408 "The client sends too slowly."
    ServerSideEncryptionConfigurationNotFoundError 404 "The bucket has no encryption configuration."
    ServiceUnavailable 503 "The server shuts down."
    SignatureDoesNotMatch 403 "The signature does not match the one that the server calculated."
    SlowDown 503 "The server is busy. Try again later."
    URITooLong 414 "The request target is too long."
    UnresolvableGrantByEmailAddress 400 "No key has an e-mail address: a grant names a group."
    UserKeyMustBeSpecified 400 "The form has no field key, or it is empty."
    XAmzContentSHA256Mismatch 400 "The x-amz-content-sha256 header does not match the body."
}

/// An error as it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Error {
    /// The code, which decides the status.
    pub code: ErrorCode,
    /// The message.
    pub message: String,
    /// Elements of the document besides code, message, resource and request id.
    pub fields: Vec<(&'static str, String)>,
}

/// The result of everything that answers with an error of S3.
pub type S3Result<T> = Result<T, S3Error>;

impl From<ErrorCode> for S3Error {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: code.message().to_owned(), fields: Vec::new() }
    }
}

impl S3Error {
    /// An error with its own message.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), fields: Vec::new() }
    }

    /// `NotImplemented` for the feature with this name.
    #[must_use]
    pub fn not_implemented(name: &str) -> Self {
        Self::new(ErrorCode::NotImplemented, format!("{name} is not implemented."))
    }

    /// `InvalidArgument` with the argument's name and value.
    #[must_use]
    pub fn argument(name: &str, value: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, why).with("ArgumentName", name).with("ArgumentValue", value)
    }

    /// The error with one element more.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// The XML document of the answer. `resource` is the path of the request, as it came.
    #[must_use]
    pub fn document(&self, resource: &str, request_id: &str) -> Vec<u8> {
        let mut xml = XmlWriter::document();
        xml.element("Error", |xml| {
            xml.leaf("Code", self.code.name());
            xml.leaf("Message", &self.message);
            for (name, value) in &self.fields {
                xml.leaf(name, value);
            }
            xml.leaf("Resource", resource);
            xml.leaf("RequestId", request_id);
        });
        xml.finish()
    }
}

impl fmt::Display for S3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for S3Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_code_message_fields_and_escaped_resource() {
        let error =
            S3Error::new(ErrorCode::AuthorizationHeaderMalformed, "wrong region").with("Region", "us-east-1");
        let text = String::from_utf8(error.document("/b/<k>", "00000000000000AB")).unwrap();
        assert_eq!(
            text,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AuthorizationHeaderMalformed</Code>\
             <Message>wrong region</Message><Region>us-east-1</Region><Resource>/b/&lt;k&gt;</Resource>\
             <RequestId>00000000000000AB</RequestId></Error>"
        );
        assert_eq!(error.to_string(), "AuthorizationHeaderMalformed: wrong region");
    }

    #[test]
    fn every_code_has_the_status_of_an_error_and_a_message() {
        for &code in ErrorCode::ALL {
            let status = code.status();
            assert!(status.is_client_error() || status.is_server_error(), "{code:?}");
            assert!(!code.message().is_empty(), "{code:?}");
        }
        assert_eq!(ErrorCode::InsufficientStorage.status().as_u16(), 507);
    }
}
