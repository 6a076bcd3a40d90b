//! The names by which policies permit operations.

use crate::request::operation::S3Operation;

/// S3's name of the permission for an operation; several operations share one.
#[must_use]
pub fn action_of(operation: S3Operation) -> &'static str {
    use S3Operation as Of;
    match operation {
        Of::GetObject | Of::HeadObject | Of::PreflightObject => "s3:GetObject",
        Of::PutObject
        | Of::CopyObject
        | Of::PostObject
        | Of::CreateMultipartUpload
        | Of::UploadPart
        | Of::UploadPartCopy
        | Of::CompleteMultipartUpload => "s3:PutObject",
        Of::DeleteObject | Of::DeleteObjects => "s3:DeleteObject",
        Of::ListObjects | Of::ListObjectsV2 | Of::HeadBucket | Of::PreflightBucket => "s3:ListBucket",
        Of::ListBuckets => "s3:ListAllMyBuckets",
        Of::ListObjectVersions => "s3:ListBucketVersions",
        Of::ListMultipartUploads => "s3:ListBucketMultipartUploads",
        Of::ListParts => "s3:ListMultipartUploadParts",
        Of::AbortMultipartUpload => "s3:AbortMultipartUpload",
        Of::GetObjectAttributes => "s3:GetObjectAttributes",
        Of::GetObjectTagging => "s3:GetObjectTagging",
        Of::PutObjectTagging => "s3:PutObjectTagging",
        Of::DeleteObjectTagging => "s3:DeleteObjectTagging",
        Of::GetObjectAcl => "s3:GetObjectAcl",
        Of::PutObjectAcl => "s3:PutObjectAcl",
        other => bucket_action_of(other),
    }
}

/// The permissions for operations on buckets.
fn bucket_action_of(operation: S3Operation) -> &'static str {
    use S3Operation as Of;
    match operation {
        Of::CreateBucket => "s3:CreateBucket",
        Of::DeleteBucket => "s3:DeleteBucket",
        Of::GetBucketLocation => "s3:GetBucketLocation",
        Of::GetBucketTagging => "s3:GetBucketTagging",
        Of::PutBucketTagging | Of::DeleteBucketTagging => "s3:PutBucketTagging",
        Of::GetBucketAcl => "s3:GetBucketAcl",
        Of::PutBucketAcl => "s3:PutBucketAcl",
        Of::GetBucketPolicy => "s3:GetBucketPolicy",
        Of::PutBucketPolicy => "s3:PutBucketPolicy",
        Of::DeleteBucketPolicy => "s3:DeleteBucketPolicy",
        Of::GetBucketPolicyStatus => "s3:GetBucketPolicyStatus",
        Of::GetBucketCors => "s3:GetBucketCORS",
        Of::PutBucketCors | Of::DeleteBucketCors => "s3:PutBucketCORS",
        Of::GetBucketLifecycleConfiguration => "s3:GetLifecycleConfiguration",
        Of::PutBucketLifecycleConfiguration | Of::DeleteBucketLifecycle => "s3:PutLifecycleConfiguration",
        Of::GetBucketWebsite => "s3:GetBucketWebsite",
        Of::PutBucketWebsite => "s3:PutBucketWebsite",
        Of::DeleteBucketWebsite => "s3:DeleteBucketWebsite",
        Of::GetPublicAccessBlock => "s3:GetBucketPublicAccessBlock",
        Of::PutPublicAccessBlock | Of::DeletePublicAccessBlock => "s3:PutBucketPublicAccessBlock",
        Of::GetBucketOwnershipControls => "s3:GetBucketOwnershipControls",
        Of::PutBucketOwnershipControls | Of::DeleteBucketOwnershipControls => "s3:PutBucketOwnershipControls",
        Of::GetBucketVersioning => "s3:GetBucketVersioning",
        Of::GetBucketAccelerateConfiguration => "s3:GetAccelerateConfiguration",
        Of::GetBucketEncryption => "s3:GetEncryptionConfiguration",
        Of::GetBucketLogging => "s3:GetBucketLogging",
        Of::GetBucketNotificationConfiguration => "s3:GetBucketNotification",
        Of::GetObjectLockConfiguration => "s3:GetBucketObjectLockConfiguration",
        Of::GetBucketReplication => "s3:GetReplicationConfiguration",
        Of::GetBucketRequestPayment => "s3:GetBucketRequestPayment",
        // No statement names the empty action.
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::operation::OPERATIONS;

    /// A permission that is missing from the table could not be granted, nor denied.
    #[test]
    fn every_operation_has_an_action() {
        for row in OPERATIONS {
            assert!(action_of(row.operation).starts_with("s3:"), "{}", row.operation.name());
        }
    }
}
