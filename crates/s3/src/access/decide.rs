//! Decides whether a caller may do something in a bucket. The order of judgement:
//!
//! 1. a policy that denies: no. It cannot lock out those whose grants let them change the policy;
//! 2. the grants of the key: yes;
//! 3. a policy that allows: yes, unless it is a public one, the caller has no key, and the bucket restricts public access;
//! 4. the canned ACL of the bucket, or of the object: yes, unless the bucket ignores public ACLs;
//! 5. no.
//!
//! Damage to a setting never widens access. While one of the four settings cannot be read, steps 3 and 4 allow nothing, and step 2 only the operations
//! that replace or remove it; all other requests fail with the name of the setting.

use std::net::IpAddr;

use shoal_frontend::access::{ALL_KEYS, Action};

use super::acl::CannedAcl;
use super::policy::{BucketPolicy, PolicyRequest, PolicyVerdict};
use crate::bucket::documents::public_access::{ObjectOwnership, PublicAccessBlock};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::operation::S3Operation;
use crate::state::Caller;

/// The settings of a bucket about access.
#[derive(Clone, Debug, Default)]
pub(crate) struct BucketAccess {
    pub(crate) acl: CannedAcl,
    pub(crate) policy: Option<BucketPolicy>,
    pub(crate) block: PublicAccessBlock,
    pub(crate) ownership: Option<ObjectOwnership>,
    /// Some objects may have an ACL that lets others in.
    pub(crate) has_object_acls: bool,
    /// The first setting that this program cannot read.
    pub(crate) unread: Option<UnreadSetting>,
}

/// A setting about access that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct UnreadSetting {
    /// The operations that replace or remove it.
    pub(crate) repairs: &'static [S3Operation],
    /// Its name and the way out.
    pub(crate) error: S3Error,
}

impl BucketAccess {
    /// Returns true if ACLs count.
    fn obeys_acls(&self) -> bool {
        !self.block.ignore_acls && self.ownership != Some(ObjectOwnership::BucketOwnerEnforced)
    }

    /// Returns true if the ACL of an object lets this caller read it.
    pub(crate) fn lets_read_object(&self, acl: CannedAcl, has_key: bool) -> bool {
        self.obeys_acls() && acl.lets_read(has_key)
    }

    /// Returns true if the ACL of the bucket allows an operation: reading a bucket is listing it.
    fn acl_allows(&self, wish: &Wish<'_>, has_key: bool) -> bool {
        use S3Operation as Of;
        let is_list = matches!(
            wish.operation,
            Of::ListObjects
                | Of::ListObjectsV2
                | Of::ListObjectVersions
                | Of::ListMultipartUploads
                | Of::HeadBucket
        );
        let is_write = matches!(wish.action, Action::Write | Action::Delete)
            && !matches!(wish.operation, Of::PutObjectAcl | Of::PutObjectTagging | Of::DeleteObjectTagging);
        self.obeys_acls() && ((is_list && self.acl.lets_read(has_key)) || (is_write && self.acl.lets_write()))
    }

    /// Checks an ACL that a request names. A bucket without ACLs takes only the one that gives its owner all rights.
    ///
    /// # Errors
    /// `AccessControlListNotSupported`, `AccessDenied`.
    pub(crate) fn check_new_acl(&self, acl: CannedAcl) -> S3Result<()> {
        let has_acls = self.ownership != Some(ObjectOwnership::BucketOwnerEnforced);
        if !has_acls && acl != CannedAcl::BucketOwnerFullControl {
            return Err(ErrorCode::AccessControlListNotSupported.into());
        }
        if self.block.block_acls && acl.lets_read(true) {
            let why = "Access Denied: the bucket's public access block refuses public ACLs.";
            return Err(S3Error::new(ErrorCode::AccessDenied, why));
        }
        Ok(())
    }
}

/// Something that a caller wants to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// The operation by which policies know it.
    pub(crate) operation: S3Operation,
    pub(crate) action: Action,
    pub(crate) bucket: &'a str,
    /// The key, for an operation on an object.
    pub(crate) key: Option<&'a [u8]>,
    /// The prefix that a list asks for.
    pub(crate) prefix: Option<&'a [u8]>,
}

/// The origin of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) address: IpAddr,
    /// The connection is encrypted.
    pub(crate) is_secure: bool,
}

/// The reason why a caller may not do something.
pub(crate) struct Refusal {
    pub(crate) error: S3Error,
    /// A policy denies it, or a setting cannot be read: nothing else can allow it.
    pub(crate) is_denied: bool,
}

