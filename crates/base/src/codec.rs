//! Reads and writes little-endian fields and LEB128 numbers in byte slices that come from outside.
//!
//! A [`Reader`] never panics: for any bytes, it returns a value or [`Truncated`].

use std::fmt;

/// The bytes ended before the field, or a number had more than ten bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated;

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes end before the field does")
    }
}

impl std::error::Error for Truncated {}

/// Takes fields off the front of a byte slice.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes that are not read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Returns true if everything has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Truncated> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next two bytes, little-endian.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes, little-endian.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes, little-endian.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next LEB128 number.
    ///
    /// # Errors
    /// [`Truncated`] if it is incomplete, or does not fit in 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Truncated> {
        let mut value = 0_u64;
        for (index, &byte) in self.0.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7F);
            if index == 9 && bits > 1 {
                return Err(Truncated);
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = self.0.get(index + 1..).unwrap_or(&[]);
                return Ok(value);
            }
        }
        Err(Truncated)
    }

    /// A LEB128 length and that many bytes.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left.
    pub fn prefixed(&mut self) -> Result<&'a [u8], Truncated> {
        let count = usize::try_from(self.varint()?).map_err(|_| Truncated)?;
        self.bytes(count)
    }
}

/// Appends `value` as LEB128: seven bits a byte, least significant first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length of `bytes` as LEB128 and then `bytes`.
pub fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes that [`put_varint`] takes for `value`: 1 to 10.
#[must_use]
pub const fn varint_bytes(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_announce_their_size() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1_u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_bytes(value));
                let mut reader = Reader::new(&out);
                assert_eq!(reader.rest(), out);
                assert_eq!(reader.varint(), Ok(value));
                assert!(reader.is_empty());
                for cut in 0..out.len() {
                    assert_eq!(Reader::new(&out[..cut]).varint(), Err(Truncated));
                }
            }
        }
        assert_eq!(Reader::new(&[0xFF; 11]).varint(), Err(Truncated));
        assert_eq!(
            Reader::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2]).varint(),
            Err(Truncated)
        );
    }

    #[test]
    fn decoded_lengths_stay_in_bounds() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert_eq!(Reader::new(&out).prefixed(), Err(Truncated));
        assert_eq!(Reader::new(&[3, 1, 2]).prefixed(), Err(Truncated));
        assert_eq!(Reader::new(&[2, 1, 2]).prefixed(), Ok(&[1_u8, 2][..]));
        assert_eq!(Truncated.to_string(), "the bytes end before the field does");
    }
}
