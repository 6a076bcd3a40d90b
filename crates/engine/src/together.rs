//! Together: writes of several keys as one step, over tablets too (R22).
//!
//! All records of a step lie in one batch of the log, and recovery takes a batch as a whole or not at all. They get their
//! places under the locks of all their overlays, taken in the order of tablets. Readers of several keys see no snapshot: one
//! that looks between two of its reads sees some of the keys before the step and others after it.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::MutexGuard;
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::log::commit::{Committer, Step};
use crate::log::format::RecordKind;
use crate::object::{Object, PutOptions};
use crate::overlay::{self, Growth, Record};
use crate::pending::Pending;
use crate::plant::{Plant, planted};
use crate::retry::{Identity, Once, RESULT_LIFE_NS, Slot};
use crate::store::{Inner, Room, Store};
use crate::tablet::{Tablet, View};
use crate::update::{Change, Look, Seen};
use crate::write::{Part, Prepared, memory_bytes};

/// What an update of several keys did.
#[derive(Debug)]
pub struct Together<T> {
    /// What the decision said besides.
    pub answer: T,
    /// What must be durable before the answer may leave; the last one is the step's own last write, where it wrote.
    pub pending: Vec<Pending>,
}

/// Who a write is, and what is kept of its answer.
type Keeping<'a, T> = (Identity, &'a (dyn Fn(&T) -> Vec<u8> + Sync));

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
        let inner = &*self.0;
        inner.check_open()?;
        let looks: Vec<Look> = keys.iter().map(|(_, look)| *look).collect();
        let mut keys: Vec<ObjectKey> = keys.iter().map(|(key, _)| key.clone()).collect();
        let slot = match (keys.first(), &once) {
            (Some(first), Some((identity, _))) => Some(inner.slot_key(first, *identity)),
            _ => None,
        };
        keys.extend(slot);
        let named = keys.len() - usize::from(once.is_some());
        loop {
            let mut seen = Vec::with_capacity(keys.len());
            let mut objects = Vec::with_capacity(keys.len());
            for (key, look) in keys.iter().zip(&looks) {
                let (place, object) = inner.look_together(key, *look).await?;
                seen.push(place);
                objects.push(object);
            }
            let mut is_first_of_place = false;
            if let (Some((identity, _)), Some(key)) = (&once, keys.get(named)) {
                let (place, slot) = inner.look_at_slot(key).await?;
                is_first_of_place = slot.is_none();
                if let Some(before) = inner.before(*identity, &place, slot).await? {
                    return Ok(before);
                }
                seen.push(Some(place));
            }
            let (mut changes, answer) = decide(&objects);
            assert_eq!(changes.len(), named, "a decision has one change for each key");
            if let Some((identity, encode)) = &once {
                let writes = changes.iter().filter(|change| !matches!(change, Change::Keep)).count();
                let slot = Slot::new(*identity, writes as u32, encode(&answer));
                let expiry_ns = inner.expiry.now_ns().saturating_add(RESULT_LIFE_NS);
                changes.push(slot.change(expiry_ns));
                // Each later result of the place finds it noted: the reaper follows it to its end.
                if let Some(key) = keys.get(named).filter(|_| is_first_of_place) {
                    inner.expiring.note(expiry_ns, key.encoded());
                }
            }
            if changes.iter().all(|change| matches!(change, Change::Keep)) {
                let records = seen.into_iter().flatten().filter_map(|seen| seen.record);
                let pending = records.map(|record| Pending::new(self.clone(), record));
                let pending = pending.filter(|pending| !pending.is_durable()).collect();
                return Ok(Once::Now(Together { answer, pending }));
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
            if inner.insert_parts(&keys, &seen, parts, room)? {
                inner.hand_over_or_lead().await;
                crate::store::OperationCounters::add(&inner.counters.puts, puts);
                crate::store::OperationCounters::add(&inner.counters.deletes, deletes);
                let pending = last.map(|record| Pending::new(self.clone(), record));
                return Ok(Once::Now(Together { answer, pending: pending.into_iter().collect() }));
            }
        }
    }
}

