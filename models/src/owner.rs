//! The owner: writes, slots, the lease, the hand-over (R-a, R-f).

use crate::action::Action;
use crate::bucket::{Change, Delivery, Kind, Late, Object, Segment, Versions};
use crate::bugs::Bug;
use crate::model::Protocol;
use crate::state::{Flight, Role, State, WINDOW, Writer};

impl Protocol {
    pub(crate) fn owner_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for log in 0..state.logs {
            let writer = state.writer(log);
            for slot in 0..writer.started {
                match writer.flights[usize::from(slot)] {
                    Flight::Sent => actions.push(Action::Land { log, slot }),
                    Flight::Landed { .. } if state.owner_of(log).is_some() => {
                        actions.push(Action::Answer { log, slot });
                    }
                    _ => continue,
                }
                if state.budget.messages > 0 && state.owner_of(log).is_some() {
                    actions.push(Action::Retry { log, slot });
                }
            }
            if let Some(process) = state.owner_of(log) {
                self.actions_of_owner(state, process, log, actions);
            }
        }
    }

    fn actions_of_owner(&self, state: &State, process: u8, log: u8, actions: &mut Vec<Action>) {
        let writer = state.writer(log);
        let role = state.process(process).role;
        // R-a: slot s starts when all up to s - W are archived.
        let slots = state.slots_of(log);
        let may_send = writer.started < slots && writer.started < writer.frontier + WINDOW;
        let is_closed =
            writer.segments[..usize::from(writer.started)].iter().any(|it| it.kind == Kind::Close);
        // R-e: slot 0 only, until the wait is over.
        let is_open = role == Role::Serving;
        if may_send && (is_open || role == Role::Closing && !is_closed) {
            actions.push(Action::Send { process });
        }
        if is_open && state.budget.writes > 0 {
            actions.push(Action::Write { process });
        }
        let early = self.bug == Some(Bug::Q2) && role == Role::Opening && writer.frontier > 0;
        // The model has room for the last records and the close.
        let needed = u8::from(writer.written != writer.sent()) + 1;
        if (is_open || early) && state.budget.hand_overs > 0 && writer.started + needed <= slots {
            actions.push(Action::HandOver { process });
        }
        if role == Role::Closing && is_closed && writer.frontier == writer.started {
            actions.extend(self.deliveries(state).map(|how| Action::Release { process, how }));
        }
        if self.bug == Some(Bug::P9) && is_open && writer.renewed < 2 {
            actions.push(Action::Renew { process });
        }
    }

    /// A write batch first, single records after it.
    pub(crate) fn write(&self, state: &mut State, process: u8) -> Option<()> {
        state.budget.writes -= 1;
        let log = state.process(process).log?;
        let writer = state.writer_mut(log);
        let fresh = writer.fresh();
        let added =
            if fresh == 0 { writer.batch() } else { 1 << (crate::bucket::highest(writer.written) + 1) };
        writer.written |= added;
        state.process_mut(process).store |= added;
        Some(())
    }

    /// Fixes the bytes of the next slot, and starts its create.
    pub(crate) fn send(&self, state: &mut State, process: u8) -> Option<()> {
        let role = state.process(process).role;
        let writer = state.writer_mut(state.process(process).log?);
        let mut versions = writer.written & !writer.sent();
        let kind = if role == Role::Closing && versions == 0 { Kind::Close } else { Kind::Records };
        // T8: a segment has whole batches.
        if self.bug == Some(Bug::Q6) && versions & writer.batch() == writer.batch() {
            versions &= versions.wrapping_neg();
        }
        writer.begin(Segment { kind, versions });
        Some(())
    }

    pub(crate) fn land(&self, state: &mut State, log: u8, slot: u8) -> Option<()> {
        let segment = state.writer(log).segments[usize::from(slot)];
        let created = state.bucket.create(log, slot, Object::Data(segment));
        state.writer_mut(log).flights[usize::from(slot)] = Flight::Landed { created };
        Some(())
    }

    /// The outcome of a create: an existing slot is read, and decides.
    pub(crate) fn answer(&self, state: &mut State, log: u8, slot: u8) -> Option<()> {
        let process = state.owner_of(log)?;
        let created = state.writer(log).flights[usize::from(slot)] == Flight::Landed { created: true };
        let flight = match state.bucket.get(log, slot) {
            _ if created => Flight::Done,
            Object::Data(_) => Flight::Done,
            // Deleted since: undecided, the same bytes again.
            Object::Absent => Flight::Sent,
            Object::Tombstone => {
                state.process_mut(process).role = Role::Fenced;
                Flight::Landed { created: false }
            }
        };
        let bug = self.bug;
        let writer = state.writer_mut(log);
        writer.flights[usize::from(slot)] = flight;
        writer.frontier = if bug == Some(Bug::P6) { known(writer) } else { contiguous(writer) };
        Some(())
    }

    /// The sender times out: its request is late, or its answer is lost. It sends the same bytes to the same key.
    pub(crate) fn retry(&self, state: &mut State, log: u8, slot: u8) -> Option<()> {
        state.budget.messages -= 1;
        let writer = state.writer_mut(log);
        let segment = writer.segments[usize::from(slot)];
        let is_late = writer.flights[usize::from(slot)] == Flight::Sent;
        writer.flights[usize::from(slot)] = Flight::Sent;
        // P12: the slot is still free, so the newest bytes are sent.
        if self.bug == Some(Bug::P12) && slot + 1 == writer.started && is_late {
            writer.segments[usize::from(slot)].versions |= writer.written & !writer.sent();
        }
        if is_late {
            state.delay(Late::Create { log, slot, object: Object::Data(segment) });
        }
        Some(())
    }

    pub(crate) fn release(&self, state: &mut State, process: u8, how: Delivery) -> Option<()> {
        let log = state.process(process).log?;
        let tag = state.bucket.record.tag(self.bug);
        if state.bucket.record.owner == Some(log) {
            if !self.deliver(state, tag, Change::Release, how) {
                return Some(());
            }
        } else if how != Delivery::Answered {
            return None;
        }
        state.process_mut(process).role = Role::Released;
        Some(())
    }

    /// The leases of a log that were started: T_serve runs from the first attempt of a slot (R-f).
    pub(crate) fn leases(&self, writer: &Writer) -> u8 {
        match self.bug {
            Some(Bug::P7) => writer.frontier,
            Some(Bug::P9) => writer.renewed,
            _ => writer.started,
        }
    }

    /// Returns true if the owner's lease runs: that of the newest slot of the contiguous archived prefix (R-f).
    pub(crate) fn has_lease(&self, writer: &Writer) -> bool {
        let newest = match self.bug {
            Some(Bug::P8) => known(writer),
            Some(Bug::P9) => writer.renewed,
            _ => writer.frontier,
        };
        writer.lapsed < newest
    }

    /// Returns true if the process answers reads, failed conditions or async writes now. From the start of a hand-over it answers
    /// nothing: the next owner does not wait.
    pub(crate) fn answers(&self, state: &State, process: u8) -> bool {
        let it = state.process(process);
        let Some(log) = it.log else { return false };
        let writer = state.writer(log);
        let closing = self.bug == Some(Bug::Q1) && it.role == Role::Closing;
        let serves = it.role == Role::Serving || closing;
        serves && (self.bug == Some(Bug::P18) || self.has_lease(writer))
    }
}

/// R-a: every slot up to it holds its bytes.
fn contiguous(writer: &Writer) -> u8 {
    writer.flights.iter().take_while(|flight| **flight == Flight::Done).count() as u8
}

/// One more than the newest slot that holds its bytes, with gaps before it.
fn known(writer: &Writer) -> u8 {
    writer.flights.iter().rposition(|flight| *flight == Flight::Done).map_or(0, |slot| slot as u8 + 1)
}

/// The records of a base at the owner's archived LSN.
pub(crate) fn archived_store(state: &State, process: u8, log: u8) -> Versions {
    let writer = state.writer(log);
    state.process(process).store & !(writer.written & !writer.archived())
}
