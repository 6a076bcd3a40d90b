//! The checksums that S3 knows.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use ring::digest;

/// An algorithm. The numbers are those of the stored attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumAlgorithm {
    /// CRC-32 (ISO-HDLC).
    Crc32 = 1,
    /// CRC-32C (Castagnoli).
    Crc32c = 2,
    /// CRC-64/NVME.
    Crc64Nvme = 3,
    /// SHA-1.
    Sha1 = 4,
    /// SHA-256.
    Sha256 = 5,
}

impl ChecksumAlgorithm {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// The name in headers like `x-amz-checksum-algorithm`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// The header or trailer with a value.
    #[must_use]
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// The element with a value in XML.
    #[must_use]
    pub const fn element(self) -> &'static str {
        match self {
            Self::Crc32 => "ChecksumCRC32",
            Self::Crc32c => "ChecksumCRC32C",
            Self::Crc64Nvme => "ChecksumCRC64NVME",
            Self::Sha1 => "ChecksumSHA1",
            Self::Sha256 => "ChecksumSHA256",
        }
    }

    /// The algorithm with this name, in any case.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// The algorithm with this stored number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| *algorithm as u8 == number)
    }

    /// Bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The CRC's parameters; `None` for a hash, whose parts do not combine.
    const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }
}

/// A value of one of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumValue {
    algorithm: ChecksumAlgorithm,
    /// The value, and zeros after it.
    bytes: [u8; 32],
}

impl ChecksumValue {
    /// A value with exactly the algorithm's length.
    #[must_use]
    pub fn new(algorithm: ChecksumAlgorithm, value: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        bytes
            .get_mut(..algorithm.bytes())?
            .copy_from_slice(Some(value).filter(|it| it.len() == algorithm.bytes())?);
        Some(Self { algorithm, bytes })
    }

    /// Reads the value of a header.
    #[must_use]
    pub fn parse(algorithm: ChecksumAlgorithm, text: &str) -> Option<Self> {
        Self::new(algorithm, &STANDARD.decode(text).ok()?)
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> ChecksumAlgorithm {
        self.algorithm
    }

    /// The bytes, CRCs in big-endian order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.bytes()]
    }

    /// The value of a header.
    #[must_use]
    pub fn text(&self) -> String {
        STANDARD.encode(self.as_bytes())
    }

    fn of_crc(algorithm: ChecksumAlgorithm, crc: u64) -> Self {
        let mut bytes = [0; 32];
        let count = algorithm.bytes();
        bytes[..count].copy_from_slice(&crc.to_be_bytes()[8 - count..]);
        Self { algorithm, bytes }
    }

    fn as_crc(&self) -> u64 {
        self.as_bytes().iter().take(8).fold(0, |crc, byte| (crc << 8) | u64::from(*byte))
    }

    /// The checksum of this value's bytes followed by `next_bytes` bytes with the checksum `next`. `None` for hashes, and
    /// for two algorithms.
    #[must_use]
    pub fn followed_by(&self, next: &Self, next_bytes: u64) -> Option<Self> {
        let crc = self.algorithm.crc().filter(|_| self.algorithm == next.algorithm)?;
        let combined = crc_fast::checksum_combine(crc, self.as_crc(), next.as_crc(), next_bytes);
        Some(Self::of_crc(self.algorithm, combined))
    }

    /// The composite checksum of an upload: that of its parts' values, one after the other. `None` without parts, or if one
    /// has another algorithm.
    #[must_use]
    pub fn composite(parts: &[Self]) -> Option<Self> {
        let algorithm = parts.first()?.algorithm;
        let mut hasher = ChecksumHasher::new(algorithm);
        for part in parts {
            if part.algorithm != algorithm {
                return None;
            }
            hasher.update(part.as_bytes());
        }
        Some(hasher.finish())
    }
}

/// Computes a checksum piece by piece.
pub struct ChecksumHasher {
    algorithm: ChecksumAlgorithm,
    state: HasherState,
}

