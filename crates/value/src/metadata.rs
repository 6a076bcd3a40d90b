//! Metadata of an object as bytes: content type, attributes and user metadata (`docs/format/object.md`).

use bytes::Bytes;
use shoal_base::codec::{Reader, Truncated, put_prefixed, put_varint};
use shoal_base::limits::{CONTENT_TYPE_BYTES_MAX, METADATA_BYTES_MAX, USER_METADATA_BYTES_MAX};
use shoal_common::error::{Error, Result};
use shoal_common::object::{Attributes, Metadata};
use smallvec::SmallVec;

use crate::entry::{Meta, meta_fits_inline};

/// The attributes that describe the value, encoded, in bytes: an ETag and a checksum of S3 have at most 58. They are in the entry.
pub(crate) const VALUE_ATTRIBUTES_BYTES_MAX: usize = 64;

/// The first number of metadata with attributes: no content type is as long.
const HAS_ATTRIBUTES: u64 = CONTENT_TYPE_BYTES_MAX as u64 + 1;

/// Encodes an object's metadata; empty metadata has no bytes.
///
/// # Errors
/// [`Error::Invalid`] if it is longer than allowed.
pub fn encode_metadata(metadata: &Metadata) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if *metadata == Metadata::default() {
        return Ok(out);
    }
    check_lengths(metadata)?;
    if !metadata.attributes.is_empty() {
        put_varint(&mut out, HAS_ATTRIBUTES);
    }
    put_prefixed(&mut out, metadata.content_type.as_bytes());
    if !metadata.attributes.is_empty() {
        put_prefixed(&mut out, metadata.attributes.as_bytes());
    }
    for (name, value) in &metadata.user {
        put_prefixed(&mut out, name.as_bytes());
        put_prefixed(&mut out, value);
    }
    if out.len() > METADATA_BYTES_MAX {
        let bytes = out.len();
        return Err(Error::Invalid(format!(
            "the metadata has {bytes} bytes, attributes included; {METADATA_BYTES_MAX} are allowed"
        )));
    }
    Ok(out)
}

fn check_lengths(metadata: &Metadata) -> Result<()> {
    if metadata.content_type.len() > CONTENT_TYPE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "the content type has {} bytes; {CONTENT_TYPE_BYTES_MAX} are allowed",
            metadata.content_type.len()
        )));
    }
    let user_bytes: usize = metadata.user.iter().map(|(name, value)| name.len() + value.len()).sum();
    if user_bytes > USER_METADATA_BYTES_MAX || metadata.user.len() > USER_METADATA_BYTES_MAX / 8 {
        return Err(Error::Invalid(format!(
            "the user metadata has {user_bytes} bytes in {} pairs; {USER_METADATA_BYTES_MAX} bytes in {} pairs are allowed",
            metadata.user.len(),
            USER_METADATA_BYTES_MAX / 8
        )));
    }
    let bytes = metadata.attributes.of_value().len();
    if bytes > VALUE_ATTRIBUTES_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "attributes 1 and 2 have {bytes} bytes together; {VALUE_ATTRIBUTES_BYTES_MAX} are allowed"
        )));
    }
    Ok(())
}

/// The reverse of [`encode_metadata`].
///
/// # Errors
/// [`Truncated`].
#[inline]
pub fn decode_metadata(bytes: &[u8]) -> std::result::Result<Metadata, Truncated> {
    // Most objects have none.
    if bytes.is_empty() { Ok(Metadata::default()) } else { decode_some_metadata(bytes) }
}

fn decode_some_metadata(bytes: &[u8]) -> std::result::Result<Metadata, Truncated> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Truncated);
    let mut reader = Reader::new(bytes);
    let mut after_mark = reader;
    let has_attributes = after_mark.varint()? == HAS_ATTRIBUTES;
    if has_attributes {
        reader = after_mark;
    }
    let content_type = reader.prefixed()?;
    if content_type.len() > CONTENT_TYPE_BYTES_MAX {
        return Err(Truncated);
    }
    let mut metadata = Metadata { content_type: text(content_type)?, ..Metadata::default() };
    if has_attributes {
        metadata.attributes = Attributes::decode(reader.prefixed()?)?;
    }
    while !reader.is_empty() {
        let name = text(reader.prefixed()?)?;
        metadata.user.push((name, Bytes::copy_from_slice(reader.prefixed()?)));
    }
    Ok(metadata)
}

