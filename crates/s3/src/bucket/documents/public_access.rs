//! The public access block and the ownership controls of a bucket.

use crate::answer::xml::XmlWriter;
use crate::body::xml::{XmlReader, malformed};
use crate::request::error::S3Result;

/// Access that a bucket forbids, although its ACLs or its policy allow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicAccessBlock {
    /// A public ACL is refused when it is set.
    pub block_acls: bool,
    /// Public ACLs count as private.
    pub ignore_acls: bool,
    /// A public policy is refused when it is set.
    pub block_policy: bool,
    /// A public policy counts for keys of the store alone.
    pub restrict: bool,
}

impl PublicAccessBlock {
    /// Reads the document; a flag that is missing is false.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(bytes: &[u8]) -> S3Result<Self> {
        let mut block = Self::default();
        XmlReader::document(bytes, "PublicAccessBlockConfiguration", |xml| {
            xml.children(|name, xml| {
                match name {
                    "BlockPublicAcls" => block.block_acls = xml.flag()?,
                    "IgnorePublicAcls" => block.ignore_acls = xml.flag()?,
                    "BlockPublicPolicy" => block.block_policy = xml.flag()?,
                    "RestrictPublicBuckets" => block.restrict = xml.flag()?,
                    _ => {}
                }
                Ok(())
            })
        })?;
        Ok(block)
    }

    /// The document that answers GetPublicAccessBlock.
    #[must_use]
    pub fn document(&self) -> Vec<u8> {
        XmlWriter::of("PublicAccessBlockConfiguration", |xml| {
            xml.flag("BlockPublicAcls", self.block_acls);
            xml.flag("IgnorePublicAcls", self.ignore_acls);
            xml.flag("BlockPublicPolicy", self.block_policy);
            xml.flag("RestrictPublicBuckets", self.restrict);
        })
    }

    /// The stored byte: one bit for each flag.
    #[must_use]
    pub fn number(&self) -> u8 {
        let flags = [self.block_acls, self.ignore_acls, self.block_policy, self.restrict];
        flags.iter().rev().fold(0, |number, flag| (number << 1) | u8::from(*flag))
    }

    /// The flags of a stored byte; `None` for unknown bits.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        let bit = |bit: u8| number & (1 << bit) != 0;
        let block = Self { block_acls: bit(0), ignore_acls: bit(1), block_policy: bit(2), restrict: bit(3) };
        (number < 16).then_some(block)
    }
}

/// The owner of objects that others write. The numbers are those of the stored byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOwnership {
    /// The bucket's owner, and ACLs do not count.
    BucketOwnerEnforced = 1,
    /// The bucket's owner.
    BucketOwnerPreferred = 2,
    /// The writer.
    ObjectWriter = 3,
}

impl ObjectOwnership {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BucketOwnerEnforced, Self::BucketOwnerPreferred, Self::ObjectWriter];

    const fn name(self) -> &'static str {
        match self {
            Self::BucketOwnerEnforced => "BucketOwnerEnforced",
            Self::BucketOwnerPreferred => "BucketOwnerPreferred",
            Self::ObjectWriter => "ObjectWriter",
        }
    }

    /// Reads the document, which has one rule.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(bytes: &[u8]) -> S3Result<Self> {
        let mut found = None;
        XmlReader::document(bytes, "OwnershipControls", |xml| {
            xml.children(|_, xml| {
                xml.children(|name, xml| {
                    if name == "ObjectOwnership" {
                        found = Self::parse_name(&xml.word()?);
                    }
                    Ok(())
                })
            })
        })?;
        found.ok_or_else(|| malformed("It has no known ownership."))
    }

    /// The value of the header `x-amz-object-ownership`; `None` if it is unknown.
    #[must_use]
    pub fn parse_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ownership| ownership.name() == name)
    }

    /// The ownership of a stored byte.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|ownership| *ownership as u8 == number)
    }

    /// The document that answers GetBucketOwnershipControls.
    #[must_use]
    pub fn document(self) -> Vec<u8> {
        XmlWriter::of("OwnershipControls", |xml| {
            xml.element("Rule", |xml| xml.leaf("ObjectOwnership", self.name()));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_round_trip_through_document_and_byte() {
        for number in 0..16 {
            let block = PublicAccessBlock::of_number(number).unwrap();
            assert_eq!(block.number(), number);
            assert_eq!(PublicAccessBlock::parse(&block.document()), Ok(block));
        }
        assert_eq!(PublicAccessBlock::of_number(16), None);
        let text = "<PublicAccessBlockConfiguration><BlockPublicAcls>yes</BlockPublicAcls></PublicAccessBlockConfiguration>";
        assert!(PublicAccessBlock::parse(text.as_bytes()).is_err());
    }

    #[test]
    fn ownership_round_trips() {
        for ownership in ObjectOwnership::ALL {
            assert_eq!(ObjectOwnership::parse(&ownership.document()), Ok(ownership));
        }
        assert!(ObjectOwnership::parse(b"<OwnershipControls><Rule/></OwnershipControls>").is_err());
    }
}
