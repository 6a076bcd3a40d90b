//! Lists the keys of a bucket.
//!
//! The entries of an answer are encoded as the store finds them, without a structure for each.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use shoal_api::{fields, v1};
use shoal_base::limits::KEY_BYTES_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{ListRequest, ListSink, ObjectInfo, check_bucket};

use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;
use crate::wire::put_prefix;

/// The entries of one page, in bytes: with the most common prefixes of a page they stay below the longest message. A thousand entries with
/// all the metadata that is allowed would not.
const ENTRIES_BYTES_MAX: usize = 3 << 20;

/// Numbers of the fields of a `ListResponse` and a `ListEntry`.
const ENTRIES: u32 = 1;
const KEY: u32 = 1;
const INFO: u32 = 2;

pub(crate) async fn list(request: Authenticated<Bytes>) -> Result<Box<Buffer>, Failure> {
    let (message, admitted) = request.take();
    let request = list_request(v1::ListRequest::decode(message).map_err(fields::not_protobuf)?)?;
    let store = admitted.to::<v1::List>(&request.bucket, &request.prefix)?;
    let mut answer = Answer { message: Vec::new(), bytes_max: ENTRIES_BYTES_MAX };
    let page = store.list_into(&request, &mut answer).await.map_err(|error| Failure::of(&error))?;
    // The fields that follow the entries.
    let rest = v1::ListResponse {
        entries: Vec::new(),
        common_prefixes: page.common_prefixes.into_iter().map(Into::into).collect(),
        next_start_after: page.next.map(Into::into),
        damaged: page.damaged.into_iter().map(convert::damaged).collect(),
    };
    rest.encode_raw(&mut answer.message);
    let mut message = Box::new(Buffer::from(answer.message));
    put_prefix(0, &mut message);
    Ok(message)
}

/// The entries of an answer as they are on the wire.
struct Answer {
    message: Vec<u8>,
    bytes_max: usize,
}

impl ListSink for Answer {
    fn take(&mut self, key: &[u8], info: ObjectInfo) -> bool {
        let info = convert::info(&info);
        let info_bytes = info.encoded_len();
        let entry_bytes = field_len(KEY, key.len()) + field_len(INFO, info_bytes);
        let message = &mut self.message;
        // The first entry always fits, so that each page makes progress.
        if !message.is_empty() && message.len() + field_len(ENTRIES, entry_bytes) > self.bytes_max {
            return false;
        }
        message.reserve(field_len(ENTRIES, entry_bytes));
        put_head(ENTRIES, entry_bytes, message);
        put_head(KEY, key.len(), message);
        message.extend_from_slice(key);
        put_head(INFO, info_bytes, message);
        info.encode_raw(message);
        true
    }
}

/// The bytes of a field of `bytes` with its number and length.
fn field_len(number: u32, bytes: usize) -> usize {
    key_len(number) + encoded_len_varint(bytes as u64) + bytes
}

/// Puts the number and the length of a field.
fn put_head(number: u32, bytes: usize, message: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, message);
    encode_varint(bytes as u64, message);
}

fn list_request(message: v1::ListRequest) -> Result<ListRequest, Failure> {
    let bucket = convert::bucket(&message.bucket);
    check_bucket(bucket).map_err(|error| Failure::of(&error))?;
    for (name, bytes) in [
        ("prefix", &message.prefix),
        ("delimiter", &message.delimiter),
        ("start_after", &message.start_after),
    ] {
        if bytes.len() > KEY_BYTES_MAX {
            let length = bytes.len();
            return Err(Failure::invalid(format!(
                "{name} has at most {KEY_BYTES_MAX} bytes; this one has {length}"
            )));
        }
    }
    Ok(ListRequest {
        bucket: bucket.to_owned(),
        prefix: message.prefix.into(),
        delimiter: message.delimiter.into(),
        start_after: message.start_after.into(),
        limit: message.page_size as usize,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_api::v1::failure::Kind;
    use shoal_base::object::EndTime;
    use shoal_engine::{Deadline, Lsn, Metadata};

    use super::*;

    fn info(version: u64, left_ns: Option<u64>, content_type: &str) -> ObjectInfo {
        ObjectInfo {
            version: Lsn(version),
            bytes: 1,
            modified_ns: version,
            expiry: left_ns.map(|left_ns| Deadline { end: EndTime::Wall(7), left_ns, at_ns: 7 }),
            metadata: Metadata { content_type: content_type.into(), ..Metadata::default() },
        }
    }

    proptest! {
        /// The bytes are equal to prost's.
        #[test]
        fn entries_match_prost(
            entries in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 1..300), any::<u64>(), any::<Option<u64>>(), "[a-z]{0,9}"),
                0..9,
            )
        ) {
            let mut answer = Answer { message: Vec::new(), bytes_max: usize::MAX };
            let mut whole = v1::ListResponse::default();
            for (key, version, left_ns, content_type) in entries {
                let info = info(version, left_ns, &content_type);
                prop_assert!(answer.take(&key, info.clone()));
                whole.entries.push(v1::ListEntry { key: key.into(), info: Some(convert::info(&info)) });
            }
            prop_assert_eq!(answer.message, whole.encode_to_vec());
        }
    }

    #[test]
    fn page_ends_before_the_entry_that_does_not_fit() {
        let mut one = Answer { message: Vec::new(), bytes_max: usize::MAX };
        assert!(one.take(b"a", info(1, None, "")));
        let bytes_max = one.message.len() * 2;
        let mut answer = Answer { message: Vec::new(), bytes_max };
        let taken = [b"a", b"b", b"c"].map(|key| answer.take(key, info(1, None, "")));
        assert_eq!((taken, answer.message.len()), ([true, true, false], bytes_max));
        // A page has an entry even if nothing fits.
        assert!(Answer { message: Vec::new(), bytes_max: 0 }.take(b"a", info(1, None, "")));
    }

    #[test]
    fn requests_are_checked() {
        let wrong = [
            v1::ListRequest { bucket: "A".into(), ..Default::default() },
            v1::ListRequest { prefix: vec![b'a'; 1025].into(), ..Default::default() },
        ];
        for request in wrong {
            assert_eq!(list_request(request).unwrap_err().kind(), Kind::Invalid);
        }
        let request = v1::ListRequest {
            prefix: "p".into(),
            delimiter: "/".into(),
            start_after: "s".into(),
            ..Default::default()
        };
        let request = list_request(request).unwrap();
        assert_eq!((request.bucket.as_str(), request.limit), ("default", 0));
        assert_eq!([&request.prefix[..], &request.delimiter, &request.start_after], [b"p", b"/", b"s"]);
    }
}
