//! Keys of another store, for a restore from its log.

use shoal_common::hidden_key::is_hidden;
use shoal_common::key::{ObjectKey, is_reserved, of_encoded};

use crate::bucket::{RECORD_PREFIX, is_record};

/// The thing that a key of a store's log names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedKey {
    /// An object, or the result of a write with a request id: a restored store has it.
    Object(ObjectKey),
    /// The record of this bucket, for [`Store::restore_bucket`](crate::Store::restore_bucket).
    Bucket(String),
    /// An upload, a part of one, or a note of the store about itself: a restored store does not have it.
    Own,
}

impl LoggedKey {
    /// The thing with this encoded key; `None` if no store has such a key.
    #[must_use]
    pub fn of(encoded: &[u8]) -> Option<Self> {
        if is_hidden(encoded) || is_reserved(encoded) {
            return Some(Self::Own);
        }
        let key = of_encoded(encoded)?;
        if is_record(&key) {
            let name = key.key().get(RECORD_PREFIX.len()..)?;
            return String::from_utf8(name.to_vec()).ok().map(Self::Bucket);
        }
        match ObjectKey::of_result(encoded) {
            Some(result) => Some(Self::Object(result)),
            None if key.is_system() => Some(Self::Own),
            None => Some(Self::Object(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::RequestId;
    use shoal_common::key::system_key;

    use super::*;
    use crate::bucket::record_key;
    use crate::testing::fixtures::{in_memory, key, open_in, options};

    #[test]
    fn each_key_of_a_log_is_known() {
        let store = open_in(&in_memory(), options(), crate::Environment::default());
        let object = key("a");
        assert_eq!(LoggedKey::of(object.encoded()), Some(LoggedKey::Object(object.clone())));
        let result = store.0.result_key(&object, RequestId { session: 1, sequence: 2 });
        assert_eq!(LoggedKey::of(result.encoded()), Some(LoggedKey::Object(result)));
        assert_eq!(LoggedKey::of(record_key("photos").encoded()), Some(LoggedKey::Bucket("photos".into())));
        assert_eq!(LoggedKey::of(system_key(b"closing").encoded()), Some(LoggedKey::Own));
        assert_eq!(LoggedKey::of(&[0xFF, 1]), Some(LoggedKey::Own));
        for wrong in [&b""[..], b"photos", b"photos\0", b"A b\0key"] {
            assert_eq!(LoggedKey::of(wrong), None, "{wrong:?}");
        }
    }
}
