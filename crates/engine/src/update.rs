//! Update: read, decide, write, as one step.
//!
//! The decision is made on the newest state of the key, in flight or not, so that writers of a hot key share a flush
//! instead of waiting for one another's (engine.md, "The way of a write"). It is made without a lock, and made again where
//! the state changed before the record took its place. An answer that was derived from a state in flight leaves only when
//! that state is durable.

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_buffer::Buffer;
use smallvec::SmallVec;

use crate::entry::{End, Entry, Home, Meta};
use crate::error::Result;
use crate::get::{FoundEntry, check_single, entry_of_record, is_unreadable};
use crate::key::ObjectKey;
use crate::log::format::RecordKind;
use crate::object::{Expiry, Metadata, Object, PutOptions};
use crate::overlay::Record;
use crate::pending::Pending;
use crate::plant::{Plant, planted};
use crate::space::Extents;
use crate::store::{Inner, Store};
use crate::tablet::{Tablet, View};
use crate::turns::Tries;
use crate::write::{Part, Write};

/// What a decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing: the decision is the same whatever there is, and need not see it.
    Nothing,
    /// Whether it exists, and nothing else: the object that is shown has no metadata, no value, and where its state is in flight no
    /// version. One of which nobody knows whether it exists, because its part of the tree is damaged, counts as existing, with
    /// version 0: so a delete of it deletes it.
    Existence,
    /// What is known about the object; its value stays empty, and the version of a state in flight is not known yet.
    Info,
    /// Its value too.
    Value,
    /// What is known about the object, the version included: waits where the newest state is in flight.
    Version,
    /// Its value and its version: waits as for that.
    Whole,
}

impl Look {
    /// Whether the value is looked at.
    pub(crate) fn wants_value(self) -> bool {
        matches!(self, Self::Value | Self::Whole)
    }

    fn wants_version(self) -> bool {
        matches!(self, Self::Version | Self::Whole)
    }
}

/// What an update does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Nothing.
    Keep,
    /// The object is this from now on.
    Put {
        /// Its value, at most 4 MiB.
        value: Buffer,
        /// What its user says about it.
        metadata: Metadata,
        /// When its time is over.
        expiry: Expiry,
    },
    /// The object is this from now on, with all that may be said of a put; the rules among it do not count.
    PutWith {
        /// Its value, at most 4 MiB.
        value: Buffer,
        /// The rest.
        options: Box<PutOptions>,
    },
    /// The object is this from now on; its value is on the device already. Only a stream of the store makes one.
    #[doc(hidden)]
    Placed(Placed),
    /// It does not exist from now on.
    Delete,
}

/// A value that a stream has written, and the entry that names it. Where it is not stored its space is given back with the last
/// clone.
#[derive(Clone)]
pub struct Placed {
    pub(crate) entry: Vec<u8>,
    pub(crate) extents: Vec<Arc<Extents>>,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed").finish_non_exhaustive()
    }
}

impl Change {
    /// Bytes of the value that it stores.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } | Self::PutWith { value, .. } => value.len(),
            Self::Keep | Self::Placed(_) | Self::Delete => 0,
        }
    }
}

/// What an update did.
#[derive(Debug)]
pub struct Updated<T> {
    /// What the decision said besides.
    pub answer: T,
    /// What must be durable before the answer may leave: the update's own write, or the state that the decision saw.
    pub pending: Option<Pending>,
}

/// What stands for an object of which nobody knows whether it exists.
fn unknown() -> FoundEntry {
    let (meta, home) = (Meta::Inline(SmallVec::new()), Home::Inline);
    let entry = Entry { modified_ns: 0, end: None, value_bytes: 0, meta, home };
    FoundEntry { version: Lsn::NONE, entry, inline: Bytes::new() }
}

/// The newest state of a key, and where it was seen.
pub(crate) struct Seen {
    pub view: Arc<View>,
    /// The record in an overlay; none: what the tree says.
    pub record: Option<Arc<Record>>,
    /// What was there, where its time ends: it is another state from then on.
    pub expires: Option<(End, Lsn)>,
}

/// What became of an object that the reaper looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    Deleted,
    /// It was written again, and its time ends later.
    Later {
        end: End,
    },
    /// There is none, or its time does not end.
    Stays,
}

