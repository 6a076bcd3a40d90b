//! Canned ACLs: the only ones that are stored. An ACL of grants is accepted if it is one of them.

use http::HeaderMap;

use crate::answer::xml::XmlWriter;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;

/// The group of everybody.
pub const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";

/// The group of everybody with a key.
pub const AUTHENTICATED_USERS: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";

/// An ACL with a name. The numbers are those of the stored attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CannedAcl {
    /// The owner alone.
    #[default]
    Private = 1,
    /// Everybody reads.
    PublicRead = 2,
    /// Everybody reads and writes.
    PublicReadWrite = 3,
    /// Everybody with a key reads.
    AuthenticatedRead = 4,
    /// The bucket's owner reads, and owns all objects anyway.
    BucketOwnerRead = 5,
    /// The bucket's owner has all rights, as ever.
    BucketOwnerFullControl = 6,
}

impl CannedAcl {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Private,
        Self::PublicRead,
        Self::PublicReadWrite,
        Self::AuthenticatedRead,
        Self::BucketOwnerRead,
        Self::BucketOwnerFullControl,
    ];

    /// The value of the header `x-amz-acl`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::PublicRead => "public-read",
            Self::PublicReadWrite => "public-read-write",
            Self::AuthenticatedRead => "authenticated-read",
            Self::BucketOwnerRead => "bucket-owner-read",
            Self::BucketOwnerFullControl => "bucket-owner-full-control",
        }
    }

    /// The ACL in the header `x-amz-acl`; `None` without it.
    ///
    /// # Errors
    /// Those of [`Self::parse`].
    pub fn in_headers(headers: &HeaderMap) -> S3Result<Option<Self>> {
        header(headers, "x-amz-acl")?.map(Self::parse).transpose()
    }

    /// Reads the value of the header `x-amz-acl`.
    ///
    /// # Errors
    /// `InvalidArgument`; `NotImplemented` for the ACLs of AWS's own services.
    pub fn parse(name: &str) -> S3Result<Self> {
        if matches!(name, "aws-exec-read" | "log-delivery-write") {
            return Err(S3Error::not_implemented(&format!("The canned ACL {name}")));
        }
        let found = Self::ALL.into_iter().find(|acl| acl.name() == name);
        found.ok_or_else(|| S3Error::argument("x-amz-acl", name, "The canned ACL is not known."))
    }

    /// The ACL with this stored number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|acl| *acl as u8 == number)
    }

    /// Returns true if somebody without a key may read.
    #[must_use]
    pub fn is_public(self) -> bool {
        matches!(self, Self::PublicRead | Self::PublicReadWrite)
    }

    /// Returns true if the ACL lets a caller other than the owner read (and list, for a bucket).
    #[must_use]
    pub fn lets_read(self, has_key: bool) -> bool {
        self.is_public() || (self == Self::AuthenticatedRead && has_key)
    }

    /// Returns true if the ACL of a bucket lets a caller other than the owner write.
    #[must_use]
    pub fn lets_write(self) -> bool {
        self == Self::PublicReadWrite
    }

    /// Returns true if it lets somebody other than the owner do something.
    #[must_use]
    pub fn lets_others_in(self) -> bool {
        self.lets_read(true) || self.lets_write()
    }

    /// The grants beside that of the owner: a group and a permission.
    fn grants(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::PublicRead => &[(ALL_USERS, "READ")],
            Self::PublicReadWrite => &[(ALL_USERS, "READ"), (ALL_USERS, "WRITE")],
            Self::AuthenticatedRead => &[(AUTHENTICATED_USERS, "READ")],
            _ => &[],
        }
    }

    /// The ACL that consists of these grants to groups, beside full control of the owner.
    ///
    /// # Errors
    /// `NotImplemented` for grants that no canned ACL has.
    pub(crate) fn of_grants(grants: &[(String, String)]) -> S3Result<Self> {
        let has = |group: &str, right: &str| grants.iter().any(|(found, of)| found == group && of == right);
        let is_same = |acl: &Self| {
            let own = acl.grants();
            own.iter().all(|(group, right)| has(group, right))
                && grants.iter().all(|(group, right)| own.contains(&(group.as_str(), right.as_str())))
        };
        let found = Self::ALL.into_iter().find(is_same);
        found.ok_or_else(|| S3Error::not_implemented("An access control list other than the canned ones"))
    }

    /// The document that answers GetBucketAcl and GetObjectAcl. The order of grants means nothing; the groups come before the owner,
    /// because programs look for them there.
    #[must_use]
    pub fn document(self, owner: &Owned<'_>) -> Vec<u8> {
        XmlWriter::of("AccessControlPolicy", |xml| {
            owner.write(xml, "Owner");
            xml.element("AccessControlList", |xml| {
                for (group, right) in self.grants() {
                    grant(xml, "Group", right, |xml| xml.leaf("URI", group));
                }
                grant(xml, "CanonicalUser", "FULL_CONTROL", |xml| owner.write_fields(xml));
            });
        })
    }
}

