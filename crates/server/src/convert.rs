//! Conversions between the messages and the store's types. The store checks the contents: names, lengths, metadata.

use std::time::Duration;

use shoal_api::v1;
use shoal_engine::{
    ByteRange, DEFAULT_BUCKET, DamagedRange, Expiry, Lsn, Metadata, ObjectInfo, ObjectKey, PutOptions,
    RejectRules,
};

use shoal_metrics::note_key;

use crate::failure::Failure;

/// The bucket that `bucket` names.
pub(crate) fn bucket(bucket: &str) -> &str {
    if bucket.is_empty() { DEFAULT_BUCKET } else { bucket }
}

pub(crate) fn object_key(bucket_name: &str, key: &[u8]) -> Result<ObjectKey, Failure> {
    let bucket = bucket(bucket_name);
    note_key(bucket, key);
    ObjectKey::new(bucket, key).map_err(|error| Failure::of(&error))
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

/// The options of a put; the object's end is `(ttl_ns, expire_time_ns)`.
pub(crate) fn put_options(
    rules_message: Option<v1::RejectRules>,
    metadata: Option<v1::Metadata>,
    modified_ns: Option<u64>,
    end: (Option<u64>, Option<u64>),
) -> Result<PutOptions, Failure> {
    let v1::Metadata { content_type, user } = metadata.unwrap_or_default();
    let user = user.into_iter().map(|entry| (entry.name, entry.value)).collect();
    Ok(PutOptions {
        rules: rules(rules_message),
        metadata: Metadata { content_type, user, ..Metadata::default() },
        modified_ns,
        expiry: expiry(end)?,
    })
}

/// The expiry of a put's object: after a time to live that the server counts, or at a moment of the wall clock.
fn expiry(end: (Option<u64>, Option<u64>)) -> Result<Expiry, Failure> {
    match end {
        (None, None) => Ok(Expiry::Never),
        (Some(0), None) => Err(Failure::invalid("ttl_ns is 0: a time to live is above 0")),
        (Some(ttl_ns), None) => Ok(Expiry::After(Duration::from_nanos(ttl_ns))),
        (None, Some(at_ns)) => Ok(Expiry::At(at_ns)),
        (Some(_), Some(_)) => {
            Err(Failure::invalid("ttl_ns and expire_time_ns are both set: set one of them"))
        }
    }
}

pub(crate) fn range(range: Option<v1::ByteRange>) -> ByteRange {
    range.map_or(ByteRange::ALL, |range| ByteRange { first: range.first, bytes: range.bytes })
}

/// `range`, but at most `bytes_max` bytes of it.
pub(crate) fn capped(range: ByteRange, bytes_max: u64) -> ByteRange {
    ByteRange { bytes: Some(range.bytes.map_or(bytes_max, |bytes| bytes.min(bytes_max))), ..range }
}

pub(crate) fn info(info: &ObjectInfo) -> v1::ObjectInfo {
    let Metadata { content_type, user, .. } = &info.metadata;
    let metadata = (!content_type.is_empty() || !user.is_empty()).then(|| v1::Metadata {
        content_type: content_type.clone(),
        user: user
            .iter()
            .map(|(name, value)| v1::UserMetadata { name: name.clone(), value: value.clone() })
            .collect(),
    });
    v1::ObjectInfo {
        version: info.version.0,
        bytes: info.bytes,
        modified_ns: info.modified_ns,
        metadata,
        ttl_ns: info.expiry.map(|deadline| deadline.left_ns),
        expire_time_ns: info.expiry.map(|deadline| deadline.at_ns),
    }
}

pub(crate) fn damaged(range: DamagedRange) -> v1::DamagedRange {
    let DamagedRange { tablet, from, to, block, why } = range;
    v1::DamagedRange { tablet: tablet.0.into(), from: from.into(), to: to.map(Into::into), block, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_capped() {
        assert_eq!(capped(ByteRange::ALL, 5), ByteRange { first: 0, bytes: Some(5) });
        assert_eq!(capped(ByteRange { first: 3, bytes: Some(2) }, 5), ByteRange { first: 3, bytes: Some(2) });
        assert_eq!(capped(ByteRange { first: 3, bytes: Some(9) }, 5), ByteRange { first: 3, bytes: Some(5) });
    }

    #[test]
    fn only_one_expiry_form_is_accepted() {
        let second = Duration::from_secs(1);
        assert_eq!(expiry((None, None)).unwrap(), Expiry::Never);
        assert_eq!(expiry((Some(1_000_000_000), None)).unwrap(), Expiry::After(second));
        assert_eq!(expiry((None, Some(5))).unwrap(), Expiry::At(5));
        assert!(expiry((Some(0), None)).is_err() && expiry((Some(1), Some(5))).is_err());
    }

    #[test]
    fn an_empty_bucket_is_the_default_one() {
        assert_eq!(object_key("", b"k").unwrap().bucket(), DEFAULT_BUCKET);
        assert!(object_key("Upper", b"k").is_err());
        assert!(object_key("b", b"").is_err());
    }
}
