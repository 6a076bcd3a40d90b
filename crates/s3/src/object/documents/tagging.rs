//! The tags of an object or a bucket.

use crate::answer::xml::XmlWriter;
use crate::body::xml::XmlReader;
use crate::object::tags::TagSet;
use crate::request::error::S3Result;

/// Reads at most `max` tags.
///
/// # Errors
/// `MalformedXML`, `InvalidTag`.
pub fn parse_tagging(bytes: &[u8], max: usize) -> S3Result<TagSet> {
    let mut pairs = Vec::new();
    XmlReader::document(bytes, "Tagging", |xml| {
        xml.children(|name, xml| if name == "TagSet" { tags(xml, &mut pairs) } else { Ok(()) })
    })?;
    TagSet::new(pairs, max)
}

/// Reads the tags in an element.
pub(super) fn tags(xml: &mut XmlReader<'_>, pairs: &mut Vec<(String, String)>) -> S3Result<()> {
    xml.children(|name, xml| {
        if name == "Tag" {
            pairs.push(tag(xml)?);
        }
        Ok(())
    })
}

/// Reads one tag.
pub(crate) fn tag(xml: &mut XmlReader<'_>) -> S3Result<(String, String)> {
    let mut pair = (String::new(), String::new());
    xml.children(|name, xml| {
        match name {
            "Key" => pair.0 = xml.text()?,
            "Value" => pair.1 = xml.text()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(pair)
}

/// The document that answers GetObjectTagging and GetBucketTagging.
#[must_use]
pub fn write_tagging(tags: &TagSet) -> Vec<u8> {
    XmlWriter::of("Tagging", |xml| {
        xml.element("TagSet", |xml| {
            for pair in tags.pairs() {
                write_tag(xml, pair);
            }
        });
    })
}

pub(crate) fn write_tag(xml: &mut XmlWriter, (key, value): &(String, String)) {
    xml.element("Tag", |xml| {
        xml.leaf("Key", key);
        xml.leaf("Value", value);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::error::ErrorCode;

    proptest! {
        #[test]
        fn tags_round_trip_through_documents(key in "[^\\x00-\\x1f\u{7f}-\u{9f}\u{fffe}\u{ffff}]{1,20}", value in "[ -~]{0,20}") {
            let tags = TagSet::new(vec![(key, value)], 10).unwrap();
            prop_assert_eq!(parse_tagging(&write_tagging(&tags), 10), Ok(tags));
        }
    }

    #[test]
    fn number_and_form_of_tags_are_checked() {
        let tag = "<Tag><Key>a</Key><Value>1</Value></Tag>";
        let text = format!("<Tagging><TagSet>{tag}{tag}</TagSet></Tagging>");
        assert_eq!(parse_tagging(text.as_bytes(), 10).unwrap_err().code, ErrorCode::InvalidTag);
        assert_eq!(parse_tagging(b"<Tagging><TagSet/></Tagging>", 10), Ok(TagSet::default()));
        assert_eq!(parse_tagging(b"<Tag/>", 10).unwrap_err().code, ErrorCode::MalformedXML);
    }
}
