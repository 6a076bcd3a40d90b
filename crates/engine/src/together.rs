//! Together: writes of several keys as one step, over tablets too (R22).
//!
//! All records of a step lie in one batch of the log, and recovery takes a batch as a whole or not at all. They get their
//! places under the locks of all their overlays, taken in the order of tablets. Readers that ask for one key after the other see
//! no snapshot: one that looks between two of its reads sees some of the keys before the step and others after it. A transaction
//! (`transact.rs`) does: its reads are held to be of one moment under the same locks, also where it writes nothing.
//! A step that others come between too often queues for its keys (`turns.rs`).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use shoal_base::Lsn;
use shoal_base::sync::MutexGuard;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::get::is_unreadable;
use crate::key::ObjectKey;
use crate::log::commit::{Committer, Step};
use crate::log::format::{RecordKind, record_bytes};
use crate::object::{Metadata, Object, PutOptions};
use crate::overlay::{self, Growth, Record};
use crate::pending::Pending;
use crate::plant::{Plant, planted};
use crate::retry::{Identity, Once, Slot};
use crate::store::{Inner, Room, Store};
use crate::tablet::{Tablet, View};
use crate::transact::{Decision, Transacted};
use crate::turns::Tries;
use crate::update::{Change, Look, Seen};
use crate::value::prepare::{Way, way_of};
use crate::watch::Watch;
use crate::write::{Part, Prepared, memory_bytes};

/// What an update of several keys did.
#[derive(Debug)]
pub struct Together<T> {
    /// What the decision said besides.
    pub answer: T,
    /// What must be durable before the answer may leave; the last one is the step's own last write, where it wrote.
    pub pending: Vec<Pending>,
}

/// Records of one step: so many are put into their overlays under their locks.
pub(crate) const STEP_RECORDS_MAX: usize = 65_536;

/// Bytes of all values that one step looks at: they are in memory at once.
pub(crate) const STEP_LOOKS_BYTES_MAX: u64 = 64 << 20;

/// Keys that a step looks at at a time.
const LOOKS_AT_A_TIME: usize = 16;

/// Who a write is, and what is kept of its answer.
pub(crate) type Keeping<'a, T> = (Identity, &'a (dyn Fn(&T) -> Vec<u8> + Sync));

/// What a step is asked to do.
pub(crate) struct Asked<'a, T> {
    pub keys: &'a [(ObjectKey, Look)],
    /// It does nothing where one of these changed.
    pub watches: &'a [Watch],
    pub once: Option<Keeping<'a, T>>,
    /// Whether what it sees is of one moment although it writes nothing.
    pub one_moment: bool,
}

/// Why a step of so many objects is not begun.
fn too_large(objects: usize, bytes: usize, bytes_max: usize) -> Error {
    Error::Invalid(format!(
        "{objects} objects in one step need {bytes} bytes of the log at once; {bytes_max} are allowed"
    ))
}

/// Writes of a step with the places of their keys.
type Parts = Vec<(usize, Prepared)>;

impl Store {
    /// As [`Store::update`], for several objects: no other write comes between, and after a crash all of it is there or
    /// nothing. Each key comes with what the decision looks at; `decide` gives one change for each. A key may be named twice:
    /// the later change wins.
    ///
    /// # Errors
    /// As [`Store::update`]; [`Error::Invalid`] where the records of the step do not fit in one batch of the log.
    pub async fn update_together<T>(
        &self,
        keys: &[(ObjectKey, Look)],
        decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
    ) -> Result<Together<T>> {
        match self.together(keys, decide, None).await? {
            Once::Now(together) => Ok(together),
            Once::Before { .. } => unreachable!("only a write with an identity finds an earlier one"),
        }
    }

    pub(crate) async fn together<T>(
        &self,
        keys: &[(ObjectKey, Look)],
        mut decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
        once: Option<Keeping<'_, T>>,
    ) -> Result<Once<T>> {
        let decide = |objects: &[Option<Object>]| {
            let (changes, answer) = decide(objects);
            Decision::Do(changes, answer)
        };
        match self.step(&Asked { keys, watches: &[], once, one_moment: false }, decide).await? {
            Transacted::Done(together) => Ok(Once::Now(together)),
            Transacted::Before { version, answer } => Ok(Once::Before { version, answer }),
            Transacted::Left(_) | Transacted::Changed => unreachable!("nothing is watched, and nothing left"),
        }
    }