/// The place of `metadata`, whose bytes are `encoded`, beside a key of this length.
pub fn place_of_metadata(key_bytes: usize, metadata: &Metadata, encoded: &[u8]) -> Meta {
    if meta_fits_inline(key_bytes, encoded.len()) {
        return Meta::Inline(SmallVec::from_slice(encoded));
    }
    let summary = SmallVec::from_slice(metadata.attributes.of_value());
    assert!(summary.len() <= VALUE_ATTRIBUTES_BYTES_MAX, "encoded metadata has a short summary");
    Meta::InFront { bytes: encoded.len() as u32, summary }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_attributes(pairs: &[(u8, &[u8])]) -> Metadata {
        let mut metadata = Metadata { content_type: "a/b".into(), ..Metadata::default() };
        pairs.iter().for_each(|(tag, value)| metadata.attributes.set(*tag, Some(value)));
        metadata
    }

    fn round_trip(metadata: &Metadata) -> Vec<u8> {
        let bytes = encode_metadata(metadata).unwrap();
        assert_eq!(decode_metadata(&bytes), Ok(metadata.clone()));
        bytes
    }

    /// A plain put over S3 takes 22 bytes and its content type.
    #[test]
    fn golden_bytes_with_attributes() {
        let mut metadata = with_attributes(&[(Attributes::ETAG, &[7; 16])]);
        let expected = [&[0x80, 0x02, 3, b'a', b'/', b'b', 18, 1, 16][..], &[7; 16]].concat();
        assert_eq!(round_trip(&metadata), expected);
        metadata.user.push(("k".into(), Bytes::from_static(b"v")));
        assert_eq!(round_trip(&metadata), [&expected[..], &[1, b'k', 1, b'v']].concat());
    }

    /// Programs without attributes read it.
    #[test]
    fn metadata_without_attributes_has_the_earlier_form() {
        assert!(round_trip(&Metadata::default()).is_empty());
        let mut metadata = Metadata { content_type: "c".repeat(255), ..Metadata::default() };
        metadata.user.push(("k".into(), Bytes::from_static(b"\xFF")));
        let bytes = round_trip(&metadata);
        assert_eq!(bytes[..3], [0xFF, 0x01, b'c']);
        assert_eq!(bytes[257..], [1, b'k', 1, 0xFF]);
    }

    #[test]
    fn metadata_of_a_new_value_keeps_the_other_attributes() {
        let metadata = with_attributes(&[(1, b"etag"), (2, b"sum"), (3, b"no-cache"), (200, b"unknown")]);
        round_trip(&metadata);
        let other = with_attributes(&[(3, b"no-cache"), (200, b"unknown")]);
        assert_eq!(metadata.of_new_value(), other);
        assert_eq!(other.of_new_value(), other);
    }

    #[test]
    fn lengths_with_attributes_are_exact() {
        // Mark 2, content type 4, length 3, tag 1, length 3.
        let longest = METADATA_BYTES_MAX - 13;
        assert_eq!(round_trip(&with_attributes(&[(9, &vec![1; longest])])).len(), METADATA_BYTES_MAX);
        let refused = |metadata: &Metadata, why: &str| {
            let error = encode_metadata(metadata).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(&with_attributes(&[(9, &vec![1; longest + 1])]), "24577 bytes, attributes included; 24576");
        round_trip(&with_attributes(&[(1, &[1; 30]), (2, &[1; 30])]));
        refused(&with_attributes(&[(1, &[1; 30]), (2, &[1; 31])]), "65 bytes together; 64");
    }

    #[test]
    fn invalid_metadata_is_refused() {
        for bytes in [
            &[5, b'a'][..],
            &[0x80, 0x02],
            &[0x80, 0x02, 0],
            &[0x80, 0x02, 0, 4, 2, 0, 1, 0],
            &[0x80, 0x02, 0, 3, 2, 0, 1],
            &[1, 0xFF],
            &[&[0x81, 0x02][..], &[b'c'; 257]].concat(),
        ] {
            assert_eq!(decode_metadata(bytes), Err(Truncated), "{bytes:?}");
        }
    }

    /// The place depends on the length; the summary has the attributes of the value alone.
    #[test]
    fn metadata_before_the_value_leaves_its_summary() {
        let place = |metadata: &Metadata, key_bytes| {
            place_of_metadata(key_bytes, metadata, &encode_metadata(metadata).unwrap())
        };
        let long = with_attributes(&[(1, b"etag"), (3, &[b'c'; 300])]);
        let Meta::InFront { bytes, summary } = place(&long, 20) else { panic!("it is long") };
        assert_eq!(
            (bytes as usize, &summary[..]),
            (round_trip(&long).len(), &[1, 4, b'e', b't', b'a', b'g'][..])
        );
        let Meta::InFront { summary, .. } = place(&long.of_new_value(), 20) else { panic!("it is long") };
        assert!(summary.is_empty());
        let short = with_attributes(&[(1, b"etag")]);
        assert!(matches!(place(&short, 20), Meta::Inline(_)));
        assert!(matches!(place(&short, 1_180), Meta::InFront { .. }), "beside a long key");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, is_marked: bool) {
            let bytes = if is_marked { [&[0x80, 0x02][..], &bytes].concat() } else { bytes };
            if let Ok(metadata) = decode_metadata(&bytes)
                && let Ok(again) = encode_metadata(&metadata)
            {
                prop_assert_eq!(decode_metadata(&again), Ok(metadata));
            }
        }
    }
}
