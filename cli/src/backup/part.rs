//! The part of an interrupted full backup: its file, up to the last frame of its index, becomes a separate file, from which an
//! increment continues.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, bail};
use shoal_backup::{Contents, End, Event, IncrementWriter};
use shoal_base::{Entropy, SystemEntropy};

use crate::backup::sink::{self, Sink};
use crate::backup::source::Source;

/// Makes the file `part` of the file `unfinished`, which stays.
///
/// # Errors
/// The file holds nothing that a backup could continue; data is missing in it; another backup writes to it.
pub(crate) fn make(unfinished: &Path, part: &Path) -> anyhow::Result<()> {
    let name = unfinished.display();
    let file = File::open(unfinished)
        .with_context(|| format!("no backup to resume: cannot open {name}; start it without --resume"))?;
    if file.try_lock_shared().is_err() {
        bail!("cannot resume {name}: another backup is writing to it");
    }
    let whole = whole_bytes(unfinished)?;
    let mut source = Source::open(unfinished)?;
    let mut sink = Sink::open(part, false, sink::Contents::Backup)?;
    let mut writer = IncrementWriter::of_part(SystemEntropy.next_u64());
    let mut out = Vec::new();
    while let Some(Ok(event)) = source.next()? {
        if source.last_frame().end > whole {
            break;
        }
        writer.take(event, &mut || anyhow::Ok(None), &mut out)?;
        sink.write(&out)?;
        out.clear();
    }
    writer.take(Event::End(End::default()), &mut || anyhow::Ok(None), &mut out)?;
    sink.write(&out)?;
    sink.finish()
}

/// The bytes up to the last whole frame of the index.
fn whole_bytes(unfinished: &Path) -> anyhow::Result<u64> {
    let name = unfinished.display();
    let (mut source, mut whole) = (Source::open(unfinished)?, 0);
    while let Some(Ok(event)) = source.next()? {
        match event {
            Event::Header(header) if header.contents != Contents::Full || header.format == 1 => bail!(
                "cannot resume {name}: it is not a full backup by this version of Shoal; start it without --resume"
            ),
            Event::Loss(_) => bail!(
                "cannot resume {name}: it lacks objects that the store could not read; start it without --resume"
            ),
            Event::Index(_) => whole = source.last_frame().end,
            _ => {}
        }
    }
    if whole == 0 {
        bail!("cannot resume {name}: it has too little data; start it without --resume");
    }
    Ok(whole)
}
