//! Writes a tar in the format pax entry by entry.

use std::io::{self, Write};

use tar::{EntryType, Header};

use crate::attributes::extras::Extras;
use crate::attributes::{FileAttributes, FileKind};
use crate::tarball::records::{Records, show_time};
use crate::tarball::{BLOCK_BYTES, OWN_COMMENT, XATTR};

/// The size of a tar is a multiple of this, as GNU tar writes it.
const RECORD_BYTES: u64 = 10_240;
/// The permissions of an object without a mode.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;
/// The largest octal number in a header field of twelve bytes.
const OCTAL_MAX: u64 = 0o777_7777_7777;

/// An entry.
pub(crate) struct Entry<'a> {
    /// The key after the prefix.
    pub(crate) name: &'a [u8],
    pub(crate) attributes: FileAttributes,
    /// The target of a symlink.
    pub(crate) target: &'a [u8],
    pub(crate) extras: &'a Extras,
    /// The length of the content.
    pub(crate) bytes: u64,
}

/// A tar.
pub(crate) struct Writer<W> {
    out: W,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the global header that marks the tar as Shoal's.
    pub(crate) fn start(out: W) -> io::Result<Self> {
        let mut records = Records::default();
        records.push(b"comment", OWN_COMMENT);
        let mut own = Self { out, written: 0 };
        own.extended(EntryType::XGlobalHeader, b"shoal-export", &records)?;
        Ok(own)
    }

    /// Writes the headers of an entry. [`write`](Self::write) its content next, and [`pad`](Self::pad) it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a tar cannot represent the entry: nothing was written. Others are of the output.
    pub(crate) fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let records = entry.records()?;
        if !records.is_empty() {
            self.extended(EntryType::XHeader, entry.name, &records)?;
        }
        let header = entry.header();
        self.write(header.as_bytes())
    }

    /// Writes content of an entry.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Finishes an entry.
    pub(crate) fn pad(&mut self) -> io::Result<()> {
        self.zeros(BLOCK_BYTES as u64)
    }

    /// Finishes the tar.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.write(&[0; 2 * BLOCK_BYTES])?;
        self.zeros(RECORD_BYTES)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Zeros up to the next multiple of `unit`.
    fn zeros(&mut self, unit: u64) -> io::Result<()> {
        let missing = self.written.next_multiple_of(unit) - self.written;
        self.write(&vec![0; missing as usize])
    }

    fn extended(&mut self, kind: EntryType, name: &[u8], records: &Records) -> io::Result<()> {
        let body = records.body();
        let own_name = [b"PaxHeaders/", name].concat();
        let mut header = Header::new_ustar();
        fill(&mut header.as_old_mut().name, own_name.strip_suffix(b"/").unwrap_or(&own_name));
        set_numbers(&mut header, kind, FILE_MODE, body.len() as u64, 0);
        self.write(header.as_bytes())?;
        self.write(&body)?;
        self.pad()
    }
}

impl Entry<'_> {
    /// The records of the parts that do not fit in the header.
    fn records(&self) -> io::Result<Records> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        if self.name.is_empty() {
            return Err(invalid("its key has no bytes after the prefix"));
        }
        if self.name.contains(&0) {
            return Err(invalid("its name has a NUL byte"));
        }
        let is_link = self.attributes.kind == FileKind::Symlink;
        if is_link && (self.target.is_empty() || self.target.contains(&0)) {
            return Err(invalid("its value is no target of a symlink"));
        }
        let mut records = Records::default();
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        if !is_text(self.name) || !is_text(self.target) {
            records.push(b"hdrcharset", b"BINARY");
        }
        let fits = |bytes: &[u8]| bytes.len() <= 100 && bytes.is_ascii();
        if !fits(self.name) {
            records.push(b"path", self.name);
        }
        if is_link && !fits(self.target) {
            records.push(b"linkpath", self.target);
        }
        if self.header_seconds().is_none() {
            records.push(b"mtime", show_time(self.attributes.mtime_ns).as_bytes());
        }
        for (name, value) in self.extras.pairs().map_err(|why| invalid(&why))? {
            records.push(&[XATTR, name.as_bytes()].concat(), &value);
        }
        Ok(records)
    }

    /// The modification time, if it fits in the header exactly.
    fn header_seconds(&self) -> Option<u64> {
        let seconds = u64::try_from(self.attributes.mtime_ns / 1_000_000_000).ok()?;
        let is_whole = self.attributes.mtime_ns % 1_000_000_000 == 0;
        (is_whole && self.attributes.mtime_ns >= 0 && seconds <= OCTAL_MAX).then_some(seconds)
    }

    fn header(&self) -> Header {
        let (kind, mode) = match self.attributes.kind {
            FileKind::File => (EntryType::Regular, FILE_MODE),
            FileKind::Folder => (EntryType::Directory, FOLDER_MODE),
            FileKind::Symlink => (EntryType::Symlink, 0o777),
        };
        let seconds = self.attributes.mtime_ns.div_euclid(1_000_000_000).clamp(0, OCTAL_MAX.into());
        let mut header = Header::new_ustar();
        let fields = header.as_old_mut();
        fill(&mut fields.name, self.name);
        fill(&mut fields.linkname, self.target);
        let mode = self.attributes.permissions.unwrap_or(mode);
        // The cast is exact: the value is clamped.
        set_numbers(&mut header, kind, mode, self.bytes, seconds as u64);
        header
    }
}

/// Copies `bytes`, as far as they fit.
fn fill(field: &mut [u8], bytes: &[u8]) {
    field.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

fn set_numbers(header: &mut Header, kind: EntryType, mode: u32, bytes: u64, mtime: u64) {
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(bytes);
    header.set_mtime(mtime);
    header.set_cksum();
}