    /// Looks, decides, and does what was decided where nothing of it changed meanwhile; else again.
    pub(crate) async fn step<T>(
        &self,
        asked: &Asked<'_, T>,
        mut decide: impl FnMut(&[Option<Object>]) -> Decision<T>,
    ) -> Result<Transacted<T>> {
        let inner = &*self.0;
        inner.check_open()?;
        let looks: Vec<Look> = asked.keys.iter().map(|(_, look)| *look).collect();
        let mut keys: Vec<ObjectKey> = asked.keys.iter().map(|(key, _)| key.clone()).collect();
        let once = &asked.once;
        let slot = match (keys.first(), once) {
            (Some(first), Some((identity, _))) => Some(inner.slot_key(first, *identity)),
            _ => None,
        };
        keys.extend(slot);
        let named = asked.keys.len();
        let mut tries = Tries::new(&inner.turns);
        loop {
            tries.begin(asked.keys.iter().map(|(key, _)| key)).await;
            let mut is_first_of_place = false;
            let mut slot_seen = None;
            if let (Some((identity, _)), Some(key)) = (once, keys.get(named)) {
                let (place, slot) = inner.look_at_slot(key).await?;
                is_first_of_place = slot.is_none();
                if let Some(before) = inner.before(*identity, &place, slot).await? {
                    return Ok(before);
                }
                slot_seen = Some(place);
            }
            if asked.watches.iter().any(Watch::is_changed) {
                return Ok(Transacted::Changed);
            }
            let (mut seen, objects) = inner.look_at_all(&keys, &looks).await?;
            if once.is_some() {
                seen.push(slot_seen);
            }
            let (mut changes, answer) = match decide(&objects) {
                Decision::Do(changes, answer) => (changes, answer),
                Decision::Leave(answer) => return Ok(Transacted::Left(answer)),
            };
            assert_eq!(changes.len(), named, "a decision has one change for each key");
            if let Some((identity, encode)) = once {
                let writes = changes.iter().filter(|change| !matches!(change, Change::Keep)).count();
                let slot = Slot::new(*identity, writes as u32, encode(&answer));
                changes.push(slot.change());
                // Each later result of the place finds it noted: the reaper follows it to its end.
                if let Some(key) = keys.get(named).filter(|_| is_first_of_place) {
                    inner.expiring.note(inner.end_of_result(), key.encoded());
                }
            }
            if changes.iter().all(|change| matches!(change, Change::Keep)) {
                let moment = if !asked.one_moment || planted(Plant::ReadsNotValidated) {
                    Placed::Done
                } else {
                    inner.place(&keys, &seen, asked.watches, None)?
                };
                match moment {
                    Placed::Done => {}
                    Placed::Changed => return Ok(Transacted::Changed),
                    Placed::Conflict => {
                        tries.conflict();
                        continue;
                    }
                }
                let records = seen.into_iter().flatten().filter_map(|seen| seen.record);
                let pending = records.map(|record| Pending::new(self.clone(), record));
                let pending = pending.filter(|pending| !pending.is_durable()).collect();
                return Ok(Transacted::Done(Together { answer, pending }));
            }
            inner.check_writable()?;
            let parts = inner.prepare_parts(&keys, changes, named).await?;
            let (memory, blocks) = inner.room_of(&parts)?;
            let room = inner.admit_step(parts.len(), memory, blocks).await?;
            let counted = parts.iter().filter(|(at, _)| *at < named);
            let (puts, deletes) =
                counted.fold((0, 0), |(puts, deletes), (_, part)| match part.record.kind() {
                    RecordKind::Put => (puts + 1, deletes),
                    RecordKind::Delete => (puts, deletes + 1),
                });
            // The last write of a named key: its version is the one that is asked for.
            let last = parts.iter().rfind(|(at, _)| *at < named).or(parts.last());
            let last = last.map(|(_, part)| part.record.clone());
            match inner.place(&keys, &seen, asked.watches, Some((parts, room)))? {
                Placed::Done => {
                    drop(tries);
                    inner.hand_over_or_lead().await;
                    crate::store::OperationCounters::add(&inner.counters.puts, puts);
                    crate::store::OperationCounters::add(&inner.counters.deletes, deletes);
                    let pending = last.map(|record| Pending::new(self.clone(), record));
                    let pending = pending.into_iter().collect();
                    return Ok(Transacted::Done(Together { answer, pending }));
                }
                Placed::Changed => return Ok(Transacted::Changed),
                Placed::Conflict => tries.conflict(),
            }
        }
    }
}

