//! Attributes of an object beside its content type and its user metadata: tags with bytes that the store keeps without
//! interpreting them (`docs/format/object.md`).
//!
//! Attributes stay encoded: each has its tag (1 byte), the length of its value (LEB128) and the value; tags ascend from 1.
//! So the attributes that describe the value ([`Attributes::of_value`]) are a prefix.

use std::fmt;

use crate::codec::{Reader, Truncated, put_prefixed};

/// The tag of the ETag of the value.
const ETAG: u8 = 1;
/// The tag of the checksum of the value.
const CHECKSUM: u8 = 2;

/// The attributes of an object, sorted by tag.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// The tag of the ETag. It describes the value.
    pub const ETAG: u8 = ETAG;
    /// The tag of the checksum. It describes the value.
    pub const CHECKSUM: u8 = CHECKSUM;

    /// Reads encoded attributes.
    ///
    /// # Errors
    /// [`Truncated`] as [`check`](Self::check).
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        Self::check(bytes, u8::MAX)?;
        Ok(Self(bytes.to_vec()))
    }

    /// Checks encoded attributes with tags up to `tag_max`.
    ///
    /// # Errors
    /// [`Truncated`] if one is incomplete or has a larger tag, or if the tags do not ascend from 1.
    pub fn check(bytes: &[u8], tag_max: u8) -> Result<(), Truncated> {
        let (mut reader, mut last) = (Reader::new(bytes), 0);
        while !reader.is_empty() {
            let tag = reader.u8()?;
            reader.prefixed()?;
            if tag <= last || tag > tag_max {
                return Err(Truncated);
            }
            last = tag;
        }
        Ok(())
    }

    /// The encoded attributes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tags and values, in the order of tags.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut reader = Reader::new(&self.0);
        std::iter::from_fn(move || Some((reader.u8().ok()?, reader.prefixed().ok()?)))
    }

    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, tag: u8) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == tag).map(|(_, value)| value)
    }

    /// Sets an attribute, or removes it. Tags start at 1.
    pub fn set(&mut self, tag: u8, value: Option<&[u8]>) {
        assert!(tag > 0, "tags of attributes ascend from 1");
        let mut out = Vec::with_capacity(self.0.len() + value.map_or(0, |value| value.len() + 4));
        let mut put = |tag: u8, value: &[u8]| {
            out.push(tag);
            put_prefixed(&mut out, value);
        };
        self.iter().filter(|(found, _)| *found < tag).for_each(|(found, value)| put(found, value));
        if let Some(value) = value {
            put(tag, value);
        }
        self.iter().filter(|(found, _)| *found > tag).for_each(|(found, value)| put(found, value));
        self.0 = out;
    }

    /// The attributes that describe the value, encoded: ETag and checksum. An entry has them even if the metadata is stored
    /// before the value.
    #[must_use]
    pub fn of_value(&self) -> &[u8] {
        let mut reader = Reader::new(&self.0);
        let mut rest = self.0.len();
        while reader.u8().is_ok_and(|tag| tag <= CHECKSUM) && reader.prefixed().is_ok() {
            rest = reader.rest().len();
        }
        &self.0[..self.0.len() - rest]
    }

    /// Removes the attributes that describe the value.
    pub fn drop_of_value(&mut self) {
        self.0.drain(..self.of_value().len());
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_of_the_value_are_the_first_bytes() {
        let mut all = Attributes::default();
        all.set(200, Some(b"later"));
        assert_eq!((all.of_value(), all.get(Attributes::ETAG)), (&b""[..], None));
        all.set(Attributes::CHECKSUM, Some(&[5; 3]));
        all.set(Attributes::ETAG, Some(&[7; 2]));
        assert_eq!(all.as_bytes(), [&[1, 2, 7, 7, 2, 3, 5, 5, 5][..], &[200, 5], b"later"].concat());
        assert_eq!(all.of_value(), [1, 2, 7, 7, 2, 3, 5, 5, 5]);
        all.drop_of_value();
        assert_eq!(all.as_bytes(), [&[200, 5][..], b"later"].concat());
        all.set(200, None);
        assert!(all.is_empty() && all == Attributes::default());
    }

    #[test]
    fn invalid_attributes_are_refused() {
        for bytes in [&[1][..], &[1, 2, 0], &[0, 0], &[2, 0, 1, 0], &[1, 0, 1, 0], &[1, 0xFF]] {
            assert_eq!(Attributes::decode(bytes), Err(Truncated), "{bytes:?}");
        }
        assert_eq!(Attributes::check(&[1, 0, 3, 0], 2), Err(Truncated));
        assert_eq!(Attributes::check(&[1, 0, 2, 0], 2), Ok(()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(found) = Attributes::decode(&bytes) {
                prop_assert_eq!(found.as_bytes(), &bytes[..]);
                prop_assert!(Attributes::check(found.of_value(), CHECKSUM).is_ok());
            }
        }

        /// A map as the model.
        #[test]
        fn attributes_match_a_map(changes: Vec<(u8, Option<Vec<u8>>)>) {
            let (mut attributes, mut model) = (Attributes::default(), BTreeMap::new());
            for (tag, value) in changes {
                // Small numbers repeat, and some describe the value.
                let tag = tag % 5 + 1;
                attributes.set(tag, value.as_deref());
                match value {
                    Some(value) => _ = model.insert(tag, value),
                    None => _ = model.remove(&tag),
                }
                let pairs: Vec<_> = model.iter().map(|(tag, value)| (*tag, &value[..])).collect();
                prop_assert_eq!(attributes.iter().collect::<Vec<_>>(), pairs);
                prop_assert_eq!(Attributes::decode(attributes.as_bytes()), Ok(attributes.clone()));
            }
            attributes.drop_of_value();
            model.retain(|tag, _| *tag > CHECKSUM);
            prop_assert_eq!(attributes.iter().count(), model.len());
        }
    }
}
