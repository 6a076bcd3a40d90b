//! The properties: T1 to T8 of the design's proof, and the states that a run must reach.

use stateright::{Model, Property};

use crate::action::Action;
use crate::bucket::{Delivery, Kind, LOGS, Late, Object, SLOTS, Versions, highest};
use crate::model::Protocol;
use crate::runs::Run;
use crate::state::{Flight, Role, State};
use crate::upkeep::ALL_PARTS;

pub const T1: &str = "T1: no archived write is lost";
pub const T2: &str = "T2: nothing is archived after the seal";
pub const T4: &str = "T4: at most one process answers";
pub const T5: &str = "T5: an owner that serves has confirmed the ends";
pub const T7: &str = "T7: a version is used once";
pub const T8: &str = "T8: write batches stay whole";
pub const PREFIX: &str = "replay is a contiguous prefix";
pub const NAMED: &str = "everything that the record names exists";
pub const REJOINED: &str = "a rejoined store equals the log";
pub const STORE: &str = "an owner has everything that is archived";
pub const SERVES: &str = "a live claimant serves";

type Holds = fn(&Protocol, &State) -> bool;

/// The properties of a run.
pub fn all(run: Run) -> Vec<Property<Protocol>> {
    let always: [(&'static str, Holds); 11] = [
        (T1, archived_stays),
        (T2, sealed_is_final),
        (T4, one_answers),
        (T5, ends_are_confirmed),
        (T7, versions_are_unique),
        (T8, batches_are_whole),
        (PREFIX, replay_is_prefix),
        (NAMED, named_exists),
        (REJOINED, rejoined_equals_log),
        (STORE, owner_has_archive),
        (SERVES, claimant_serves),
    ];
    let sometimes: [(&'static str, Holds); 6] = [
        ("data in the tombstone window", data_behind_tombstone),
        ("a zombie re-creates a dead slot", dead_slot_returns),
        ("async loss", async_loss),
        ("hand-over without wait", no_wait),
        ("a rejoin drops records", rejoin_drops),
        ("a sweep deletes a part", sweep_deletes),
    ];
    let wanted = sometimes.into_iter().filter(|(name, _)| run.reaches.contains(name));
    let always = always.into_iter().map(|(name, holds)| Property::always(name, holds));
    always.chain(wanted.map(|(name, holds)| Property::sometimes(name, holds))).collect()
}

/// A restore from the record has every record that its owner reports as archived.
fn archived_stays(_: &Protocol, state: &State) -> bool {
    let archived = state.writers.iter().fold(0, |all, writer| all | writer.archived());
    archived & !state.bucket.restored(&state.bucket.record) == 0
}

fn sealed_is_final(_: &Protocol, state: &State) -> bool {
    let mut logs = state.bucket.record.logs.iter().zip(&state.writers);
    logs.all(|(entry, writer)| entry.end.is_none_or(|end| writer.frontier <= end))
}

fn one_answers(protocol: &Protocol, state: &State) -> bool {
    (0..state.processes.len() as u8).filter(|process| protocol.answers(state, *process)).count() <= 1
}

/// An older log without an end would let a restore take damage for the end of the log.
fn ends_are_confirmed(_: &Protocol, state: &State) -> bool {
    let record = &state.bucket.record;
    let Some(log) = record.owner else { return true };
    let serves = state.owner_of(log).is_some_and(|owner| state.process(owner).role == Role::Serving);
    !serves || record.others(Some(log)).iter().all(|other| record.log(*other).end.is_some())
}

fn versions_are_unique(_: &Protocol, state: &State) -> bool {
    let mut all: Versions = 0;
    state.writers.iter().all(|writer| {
        let fresh = writer.fresh();
        let is_new = all & fresh == 0;
        all |= fresh;
        is_new
    })
}

fn batches_are_whole(_: &Protocol, state: &State) -> bool {
    let restored = state.bucket.restored(&state.bucket.record);
    state.writers.iter().all(|writer| {
        let batch = writer.batch() & writer.fresh();
        [0, batch].contains(&(restored & batch))
    })
}

/// Of each owner's log a restore has the records up to some version, and none above it. Along the logs versions grow, and an opening
/// counts as its owner's first number: a record that was lost does not come back.
fn replay_is_prefix(_: &Protocol, state: &State) -> bool {
    let record = &state.bucket.record;
    let restored = state.bucket.restored(record);
    let is_prefix = state.writers.iter().all(|writer| {
        let fresh = writer.fresh();
        let last = highest(restored & fresh);
        fresh & !restored & ((1 << last) - 1) == 0
    });
    let mut position = 0;
    is_prefix
        && record.others(None).into_iter().all(|log| {
            let entry = record.log(log);
            let mut slots =
                (entry.first..entry.end.unwrap_or(SLOTS as u8)).map(|slot| state.bucket.get(log, slot));
            slots.all(|object| {
                let Object::Data(segment) = object else { return true };
                let is_above = segment.versions & ((2 << position) - 1) == 0;
                let opened = if segment.kind == Kind::Opening { state.writer(log).base } else { 0 };
                position = position.max(highest(segment.versions)).max(opened);
                is_above
            })
        })
}

fn named_exists(_: &Protocol, state: &State) -> bool {
    let bucket = &state.bucket;
    let is_data = |log: u8, slot: u8| matches!(bucket.get(log, slot), Object::Data(_));
    let logs_exist = bucket.record.others(None).into_iter().all(|log| {
        let entry = bucket.record.log(log);
        match entry.end {
            // R-h: the tombstone stays, also when the log has left the record.
            Some(end) => {
                (entry.first..end).all(|slot| is_data(log, slot))
                    && entry.first <= end
                    && bucket.get(log, end) == Object::Tombstone
            }
            None => (entry.first..state.writer(log).frontier).all(|slot| is_data(log, slot)),
        }
    });
    logs_exist && (bucket.record.base.is_none() || bucket.parts == ALL_PARTS)
}

/// A store that was cut holds exactly the records of the archive up to the end of its log.
fn rejoined_equals_log(_: &Protocol, state: &State) -> bool {
    let record = &state.bucket.record;
    let restored = state.bucket.restored(record);
    state.processes.iter().all(|process| {
        let Some(log) = process.rejoined else { return true };
        let is_older = |other: &u8| record.log(*other).epoch <= record.log(log).epoch;
        let sealed = record.others(None).into_iter().filter(is_older).fold(0, |all, other| {
            let end = record.log(other).end.map_or(0, usize::from);
            state.writer(other).segments[..end].iter().fold(all, |all, segment| all | segment.versions)
        });
        process.store == restored & sealed
    })
}

fn owner_has_archive(_: &Protocol, state: &State) -> bool {
    let Some(owner) = state.bucket.record.owner.and_then(|log| state.owner_of(log)) else { return true };
    let process = state.process(owner);
    process.role != Role::Serving || state.bucket.restored(&state.bucket.record) & !process.store == 0
}

/// *Eventually*, checked as *always* (README): in a state in which no fair step is possible, nobody is on the way, and a process
/// that could claim has an owner that serves, unless the log ids of the run are used up.
fn claimant_serves(protocol: &Protocol, state: &State) -> bool {
    let is_settled = |role: Role| {
        matches!(role, Role::Off | Role::Following | Role::Serving | Role::Released | Role::Fenced)
    };
    let processes = &state.processes[..usize::from(protocol.run.processes)];
    let on_the_way = processes.iter().any(|process| !is_settled(process.role));
    let could_claim =
        processes.iter().any(|process| process.role == Role::Following) && usize::from(state.logs) < LOGS;
    let is_stuck = on_the_way || could_claim && protocol.is_ownerless(state);
    if !is_stuck {
        return true;
    }
    let mut actions = Vec::new();
    protocol.actions(state, &mut actions);
    actions.into_iter().any(|action| is_fair(protocol, state, action))
}

/// Returns true if a live process takes the step at last. Accidents, late requests and steps that need no hurry are not fair.
fn is_fair(protocol: &Protocol, state: &State, action: Action) -> bool {
    match action {
        Action::Land { log, .. } | Action::Answer { log, .. } => state.owner_of(log).is_some(),
        Action::Send { process } => state.process(process).role == Role::Closing,
        Action::Look { .. } => protocol.is_ownerless(state),
        Action::Learn { .. } | Action::Probe { .. } | Action::Serve { .. } => true,
        Action::Claim { how, .. }
        | Action::Tombstone { how, .. }
        | Action::Confirm { how, .. }
        | Action::Release { how, .. } => how == Delivery::Answered,
        _ => false,
    }
}

fn data_behind_tombstone(_: &Protocol, state: &State) -> bool {
    state.bucket.record.others(None).into_iter().any(|log| {
        let slots = (0..SLOTS as u8).map(|slot| state.bucket.get(log, slot));
        let mut behind = slots.skip_while(|object| *object != Object::Tombstone);
        behind.any(|object| matches!(object, Object::Data(_)))
    })
}

/// A create is on its way to a slot that was archived, collected and deleted.
fn dead_slot_returns(_: &Protocol, state: &State) -> bool {
    state.late.iter().any(|request| {
        let Late::Create { log, slot, object: Object::Data(_) } = *request else { return false };
        let is_done = state.writer(log).flights[usize::from(slot)] == Flight::Done;
        is_done && state.bucket.get(log, slot) == Object::Absent
    })
}

/// A sealed log lacks records that its owner answered.
fn async_loss(_: &Protocol, state: &State) -> bool {
    let restored = state.bucket.restored(&state.bucket.record);
    let mut logs = state.bucket.record.logs.iter().zip(&state.writers);
    logs.any(|(entry, writer)| entry.end.is_some() && writer.written & !restored != 0)
}

fn no_wait(_: &Protocol, state: &State) -> bool {
    state.processes.iter().any(|process| {
        let serves = process.role == Role::Serving && process.is_exempt;
        let closed = |log: usize| {
            state.bucket.slots[log]
                .iter()
                .any(|object| matches!(object, Object::Data(it) if it.kind == Kind::Close))
        };
        let running = |log: usize| state.writers[log].lapsed < state.writers[log].frontier;
        serves && (0..LOGS).any(|log| process.log != Some(log as u8) && closed(log) && running(log))
    })
}

fn rejoin_drops(_: &Protocol, state: &State) -> bool {
    state
        .processes
        .iter()
        .any(|process| process.rejoined.is_some_and(|log| state.writer(log).written & !process.store != 0))
}

fn sweep_deletes(_: &Protocol, state: &State) -> bool {
    state.sweep.is_some_and(|sweep| sweep.record.is_some())
        && state.budget.abandons == 0
        && state.bucket.parts == 0
}