impl Inner {
    /// The newest states of the first keys, as far as `looks` go.
    async fn look_at_all(
        &self,
        keys: &[ObjectKey],
        looks: &[Look],
    ) -> Result<(Vec<Option<Seen>>, Vec<Option<Object>>)> {
        let bytes = AtomicU64::new(0);
        let (mut seen, mut objects) = (Vec::with_capacity(keys.len()), Vec::with_capacity(looks.len()));
        let looked = |number: usize| {
            let (key, look) = (keys.get(number), looks.get(number).copied().unwrap_or(Look::Nothing));
            let bytes = &bytes;
            async move {
                match key {
                    Some(key) if look != Look::Nothing => self.look_together(key, look, bytes).await,
                    _ => Ok((None, None)),
                }
            }
        };
        for first in (0..looks.len()).step_by(LOOKS_AT_A_TIME) {
            let numbers = first..looks.len().min(first + LOOKS_AT_A_TIME);
            for (place, object) in all_of(numbers.map(looked)).await? {
                seen.push(place);
                objects.push(object);
            }
        }
        Ok((seen, objects))
    }

    async fn look_together(
        &self,
        key: &ObjectKey,
        look: Look,
        bytes: &AtomicU64,
    ) -> Result<(Option<Seen>, Option<Object>)> {
        let (seen, found) = self.look(self.tablet_of(key), key, look).await?;
        let object = match &found {
            Some(found) => {
                let value_bytes = if look.wants_value() { found.entry.value_bytes } else { 0 };
                let all = bytes.fetch_add(value_bytes, Ordering::Relaxed) + value_bytes;
                if all > STEP_LOOKS_BYTES_MAX {
                    return Err(Error::Invalid(format!(
                        "the values that one step looks at have more than {STEP_LOOKS_BYTES_MAX} bytes together"
                    )));
                }
                Some(self.object_for(found, look).await?)
            }
            None => None,
        };
        Ok((Some(seen), object))
    }

    async fn look_at_slot(&self, key: &ObjectKey) -> Result<(Seen, Option<(Lsn, Slot)>)> {
        let tablet = self.tablet_of(key);
        let (seen, found) = match self.look(tablet, key, Look::Value).await {
            // Where a result was lost with its page nobody knows whether there is one, and to refuse would refuse all writes that a
            // place there is for. A repetition of a write that old is taken for a new one, as one after the life of its result is.
            Err(error) if is_unreadable(&error) => {
                let (seen, found) = self.look(tablet, key, Look::Existence).await?;
                (seen, found.filter(|found| found.version != Lsn::NONE))
            }
            looked => looked?,
        };
        let Some(found) = found else { return Ok((seen, None)) };
        let value = self.object_for(&found, Look::Value).await?.value;
        let slot = Slot::decode(&value.to_vec())
            .map_err(|_| Error::Corrupt { what: "the result of an earlier write".into(), block: 0 })?;
        Ok((seen, Some((found.version, slot))))
    }

    /// What a write of this identity did before, if there was one; durable when it returns.
    async fn before<T>(
        &self,
        identity: Identity,
        seen: &Seen,
        slot: Option<(Lsn, Slot)>,
    ) -> Result<Option<Transacted<T>>> {
        let Some((version, slot)) = slot else { return Ok(None) };
        if slot.sequence < identity.sequence || planted(Plant::RetriesForgotten) {
            return Ok(None);
        }
        if slot.sequence > identity.sequence {
            return Err(Error::Unknown(format!(
                "write {} of session {:016x} is too long ago: its result is not kept any more",
                identity.sequence, identity.session
            )));
        }
        let version = match &seen.record {
            Some(record) => self.wait_for_other(record).await?,
            None => version,
        };
        let version = slot.version_of_last(version);
        Ok(Some(Transacted::Before { version, answer: slot.answer }))
    }

