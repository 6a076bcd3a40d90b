//! The last backup, from which an increment continues: checked as a whole first, then its index is read again beside the
//! changes.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use shoal_backup::{Contents, Event, Header, IndexKeys, LastBackup, PAGES_MAX, index_of_frame};
use shoal_engine::{KeyPlace, PlacedKey};

use crate::backup::source::Source;
use crate::failure::Usage;

/// A backup that an increment continues.
pub(crate) struct Last {
    /// The part of it that the store must know.
    pub(crate) backup: LastBackup,
    /// Its random number if it is a part, else 0.
    pub(crate) part: u64,
    file: File,
    path: PathBuf,
    /// The frames of its index, the next one last.
    index: Vec<Range<u64>>,
}

impl Last {
    /// The backup in the file `path`, which is read as a whole.
    ///
    /// # Errors
    /// It is damaged, not whole, of format 1, or things are missing in it.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            let why = "--incremental-from reads its file twice: name a file, and not standard input";
            return Err(Usage(why.into()).into());
        }
        let name = path.display();
        let file = File::open(path).with_context(|| format!("cannot open the last backup {name}"))?;
        let mut source = Source::open(path)?;
        let (mut header, mut pages, mut index) = (None, BTreeSet::new(), Vec::<Range<u64>>::new());
        let mut last_key = None;
        let mut is_whole = false;
        while let Some(next) = source.next()? {
            let event = next.map_err(|damage| {
                anyhow!("the last backup {name} is {damage}: take an older whole one, or make a full backup")
            })?;
            match event {
                Event::Header(found) => header = Some(check(found, path)?),
                Event::Loss(_) => bail!(
                    "the last backup {name} is not of all objects, because the store could not read some (`shoal backup verify` names \
                     them): make a full backup"
                ),
                Event::Index(keys) => {
                    index.push(source.last_frame());
                    last_key = keys.keys.last().map(|placed| (keys.tablet, placed.clone())).or(last_key);
                    pages.extend(keys.keys.iter().filter_map(|placed| match placed.place {
                        KeyPlace::Page(page) => Some(page),
                        _ => None,
                    }));
                }
                Event::End(_) => is_whole = true,
                _ => {}
            }
        }
        let header = header.filter(|_| is_whole);
        let header = header.ok_or_else(|| anyhow!("{name} is not a backup, so it cannot be continued"))?;
        index.reverse();
        let (mut up_to, mut part) = (None, 0);
        if header.contents == Contents::Part
            && let Some((tablet, PlacedKey { place, key })) = last_key
        {
            // Of this page the part may have some keys only.
            if let KeyPlace::Page(page) = place {
                pages.remove(&page);
            }
            up_to = Some((tablet, key));
            part = source.number();
        }
        let pages = pages.into_iter().take(PAGES_MAX).collect();
        let backup = LastBackup { store: header.store, version: header.version, pages, up_to };
        Ok(Self { backup, part, file, path: path.to_owned(), index })
    }

    /// The next keys of its index; none at the end.
    ///
    /// # Errors
    /// The file changed meanwhile, or cannot be read.
    pub(crate) fn next_keys(&mut self) -> anyhow::Result<Option<IndexKeys>> {
        let Some(place) = self.index.pop() else { return Ok(None) };
        let what = || format!("cannot read the index of the last backup {} again", self.path.display());
        let bytes = usize::try_from(place.end - place.start).context("a frame is too long")?;
        let mut frame = vec![0; bytes];
        self.file.read_exact_at(&mut frame, place.start).with_context(what)?;
        index_of_frame(&frame).map(Some).map_err(|why| anyhow!(why)).with_context(what)
    }
}

fn check(header: Header, path: &Path) -> anyhow::Result<Header> {
    if header.format == 1 {
        bail!(
            "the last backup {} is of format 1, which has no index of its keys: make a full backup once, and increments from it",
            path.display()
        );
    }
    if matches!(header.contents, Contents::Changes { .. }) {
        bail!("{} is a stream of changes, and no backup", path.display());
    }
    if header.contents == Contents::Base {
        bail!(
            "{} is a base of an archive, which has no index of its keys: make a full backup, and increments from it",
            path.display()
        );
    }
    Ok(header)
}
