//! Reads a tar entry by entry: ustar, long names and numbers of GNU, pax. Memory: one extended header of at most
//! [`EXTENDED_BYTES_MAX`]. `docs/operate/transfer.md` lists the rules; `tests/odd` compares them with other programs.

use std::borrow::Cow;
use std::io::{self, Read};

use bytes::Bytes;
use tar::Header;

use crate::attributes::extras::Extras;
use crate::tarball::number::number;
use crate::tarball::records::{Records, parse_time};
use crate::tarball::{BLOCK_BYTES, OWN_COMMENT};
use crate::text::show_key;

/// Maximum size of an extended header or long name: a key and its metadata take a few KiB.
const EXTENDED_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of a read.
const PIECE_BYTES: u64 = 1 << 20;
/// In sparse headers of GNU, the offset of the flag for another one.
const SPARSE_MORE_OFFSET: usize = 504;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    File,
    Folder,
    Symlink,
    /// Another name of an earlier entry.
    HardLink,
    /// A fifo or a device.
    Special(&'static str),
    /// A file with holes: its content is not its value.
    Sparse,
    /// The name of the archive.
    Label,
    /// An unknown type.
    Unknown(char),
}

/// An entry without its content.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As a key: of a folder, with a final `/`.
    pub(crate) name: Vec<u8>,
    pub(crate) is: Is,
    /// The target of a symlink, or the name of the entry that a hard link names.
    pub(crate) target: Vec<u8>,
    /// The attributes, or the reason why one of them is malformed.
    pub(crate) described: Result<Described, String>,
    /// Bytes of content; 0 for the types that have none.
    pub(crate) bytes: u64,
}

/// The attributes of an entry.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) permissions: u32,
    pub(crate) mtime_ns: i128,
    pub(crate) extras: Extras,
}

/// The tar cannot be read any further.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset}, {place}: {why}")]
pub(crate) struct Broken {
    why: String,
    offset: u64,
    place: String,
}

/// A tar.
pub(crate) struct Reader<R> {
    input: R,
    /// Bytes read so far.
    offset: u64,
    /// The name of the current entry.
    last: Option<Vec<u8>>,
    /// Its unread bytes, and those up to the next block.
    left: u64,
    padding: u64,
    globals: Records,
}

