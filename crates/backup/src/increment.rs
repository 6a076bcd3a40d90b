//! Turns changes into an increment: merges them with the index of the backup that it is based on.
//!
//! A key of that index is still alive if the changes contain it, or if its page was kept and the changes do not delete it. Every other key
//! of the index was deleted. A store that reports changes names a page that it kept before each key that is not below all keys of the page,
//! so one pass over both is enough. The reasons are at the top of `crates/engine/src/read/changes.rs`.

use std::collections::{HashSet, VecDeque};

use shoal_base::TabletId;
use shoal_engine::{KeyPlace, PlacedKey, TreePage};

use crate::decode::Event;
use crate::frame::{FrameWriter, Kind};
use crate::index::{DeletedWriter, IndexKeys, IndexWriter};
use crate::record::{Contents, Header, ObjectHead};

/// The stream is not one of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer is no stream of changes: the server is older than increments; update it, or make a full backup"
)]
pub struct NotChanges;

/// Makes an increment from a stream of changes, event by event.
pub struct IncrementWriter {
    frames: FrameWriter,
    index: IndexWriter,
    deleted: DeletedWriter,
    /// Pages that are the same as before.
    kept: HashSet<TreePage>,
    /// Keys of the last backup that are read, and not decided.
    last: VecDeque<(TabletId, PlacedKey)>,
    last_is_over: bool,
    /// The place of the next piece in its value.
    piece_at: u64,
    has_header: bool,
    /// A part is made from a full backup.
    is_part: bool,
    /// The number of the part that the increment is based on.
    part: u64,
}

impl IncrementWriter {
    /// A writer of an increment with this random number.
    #[must_use]
    pub fn new(backup: u64) -> Self {
        Self {
            frames: FrameWriter::new(backup),
            index: IndexWriter::default(),
            deleted: DeletedWriter::default(),
            kept: HashSet::new(),
            last: VecDeque::new(),
            last_is_over: false,
            piece_at: 0,
            has_header: false,
            is_part: false,
            part: 0,
        }
    }

    /// The same for an increment that is based on the part with this random number.
    #[must_use]
    pub fn behind_part(self, part: u64) -> Self {
        Self { part, ..self }
    }

    /// A writer of a part with this random number. It takes the events of a full backup that was broken off, up to the last one of its
    /// index, and an end; it is based on no other backup.
    #[must_use]
    pub fn of_part(backup: u64) -> Self {
        Self { is_part: true, ..Self::new(backup) }
    }

    /// Takes the next event of the stream, and appends the increment's share of it to `out`. `last` returns the index of the last backup,
    /// frame by frame; `None` at its end.
    ///
    /// # Errors
    /// [`NotChanges`]; those of `last`.
    pub fn take<E: From<NotChanges>>(
        &mut self,
        event: Event,
        last: &mut impl FnMut() -> Result<Option<IndexKeys>, E>,
        out: &mut Vec<u8>,
    ) -> Result<(), E> {
        match event {
            Event::Header(header) => {
                let contents = match header.contents {
                    Contents::Changes { from } if !self.is_part => Contents::Increment { from },
                    Contents::Full if self.is_part => Contents::Part,
                    _ => return Err(NotChanges.into()),
                };
                self.has_header = true;
                self.frames.put_header(out, &Header { contents, part: self.part, ..header });
            }
            _ if !self.has_header => return Err(NotChanges.into()),
            Event::Objects(objects) => {
                let mut body = Vec::new();
                for object in objects {
                    object.head.encode(&mut body);
                    body.extend_from_slice(&object.value);
                    self.count(&object.head);
                }
                self.frames.put(out, Kind::Objects, &body);
            }
            Event::Begin(head) => {
                let mut body = Vec::new();
                head.encode(&mut body);
                self.frames.put(out, Kind::Begin, &body);
                self.piece_at = 0;
            }
            Event::Piece { bytes, is_last } => {
                let body = [&self.piece_at.to_le_bytes()[..], &bytes[..]].concat();
                self.piece_at += bytes.len() as u64;
                self.frames.put(out, Kind::Piece, &body);
                if is_last {
                    self.frames.end.objects += 1;
                    self.frames.end.value_bytes += self.piece_at;
                }
            }
            Event::Bucket(bucket) => self.frames.put(out, Kind::Bucket, &bucket.encode()),
            Event::Loss(loss) => self.frames.put_loss(out, &loss),
            Event::Index(keys) => self.merge(keys, last, out)?,
            Event::End(_) => {
                while let Some((tablet, old)) = self.next_of_last(last)? {
                    self.decide(tablet, old, out);
                }
                let rest = self.index.finish();
                self.put_keys(out, Kind::Index, rest);
                let rest = self.deleted.finish();
                self.put_keys(out, Kind::Deleted, rest);
                self.frames.put_end(out);
            }
            // Changes contain no deletions, and damage stops an increment.
            Event::Deleted(_) | Event::Skipped(_) => return Err(NotChanges.into()),
        }
        Ok(())
    }

