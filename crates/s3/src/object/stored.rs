//! Metadata as the store has it. This file is all that the service knows of that form: attributes travel as one pair of user
//! metadata, whose name no header can have.

use bytes::Bytes;
use shoal_engine::{Metadata, ObjectInfo};

use super::metadata::ExtendedMetadata;

/// The name of the pair with the attributes.
const ATTRIBUTES: &str = "\u{1}s3";

/// The metadata to store.
pub(crate) fn stored(metadata: &ExtendedMetadata) -> Metadata {
    let attributes = metadata.attribute_bytes();
    let mut user = Vec::with_capacity(metadata.user.len() + 1);
    if !attributes.is_empty() {
        user.push((ATTRIBUTES.to_owned(), Bytes::from(attributes)));
    }
    user.extend(metadata.user.iter().cloned());
    Metadata { content_type: metadata.content_type.clone(), user }
}

/// The metadata of an object. Attributes that are not valid count as absent.
pub(crate) fn extended_of(info: &ObjectInfo) -> ExtendedMetadata {
    let Metadata { content_type, user } = &info.metadata;
    let (own, others): (Vec<_>, Vec<_>) = user.iter().cloned().partition(|(name, _)| name == ATTRIBUTES);
    let attributes = own.first().map_or(&[][..], |(_, value)| value);
    ExtendedMetadata::of_parts(content_type.clone(), others, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::etag::ObjectEtag;

    #[test]
    fn metadata_round_trips_and_damaged_attributes_are_absent() {
        let mut metadata = ExtendedMetadata::default();
        metadata.content_type = "a/b".to_owned();
        metadata.user = vec![("k".to_owned(), Bytes::from_static(b"v"))];
        metadata.set_of_value(&ObjectEtag::Md5([7; 16]), None);
        let mut info = ObjectInfo { metadata: stored(&metadata), ..ObjectInfo::default() };
        assert_eq!(extended_of(&info), metadata);
        info.metadata.user[0].1 = Bytes::from_static(b"\x01\xff");
        let found = extended_of(&info);
        assert_eq!((found.etag(1, 2), found.user.len()), (ObjectEtag::Version(1, 2), 1));
        assert_eq!(stored(&ExtendedMetadata::default()), Metadata::default());
    }
}
