//! Collection, the upload of a base, and the sweep (R-g to R-i): the record alone decides whether a key may be deleted.

use crate::action::Action;
use crate::bucket::{Change, Delivery, LOGS, Late, Object, PARTS, SLOTS};
use crate::bugs::Bug;
use crate::model::Protocol;
use crate::owner::archived_store;
use crate::state::{Role, State, Sweep};

/// The process that uploads a base part by part.
const UPLOADER: u8 = 0;
/// All parts of the base.
pub(crate) const ALL_PARTS: u8 = (1 << PARTS) - 1;

impl Protocol {
    pub(crate) fn upkeep_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for process in 0..state.processes.len() as u8 {
            if state.budget.collections > 0
                && owned(state, process).is_some_and(|log| has_garbage(state, log))
            {
                actions.extend(self.deliveries(state).map(|how| Action::Collect { process, how }));
            }
        }
        for log in 0..LOGS as u8 {
            let dead = (0..SLOTS as u8).filter(|slot| self.is_deleted(state, log, *slot));
            actions.extend(dead.map(|slot| Action::Delete { log, slot }));
        }
        self.upload_actions(state, actions);
        self.sweep_actions(state, actions);
    }

    /// Returns true if somebody deletes the slot: its data are dead by the record. Tombstones stay (R-h).
    fn is_deleted(&self, state: &State, log: u8, slot: u8) -> bool {
        let entry = state.bucket.record.log(log);
        match state.bucket.get(log, slot) {
            Object::Absent => false,
            Object::Tombstone => self.bug == Some(Bug::P1) && entry.end == Some(slot) && entry.first == slot,
            Object::Data(_) => {
                let hasty = |it: &crate::state::Process| slot < it.firsts[usize::from(log)];
                entry.epoch > 0 && !state.bucket.record.names(log, slot)
                    || self.bug == Some(Bug::P15) && state.processes.iter().any(hasty)
            }
        }
    }

    /// Names a base at the archived LSN, whose parts are complete, and moves `first` of all logs (R-g).
    pub(crate) fn collect(&self, state: &mut State, process: u8, how: Delivery) -> Option<()> {
        state.budget.collections -= 1;
        let log = owned(state, process)?;
        let versions = archived_store(state, process, log);
        let mut firsts = state.bucket.record.logs.map(|entry| entry.end.unwrap_or(0));
        // `first` of an open log stays at its newest archived slot at most: a claimant sees slot end - 1.
        firsts[usize::from(log)] = state.writer(log).frontier.saturating_sub(1);
        state.bucket.parts = ALL_PARTS;
        if self.bug == Some(Bug::P15) {
            state.process_mut(process).firsts = firsts;
        }
        let tag = state.bucket.record.tag(self.bug);
        self.deliver(state, tag, Change::Collect { versions, firsts }, how);
        Some(())
    }

    fn upload_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if owned(state, UPLOADER).is_none() {
            return;
        }
        let Some(known) = state.upload else {
            if state.budget.uploads > 0 {
                actions.extend(self.deliveries(state).map(|how| Action::Announce { how }));
            }
            return;
        };
        for part in (0..PARTS).filter(|part| known & 1 << part == 0) {
            actions.extend(self.deliveries(state).map(|how| Action::Part { part, how }));
        }
        // P19: named after the first part.
        let needed = if self.bug == Some(Bug::P19) { 1 } else { ALL_PARTS };
        if known & needed == needed {
            actions.extend(self.deliveries(state).map(|how| Action::Name { how }));
        }
        if state.budget.abandons > 0 && state.bucket.record.is_building {
            actions.push(Action::Abandon);
        }
    }

    pub(crate) fn announce(&self, state: &mut State, how: Delivery) -> Option<()> {
        let record = &state.bucket.record;
        let is_told = if record.is_building {
            how == Delivery::Answered
        } else {
            let tag = record.tag(self.bug);
            self.deliver(state, tag, Change::Announce, how)
        };
        if is_told {
            state.budget.uploads -= 1;
            state.upload = Some(0);
        }
        Some(())
    }

    pub(crate) fn part(&self, state: &mut State, part: u8, how: Delivery) -> Option<()> {
        match how {
            Delivery::Late => state.delay(Late::Part(part)),
            Delivery::Answered | Delivery::AnswerLost => state.bucket.parts |= 1 << part,
        }
        if how == Delivery::Answered {
            state.upload = Some(state.upload? | 1 << part);
        } else {
            state.budget.messages -= 1;
        }
        Some(())
    }

    pub(crate) fn name(&self, state: &mut State, how: Delivery) -> Option<()> {
        let versions = archived_store(state, UPLOADER, owned(state, UPLOADER)?);
        let record = &state.bucket.record;
        let is_told = if record.is_building {
            let tag = record.tag(self.bug);
            self.deliver(state, tag, Change::Name { versions }, how)
        } else {
            how == Delivery::Answered
        };
        if is_told {
            state.upload = None;
        }
        Some(())
    }

    pub(crate) fn abandon(&self, state: &mut State) -> Option<()> {
        state.budget.abandons -= 1;
        state.upload = None;
        state.bucket.record.apply(Change::Abandon);
        Some(())
    }

    fn sweep_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.sweep.is_none() && state.budget.sweeps == 0 {
            return;
        }
        let sweep = state.sweep.unwrap_or(Sweep { slots: None, parts: 0, record: None });
        // R-i: list, then read the record. P14: the other way round.
        let record_first = self.bug == Some(Bug::P14);
        match (sweep.slots, sweep.record) {
            (None, None) if record_first => actions.push(Action::ReadRecord),
            (None, _) => actions.push(Action::List),
            (Some(_), None) => actions.push(Action::ReadRecord),
            (Some(slots), Some(record)) => {
                for (log, bits) in slots.iter().enumerate() {
                    let log = log as u8;
                    let listed = (0..SLOTS as u8).filter(|slot| bits & 1 << slot != 0);
                    let dead = listed.filter(|slot| !record.names(log, *slot));
                    actions.extend(dead.map(|slot| Action::SweepSlot { log, slot }));
                }
                let parts = (0..PARTS).filter(|part| sweep.parts & 1 << part != 0 && !record.names_base());
                actions.extend(parts.map(|part| Action::SweepPart { part }));
            }
        }
    }

    /// A listing. Tombstones are left out of it: they are known by their size (R-h).
    pub(crate) fn list(&self, state: &mut State) -> Option<()> {
        let is_data = |object: &Object| matches!(object, Object::Data(_));
        let bits = |slots: &[Object; SLOTS]| {
            slots.iter().enumerate().fold(0, |bits, (slot, object)| bits | u8::from(is_data(object)) << slot)
        };
        let slots = Some(std::array::from_fn(|log| bits(&state.bucket.slots[log])));
        let record = state.sweep.and_then(|sweep| sweep.record);
        state.budget.sweeps = 0;
        state.sweep = Some(Sweep { slots, parts: state.bucket.parts, record });
        Some(())
    }

    pub(crate) fn read_record(&self, state: &mut State) -> Option<()> {
        let empty = Sweep { slots: None, parts: 0, record: None };
        let record = Some(state.bucket.record);
        state.budget.sweeps = 0;
        state.sweep = Some(Sweep { record, ..state.sweep.unwrap_or(empty) });
        Some(())
    }

    pub(crate) fn sweep_slot(&self, state: &mut State, log: u8, slot: u8) -> Option<()> {
        state.sweep.as_mut()?.slots.as_mut()?[usize::from(log)] &= !(1 << slot);
        state.bucket.delete(log, slot);
        Some(())
    }

    pub(crate) fn sweep_part(&self, state: &mut State, part: u8) -> Option<()> {
        state.sweep.as_mut()?.parts &= !(1 << part);
        state.bucket.parts &= !(1 << part);
        Some(())
    }
}

/// The log of a serving process, if it is the owner by the record.
fn owned(state: &State, process: u8) -> Option<u8> {
    let it = state.process(process);
    let log = it.log.filter(|_| it.role == Role::Serving)?;
    (state.bucket.record.owner == Some(log)).then_some(log)
}

/// Returns true if a collection would let `first` of some log grow.
fn has_garbage(state: &State, log: u8) -> bool {
    let record = &state.bucket.record;
    let others = record.others(Some(log));
    let dead =
        others.iter().any(|other| record.log(*other).end.is_some_and(|end| record.log(*other).first < end));
    dead || record.log(log).first + 1 < state.writer(log).frontier
}
