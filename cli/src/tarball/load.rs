//! From a tar to objects: the work of `shoal import --tar`.

use std::io::Read;

use bytes::{Bytes, BytesMut};
use shoal_base::limits::VALUE_BYTES_MAX;

use crate::output::show_key;
use crate::size::Size;
use crate::tarball::reader::{Broken, Described, Entry, Is, Reader};
use crate::temporary::is_temporary;
use crate::transfer::attributes::{Attributes, Kind};
use crate::transfer::extras::now_ns;
use crate::transfer::feed::Feeder;
use crate::transfer::report::Report;
use crate::transfer::work::BATCH_BYTES_MAX;

/// A file with holes is another thing in a tar: a map, and the bytes between the holes.
const SPARSE: &str = "it is a sparse file; make the tar without --sparse (bsdtar: with --no-read-sparse)";

/// Puts every entry of `input`. The report has the outcome of each.
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
    // Names in a tar of ours are keys, also if they look like temporary names.
    let own_name = entry.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if !reader.is_own() && is_temporary(own_name) {
        feeder.not_stored(&key);
        feeder.report().leftover(&show_key(&key));
        return Ok(());
    }
    match judge(entry) {
        Ok((Taken::Put(kind), described)) => put(reader, entry, (key, kind, described), feeder),
        Ok((Taken::Copy, _)) => {
            feeder.copy(&entry.target, key);
            Ok(())
        }
        Err(left_out) => {
            feeder.not_stored(&key);
            left_out.tell(&show_key(&key), feeder.report());
            Ok(())
        }
    }
}

/// How an entry is stored.
enum Taken {
    Put(Kind),
    /// A hard link becomes a separate object, with the value of the entry that it names.
    Copy,
}

/// Why an entry is not stored.
enum LeftOut {
    Special(&'static str),
    Expired,
    Failed(String),
}

impl LeftOut {
    fn tell(&self, name: &str, report: &Report) {
        match self {
            Self::Special(what) => report.special(name, what),
            Self::Expired => report.expired(),
            Self::Failed(why) => report.failed(name, why),
        }
    }
}

fn judge(entry: &Entry) -> Result<(Taken, &Described), LeftOut> {
    let failed = |why: String| Err(LeftOut::Failed(why));
    let taken = match entry.is {
        Is::File if entry.bytes > VALUE_BYTES_MAX => {
            let limit = Size(VALUE_BYTES_MAX);
            return failed(format!("it has {}; a value has at most {limit}", Size(entry.bytes)));
        }
        Is::File => Taken::Put(Kind::File),
        Is::Folder => Taken::Put(Kind::Folder),
        Is::Symlink => Taken::Put(Kind::Symlink),
        Is::HardLink => Taken::Copy,
        Is::Special(what) => return Err(LeftOut::Special(what)),
        Is::Sparse => return failed(SPARSE.into()),
        Is::Label => return failed("it is the label of the archive".into()),
        Is::Unknown(letter) => return failed(format!("its type {letter:?} is not known")),
    };
    match &entry.described {
        Ok(described) if described.extras.is_over(now_ns()) => Err(LeftOut::Expired),
        Ok(described) => Ok((taken, described)),
        Err(why) => failed(why.clone()),
    }
}

fn put(
    reader: &mut Reader<impl Read>,
    entry: &Entry,
    (key, kind, described): (Bytes, Kind, &Described),
    feeder: &mut Feeder<'_>,
) -> Result<(), Broken> {
    let (permissions, mtime_ns) = (Some(described.permissions), described.mtime_ns);
    let options = described.extras.put_options(&Attributes { kind, permissions, mtime_ns });
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
