//! DeleteObjects.

use crate::body::xml::{XmlReader, malformed};
use crate::object::conditions::{DeleteConditions, parse_date};
use crate::request::error::S3Result;

/// Most objects of one request.
pub const DELETE_OBJECTS_MAX: usize = 1_000;

/// One object of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectToDelete {
    /// The key, of any length.
    pub key: String,
    /// The version; `null` or absent for the only one.
    pub version_id: Option<String>,
    /// Conditions.
    pub conditions: DeleteConditions,
}

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectsToDelete {
    /// 1 to 1,000 objects.
    pub objects: Vec<ObjectToDelete>,
    /// The answer has errors only.
    pub is_quiet: bool,
}

impl ObjectsToDelete {
    /// Reads the document.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(bytes: &[u8]) -> S3Result<Self> {
        let mut found = Self::default();
        XmlReader::document(bytes, "Delete", |xml| {
            xml.children(|name, xml| {
                match name {
                    "Quiet" => found.is_quiet = xml.flag()?,
                    "Object" if found.objects.len() == DELETE_OBJECTS_MAX => {
                        return Err(malformed("It has more than 1,000 objects."));
                    }
                    "Object" => found.objects.push(object(xml)?),
                    _ => {}
                }
                Ok(())
            })
        })?;
        if found.objects.is_empty() { Err(malformed("It has no object.")) } else { Ok(found) }
    }
}

fn object(xml: &mut XmlReader<'_>) -> S3Result<ObjectToDelete> {
    let mut object = ObjectToDelete::default();
    xml.children(|name, xml| {
        match name {
            "Key" => object.key = xml.text()?,
            "VersionId" => object.version_id = Some(xml.word()?),
            "ETag" => object.conditions.etag = Some(xml.word()?),
            "Size" => object.conditions.bytes = Some(xml.number()?),
            "LastModifiedTime" => object.conditions.modified_s = Some(parse_date(&xml.word()?)?),
            _ => {}
        }
        Ok(())
    })?;
    if object.key.is_empty() { Err(malformed("An object has no key.")) } else { Ok(object) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_kept_as_they_are() {
        let text = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>\
            <Object><Key> a&#13;&amp; </Key></Object>\
            <Object><Key>b</Key><VersionId>null</VersionId><ETag>\"e\"</ETag><Size>5</Size>\
            <LastModifiedTime>2013-05-24T00:00:00Z</LastModifiedTime></Object></Delete>";
        let found = ObjectsToDelete::parse(text.as_bytes()).unwrap();
        assert!(found.is_quiet);
        assert_eq!(found.objects[0].key, " a\r& ");
        assert!(found.objects[0].conditions.is_empty());
        let second = &found.objects[1];
        assert_eq!(second.version_id.as_deref(), Some("null"));
        let (bytes, modified_s) = (Some(5), Some(1_369_353_600));
        assert_eq!(second.conditions, DeleteConditions { etag: Some("\"e\"".to_owned()), bytes, modified_s });
    }

    #[test]
    fn number_of_objects_is_bounded() {
        let with =
            |count: usize| format!("<Delete>{}</Delete>", "<Object><Key>k</Key></Object>".repeat(count));
        assert_eq!(ObjectsToDelete::parse(with(1_000).as_bytes()).unwrap().objects.len(), 1_000);
        for text in [with(0), with(1_001), "<Delete><Object/></Delete>".to_owned()] {
            assert!(ObjectsToDelete::parse(text.as_bytes()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = ObjectsToDelete::parse(format!("<Delete><Object>{content}</Object></Delete>").as_bytes());
        }
    }
}
