//! The items of a bucket's record that store its settings.

use crate::request::operation::S3Operation;

/// The id of the key that created the bucket.
pub(super) const OWNER: u8 = 1;
/// The canned ACL.
pub(super) const ACL: u8 = 2;
/// The policy, as it came.
pub(super) const POLICY: u8 = 3;
/// The rules for browsers.
pub(super) const CORS: u8 = 4;
/// The lifecycle rules.
pub(super) const LIFECYCLE: u8 = 5;
/// The website.
pub(super) const WEBSITE: u8 = 6;
/// The tags.
pub(super) const TAGS: u8 = 7;
/// The public access block.
pub(super) const BLOCK: u8 = 10;
/// The ownership controls.
pub(super) const OWNERSHIP: u8 = 11;

/// Those about access.
pub(super) const OF_ACCESS: [u8; 4] = [BLOCK, OWNERSHIP, ACL, POLICY];

/// The name of a setting in errors.
pub(super) const fn name_of(tag: u8) -> &'static str {
    match tag {
        OWNER => "owner",
        ACL => "ACL",
        POLICY => "policy",
        CORS => "CORS rules",
        LIFECYCLE => "lifecycle rules",
        WEBSITE => "website",
        TAGS => "tags",
        BLOCK => "public access block",
        OWNERSHIP => "ownership controls",
        _ => "setting",
    }
}

/// The operations that replace or remove a setting without reading it.
pub(super) const fn repairs_of(tag: u8) -> &'static [S3Operation] {
    use S3Operation as Of;
    match tag {
        ACL => &[Of::PutBucketAcl],
        POLICY => &[Of::PutBucketPolicy, Of::DeleteBucketPolicy],
        CORS => &[Of::PutBucketCors, Of::DeleteBucketCors],
        LIFECYCLE => &[Of::PutBucketLifecycleConfiguration, Of::DeleteBucketLifecycle],
        WEBSITE => &[Of::PutBucketWebsite, Of::DeleteBucketWebsite],
        TAGS => &[Of::PutBucketTagging, Of::DeleteBucketTagging],
        BLOCK => &[Of::PutPublicAccessBlock, Of::DeletePublicAccessBlock],
        OWNERSHIP => &[Of::PutBucketOwnershipControls, Of::DeleteBucketOwnershipControls],
        _ => &[],
    }
}