impl Store {
    /// Shows `decide` the newest state of the object (none: it does not exist) and does what it says, as one step: no
    /// other write comes between. `decide` is asked again where the object changed meanwhile. Returns when the write has
    /// its place in the order of writes; it is durable when [`Updated::pending`] is.
    ///
    /// # Errors
    /// As [`Store::put`] and [`Store::get`]; nothing happened then.
    pub async fn update<T>(
        &self,
        key: &ObjectKey,
        look: Look,
        mut decide: impl FnMut(Option<&Object>) -> (Change, T),
    ) -> Result<Updated<T>> {
        let inner = &*self.0;
        inner.check_open()?;
        let tablet = inner.tablet_of(key).clone();
        inner.pass(key).await;
        let mut tries = Tries::new(&inner.turns);
        loop {
            tries.go_on([key].into_iter()).await;
            let (seen, found) = inner.look(&tablet, key, look).await?;
            let object = match &found {
                Some(found) => Some(inner.object_for(found, look).await?),
                None => None,
            };
            let (change, answer) = decide(object.as_ref());
            let write = match change {
                Change::Keep => {
                    let pending = seen.record.map(|record| Pending::new(self.clone(), record));
                    let pending = pending.filter(|pending| !pending.is_durable());
                    return Ok(Updated { answer, pending });
                }
                Change::Put { value, metadata, expiry } => {
                    let options = PutOptions { metadata, expiry, ..PutOptions::default() };
                    inner.check_writable()?;
                    inner.put_write(key, &value, &options).await?
                }
                Change::PutWith { value, options } => {
                    inner.check_writable()?;
                    inner.put_write(key, &value, &options).await?
                }
                Change::Placed(placed) => {
                    inner.check_writable()?;
                    inner.admit_write(inner.prepare_placed(key, &placed, Part::LAST).await?).await?
                }
                Change::Delete => {
                    inner.check_writable()?;
                    inner.delete_write(key).await?
                }
            };
            let kind = write.prepared.record.kind();
            if let Some(record) = inner.insert_unless_changed(&tablet, key, &seen, write)? {
                drop(tries);
                inner.hand_over_or_lead().await;
                let counters = &inner.counters;
                inner.count(if kind == RecordKind::Put { &counters.puts } else { &counters.deletes });
                return Ok(Updated { answer, pending: Some(Pending::new(self.clone(), record)) });
            }
            tries.conflict();
        }
    }
}

impl Inner {
    /// Deletes an object, where its time is over.
    pub(crate) async fn delete_if_over(&self, key: &ObjectKey) -> Result<Reaped> {
        let tablet = self.tablet_of(key).clone();
        loop {
            let (seen, found) = self.look_stored(&tablet, key, Look::Info).await?;
            let Some((end, version)) = found.and_then(|found| Some((found.entry.end?, found.version))) else {
                return Ok(Reaped::Stays);
            };
            if !self.is_over(Some(end), version) && !planted(Plant::ReaperUnconditional) {
                return Ok(Reaped::Later { end });
            }
            self.check_writable()?;
            let write = self.delete_write(key).await?;
            if self.insert_unless_changed(&tablet, key, &seen, write)?.is_some() {
                self.hand_over_or_lead().await;
                return Ok(Reaped::Deleted);
            }
        }
    }

    /// The newest state of a key; one whose time is over does not exist.
    pub(crate) async fn look(
        &self,
        tablet: &Tablet,
        key: &ObjectKey,
        look: Look,
    ) -> Result<(Seen, Option<FoundEntry>)> {
        let (mut seen, found) = self.look_stored(tablet, key, look).await?;
        let found = found.filter(|found| !self.is_over(found.entry.end, found.version));
        seen.expires = found.as_ref().and_then(|found| Some((found.entry.end?, found.version)));
        Ok((seen, found))
    }

    /// The newest state of a key. Waits where it is in flight and `look` needs what is on the device, or its number.
    async fn look_stored(
        &self,
        tablet: &Tablet,
        key: &ObjectKey,
        look: Look,
    ) -> Result<(Seen, Option<FoundEntry>)> {
        loop {
            let view = tablet.view();
            let newest = |overlay: &crate::overlay::Overlay| overlay.newest(key.encoded());
            let record = newest(&view.active).or_else(|| newest(view.frozen.as_ref()?));
            let found = match &record {
                Some(record) if record.kind() == RecordKind::Delete => None,
                Some(record) => Some(entry_of_record(record)?),
                None => match self.find_in_tree(&view, key.encoded()).await {
                    Err(error) if look == Look::Existence && is_unreadable(&error) => Some(unknown()),
                    found => found?,
                },
            };
            if let (Some(record), Some(found)) = (&record, &found)
                && !record.is_durable(self.committer.durable())
                && look != Look::Existence
                && (look.wants_version() || !found.is_inline())
            {
                self.wait_for_other(record).await?;
                continue;
            }
            return Ok((Seen { view, record, expires: None }, found));
        }
    }

    pub(crate) async fn object_for(&self, found: &FoundEntry, look: Look) -> Result<Object> {
        if look == Look::Existence {
            return Ok(Object { info: self.info_of(found, Metadata::default()), value: Buffer::new() });
        }
        if look.wants_value() {
            check_single(found.entry.value_bytes)?;
            return self.read_object(found, 0, found.entry.value_bytes).await;
        }
        Ok(Object { info: self.info(found).await?, value: Buffer::new() })
    }

    /// Queues the write where the key's newest state is still the one that was seen.
    fn insert_unless_changed(
        &self,
        tablet: &Tablet,
        key: &ObjectKey,
        seen: &Seen,
        write: Write<'_>,
    ) -> Result<Option<Arc<Record>>> {
        loop {
            let view = tablet.view();
            let mut active = view.active.lock();
            if active.is_frozen() {
                continue;
            }
            self.check_writable()?;
            if !seen.is_unchanged(self, &view, &active, key) {
                return Ok(None);
            }
            let record = write.prepared.record.clone();
            self.insert(&view, &mut active, write);
            return Ok(Some(record));
        }
    }
}