/// The extended headers of an entry.
#[derive(Default)]
struct Before {
    records: Records,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, offset: 0, last: None, left: 0, padding: 0, globals: Records::default() }
    }

    /// Skips the rest of the current entry and returns the next one; none at the end of the archive.
    ///
    /// # Errors
    /// The tar is truncated or damaged.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Broken> {
        while self.piece()?.is_some() {}
        let mut before = Before::default();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            match letter(&header) {
                b'g' => {
                    let records = self.records(&header)?;
                    self.globals.replace(records);
                    // They stay in memory, so their number must be bounded.
                    if self.globals.bytes() > EXTENDED_BYTES_MAX {
                        return Err(self.broken("the global headers are too long"));
                    }
                }
                // Solaris writes the letter X.
                b'x' | b'X' => before.records = self.records(&header)?,
                b'L' => before.name = Some(until_nul(&self.extended(&header)?)),
                b'K' => before.target = Some(until_nul(&self.extended(&header)?)),
                _ => return self.entry(&header, before).map(Some),
            }
        }
    }

    /// Returns true if an export wrote this tar, whose names are keys, byte by byte.
    pub(crate) fn is_own(&self) -> bool {
        self.globals.get(b"comment") == Some(OWN_COMMENT)
    }

    /// The next piece of the entry's content; none at its end.
    pub(crate) fn piece(&mut self) -> Result<Option<Bytes>, Broken> {
        if self.left == 0 {
            let mut padding = vec![0; self.padding as usize];
            self.fill(&mut padding)?;
            self.padding = 0;
            return Ok(None);
        }
        let mut piece = vec![0; self.left.min(PIECE_BYTES) as usize];
        self.fill(&mut piece)?;
        self.left -= piece.len() as u64;
        Ok(Some(piece.into()))
    }

    /// Reads to the end of the input, so that the program that writes it gets no broken pipe.
    ///
    /// # Errors
    /// There are bytes other than zeros.
    pub(crate) fn drain(mut self) -> Result<(), Broken> {
        let mut piece = vec![0; 64 << 10];
        loop {
            let read = self.read(&mut piece)?;
            if read == 0 {
                return Ok(());
            }
            if piece.iter().take(read).any(|&byte| byte != 0) {
                return Err(
                    self.broken("here is more data after the end of the archive, which was not imported")
                );
            }
            self.offset += read as u64;
        }
    }

    /// The next header; none at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, Broken> {
        let mut header = Header::new_old();
        let offset = self.offset;
        self.fill(header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if !is_whole(&header) {
            let why = match self.last {
                None if offset == 0 => "this is no tar; a compressed one is decompressed first",
                _ => "the header is damaged: its checksum is wrong",
            };
            return Err(Broken { offset, ..self.broken(why) });
        }
        Ok(Some(header))
    }

    fn entry(&mut self, header: &Header, before: Before) -> Result<Entry, Broken> {
        let records = self.globals.with(before.records);
        let text = |key: &[u8]| records.text(key).map(<[u8]>::to_vec);
        let name = text(b"GNU.sparse.name").or_else(|| text(b"path")).or(before.name);
        let mut name = name.unwrap_or_else(|| header.path_bytes().into_owned());
        self.last = Some(name.clone());
        let is = match kind(letter(header), &name) {
            Is::File if records.has_prefix(b"GNU.sparse.") => Is::Sparse,
            is => is,
        };
        let target = text(b"linkpath").or(before.target);
        let mut target = target.or_else(|| header.link_name_bytes().map(Cow::into_owned)).unwrap_or_default();
        if !self.is_own() {
            name = without_dots(name);
            if is == Is::HardLink {
                target = without_dots(target);
            }
        }
        if is == Is::Folder {
            without_slashes(&mut name);
            if !name.is_empty() {
                name.push(b'/');
            }
        }
        self.left = match is.has_content() {
            true => self.size(header, &records)?,
            false => 0,
        };
        self.padding = self.left.next_multiple_of(BLOCK_BYTES as u64) - self.left;
        if letter(header) == b'S' {
            self.skip_sparse_headers(header)?;
        }
        Ok(Entry { name, is, target, described: describe(header, &records), bytes: self.left })
    }

    /// The length of the content.
    fn size(&self, header: &Header, records: &Records) -> Result<u64, Broken> {
        let size = match records.text(b"size") {
            Some(size) => parse_size(size),
            None => number(&header.as_old().size).and_then(|size| u64::try_from(size).ok()),
        };
        // No file is longer. Sums of offsets cannot overflow.
        let size = size.filter(|&size| size <= i64::MAX as u64);
        size.ok_or_else(|| self.broken("its size is no number of bytes"))
    }

    fn skip_sparse_headers(&mut self, header: &Header) -> Result<(), Broken> {
        let mut more = header.as_gnu().is_some_and(tar::GnuHeader::is_extended);
        while more {
            let mut block = [0; BLOCK_BYTES];
            self.fill(&mut block)?;
            more = block.get(SPARSE_MORE_OFFSET) == Some(&1);
        }
        Ok(())
    }

    fn records(&mut self, header: &Header) -> Result<Records, Broken> {
        let body = self.extended(header)?;
        Records::parse(&body).ok_or_else(|| self.broken("the extended header is damaged"))
    }

    /// The body of an extended header or of a long name.
    fn extended(&mut self, header: &Header) -> Result<Vec<u8>, Broken> {
        let bytes = self.size(header, &Records::default())?;
        if bytes > EXTENDED_BYTES_MAX {
            return Err(self
                .broken(&format!("an extended header has {bytes} bytes, {EXTENDED_BYTES_MAX} are allowed")));
        }
        let mut body = vec![0; (bytes as usize).next_multiple_of(BLOCK_BYTES)];
        self.fill(&mut body)?;
        body.truncate(bytes as usize);
        Ok(body)
    }

    /// Fills `buffer` from the input.
    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), Broken> {
        while !buffer.is_empty() {
            let read = self.read(buffer)?;
            if read == 0 && self.offset < BLOCK_BYTES as u64 {
                return Err(self.broken("this is no tar: it ends in the first header"));
            }
            if read == 0 {
                return Err(self.broken("the tar is cut off"));
            }
            self.offset += read as u64;
            buffer = buffer.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Broken> {
        loop {
            match self.input.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| self.broken(&format!("cannot be read: {error}"))),
            }
        }
    }

    fn broken(&self, why: &str) -> Broken {
        let place = match &self.last {
            None => "before the first entry".to_owned(),
            Some(name) if self.left > 0 => format!("in the entry {:?}", show_key(name)),
            Some(name) => format!("after the entry {:?}", show_key(name)),
        };
        Broken { why: why.to_owned(), offset: self.offset, place }
    }
}

fn without_slashes(name: &mut Vec<u8>) {
    while name.last() == Some(&b'/') {
        name.pop();
    }
}

