//! CompleteMultipartUpload.

use crate::body::checksum::{ChecksumAlgorithm, ChecksumValue};
use crate::body::xml::{XmlReader, malformed};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// The highest number of a part, and the most parts of an upload.
pub const PARTS_MAX: u16 = 10_000;

/// A part that the object shall consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedPart {
    /// Its number, 1 to 10,000.
    pub number: u16,
    /// Its ETag, as the client has it: quotes may be missing.
    pub etag: String,
    /// Its checksum, if the client sends one.
    pub checksum: Option<ChecksumValue>,
}

/// Reads the document: at least one part, in ascending order.
///
/// # Errors
/// `MalformedXML`, `InvalidPartOrder`, `InvalidPart`, `InvalidRequest`.
pub fn parse_completed_parts(bytes: &[u8]) -> S3Result<Vec<CompletedPart>> {
    let mut parts: Vec<CompletedPart> = Vec::new();
    XmlReader::document(bytes, "CompleteMultipartUpload", |xml| {
        xml.children(|name, xml| {
            if name != "Part" {
                return Ok(());
            }
            let part = part(xml)?;
            if parts.last().is_some_and(|last| last.number >= part.number) {
                return Err(ErrorCode::InvalidPartOrder.into());
            }
            parts.push(part);
            Ok(())
        })
    })?;
    if parts.is_empty() { Err(malformed("It has no part.")) } else { Ok(parts) }
}

fn part(xml: &mut XmlReader<'_>) -> S3Result<CompletedPart> {
    let (mut number, mut etag, mut checksum) = (None, None, None);
    xml.children(|name, xml| {
        match name {
            "PartNumber" => number = Some(xml.number::<u16>()?),
            "ETag" => etag = Some(xml.word()?),
            name => {
                let Some(algorithm) = ChecksumAlgorithm::ALL.into_iter().find(|it| it.element() == name)
                else {
                    return Ok(());
                };
                let value = ChecksumValue::parse(algorithm, &xml.word()?);
                let why = format!("The value of {name} is invalid.");
                checksum = Some(value.ok_or_else(|| S3Error::new(ErrorCode::InvalidRequest, why))?);
            }
        }
        Ok(())
    })?;
    let number = number.ok_or_else(|| malformed("A part has no number."))?;
    if !(1..=PARTS_MAX).contains(&number) {
        return Err(S3Error::from(ErrorCode::InvalidPart).with("PartNumber", number.to_string()));
    }
    let etag = etag.ok_or_else(|| malformed("A part has no ETag."))?;
    Ok(CompletedPart { number, etag, checksum })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part_text(number: &str, more: &str) -> String {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>\"e\"</ETag>{more}</Part>")
    }

    fn parse(parts: &str) -> Result<Vec<u16>, ErrorCode> {
        let text = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let parts = parse_completed_parts(text.as_bytes()).map_err(|error| error.code)?;
        Ok(parts.iter().map(|part| part.number).collect())
    }

    #[test]
    fn parts_ascend_and_checksums_are_read() {
        assert_eq!(parse(&[part_text("1", ""), part_text("7", "<Size>1</Size>")].concat()), Ok(vec![1, 7]));
        let text = part_text("1", "<ChecksumCRC32C>4waSgw==</ChecksumCRC32C>");
        let text = format!("<CompleteMultipartUpload>{text}</CompleteMultipartUpload>");
        let part = &parse_completed_parts(text.as_bytes()).unwrap()[0];
        assert_eq!((part.etag.as_str(), part.checksum.unwrap().text()), ("\"e\"", "4waSgw==".to_owned()));
        let all: String = (1..=10_000).map(|number| part_text(&number.to_string(), "")).collect();
        assert_eq!(parse(&all).unwrap().len(), 10_000);
    }

    #[test]
    fn wrong_parts_have_the_codes_of_s3() {
        for (parts, code) in [
            (String::new(), ErrorCode::MalformedXML),
            (part_text("x", ""), ErrorCode::MalformedXML),
            (part_text("0", ""), ErrorCode::InvalidPart),
            (part_text("10001", ""), ErrorCode::InvalidPart),
            (part_text("2", "") + &part_text("1", ""), ErrorCode::InvalidPartOrder),
            (part_text("1", "") + &part_text("1", ""), ErrorCode::InvalidPartOrder),
            ("<Part><PartNumber>1</PartNumber></Part>".to_owned(), ErrorCode::MalformedXML),
            (part_text("1", "<ChecksumSHA1>x</ChecksumSHA1>"), ErrorCode::InvalidRequest),
        ] {
            assert_eq!(parse(&parts), Err(code), "{parts}");
        }
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = parse(&format!("<Part>{content}</Part>"));
        }
    }
}
