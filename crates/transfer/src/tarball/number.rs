//! Numbers in the fields of a tar header.

/// The number in `field`: octal digits between blanks, or base 256 (two's complement, the highest bit of the first byte set), which
/// GNU tar writes for numbers with too many digits. An empty or blank field is 0. Bytes after the blank that follows the digits are
/// ignored.
///
/// Returns none if the field has neither form. A field has at most 12 bytes, so every number fits.
pub(crate) fn number(field: &[u8]) -> Option<i128> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => Some(base_256(field)),
        _ => octal(field),
    }
}

fn base_256(field: &[u8]) -> i128 {
    let mut bytes = field.iter();
    let first = i128::from(bytes.next().copied().unwrap_or_default());
    let top = (first & 0x3f) - (first & 0x40);
    bytes.fold(top, |number, &byte| number * 256 + i128::from(byte))
}

fn octal(field: &[u8]) -> Option<i128> {
    let is_blank = |byte: &u8| b"\0 ".contains(byte);
    let mut bytes = field.iter().skip_while(|byte| is_blank(byte)).take_while(|byte| !is_blank(byte));
    bytes.try_fold(0, |number, &byte| {
        b"01234567".contains(&byte).then(|| number * 8 + i128::from(byte - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn octal_and_base_256_are_read_and_other_forms_are_not() {
        for (field, expected) in [
            (&b"00000000017\0"[..], Some(15)),
            (b"     17 \0   ", Some(15)),
            (b"\x0000017", Some(15)),
            (b"17\0garbage", Some(15)),
            (b"777777777777", Some(0o777_777_777_777)),
            (b"            ", Some(0)),
            (b"\0\0\0\0", Some(0)),
            (b"", Some(0)),
            (b"8", None),
            (b"-1", None),
            (b"0x1", None),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", Some(1 << 64)),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x02", Some(258)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }

    proptest! {
        #[test]
        fn no_field_panics(field in prop::collection::vec(any::<u8>(), 0..13)) {
            let _ = number(&field);
        }
    }
}