    /// Encodes what changes; values that ride in no record are written. The changes behind the first `named` ones are the
    /// step's result: where these store nothing it is part of a delete, which works on a full device (R3).
    async fn prepare_parts(&self, keys: &[ObjectKey], changes: Vec<Change>, named: usize) -> Result<Parts> {
        let writes = changes.iter().filter(|change| !matches!(change, Change::Keep)).count();
        if writes > STEP_RECORDS_MAX {
            return Err(Error::Invalid(format!(
                "one step writes {writes} objects; {STEP_RECORDS_MAX} are allowed"
            )));
        }
        let bytes_max = self.committer.step_bytes_max();
        let value_bytes: usize = changes.iter().map(Change::value_bytes).sum();
        let is_large = value_bytes > bytes_max / 2;
        // Before values are written and space is claimed for each: that may fail first, and would say that the device is full.
        if writes > 1 {
            let least = |(key, change)| self.record_bytes_min(key, change, is_large);
            let bytes: usize = keys.iter().zip(&changes).map(least).sum();
            if bytes > bytes_max {
                return Err(too_large(writes, bytes, bytes_max));
            }
        }
        let last = changes.iter().rposition(|change| !matches!(change, Change::Keep));
        let stores =
            changes.iter().take(named).any(|change| !matches!(change, Change::Keep | Change::Delete));
        let mut parts = Vec::with_capacity(changes.len());
        for (at, (key, change)) in keys.iter().zip(changes).enumerate() {
            let uses_reserve = at >= named && !stores;
            let part = Part { continues: Some(at) != last, is_large, uses_reserve };
            let prepared = match change {
                Change::Keep => continue,
                Change::Put { value, metadata, expiry } => {
                    let options = PutOptions { metadata, expiry, ..PutOptions::default() };
                    self.prepare_put(key, &value, &options, part).await?
                }
                Change::PutWith { value, options } => self.prepare_put(key, &value, &options, part).await?,
                Change::Placed(placed) => self.prepare_placed(key, &placed, part).await?,
                Change::Delete => self.prepare_delete(key, part).await?,
            };
            parts.push((at, prepared));
        }
        Ok(parts)
    }

    /// Bytes that the record of a change has at the least. `is_large` is that of its step's parts.
    fn record_bytes_min(&self, key: &ObjectKey, change: &Change, is_large: bool) -> usize {
        let (value, has_metadata) = match change {
            Change::Keep => return 0,
            Change::Put { value, metadata, .. } => (value, *metadata != Metadata::default()),
            Change::PutWith { value, options } => (value, options.metadata != Metadata::default()),
            Change::Placed(_) | Change::Delete => return record_bytes(key.encoded().len(), 0),
        };
        let key_bytes = key.encoded().len();
        let value_bytes = match way_of(key_bytes, 0, value.len(), &self.tuning) {
            // With metadata the value may go elsewhere.
            _ if has_metadata => 0,
            Way::Leaf => value.len(),
            Way::Log if !is_large => value.len(),
            Way::Log | Way::Extents => 0,
        };
        record_bytes(key_bytes, value_bytes)
    }

    /// Bytes of memory and blocks of the log that a step needs.
    fn room_of(&self, parts: &Parts) -> Result<(usize, u32)> {
        let records = || parts.iter().map(|(_, part)| &part.record);
        let bytes: usize = records().map(|record| record.bytes().len()).sum();
        let memory = records().map(|record| memory_bytes(record)).sum();
        let bytes_max = self.committer.step_bytes_max();
        match parts.len() {
            1 => Ok((memory, Committer::blocks_of(bytes))),
            _ if bytes <= bytes_max => Ok((memory, Committer::blocks_of_step(bytes))),
            count => Err(too_large(count, bytes, bytes_max)),
        }
    }

