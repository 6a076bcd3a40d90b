//! Stored settings of a bucket as fields: each a tag, and bytes with their length.

use shoal_base::codec::{Reader, Truncated, put_prefixed};

/// Fields that are written.
#[derive(Default)]
pub(crate) struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// Adds a field.
    pub(crate) fn put(&mut self, tag: u8, bytes: impl AsRef<[u8]>) {
        self.0.push(tag);
        put_prefixed(&mut self.0, bytes.as_ref());
    }

    /// Adds a field that may be absent.
    pub(crate) fn put_some(&mut self, tag: u8, bytes: Option<impl AsRef<[u8]>>) {
        if let Some(bytes) = bytes {
            self.put(tag, bytes);
        }
    }

    /// The bytes.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Shows each field to `take`.
///
/// # Errors
/// [`Truncated`] for bytes that a [`FieldWriter`] does not write; those of `take`, which returns [`Truncated`] for a tag that it does not
/// know.
pub(crate) fn read_fields(
    bytes: &[u8],
    mut take: impl FnMut(u8, &[u8]) -> Result<(), Truncated>,
) -> Result<(), Truncated> {
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let tag = reader.u8()?;
        take(tag, reader.prefixed()?)?;
    }
    Ok(())
}

/// The text of a field.
pub(crate) fn text_of(bytes: &[u8]) -> Result<String, Truncated> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Truncated)
}

/// The bytes of a field of `N` bytes.
pub(crate) fn array_of<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Truncated> {
    bytes.try_into().map_err(|_| Truncated)
}
