//! From a tar to objects: the work of `shoal import --tar`.

use std::io::Read;

use bytes::{Bytes, BytesMut};
use shoal_base::limits::VALUE_BYTES_MAX;

use crate::output::show_key;
use crate::size::Size;
use crate::tarball::reader::{Broken, Entry, Is, Reader, without_dots};
use crate::transfer::attributes::{Attributes, Kind};
use crate::transfer::extras::{Extras, now_ns};
use crate::transfer::feed::Feeder;
use crate::transfer::work::BATCH_BYTES_MAX;

/// A file with holes is another thing in a tar: a map, and the bytes between the holes.
const SPARSE: &str = "it is a sparse file; make the tar without --sparse (bsdtar: with --no-read-sparse)";

/// Puts everything that `input` has. The report has what became of it.
pub(crate) fn run(input: impl Read, feeder: &mut Feeder<'_>) {
    let mut reader = Reader::new(input);
    loop {
        match reader.next() {
            _ if feeder.report().is_stopped() => return,
            Ok(Some(entry)) => {
                if let Err(broken) = take(&mut reader, &entry, feeder) {
                    return feeder.stop(&broken.to_string());
                }
            }
            Ok(None) => break,
            Err(broken) => return feeder.stop(&broken.to_string()),
        }
    }
    if let Err(broken) = reader.drain() {
        feeder.stop(&broken.to_string());
    }
}

fn take(reader: &mut Reader<impl Read>, entry: &Entry, feeder: &mut Feeder<'_>) -> Result<(), Broken> {
    // The label of an archive, and the folder itself that a tar was made of.
    if entry.is == Is::Label || entry.is == Is::Folder && entry.name.is_empty() {
        return Ok(());
    }
    let Some(key) = feeder.key(&entry.name) else { return Ok(()) };
    let shown = show_key(&key);
    let kind = match entry.is {
        Is::File => Kind::File,
        Is::Folder => Kind::Folder,
        Is::Symlink => Kind::Symlink,
        Is::HardLink => {
            link(entry, key, feeder);
            return Ok(());
        }
        Is::Special(what) => {
            feeder.report().special(&shown, what);
            return Ok(());
        }
        Is::Sparse => {
            feeder.report().failed(&shown, SPARSE);
            return Ok(());
        }
        Is::Unknown(letter) => {
            feeder.report().failed(&shown, &format!("its type {letter:?} is not known"));
            return Ok(());
        }
        Is::Label => return Ok(()),
    };
    let extras = match &entry.extras {
        Ok(extras) if extras.is_over(now_ns()) => {
            feeder.report().expired();
            return Ok(());
        }
        Ok(extras) => extras,
        Err(why) => {
            feeder.report().failed(&shown, why);
            return Ok(());
        }
    };
    put(reader, entry, (key, kind, extras), feeder)
}

fn put(
    reader: &mut Reader<impl Read>,
    entry: &Entry,
    (key, kind, extras): (Bytes, Kind, &Extras),
    feeder: &mut Feeder<'_>,
) -> Result<(), Broken> {
    let attributes = Attributes { kind, permissions: Some(entry.permissions), mtime_ns: entry.mtime_ns };
    let options = extras.put_options(&attributes);
    if entry.bytes > VALUE_BYTES_MAX {
        let limit = Size(VALUE_BYTES_MAX);
        let why = format!("it has {}; a value has at most {limit}", Size(entry.bytes));
        feeder.report().failed(&show_key(&key), &why);
        return Ok(());
    }
    if feeder.report().manner().dry_run {
        let bytes = if kind == Kind::Symlink { entry.target.len() as u64 } else { entry.bytes };
        feeder.report().would(kind, &key, bytes);
        return Ok(());
    }
    if kind == Kind::Symlink {
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

/// A hard link becomes a file of its own, with the value of the entry that it names.
fn link(entry: &Entry, key: Bytes, feeder: &mut Feeder<'_>) {
    let target = without_dots(entry.target.clone());
    if feeder.report().manner().dry_run {
        return feeder.report().would(Kind::File, &key, 0);
    }
    feeder.copy(&target, key);
}
