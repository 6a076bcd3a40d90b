//! The record of a bucket: settings that outlive its objects (`docs/format/object.md`).
//!
//! Most settings are items: tags with bytes that the store keeps without interpreting them.

use shoal_base::codec::{Reader, Truncated};
use shoal_base::object::Attributes;

use crate::error::{Error, Result};

/// Most bytes of a record. A policy of S3 has up to 20 KiB, and a lifecycle a thousand rules. All records are in memory.
pub const BUCKET_RECORD_BYTES_MAX: usize = 64 << 10;

/// The version of the record.
const VERSION: u8 = 1;
const CRC_ETAGS: u8 = 1 << 3;
const OBJECT_ACLS: u8 = 1 << 5;

/// The settings of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketConfig {
    /// The time of its creation, in nanoseconds since the Unix epoch. The store sets it.
    pub created_ns: u64,
    /// ETags of objects that are put over S3 are CRCs, not MD5s.
    pub has_crc_etags: bool,
    /// Objects of the bucket may have ACLs.
    pub has_object_acls: bool,
    /// The other settings.
    pub items: Attributes,
}

impl BucketConfig {
    /// The bytes of the record.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is longer than allowed.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = vec![VERSION, 0];
        out[1] |= if self.has_crc_etags { CRC_ETAGS } else { 0 };
        out[1] |= if self.has_object_acls { OBJECT_ACLS } else { 0 };
        out.extend_from_slice(&self.created_ns.to_le_bytes());
        out.extend_from_slice(self.items.as_bytes());
        if out.len() > BUCKET_RECORD_BYTES_MAX {
            let bytes = out.len();
            return Err(Error::Invalid(format!(
                "the settings of the bucket have {bytes} bytes; {BUCKET_RECORD_BYTES_MAX} are allowed"
            )));
        }
        Ok(out)
    }

    /// The settings in a record.
    ///
    /// # Errors
    /// The reason why this program cannot use them.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let invalid = |_: Truncated| "its record is not valid";
        let mut reader = Reader::new(bytes);
        let (version, flags) = (reader.u8().map_err(invalid)?, reader.u8().map_err(invalid)?);
        if version != VERSION || flags & !(CRC_ETAGS | OBJECT_ACLS) != 0 {
            return Err(
                "its record has settings that this program does not know: use the version of shoal that wrote it",
            );
        }
        let created_ns = reader.u64().map_err(invalid)?;
        if bytes.len() > BUCKET_RECORD_BYTES_MAX {
            return Err("its record is not valid");
        }
        let items = Attributes::decode(reader.rest()).map_err(invalid)?;
        let (has_crc_etags, has_object_acls) = (flags & CRC_ETAGS != 0, flags & OBJECT_ACLS != 0);
        Ok(Self { created_ns, has_crc_etags, has_object_acls, items })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_have_a_longest_length() {
        let mut config = BucketConfig::default();
        // Tag and length take four bytes, the other fields ten.
        config.items.set(3, Some(&vec![1; BUCKET_RECORD_BYTES_MAX - 14]));
        assert_eq!(config.encode().unwrap().len(), BUCKET_RECORD_BYTES_MAX);
        config.items.set(3, Some(&vec![1; BUCKET_RECORD_BYTES_MAX - 13]));
        assert!(config.encode().is_err());
    }

    #[test]
    fn records_of_later_programs_are_refused() {
        let record = BucketConfig::default().encode().unwrap();
        assert!(BucketConfig::decode(&record).is_ok());
        for (at, byte) in [(0, 2), (1, 1), (1, 4), (1, 16), (1, 128)] {
            let mut other = record.clone();
            other[at] = byte;
            assert!(BucketConfig::decode(&other).unwrap_err().contains("does not know"), "{at} {byte}");
        }
        for cut in 0..record.len() {
            assert!(BucketConfig::decode(&record[..cut]).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, is_of_this_version: bool) {
            let bytes = if is_of_this_version { [&[1, 8][..], &bytes].concat() } else { bytes };
            if let Ok(config) = BucketConfig::decode(&bytes) {
                prop_assert_eq!(config.encode().unwrap(), bytes);
            }
        }
    }
}