fn grant(xml: &mut XmlWriter, kind: &str, right: &str, grantee: impl FnOnce(&mut XmlWriter)) {
    xml.element("Grant", |xml| {
        xml.raw("<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"")
            .raw(kind)
            .raw("\">");
        grantee(xml);
        xml.close("Grantee");
        xml.leaf("Permission", right);
    });
}

/// The owner of a bucket and of its objects, as documents name it.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'a> {
    /// The id of the key.
    pub id: &'a str,
    /// The name of the key.
    pub name: &'a str,
}

impl Owned<'_> {
    /// Writes an element with the owner.
    pub fn write(&self, xml: &mut XmlWriter, element: &str) {
        xml.element(element, |xml| self.write_fields(xml));
    }

    fn write_fields(&self, xml: &mut XmlWriter) {
        xml.leaf("ID", self.id);
        xml.leaf("DisplayName", self.name);
    }
}

/// The code of a document that is no ACL.
pub(crate) const MALFORMED: ErrorCode = ErrorCode::MalformedACLError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_rights() {
        for acl in CannedAcl::ALL {
            assert_eq!(CannedAcl::parse(acl.name()), Ok(acl));
            assert_eq!(CannedAcl::of_number(acl as u8), Some(acl));
        }
        assert_eq!(CannedAcl::parse("public").unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(CannedAcl::parse("aws-exec-read").unwrap_err().code, ErrorCode::NotImplemented);
        assert_eq!(CannedAcl::of_number(0), None);
        assert!(
            CannedAcl::AuthenticatedRead.lets_read(true) && !CannedAcl::AuthenticatedRead.lets_read(false)
        );
        assert!(CannedAcl::PublicRead.lets_read(false) && !CannedAcl::PublicRead.lets_write());
        assert!(!CannedAcl::Private.lets_read(true) && CannedAcl::PublicReadWrite.lets_write());
    }

    #[test]
    fn grants_are_a_canned_acl_or_refused() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> =
                pairs.iter().map(|(group, right)| ((*group).into(), (*right).into())).collect();
            CannedAcl::of_grants(&pairs)
        };
        assert_eq!(of(&[]), Ok(CannedAcl::Private));
        assert_eq!(of(&[(ALL_USERS, "READ")]), Ok(CannedAcl::PublicRead));
        assert_eq!(of(&[(ALL_USERS, "WRITE"), (ALL_USERS, "READ")]), Ok(CannedAcl::PublicReadWrite));
        assert_eq!(of(&[(AUTHENTICATED_USERS, "READ")]), Ok(CannedAcl::AuthenticatedRead));
        for pairs in [&[(ALL_USERS, "WRITE")][..], &[(ALL_USERS, "READ_ACP")], &[("another", "READ")]] {
            assert_eq!(of(pairs).unwrap_err().code, ErrorCode::NotImplemented);
        }
    }

    #[test]
    fn the_document_has_owner_and_groups() {
        let text = String::from_utf8(CannedAcl::PublicRead.document(&Owned { id: "I", name: "N" })).unwrap();
        assert!(text.contains("<Owner><ID>I</ID><DisplayName>N</DisplayName></Owner>"), "{text}");
        assert!(
            text.contains("xsi:type=\"CanonicalUser\"><ID>I</ID><DisplayName>N</DisplayName></Grantee>"),
            "{text}"
        );
        assert!(
            text.contains(&format!("xsi:type=\"Group\"><URI>{ALL_USERS}</URI></Grantee><Permission>READ<")),
            "{text}"
        );
    }
}