impl Inner {
    async fn look_together(&self, key: &ObjectKey, look: Look) -> Result<(Option<Seen>, Option<Object>)> {
        if look == Look::Nothing {
            return Ok((None, None));
        }
        let (seen, found) = self.look(self.tablet_of(key), key, look).await?;
        let object = match &found {
            Some(found) => Some(self.object_for(found, look).await?),
            None => None,
        };
        Ok((Some(seen), object))
    }

    async fn look_at_slot(&self, key: &ObjectKey) -> Result<(Seen, Option<(Lsn, Slot)>)> {
        let (seen, found) = self.look(self.tablet_of(key), key, Look::Value).await?;
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
    ) -> Result<Option<Once<T>>> {
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
        Ok(Some(Once::Before { version: slot.version_of_last(version), answer: slot.answer }))
    }

    /// Encodes what changes; values that ride in no record are written. The changes behind the first `named` ones are the
    /// step's result: where these store nothing it is part of a delete, which works on a full device (R3).
    async fn prepare_parts(&self, keys: &[ObjectKey], changes: Vec<Change>, named: usize) -> Result<Parts> {
        let bytes_max = self.committer.step_bytes_max();
        let value_bytes: usize = changes.iter().map(Change::value_bytes).sum();
        let is_large = value_bytes > bytes_max / 2;
        let last = changes.iter().rposition(|change| !matches!(change, Change::Keep));
        let stores =
            changes.iter().take(named).any(|change| !matches!(change, Change::Keep | Change::Delete));
        let mut parts = Vec::with_capacity(changes.len());
        for (at, (key, change)) in keys.iter().zip(changes).enumerate() {
            let uses_reserve = at >= named && !stores;
            let part = Part { continues: Some(at) != last, is_large, uses_reserve };
            let prepared = match change {
                Change::Keep => continue,
                Change::Put { value, metadata, expiry_ns } => {
                    let options = PutOptions { metadata, expiry_ns, ..PutOptions::default() };
                    self.prepare_put(key, &value, &options, part).await?
                }
                Change::PutWith { value, options } => self.prepare_put(key, &value, &options, part).await?,
                Change::Delete => self.prepare_delete(key, part).await?,
            };
            parts.push((at, prepared));
        }
        Ok(parts)
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
            count => Err(Error::Invalid(format!(
                "{count} objects in one step need {bytes} bytes of the log at once; {bytes_max} are allowed"
            ))),
        }
    }

    /// Queues the step where the newest state of all its keys is still the one that was seen.
    fn insert_parts(
        &self,
        keys: &[ObjectKey],
        seen: &[Option<Seen>],
        parts: Parts,
        room: Room<'_>,
    ) -> Result<bool> {
        let mut tablets: Vec<&Arc<Tablet>> = keys.iter().map(|key| self.tablet_of(key)).collect();
        tablets.sort_unstable_by_key(|tablet| tablet.id);
        tablets.dedup_by_key(|tablet| tablet.id);
        let place = |key: &ObjectKey| {
            let id = self.tablet_of(key).id;
            tablets.partition_point(|tablet| tablet.id < id)
        };
        loop {
            let views: Vec<Arc<View>> = tablets.iter().map(|tablet| tablet.view()).collect();
            let Some(mut locked) = lock_all(&views) else { continue };
            self.check_writable()?;
            for (key, seen) in keys.iter().zip(seen) {
                let at = place(key);
                let (Some(view), Some(active)) = (views.get(at), locked.get(at)) else { continue };
                if !seen.as_ref().is_none_or(|seen| seen.is_unchanged(view, active, key)) {
                    return Ok(false);
                }
            }
            let (mut step, mut growth) = (Step::default(), Growth::default());
            for (at, part) in parts {
                let at = keys.get(at).map_or(0, place);
                let (Some(view), Some(active)) = (views.get(at), locked.get_mut(at)) else { continue };
                growth = growth.and(self.insert_part(view, active, part, &mut step));
            }
            // First: who waits for room is woken when the step is written.
            self.keep_room(room.overlays, &growth);
            self.push_step(step, room.log);
            return Ok(true);
        }
    }
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
    pub(crate) fn is_unchanged(&self, view: &View, active: &overlay::Inner, key: &ObjectKey) -> bool {
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