/// Returns true if the checksum is the sum of the bytes, unsigned or, as in some old programs, signed.
fn is_whole(header: &Header) -> bool {
    let bytes = header.as_bytes().iter().enumerate();
    let counted = bytes.map(|(at, &byte)| if (148..156).contains(&at) { b' ' } else { byte });
    let (mut plain, mut signed) = (0_i64, 0_i64);
    for byte in counted {
        plain += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    number(&header.as_old().cksum).is_some_and(|own| [plain, signed].map(i128::from).contains(&own))
}

/// The type field.
fn letter(header: &Header) -> u8 {
    header.as_old().linkflag.first().copied().unwrap_or_default()
}

impl Is {
    /// Returns true if content may follow the header. Other types have none, even if the header or an extended header has a size.
    fn has_content(self) -> bool {
        match self {
            Self::File | Self::Sparse | Self::Label | Self::Unknown(_) => true,
            Self::Folder | Self::Symlink | Self::HardLink | Self::Special(_) => false,
        }
    }
}

fn kind(letter: u8, name: &[u8]) -> Is {
    match letter {
        // Before ustar, a folder was a file with a final slash in its name.
        0 if name.ends_with(b"/") => Is::Folder,
        0 | b'0' | b'7' => Is::File,
        b'1' => Is::HardLink,
        b'2' => Is::Symlink,
        b'3' | b'4' => Is::Special("device"),
        b'5' => Is::Folder,
        b'6' => Is::Special("fifo"),
        b'S' => Is::Sparse,
        b'V' => Is::Label,
        _ => Is::Unknown(char::from(letter)),
    }
}

/// # Errors
/// A field is malformed.
fn describe(header: &Header, records: &Records) -> Result<Described, String> {
    let old = header.as_old();
    let mtime_ns = match records.text(b"mtime") {
        Some(time) => parse_time(time).ok_or_else(|| {
            format!("its time {:?} in the extended header is no number of seconds", show_key(time))
        })?,
        None => number(&old.mtime).ok_or("its time is no number")?.saturating_mul(1_000_000_000),
    };
    let mode = number(&old.mode).ok_or("its mode is no number")?;
    Ok(Described { permissions: (mode & 0o7777) as u32, mtime_ns, extras: records.extras()? })
}

fn parse_size(text: &[u8]) -> Option<u64> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    if is_number { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// The name without the leading `./` that `tar -C DIR .` writes.
fn without_dots(mut name: Vec<u8>) -> Vec<u8> {
    while name.starts_with(b"./") {
        let slashes = name.iter().skip(1).take_while(|&&byte| byte == b'/').count();
        name.drain(..=slashes);
    }
    if name == b"." { Vec::new() } else { name }
}

fn until_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tar::EntryType;

    use super::*;
    use crate::attributes::{FileAttributes, FileKind};
    use crate::tarball::writer::{self, Writer};

    fn tar(entries: &[(&str, FileKind, &str)]) -> Vec<u8> {
        let mut writer = Writer::start(Vec::new()).unwrap();
        for (name, kind, value) in entries {
            let attributes = FileAttributes { kind: *kind, permissions: Some(0o640), mtime_ns: -5 };
            let (target, value) = if *kind == FileKind::Symlink { (*value, "") } else { ("", *value) };
            let extras = &Extras::default();
            let (name, target, bytes) = (name.as_bytes(), target.as_bytes(), value.len() as u64);
            writer.entry(&writer::Entry { name, attributes, target, extras, bytes }).unwrap();
            writer.write(value.as_bytes()).and_then(|()| writer.pad()).unwrap();
        }
        writer.finish().unwrap()
    }

    /// A tar of another program; `change` changes its header.
    fn foreign(name: &str, change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.as_old_mut().name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        header.set_mode(0o644);
        header.set_size(0);
        header.set_entry_type(EntryType::Regular);
        change(&mut header);
        header.set_cksum();
        [&header.as_bytes()[..], &[0; 1024]].concat()
    }

    fn all(tar: &[u8]) -> Result<Vec<Entry>, Broken> {
        let mut reader = Reader::new(tar);
        let mut entries = Vec::new();
        while let Some(entry) = reader.next()? {
            entries.push(entry);
        }
        reader.drain()?;
        Ok(entries)
    }

    #[test]
    fn entries_come_back() {
        let long = "l".repeat(300);
        let given = [
            ("./a", FileKind::File, "value"),
            ("sub/", FileKind::Folder, ""),
            ("file/", FileKind::File, "v"),
            ("link", FileKind::Symlink, &long),
            (&long, FileKind::File, ""),
        ];
        let tar = tar(&given);
        assert_eq!(tar.len() % 10_240, 0);
        for (entry, (name, kind, value)) in all(&tar).unwrap().iter().zip(given) {
            assert_eq!(entry.name, name.as_bytes());
            let described = entry.described.as_ref().unwrap();
            assert_eq!((described.permissions, described.mtime_ns), (0o640, -5));
            let is = match kind {
                FileKind::File => Is::File,
                FileKind::Folder => Is::Folder,
                FileKind::Symlink => Is::Symlink,
            };
            assert_eq!(entry.is, is);
            let expected = if kind == FileKind::Symlink { value.as_bytes() } else { b"" };
            assert_eq!(
                (&entry.target[..], entry.bytes),
                (expected, if kind == FileKind::File { value.len() as u64 } else { 0 })
            );
        }
    }

    #[test]
    fn kinds_and_numbers_of_other_programs() {
        let one = |name: &str, change: fn(&mut Header)| all(&foreign(name, change)).unwrap().remove(0);
        assert_eq!(one("././/a", |_| ()).name, b"a");
        assert_eq!(one(".", |header| header.set_entry_type(EntryType::Directory)).name, b"");
        assert_eq!(one("d", |header| header.set_entry_type(EntryType::Directory)).name, b"d/");
        let old = one("d/", |header| header.as_old_mut().linkflag = [0]);
        assert_eq!((old.is, &old.name[..]), (Is::Folder, &b"d/"[..]));
        assert_eq!(one("s", |header| header.set_entry_type(EntryType::GNUSparse)).is, Is::Sparse);
        assert_eq!(one("c", |header| header.set_entry_type(EntryType::Char)).is, Is::Special("device"));
        assert_eq!(
            one("l", |header| {
                header.set_entry_type(EntryType::Link);
                header.set_size(9);
            })
            .bytes,
            0
        );
        assert_eq!(one("?", |header| header.as_old_mut().linkflag = *b"M").is, Is::Unknown('M'));
        assert_eq!(one("V", |header| header.as_old_mut().linkflag = *b"V").is, Is::Label);
        let before_1970 = one("t", |header| header.as_old_mut().mtime = [0xff; 12]);
        assert_eq!(before_1970.described.unwrap().mtime_ns, -1_000_000_000);
        assert_eq!(
            one("b", |header| header.as_old_mut().mode = *b"        ").described.unwrap().permissions,
            0
        );
        let no_number = all(&foreign("n", |header| header.as_old_mut().size = *b"abcdefghijkl"));
        assert!(no_number.unwrap_err().to_string().contains("its size is no number"));
        for (name, odd) in [
            ("mode", one("m", |header| header.as_old_mut().mode = *b"rw-r--r-")),
            ("time", one("t", |header| header.as_old_mut().mtime = *b"yesterday   ")),
        ] {
            assert_eq!(odd.described.unwrap_err(), format!("its {name} is no number"));
        }
        let long = all(&foreign("x", |header| {
            header.set_entry_type(EntryType::XHeader);
            header.set_size(1 << 30);
        }));
        assert!(long.unwrap_err().to_string().contains("1073741824 bytes"));
    }

    #[test]
    fn global_headers_do_not_pile_up() {
        let global = |key: &str| {
            let mut records = Records::default();
            records.push(key.as_bytes(), &vec![b'v'; 900_000]);
            let body = records.body();
            let mut one = foreign("g", |header| {
                header.set_entry_type(EntryType::XGlobalHeader);
                header.set_size(body.len() as u64);
            });
            one.truncate(BLOCK_BYTES);
            one.extend_from_slice(&body);
            one.resize(one.len().next_multiple_of(BLOCK_BYTES), 0);
            one
        };
        let of =
            |keys: &[&str]| all(&[keys.iter().flat_map(|key| global(key)).collect(), vec![0; 1024]].concat());
        assert!(of(&["k", "k", "k"]).is_ok(), "a record takes the place of the one before");
        assert!(of(&["k", "other"]).unwrap_err().to_string().contains("too long"));
    }

    proptest! {
        #[test]
        fn no_damage_panics(at in 0_usize..6000, byte in any::<u8>(), length in 0_usize..12_000) {
            let mut tar = tar(&[("a", FileKind::File, "value"), ("b/", FileKind::Folder, ""), (&"c".repeat(200), FileKind::File, "w")]);
            tar[at] = byte;
            tar.truncate(length);
            let _ = all(&tar);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = all(&bytes);
        }
    }
}
