//! CreateBucket.

use crate::body::xml::XmlReader;
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// Checks the document, which may be absent: the location must be this store's region or empty.
///
/// # Errors
/// `IllegalLocationConstraintException`, `NotImplemented`, `MalformedXML`.
pub fn check_create_bucket(bytes: &[u8], region: &str) -> S3Result<()> {
    if bytes.trim_ascii().is_empty() {
        return Ok(());
    }
    XmlReader::document(bytes, "CreateBucketConfiguration", |xml| {
        xml.children(|name, xml| match name {
            "LocationConstraint" => {
                let location = xml.word()?;
                if location.is_empty() || location == region {
                    return Ok(());
                }
                let why = format!("The location constraint must be {region}.");
                let error = S3Error::new(ErrorCode::IllegalLocationConstraintException, why);
                Err(error.with("LocationConstraint", location))
            }
            "Location" | "Bucket" => Err(S3Error::not_implemented("A directory bucket")),
            "Tags" => Err(S3Error::not_implemented("Tags in CreateBucketConfiguration")),
            _ => Ok(()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_location_is_ours_or_absent() {
        let check = |inner: &str| {
            let text = format!("<CreateBucketConfiguration>{inner}</CreateBucketConfiguration>");
            check_create_bucket(text.as_bytes(), "us-east-1").map_err(|error| error.code)
        };
        assert_eq!(check_create_bucket(b" \n", "us-east-1"), Ok(()));
        for inner in ["", "<LocationConstraint/>", "<LocationConstraint>us-east-1</LocationConstraint>"] {
            assert_eq!(check(inner), Ok(()), "{inner}");
        }
        let other = check("<LocationConstraint>eu-west-1</LocationConstraint>");
        assert_eq!(other, Err(ErrorCode::IllegalLocationConstraintException));
        assert_eq!(check("<Bucket/>"), Err(ErrorCode::NotImplemented));
        assert!(check_create_bucket(b"<A/>", "us-east-1").is_err());
    }
}
