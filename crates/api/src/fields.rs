//! The fields of a message in one piece, parsed one by one in place: for messages of many short parts, because prost would
//! allocate a structure for each.

use prost::encoding::{WireType, decode_key, decode_varint};
use tonic::Status;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A number, or a choice.
    Number(u64),
    /// Bytes, text, or a message.
    Bytes(&'a [u8]),
    /// A number of fixed length: no message here has one.
    Fixed,
}

/// The fields of `message`, in the order in which they were sent; stops after the first error.
#[derive(Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of a message.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The bytes that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn field(&mut self) -> Result<(u32, Field<'a>), Status> {
        let (number, wire_type) = decode_key(&mut self.rest).map_err(not_protobuf)?;
        let field = match wire_type {
            WireType::Varint => Field::Number(decode_varint(&mut self.rest).map_err(not_protobuf)?),
            WireType::LengthDelimited => {
                let bytes = decode_varint(&mut self.rest).map_err(not_protobuf)?;
                Field::Bytes(self.take(usize::try_from(bytes).unwrap_or(usize::MAX))?)
            }
            WireType::ThirtyTwoBit => self.take(4).map(|_| Field::Fixed)?,
            WireType::SixtyFourBit => self.take(8).map(|_| Field::Fixed)?,
            WireType::StartGroup | WireType::EndGroup => return Err(not_protobuf("it has a group")),
        };
        Ok((number, field))
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Status> {
        let split = self.rest.split_at_checked(bytes);
        let (taken, rest) = split.ok_or_else(|| not_protobuf("it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), Status>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// The refusal of bytes that are not a message.
pub fn not_protobuf(why: impl std::fmt::Display) -> Status {
    Status::internal(format!("the message is not protobuf: {why}"))
}

/// The bytes of a field of bytes.
pub fn bytes_of(field: Field<'_>) -> Result<&[u8], Status> {
    match field {
        Field::Bytes(bytes) => Ok(bytes),
        Field::Number(_) | Field::Fixed => Err(not_protobuf("a field has another type")),
    }
}

/// The text of a field of text.
pub fn text_of(field: Field<'_>) -> Result<&str, Status> {
    std::str::from_utf8(bytes_of(field)?).map_err(|_| not_protobuf("a text is not UTF-8"))
}

/// The number of a numeric field.
pub fn number_of(field: Field<'_>) -> Result<u64, Status> {
    match field {
        Field::Number(number) => Ok(number),
        Field::Bytes(_) | Field::Fixed => Err(not_protobuf("a field has another type")),
    }
}

#[cfg(test)]
mod tests {
    use crate::v1;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    proptest! {
        /// The reader finds every field that prost wrote.
        #[test]
        fn fields_match_prost(
            number in 1_u64.., key in prop::collection::vec(any::<u8>(), 1..40), name in "[a-z]{1,9}"
        ) {
            let operation = v1::Operation { number, key: key.clone().into(), ..Default::default() };
            let request = v1::OperationsRequest { bucket: name.clone(), operations: vec![operation] };
            let message = request.encode_to_vec();
            let fields: Vec<_> = Fields::of(&message).map(Result::unwrap).collect();
            let &[(1, bucket), (2, Field::Bytes(operation))] = &fields[..] else { panic!("{fields:?}") };
            prop_assert_eq!(text_of(bucket).unwrap(), name);
            let fields: Vec<_> = Fields::of(operation).map(Result::unwrap).collect();
            prop_assert_eq!(&fields[..], &[(1, Field::Number(number)), (3, Field::Bytes(&key))]);
        }

        /// Reading any bytes terminates, and the reader refuses the forms that prost refuses.
        #[test]
        fn malformed_fields_fail_as_in_prost(
            bytes in prop::collection::vec(any::<u8>(), 0..60), cut in 0..60_usize
        ) {
            let valid = v1::GetRequest { bucket: "b".into(), key: bytes.clone().into(), ..Default::default() };
            let valid = valid.encode_to_vec();
            for message in [&bytes[..], &valid[..cut.min(valid.len())]] {
                let is_whole = Fields::of(message).all(|field| field.is_ok());
                if is_whole {
                    continue;
                }
                let has_group = Fields::of(message).any(
                    |field| field.is_err_and(|error| error.message().contains("group")));
                prop_assert!(has_group || v1::PutResponse::decode(message).is_err());
            }
        }
    }
}
