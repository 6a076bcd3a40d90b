//! Imports a tar.

use std::io::Read;

use bytes::{Bytes, BytesMut};
use shoal_base::limits::VALUE_BYTES_MAX;

use crate::attributes::extras::now_ns;
use crate::attributes::{FileAttributes, FileKind};
use crate::import::Import;
use crate::import::feed::Feeder;
use crate::report::TransferReport;
use crate::tarball::reader::{Broken, Described, Entry, Is, Reader};
use crate::text::{show_bytes, show_key};
use crate::tree::temporary::is_temporary;
use crate::work::BATCH_BYTES_MAX;

/// In a tar a file with holes is a map and the bytes between the holes.
const SPARSE: &str = "it is a sparse file; make the tar without --sparse (bsdtar: with --no-read-sparse)";

impl Import {
    /// Stores every entry of `input`, with `jobs` workers. Blocks: not for threads of the runtime.
    pub fn tar(&self, input: impl Read, jobs: u16) {
        self.feed(jobs, |feeder| {
            if let Err(broken) = take_all(Reader::new(input), feeder) {
                feeder.stop(&broken.to_string());
            }
        });
    }
}

fn take_all(mut reader: Reader<impl Read>, feeder: &mut Feeder<'_>) -> Result<(), Broken> {
    loop {
        match reader.next() {
            _ if feeder.report().is_stopped() => return Ok(()),
            Ok(Some(entry)) => take(&mut reader, &entry, feeder)?,
            Ok(None) => return reader.drain(),
            Err(broken) => return Err(broken),
        }
    }
}

fn take(reader: &mut Reader<impl Read>, entry: &Entry, feeder: &mut Feeder<'_>) -> Result<(), Broken> {
    // The label of the archive, and the root folder of the tar.
    if entry.is == Is::Label || entry.is == Is::Folder && entry.name.is_empty() {
        return Ok(());
    }
    let Some(key) = feeder.key(&entry.name) else { return Ok(()) };
    // Names in a tar of an export are keys, even if they look like temporary names.
    let own_name = entry.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if !reader.is_own() && is_temporary(own_name) {
        feeder.not_stored(&key);
        feeder.report().leftover(&show_key(&key));
        return Ok(());
    }
    match judge(entry, &show_key(&key), feeder.report()) {
        Some((Taken::Put(kind), described)) => return put(reader, entry, (key, kind, described), feeder),
        Some((Taken::Copy, _)) => feeder.copy(&entry.target, key),
        None => feeder.not_stored(&key),
    }
    Ok(())
}

/// How an entry is stored.
enum Taken {
    Put(FileKind),
    /// A hard link becomes a separate object with the value of the entry that it names.
    Copy,
}

/// Decides how an entry is stored. Reports it and returns none if it is not.
fn judge<'e>(entry: &'e Entry, name: &str, report: &TransferReport) -> Option<(Taken, &'e Described)> {
    let failed = |why: &str| {
        report.failed(name, why);
        None
    };
    let taken = match entry.is {
        Is::File if entry.bytes > VALUE_BYTES_MAX => {
            let (has, limit) = (show_bytes(entry.bytes), show_bytes(VALUE_BYTES_MAX));
            return failed(&format!("it has {has}; a value has at most {limit}"));
        }
        Is::File => Taken::Put(FileKind::File),
        Is::Folder => Taken::Put(FileKind::Folder),
        Is::Symlink => Taken::Put(FileKind::Symlink),
        Is::HardLink => Taken::Copy,
        Is::Special(kind) => {
            report.special(name, kind);
            return None;
        }
        Is::Sparse => return failed(SPARSE),
        Is::Label => return failed("it is the label of the archive"),
        Is::Unknown(letter) => return failed(&format!("its type {letter:?} is not known")),
    };
    match &entry.described {
        Ok(described) if described.extras.is_over(now_ns()) => {
            report.expired();
            None
        }
        Ok(described) => Some((taken, described)),
        Err(why) => failed(why),
    }
}

fn put(
    reader: &mut Reader<impl Read>,
    entry: &Entry,
    (key, kind, described): (Bytes, FileKind, &Described),
    feeder: &mut Feeder<'_>,
) -> Result<(), Broken> {
    let (permissions, mtime_ns) = (Some(described.permissions), described.mtime_ns);
    let options = described.extras.put_options(&FileAttributes { kind, permissions, mtime_ns });
    if feeder.report().manner().dry_run {
        let bytes = if kind == FileKind::Symlink { entry.target.len() as u64 } else { entry.bytes };
        feeder.report().would(kind, &key, bytes);
        return Ok(());
    }
    if kind == FileKind::Symlink {
        feeder.put(key, Bytes::from(entry.target.clone()), kind, options);
        return Ok(());
    }
    if entry.bytes > BATCH_BYTES_MAX {
        return feeder.put_pieces(&key, options, || reader.piece());
    }
    let mut value = BytesMut::with_capacity(entry.bytes as usize);
    while let Some(piece) = reader.piece()? {
        value.extend_from_slice(&piece);
    }
    feeder.put(key, value.freeze(), kind, options);
    Ok(())
}