    /// Queues the step, or nothing, where the newest state of all its keys is still the one that was seen, and no watched key
    /// changed: all of that at one moment.
    fn place(
        &self,
        keys: &[ObjectKey],
        seen: &[Option<Seen>],
        watches: &[Watch],
        step: Option<(Parts, Room<'_>)>,
    ) -> Result<Placed> {
        let all = keys.iter().chain(watches.iter().map(Watch::key));
        let mut tablets: Vec<&Arc<Tablet>> = all.map(|key| self.tablet_of(key)).collect();
        tablets.sort_unstable_by_key(|tablet| tablet.id);
        tablets.dedup_by_key(|tablet| tablet.id);
        let place = |key: &ObjectKey| {
            let id = self.tablet_of(key).id;
            tablets.partition_point(|tablet| tablet.id < id)
        };
        loop {
            let views: Vec<Arc<View>> = tablets.iter().map(|tablet| tablet.view()).collect();
            let Some(mut locked) = lock_all(&views) else { continue };
            if step.is_some() {
                self.check_writable()?;
            }
            for (key, seen) in keys.iter().zip(seen) {
                let at = place(key);
                let (Some(view), Some(active)) = (views.get(at), locked.get(at)) else { continue };
                if !seen.as_ref().is_none_or(|seen| seen.is_unchanged(self, view, active, key)) {
                    return Ok(Placed::Conflict);
                }
            }
            if watches.iter().any(Watch::is_changed) {
                return Ok(Placed::Changed);
            }
            let Some((parts, room)) = step else { return Ok(Placed::Done) };
            let (mut step, mut growth) = (Step::default(), Growth::default());
            for (at, part) in parts {
                let at = keys.get(at).map_or(0, place);
                let (Some(view), Some(active)) = (views.get(at), locked.get_mut(at)) else { continue };
                growth = growth.and(self.insert_part(view, active, part, &mut step));
            }
            // First: who waits for room is woken when the step is written.
            self.keep_room(room.overlays, &growth);
            self.push_step(step, room.log);
            return Ok(Placed::Done);
        }
    }
}

/// Whether a step has its place.
enum Placed {
    Done,
    /// A key is not as it was seen.
    Conflict,
    /// A watched key changed.
    Changed,
}

/// The results of all of these, or the first error.
async fn all_of<T>(futures: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let mut running: Vec<_> = futures.map(|future| (Some(Box::pin(future)), None)).collect();
    poll_fn(|context| {
        let mut left = false;
        for (future, result) in &mut running {
            let Some(polled) = future else { continue };
            match polled.as_mut().poll(context) {
                Poll::Ready(Ok(value)) => (*future, *result) = (None, Some(value)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => left = true,
            }
        }
        if left { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    Ok(running.into_iter().filter_map(|(_, result)| result).collect())
}

/// The locks of all active overlays, in the order of tablets; none where one of them was frozen meanwhile. That is asked
/// before the next lock is taken: a frozen overlay's lock comes behind all active ones.
pub(crate) fn lock_all(views: &[Arc<View>]) -> Option<SmallVec<[MutexGuard<'_, overlay::Inner>; 4]>> {
    let mut locked = SmallVec::with_capacity(views.len());
    for view in views {
        let active = view.active.lock();
        if active.is_frozen() {
            return None;
        }
        locked.push(active);
    }
    Some(locked)
}

impl Seen {
    /// Whether the key's newest state is still this one; under the lock of `active`, which is not frozen.
    pub(crate) fn is_unchanged(
        &self,
        inner: &Inner,
        view: &View,
        active: &overlay::Inner,
        key: &ObjectKey,
    ) -> bool {
        if self.expires.is_some_and(|(end, version)| inner.is_over(Some(end), version)) {
            return false;
        }
        let newest: Option<Arc<Record>> = active.newest(key.encoded()).cloned().or_else(|| {
            let frozen = view.frozen.as_ref()?;
            frozen.lock().newest(key.encoded()).cloned()
        });
        match (&newest, &self.record) {
            (Some(newest), Some(seen)) => Arc::ptr_eq(newest, seen),
            // The tree's answer counts while its root is the same (R6): a root has one era.
            (None, None) => Arc::ptr_eq(&view.era, &self.view.era),
            _ => false,
        }
    }
}
