//! The protocol as stateright sees it: a run, perhaps with one planted bug.

use stateright::{Model, Property};

use crate::action::Action;
use crate::bucket::{Change, Delivery, Late, highest};
use crate::bugs::Bug;
use crate::properties;
use crate::runs::Run;
use crate::state::{Process, Role, State};

#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub run: Run,
    pub bug: Option<Bug>,
    pub checks: Checks,
}

/// The properties that an exploration checks.
#[derive(Clone, Copy, Debug)]
pub enum Checks {
    All,
    Only(&'static str),
    Without(&'static str),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.run.budget)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.owner_actions(state, actions);
        for process in 0..self.run.processes {
            if is_twin(state, process) {
                continue;
            }
            self.claimant_actions(state, process, actions);
            self.life_actions(state, process, actions);
        }
        actions.extend((0..state.late.len() as u8).map(|index| Action::LandLate { index }));
        self.upkeep_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action)?;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = properties::all(self.run);
        properties.retain(|property| match self.checks {
            Checks::All => true,
            Checks::Only(name) => property.name == name,
            Checks::Without(name) => property.name != name,
        });
        properties
    }
}

impl Protocol {
    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Write { process } => self.write(state, process),
            Action::Send { process } => self.send(state, process),
            Action::Land { log, slot } => self.land(state, log, slot),
            Action::Answer { log, slot } => self.answer(state, log, slot),
            Action::Retry { log, slot } => self.retry(state, log, slot),
            Action::Renew { process } => {
                let log = state.process(process).log?;
                state.writer_mut(log).renewed += 1;
                Some(())
            }
            Action::HandOver { process } => {
                state.budget.hand_overs -= 1;
                state.process_mut(process).role = Role::Closing;
                Some(())
            }
            Action::Release { process, how } => self.release(state, process, how),
            Action::Follow { process } => self.follow(state, process),
            Action::Look { process } => self.look(state, process),
            Action::Claim { process, how } => self.claim(state, process, how),
            Action::Learn { process } => self.learn(state, process),
            Action::Probe { process, head } => self.probe(state, process, head),
            Action::Tombstone { process, slot, how } => self.tombstone(state, process, slot, how),
            Action::Confirm { process, how } => self.confirm(state, process, how),
            Action::Serve { process } => self.serve(state, process),
            Action::Crash { process } => self.crash(state, process),
            Action::Restart { process } => self.restart(state, process),
            Action::Rejoin { process } => self.rejoin(state, process),
            Action::LandLate { index } => {
                let request = state.late.remove(usize::from(index));
                state.bucket.land(request, self.bug);
                Some(())
            }
            Action::Collect { process, how } => self.collect(state, process, how),
            Action::Delete { log, slot } => {
                state.bucket.delete(log, slot);
                Some(())
            }
            Action::Announce { how } => self.announce(state, how),
            Action::Part { part, how } => self.part(state, part, how),
            Action::Name { how } => self.name(state, how),
            Action::Abandon => self.abandon(state),
            Action::List => self.list(state),
            Action::ReadRecord => self.read_record(state),
            Action::SweepSlot { log, slot } => self.sweep_slot(state, log, slot),
            Action::SweepPart { part } => self.sweep_part(state, part),
        }
    }

    /// The ways that a request may go: accidents need budget.
    pub(crate) fn deliveries(&self, state: &State) -> impl Iterator<Item = Delivery> + use<> {
        let all = [Delivery::Answered, Delivery::AnswerLost, Delivery::Late];
        all.into_iter().take(if state.budget.messages > 0 { 3 } else { 1 })
    }

    /// Sends a CAS; returns true if the sender learns that it succeeded.
    pub(crate) fn deliver(&self, state: &mut State, tag: u64, change: Change, how: Delivery) -> bool {
        if how != Delivery::Answered {
            state.budget.messages -= 1;
        }
        if how == Delivery::Late {
            state.delay(Late::Swap { tag, change });
            return false;
        }
        state.bucket.swap(tag, change, self.bug) && how == Delivery::Answered
    }

    fn life_actions(&self, state: &State, process: u8, actions: &mut Vec<Action>) {
        let it = state.process(process);
        if it.is_live() && state.budget.crashes > 0 {
            actions.push(Action::Crash { process });
        }
        if !it.is_live() && state.budget.restarts > 0 {
            actions.push(Action::Restart { process });
        }
        // The record has the end of the old log: a claimant confirmed it.
        let sealed = |log: &u8| state.bucket.record.log(*log).end.is_some();
        if state.budget.rejoins > 0 && left_log(it).as_ref().is_some_and(sealed) {
            actions.push(Action::Rejoin { process });
        }
    }

    /// The process is dead; its files, and its requests in flight, stay.
    fn crash(&self, state: &mut State, process: u8) -> Option<()> {
        state.budget.crashes -= 1;
        let log = state.process(process).log.filter(|log| state.writer(*log).started > 0);
        let it = state.process_mut(process);
        *it = Process { previous: log.or(it.previous), store: it.store, ..Process::new(Role::Off) };
        Some(())
    }

    fn restart(&self, state: &mut State, process: u8) -> Option<()> {
        state.budget.restarts -= 1;
        state.process_mut(process).role = Role::Following;
        Some(())
    }

    /// A server whose log somebody sealed cuts its store after the last LSN that the record has for that log.
    fn rejoin(&self, state: &mut State, process: u8) -> Option<()> {
        state.budget.rejoins -= 1;
        let log = left_log(state.process(process))?;
        let end = state.bucket.record.log(log).end?;
        let last = match self.bug {
            Some(Bug::Q7) => highest(state.writer(log).archived()),
            _ => state.last_sealed(log, end),
        };
        let behind = state.writer(log).written & !((2 << last) - 1);
        let it = state.process_mut(process);
        let store = it.store & !behind;
        *it = Process { store, rejoined: Some(log), ..Process::new(Role::Following) };
        Some(())
    }
}

/// Returns true if the process before this one did nothing yet, either: two such followers are the same up to their names, so the
/// first of them acts.
fn is_twin(state: &State, process: u8) -> bool {
    let is_new = |process: u8| *state.process(process) == Process::new(Role::Following);
    process > 0 && is_new(process - 1) && is_new(process)
}

/// The log of a process that is fenced, or was restarted and has not claimed.
fn left_log(it: &Process) -> Option<u8> {
    match it.role {
        Role::Fenced => it.log,
        Role::Following if it.log.is_none() => it.previous,
        _ => None,
    }
}
