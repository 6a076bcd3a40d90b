//! Between the messages and the store's types. What comes from outside is checked here, as far as the store does not do
//! that itself.

use bytes::{Bytes, BytesMut};
use shoal_api::v1;
use shoal_base::limits::{CONTENT_TYPE_BYTES_MAX, USER_METADATA_BYTES_MAX, VALUE_BYTES_SINGLE_MAX};
use shoal_buffer::Buffer;
use shoal_engine::{
    ByteRange, DEFAULT_BUCKET, Lsn, Metadata, ObjectInfo, ObjectKey, PutOptions, RejectRules,
};

use crate::failure::Failure;

/// The bucket that `bucket` names.
pub(crate) fn bucket(bucket: &str) -> &str {
    if bucket.is_empty() { DEFAULT_BUCKET } else { bucket }
}

pub(crate) fn object_key(bucket_name: &str, key: &[u8]) -> Result<ObjectKey, Failure> {
    ObjectKey::new(bucket(bucket_name), key).map_err(|error| Failure::of(&error))
}

pub(crate) fn rules(rules: Option<v1::RejectRules>) -> RejectRules {
    let rules = rules.unwrap_or_default();
    RejectRules {
        if_exists: rules.if_exists,
        if_missing: rules.if_missing,
        if_version_not: rules.if_version_not.map(Lsn),
        if_version_at_most: rules.if_version_at_most.map(Lsn),
    }
}

pub(crate) fn put_options(
    rules_message: Option<v1::RejectRules>,
    metadata_message: Option<v1::Metadata>,
    modified_ns: Option<u64>,
) -> Result<PutOptions, Failure> {
    Ok(PutOptions { rules: rules(rules_message), metadata: metadata(metadata_message)?, modified_ns })
}

fn metadata(metadata: Option<v1::Metadata>) -> Result<Metadata, Failure> {
    let v1::Metadata { content_type, user } = metadata.unwrap_or_default();
    if content_type.len() > CONTENT_TYPE_BYTES_MAX {
        let bytes = content_type.len();
        return Err(Failure::invalid(format!(
            "a content type has at most {CONTENT_TYPE_BYTES_MAX} bytes; this one has {bytes}"
        )));
    }
    let bytes: usize = user.iter().map(|entry| entry.name.len() + entry.value.len()).sum();
    if bytes > USER_METADATA_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "user metadata has at most {USER_METADATA_BYTES_MAX} bytes in all; this has {bytes}"
        )));
    }
    if user.iter().any(|entry| entry.name.is_empty()) {
        // Entries of no bytes at all would otherwise not be bounded by the sum.
        return Err(Failure::invalid("an entry of the user metadata has no name"));
    }
    let user = user.into_iter().map(|entry| (entry.name, entry.value.to_vec())).collect();
    Ok(Metadata { content_type, user })
}

/// A value that came in one message.
pub(crate) fn value(value: Bytes) -> Result<Buffer, Failure> {
    if value.len() as u64 > VALUE_BYTES_SINGLE_MAX {
        return Err(Failure::invalid(format!(
            "a value in one message has at most {VALUE_BYTES_SINGLE_MAX} bytes; this one has {}: use PutStream",
            value.len()
        )));
    }
    Ok(value.into())
}

pub(crate) fn range(range: Option<v1::ByteRange>) -> ByteRange {
    range.map_or(ByteRange::ALL, |range| ByteRange { first: range.first, bytes: range.bytes })
}

/// `range`, but at most `bytes_max` bytes of it.
pub(crate) fn capped(range: ByteRange, bytes_max: u64) -> ByteRange {
    ByteRange { bytes: Some(range.bytes.map_or(bytes_max, |bytes| bytes.min(bytes_max))), ..range }
}

pub(crate) fn info(info: &ObjectInfo) -> v1::ObjectInfo {
    let Metadata { content_type, user } = &info.metadata;
    let metadata = (!content_type.is_empty() || !user.is_empty()).then(|| v1::Metadata {
        content_type: content_type.clone(),
        user: user
            .iter()
            .map(|(name, value)| v1::UserMetadata { name: name.clone(), value: value.clone().into() })
            .collect(),
    });
    v1::ObjectInfo { version: info.version.0, bytes: info.bytes, modified_ns: info.modified_ns, metadata }
}

/// The bytes of `value` in one piece: copied only where it has several chunks.
pub(crate) fn contiguous(value: Buffer) -> Bytes {
    let mut chunks = value.into_chunks();
    let Some(first) = chunks.next() else { return Bytes::new() };
    let Some(second) = chunks.next() else { return first };
    let rest: Vec<Bytes> = chunks.collect();
    let bytes = first.len() + second.len() + rest.iter().map(Bytes::len).sum::<usize>();
    let mut whole = BytesMut::with_capacity(bytes);
    for chunk in [first, second].iter().chain(&rest) {
        whole.extend_from_slice(chunk);
    }
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(entries: &[(&str, usize)]) -> Option<v1::Metadata> {
        let entry = |&(name, bytes): &(&str, usize)| v1::UserMetadata {
            name: name.into(),
            value: vec![1; bytes].into(),
        };
        Some(v1::Metadata { content_type: String::new(), user: entries.iter().map(entry).collect() })
    }

    #[test]
    fn metadata_is_bounded() {
        assert!(metadata(user(&[("a", 2046), ("b", 0)])).is_ok());
        assert!(metadata(user(&[("a", 2047), ("b", 0)])).is_err());
        assert!(metadata(user(&[("", 1)])).is_err());
        let typed = |bytes| metadata(Some(v1::Metadata { content_type: "x".repeat(bytes), user: vec![] }));
        assert!(typed(255).is_ok() && typed(256).is_err());
    }

    #[test]
    fn one_chunk_is_not_copied() {
        let chunk = Bytes::from(vec![1, 2, 3]);
        assert_eq!(contiguous(chunk.clone().into()).as_ptr(), chunk.as_ptr());
        let mut buffer = Buffer::new();
        for part in [&b"ab"[..], b"c", b"defg", b"h"] {
            buffer.append_copy(part);
        }
        assert_eq!(contiguous(buffer), "abcdefgh");
        assert_eq!(contiguous(Buffer::new()), "");
    }

    #[test]
    fn ranges_are_capped() {
        assert_eq!(capped(ByteRange::ALL, 5), ByteRange { first: 0, bytes: Some(5) });
        assert_eq!(capped(ByteRange { first: 3, bytes: Some(2) }, 5), ByteRange { first: 3, bytes: Some(2) });
        assert_eq!(capped(ByteRange { first: 3, bytes: Some(9) }, 5), ByteRange { first: 3, bytes: Some(5) });
    }

    #[test]
    fn an_empty_bucket_is_the_default_one() {
        assert_eq!(object_key("", b"k").unwrap().bucket(), DEFAULT_BUCKET);
        assert!(object_key("Upper", b"k").is_err());
        assert!(object_key("b", b"").is_err());
    }
}