enum HasherState {
    Crc(crc_fast::Digest),
    Hash(digest::Context),
}

impl ChecksumHasher {
    /// The checksum of nothing so far.
    #[must_use]
    pub fn new(algorithm: ChecksumAlgorithm) -> Self {
        let state = match algorithm.crc() {
            Some(crc) => HasherState::Crc(crc_fast::Digest::new(crc)),
            None if algorithm == ChecksumAlgorithm::Sha1 => {
                HasherState::Hash(digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY))
            }
            None => HasherState::Hash(digest::Context::new(&digest::SHA256)),
        };
        Self { algorithm, state }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            HasherState::Crc(crc) => crc.update(bytes),
            HasherState::Hash(hash) => hash.update(bytes),
        }
    }

    /// The checksum of all bytes.
    #[must_use]
    pub fn finish(self) -> ChecksumValue {
        match self.state {
            HasherState::Crc(crc) => ChecksumValue::of_crc(self.algorithm, crc.finalize()),
            HasherState::Hash(hash) => {
                let mut bytes = [0; 32];
                bytes[..self.algorithm.bytes()].copy_from_slice(hash.finish().as_ref());
                ChecksumValue { algorithm: self.algorithm, bytes }
            }
        }
    }
}

impl std::fmt::Debug for ChecksumHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChecksumHasher").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(algorithm: ChecksumAlgorithm, bytes: &[u8]) -> ChecksumValue {
        let mut hasher = ChecksumHasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The check values of the catalogues of CRCs, and of `sha1sum` and `sha256sum`.
    #[test]
    fn known_values() {
        for (algorithm, text) in [
            (ChecksumAlgorithm::Crc32, "y/Q5Jg=="),
            (ChecksumAlgorithm::Crc32c, "4waSgw=="),
            (ChecksumAlgorithm::Crc64Nvme, "rosUhgp5mIg="),
            (ChecksumAlgorithm::Sha1, "98O8HYCOBHMq32eZZczDTKeuNEE="),
            (ChecksumAlgorithm::Sha256, "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ] {
            let value = of(algorithm, b"123456789");
            assert_eq!(value.text(), text, "{algorithm:?}");
            assert_eq!(ChecksumValue::parse(algorithm, &value.text()), Some(value));
            assert_eq!(ChecksumAlgorithm::of_number(algorithm as u8), Some(algorithm));
            assert_eq!(ChecksumAlgorithm::of_name(algorithm.name()), Some(algorithm));
        }
        let empty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        assert_eq!(of(ChecksumAlgorithm::Sha256, b"").text(), empty);
        assert_eq!(of(ChecksumAlgorithm::Sha1, b"").text(), "2jmj7l5rSw0yVb/vlWAYkK/YBwk=");
        for bad in ["", "y/Q5Jg", "y/Q5JgA=", "bad"] {
            assert_eq!(ChecksumValue::parse(ChecksumAlgorithm::Crc32, bad), None, "{bad}");
        }
    }

    #[test]
    fn crcs_of_parts_combine_and_hashes_do_not() {
        for algorithm in ChecksumAlgorithm::ALL {
            let (first, second) = (of(algorithm, b"1234"), of(algorithm, b"56789"));
            let whole = first.followed_by(&second, 5);
            assert_eq!(whole, (algorithm as u8 <= 3).then(|| of(algorithm, b"123456789")), "{algorithm:?}");
            let composite = ChecksumValue::composite(&[first, second]).unwrap();
            assert_eq!(composite, of(algorithm, &[first.as_bytes(), second.as_bytes()].concat()));
        }
        let mixed = [of(ChecksumAlgorithm::Crc32, b""), of(ChecksumAlgorithm::Crc32c, b"")];
        assert_eq!(ChecksumValue::composite(&mixed), None);
        assert_eq!(mixed[0].followed_by(&mixed[1], 0), None);
        assert_eq!(ChecksumValue::composite(&[]), None);
    }
}