    fn count(&mut self, head: &ObjectHead) {
        self.frames.end.objects += 1;
        self.frames.end.value_bytes += head.value_bytes;
    }

    fn merge<E>(
        &mut self,
        keys: IndexKeys,
        last: &mut impl FnMut() -> Result<Option<IndexKeys>, E>,
        out: &mut Vec<u8>,
    ) -> Result<(), E> {
        let tablet = keys.tablet;
        for placed in keys.keys {
            if let KeyPlace::Kept(page) = placed.place {
                self.kept.insert(page);
                continue;
            }
            let at = (tablet.0, &placed.key[..]);
            let mut was_alive = false;
            while let Some((of, old)) = self.next_of_last(last)? {
                let old_at = (of.0, &old.key[..]);
                if old_at >= at {
                    was_alive = old_at == at;
                    if !was_alive {
                        self.last.push_front((of, old));
                    }
                    break;
                }
                self.decide(of, old, out);
            }
            match placed.place {
                KeyPlace::Gone if was_alive => self.put_deleted(&placed.key, out),
                KeyPlace::Gone => {}
                place => self.put_alive(tablet, place, &placed.key, out),
            }
        }
        Ok(())
    }

    fn next_of_last<E>(
        &mut self,
        last: &mut impl FnMut() -> Result<Option<IndexKeys>, E>,
    ) -> Result<Option<(TabletId, PlacedKey)>, E> {
        while self.last.is_empty() && !self.last_is_over {
            match last()? {
                Some(keys) => self.last.extend(keys.keys.into_iter().map(|key| (keys.tablet, key))),
                None => self.last_is_over = true,
            }
        }
        Ok(self.last.pop_front())
    }

    /// Decides about a key of the last backup that the changes do not mention.
    fn decide(&mut self, tablet: TabletId, old: PlacedKey, out: &mut Vec<u8>) {
        match old.place {
            KeyPlace::Page(page) if self.kept.contains(&page) => {
                self.put_alive(tablet, old.place, &old.key, out);
            }
            _ => self.put_deleted(&old.key, out),
        }
    }

    fn put_alive(&mut self, tablet: TabletId, place: KeyPlace, key: &[u8], out: &mut Vec<u8>) {
        self.frames.end.keys += 1;
        let full = self.index.push(tablet, place, key);
        self.put_keys(out, Kind::Index, full);
    }

    fn put_deleted(&mut self, key: &[u8], out: &mut Vec<u8>) {
        self.frames.end.deleted += 1;
        let full = self.deleted.push(key);
        self.put_keys(out, Kind::Deleted, full);
    }

    fn put_keys(&mut self, out: &mut Vec<u8>, kind: Kind, body: Option<Vec<u8>>) {
        if let Some(body) = body {
            self.frames.put(out, kind, &body);
        }
    }
}
