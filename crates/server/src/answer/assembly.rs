//! Assembles an answer of many parts: short values are copied one after the other, longer ones are referred to.

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use shoal_buffer::Buffer;

use crate::wire::put_prefix;

/// Values of at most this length are copied. A longer one is referred to, and pins the memory around it, up to 64 KiB in the pool: so an
/// answer of many parts holds at most four times the bytes of its permit.
const COPY_BYTES_MAX: usize = 16 << 10;

/// The value of a part: its last field.
pub(crate) enum Value<'a> {
    None,
    /// To be copied.
    Short(&'a [u8]),
    /// Copied if it is short, taken if it is long.
    Chunks(&'a mut Buffer),
}

impl Value<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Short(bytes) => bytes.len(),
            Self::Chunks(buffer) => buffer.len(),
        }
    }
}

/// A message whose parts are its repeated fields.
pub(crate) struct Assembly(Box<Buffer>);

impl Assembly {
    /// An empty message, with memory for `bytes_guess`.
    pub(crate) fn new(bytes_guess: usize) -> Self {
        let mut message = Box::new(Buffer::new());
        message.reserve(bytes_guess);
        Self(message)
    }

    /// Bytes of the message so far.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds `part`, whose field `value_field` is `value`, as field `field`.
    pub(crate) fn add(&mut self, field: u32, part: &impl Message, value_field: u32, value: Value<'_>) {
        let message = &mut *self.0;
        let value_bytes = value.len();
        encode_key(field, WireType::LengthDelimited, message);
        encode_varint(part_len(part, value_field, value_bytes) as u64, message);
        part.encode_raw(message);
        if value_bytes == 0 {
            return;
        }
        encode_key(value_field, WireType::LengthDelimited, message);
        encode_varint(value_bytes as u64, message);
        match value {
            Value::None => {}
            Value::Short(bytes) => message.append_copy(bytes),
            Value::Chunks(buffer) if value_bytes <= COPY_BYTES_MAX => {
                buffer.chunks().for_each(|chunk| message.append_copy(chunk));
            }
            Value::Chunks(buffer) => message.append_buffer(std::mem::take(buffer)),
        }
    }

    /// The message after its prefix.
    pub(crate) fn finish(mut self) -> Box<Buffer> {
        put_prefix(0, &mut self.0);
        self.0
    }
}

/// Bytes of `part` with its value.
pub(crate) fn part_len(part: &impl Message, value_field: u32, value_bytes: usize) -> usize {
    let value = match value_bytes {
        0 => 0,
        bytes => key_len(value_field) + encoded_len_varint(bytes as u64) + bytes,
    };
    part.encoded_len() + value
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use shoal_api::v1;

    use super::*;

    proptest! {
        /// The bytes are equal to prost's, for values of any length.
        #[test]
        fn assembly_matches_prost(
            values in prop::collection::vec((0..20_000_usize, any::<bool>(), any::<u64>()), 0..9)
        ) {
            let mut assembly = Assembly::new(64);
            let mut whole = v1::OperationsResponse::default();
            for (bytes, is_short, number) in values {
                let value: Bytes = vec![number as u8; bytes].into();
                let part = v1::OperationResult { number, ..Default::default() };
                let mut chunks = Buffer::from(value.clone());
                let given = if is_short { Value::Short(&value) } else { Value::Chunks(&mut chunks) };
                assembly.add(1, &part, 15, given);
                whole.results.push(v1::OperationResult { value, ..part });
                prop_assert_eq!(assembly.len(), whole.encoded_len());
            }
            let message = whole.encode_to_vec();
            let expected = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            prop_assert_eq!(&assembly.finish().to_vec()[..], &expected[..]);
        }
    }

    /// A short range of a long value does not pin the memory of all of it while nobody takes the answer.
    #[test]
    fn short_values_pin_no_frames() {
        let unit: Bytes = vec![7; 64 << 10].into();
        let mut assembly = Assembly::new(64);
        let part = unit.slice(..COPY_BYTES_MAX);
        assembly.add(1, &v1::OperationResult::default(), 15, Value::Chunks(&mut part.into()));
        let held = unit.as_ptr_range();
        assert!(!assembly.finish().chunks().any(|chunk| held.contains(&chunk.as_ptr())));
    }

    #[test]
    fn long_values_are_not_copied() {
        let value: Bytes = vec![7; 64 << 10].into();
        let mut assembly = Assembly::new(64);
        assembly.add(1, &v1::OperationResult::default(), 15, Value::Chunks(&mut value.clone().into()));
        assert!(assembly.finish().chunks().any(|chunk| chunk.as_ptr() == value.as_ptr()));
    }
}
