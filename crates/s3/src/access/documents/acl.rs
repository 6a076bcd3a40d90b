//! An access control list as a document: it must be one of the canned ones.

use crate::access::acl::{CannedAcl, MALFORMED};
use crate::body::xml::XmlReader;
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// Most grants that are read.
const GRANTS_MAX: usize = 100;

/// One grant, as far as it was read.
#[derive(Default)]
struct Grant {
    id: Option<String>,
    group: Option<String>,
    right: String,
}

/// Reads the ACL of something that the key `owner` owns. `is_key` returns true for the id of a key.
///
/// # Errors
/// `MalformedACLError`, `MalformedXML`; `NotImplemented` for another owner, grantee or combination; `InvalidArgument` for the id of
/// no key, `UnresolvableGrantByEmailAddress`.
pub fn parse_acl(bytes: &[u8], owner: &str, is_key: &dyn Fn(&str) -> bool) -> S3Result<CannedAcl> {
    let check_owner = |id: &str| match id == owner {
        true => Ok(()),
        false if is_key(id) => Err(S3Error::not_implemented("A grant to another key")),
        false => Err(S3Error::argument("CanonicalUser/ID", id, "Invalid id")),
    };
    let mut grants = Vec::new();
    XmlReader::document(bytes, "AccessControlPolicy", |xml| {
        xml.children(|name, xml| match name {
            "Owner" => {
                xml.children(|name, xml| if name == "ID" { check_owner(&xml.word()?) } else { Ok(()) })
            }
            "AccessControlList" => xml.children(|name, xml| {
                if name != "Grant" || grants.len() == GRANTS_MAX {
                    return Err(MALFORMED.into());
                }
                grants.push(grant(xml)?);
                Ok(())
            }),
            _ => Ok(()),
        })
    })?;
    let mut groups = Vec::new();
    for grant in grants {
        match (grant.id, grant.group) {
            // The owner has all rights anyway.
            (Some(id), None) => check_owner(&id)?,
            (None, Some(group)) => groups.push((group, grant.right)),
            _ => return Err(MALFORMED.into()),
        }
    }
    CannedAcl::of_grants(&groups)
}

fn grant(xml: &mut XmlReader<'_>) -> S3Result<Grant> {
    let mut grant = Grant::default();
    xml.children(|name, xml| {
        match name {
            "Permission" => grant.right = xml.word()?,
            "Grantee" => xml.children(|name, xml| {
                match name {
                    "ID" => grant.id = Some(xml.word()?),
                    "URI" => grant.group = Some(xml.word()?),
                    "EmailAddress" => return Err(ErrorCode::UnresolvableGrantByEmailAddress.into()),
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    let is_known =
        matches!(grant.right.as_str(), "READ" | "WRITE" | "READ_ACP" | "WRITE_ACP" | "FULL_CONTROL");
    if is_known { Ok(grant) } else { Err(MALFORMED.into()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access::acl::Owned;

    fn parse(bytes: &[u8], owner: &str) -> Result<CannedAcl, ErrorCode> {
        parse_acl(bytes, owner, &|id| id == "OTHER" || id == "OWNER").map_err(|error| error.code)
    }

    #[test]
    fn canned_acls_round_trip_through_their_documents() {
        for acl in [
            CannedAcl::Private,
            CannedAcl::PublicRead,
            CannedAcl::PublicReadWrite,
            CannedAcl::AuthenticatedRead,
        ] {
            let document = acl.document(&Owned { id: "OWNER", name: "name" });
            assert_eq!(parse(&document, "OWNER"), Ok(acl));
            assert_eq!(parse(&document, "OTHER"), Err(ErrorCode::NotImplemented));
        }
    }

    #[test]
    fn other_lists_are_refused() {
        let with = |grant: &str| {
            let text = format!(
                "<AccessControlPolicy><AccessControlList><Grant>{grant}</Grant></AccessControlList></AccessControlPolicy>"
            );
            parse(text.as_bytes(), "OWNER")
        };
        let own = "<Grantee><ID>OWNER</ID></Grantee>";
        assert_eq!(with(&format!("{own}<Permission>READ</Permission>")), Ok(CannedAcl::Private));
        for (grant, code) in [
            (format!("{own}<Permission>EAT</Permission>"), ErrorCode::MalformedACLError),
            ("<Permission>READ</Permission>".to_owned(), ErrorCode::MalformedACLError),
            (
                "<Grantee><EmailAddress>a@b</EmailAddress></Grantee>".to_owned(),
                ErrorCode::UnresolvableGrantByEmailAddress,
            ),
            (
                "<Grantee><ID>OTHER</ID></Grantee><Permission>READ</Permission>".to_owned(),
                ErrorCode::NotImplemented,
            ),
            (
                "<Grantee><ID>nobody</ID></Grantee><Permission>READ</Permission>".to_owned(),
                ErrorCode::InvalidArgument,
            ),
            (
                "<Grantee><URI>u</URI></Grantee><Permission>READ</Permission>".to_owned(),
                ErrorCode::NotImplemented,
            ),
        ] {
            assert_eq!(with(&grant), Err(code), "{grant}");
        }
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = parse(format!("<AccessControlPolicy>{content}</AccessControlPolicy>").as_bytes(), "OWNER");
        }
    }
}