/// Decides; `access` is `None` for a bucket without settings about access.
pub(crate) fn decide(
    caller: &Caller,
    origin: Origin,
    access: Option<&BucketAccess>,
    wish: &Wish<'_>,
) -> Result<(), Refusal> {
    use S3Operation as Of;
    let by_grants = caller.check(wish.action, wish.bucket, wish.key.or(wish.prefix).unwrap_or(ALL_KEYS));
    let Some(access) = access else {
        return by_grants.map_err(|error| Refusal { error, is_denied: false });
    };
    if let Some(unread) = &access.unread
        && !unread.repairs.contains(&wish.operation)
    {
        return Err(Refusal { error: unread.error.clone(), is_denied: true });
    }
    let request = PolicyRequest {
        id: caller.key_id(),
        operation: wish.operation,
        bucket: wish.bucket,
        key: wish.key,
        prefix: wish.prefix,
        address: origin.address,
        is_secure: origin.is_secure,
    };
    let policy = access.policy.as_ref();
    let verdict = policy.map_or(PolicyVerdict::Silent, |policy| policy.judge(&request));
    let is_about_policy =
        matches!(wish.operation, Of::GetBucketPolicy | Of::PutBucketPolicy | Of::DeleteBucketPolicy);
    if verdict == PolicyVerdict::Deny && !(is_about_policy && by_grants.is_ok()) {
        let why = "Access Denied: the bucket's policy denies it.";
        return Err(Refusal { error: S3Error::new(ErrorCode::AccessDenied, why), is_denied: true });
    }
    let Err(error) = by_grants else { return Ok(()) };
    if access.unread.is_some() {
        return Err(Refusal { error, is_denied: true });
    }
    let is_restricted =
        || access.block.restrict && !caller.has_key() && policy.is_some_and(BucketPolicy::is_public);
    if (verdict == PolicyVerdict::Allow && !is_restricted()) || access.acl_allows(wish, caller.has_key()) {
        return Ok(());
    }
    Err(Refusal { error, is_denied: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin =
        Origin { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), is_secure: false };

    fn wish(operation: S3Operation, action: Action) -> Wish<'static> {
        let key = matches!(action, Action::Read | Action::Write | Action::Delete).then_some(&b"k"[..]);
        Wish { operation, action, bucket: "bkt", key, prefix: None }
    }

    fn may(access: &BucketAccess, operation: S3Operation, action: Action) -> bool {
        decide(&Caller::default(), ORIGIN, Some(access), &wish(operation, action)).is_ok()
    }

    fn policy(effect: &str, action: &str) -> BucketPolicy {
        let text = format!(
            "{{\"Statement\": {{\"Effect\": \"{effect}\", \"Principal\": \"*\", \"Action\": \"{action}\", \
             \"Resource\": [\"arn:aws:s3:::bkt\", \"arn:aws:s3:::bkt/*\"]}}}}"
        );
        BucketPolicy::parse(text.as_bytes(), "bkt").unwrap()
    }

    #[test]
    fn the_acl_of_a_bucket_opens_lists_and_writes_alone() {
        use S3Operation as Of;
        for (acl, lists, writes) in [
            (CannedAcl::Private, false, false),
            (CannedAcl::PublicRead, true, false),
            (CannedAcl::PublicReadWrite, true, true),
            (CannedAcl::AuthenticatedRead, false, false),
        ] {
            let access = BucketAccess { acl, ..BucketAccess::default() };
            assert_eq!(may(&access, Of::ListObjectsV2, Action::List), lists, "{acl:?}");
            assert_eq!(may(&access, Of::PutObject, Action::Write), writes, "{acl:?}");
            assert_eq!(may(&access, Of::DeleteObject, Action::Delete), writes, "{acl:?}");
            for (operation, action) in [
                (Of::GetObject, Action::Read),
                (Of::PutObjectAcl, Action::Write),
                (Of::PutBucketAcl, Action::Bucket),
                (Of::DeleteBucket, Action::Bucket),
            ] {
                assert!(!may(&access, operation, action), "{acl:?} {operation:?}");
            }
            let block = PublicAccessBlock { ignore_acls: true, ..PublicAccessBlock::default() };
            let ignored = BucketAccess { acl, block, ..BucketAccess::default() };
            assert!(!may(&ignored, Of::ListObjectsV2, Action::List));
            let ownership = Some(ObjectOwnership::BucketOwnerEnforced);
            let enforced = BucketAccess { acl, ownership, ..BucketAccess::default() };
            assert!(!may(&enforced, Of::PutObject, Action::Write));
        }
    }

    #[test]
    fn a_policy_that_denies_counts_most() {
        use S3Operation as Of;
        let open = BucketAccess {
            policy: Some(policy("Allow", "s3:GetObject")),
            acl: CannedAcl::PublicReadWrite,
            ..BucketAccess::default()
        };
        assert!(may(&open, Of::GetObject, Action::Read));
        let block = PublicAccessBlock { restrict: true, ..PublicAccessBlock::default() };
        assert!(!may(&BucketAccess { block, ..open.clone() }, Of::GetObject, Action::Read));
        let denying = BucketAccess { policy: Some(policy("Deny", "s3:PutObject")), ..open };
        let refusal = decide(
            &Caller::default(),
            ORIGIN,
            Some(&BucketAccess { has_object_acls: true, ..denying.clone() }),
            &wish(Of::PutObject, Action::Write),
        );
        assert!(refusal.is_err_and(|refusal| refusal.is_denied), "no ACL of an object counts");
        assert!(may(&denying, Of::ListObjects, Action::List));
    }

    #[test]
    fn new_acls_are_checked_by_the_settings() {
        let code = |access: &BucketAccess, acl| access.check_new_acl(acl).err().map(|error| error.code);
        let block = PublicAccessBlock { block_acls: true, ..PublicAccessBlock::default() };
        let blocked = BucketAccess { block, ..BucketAccess::default() };
        assert_eq!(code(&blocked, CannedAcl::PublicRead), Some(ErrorCode::AccessDenied));
        assert_eq!(code(&blocked, CannedAcl::AuthenticatedRead), Some(ErrorCode::AccessDenied));
        assert_eq!(code(&blocked, CannedAcl::BucketOwnerFullControl), None);
        let ownership = Some(ObjectOwnership::BucketOwnerEnforced);
        let enforced = BucketAccess { ownership, ..BucketAccess::default() };
        assert_eq!(code(&enforced, CannedAcl::PublicRead), Some(ErrorCode::AccessControlListNotSupported));
        assert_eq!(code(&enforced, CannedAcl::Private), Some(ErrorCode::AccessControlListNotSupported));
        assert_eq!(code(&enforced, CannedAcl::BucketOwnerFullControl), None);
        assert_eq!(code(&BucketAccess::default(), CannedAcl::PublicReadWrite), None);
    }
}
