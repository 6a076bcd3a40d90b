//! The claimant: follow, claim, seal, confirm, drain, open, wait (R-b to R-e).

use crate::action::Action;
use crate::bucket::{Change, Delivery, Kind, Late, Object, Record, SLOTS, Segment, Versions, highest};
use crate::bugs::Bug;
use crate::model::Protocol;
use crate::state::{Process, Role, Seal, Sight, State, WINDOW, Writer};

/// T7: a new owner numbers this far above the last version of the log. 2^40 in the product; more than the records of a log here.
const JUMP: u32 = 8;
/// A sight that no slot replaces: P9 and P21 wait from the suspicion.
const SUSPICION: u8 = u8::MAX;

impl Protocol {
    pub(crate) fn claimant_actions(&self, state: &State, process: u8, actions: &mut Vec<Action>) {
        let it = state.process(process);
        match it.role {
            Role::Following => {
                if self.unseen(state, it).is_some() {
                    actions.push(Action::Follow { process });
                }
                let may_claim = self.is_ownerless(state) || state.budget.suspicions > 0;
                if may_claim && (it.log.is_some() || usize::from(state.logs) < crate::bucket::LOGS) {
                    actions.push(Action::Look { process });
                }
            }
            Role::Looking => {
                actions.extend(self.deliveries(state).map(|how| Action::Claim { process, how }));
            }
            Role::Unsure => actions.push(Action::Learn { process }),
            Role::Sealing => self.seal_actions(state, process, actions),
            Role::Confirming => {
                actions.extend(self.deliveries(state).map(|how| Action::Confirm { process, how }));
            }
            Role::Opening if it.log.is_some_and(|log| state.writer(log).frontier > 0) => {
                actions.push(Action::Serve { process });
            }
            _ => {}
        }
    }

    fn seal_actions(&self, state: &State, process: u8, actions: &mut Vec<Action>) {
        let it = state.process(process);
        let Some(seal) = it.seal else {
            let Some(log) = unsealed(it) else {
                actions.extend(self.deliveries(state).map(|how| Action::Confirm { process, how }));
                return;
            };
            // h is any data slot near the head.
            let first = it.record.map_or(0, |record| record.log(log).first);
            let is_data = |slot: &u8| matches!(state.bucket.get(log, *slot), Object::Data(_));
            let mut heads = (first..SLOTS as u8).filter(is_data).map(Some).collect::<Vec<_>>();
            if !is_data(&first) {
                heads.push(None);
            }
            actions.extend(heads.into_iter().map(|head| Action::Probe { process, head }));
            return;
        };
        for (index, found) in seal.found.iter().enumerate() {
            let slot = seal.start + index as u8;
            if found.is_none() && usize::from(slot) < SLOTS {
                actions.extend(self.deliveries(state).map(|how| Action::Tombstone { process, slot, how }));
            }
        }
    }

    /// The owner is nobody, dead or fenced: a follower claims at last.
    pub(crate) fn is_ownerless(&self, state: &State) -> bool {
        let owner = state.bucket.record.owner.and_then(|log| state.owner_of(log));
        owner.is_none_or(|owner| {
            matches!(state.process(owner).role, Role::Fenced | Role::Released | Role::Following)
        })
    }

    /// The newest data slot, if it is newer than the one that the process saw.
    fn unseen(&self, state: &State, it: &Process) -> Option<Sight> {
        let record = &state.bucket.record;
        let (log, slot, _) = state.bucket.newest(record, it.log)?;
        self.newer(state, it, record.log(log).epoch, slot)
    }

    /// The sight of a data slot now, if it is newer than the one that the process has.
    fn newer(&self, state: &State, it: &Process, epoch: u8, slot: u8) -> Option<Sight> {
        let is_newer = it.sight.is_none_or(|sight| (sight.epoch, sight.slot) < (epoch, slot));
        is_newer.then(|| self.sight(state, epoch, slot))
    }

    fn sight(&self, state: &State, epoch: u8, slot: u8) -> Sight {
        let leases = std::array::from_fn(|log| self.leases(&state.writers[log]));
        Sight { epoch, slot, leases }
    }

    pub(crate) fn follow(&self, state: &mut State, process: u8) -> Option<()> {
        let sight = self.unseen(state, state.process(process))?;
        state.process_mut(process).sight = Some(sight);
        Some(())
    }

    /// Takes a log id.
    pub(crate) fn look(&self, state: &mut State, process: u8) -> Option<()> {
        if !self.is_ownerless(state) {
            state.budget.suspicions -= 1;
        }
        let record = state.bucket.record;
        let newest = record.others(None).into_iter().next_back()?;
        let free = state.bucket.head(newest, record.log(newest).first);
        let log = state.process(process).log.unwrap_or(state.logs);
        state.logs = state.logs.max(log + 1);
        *state.writer_mut(log) = Writer::new(process, 0, 0);
        let suspicion = self.sight(state, SUSPICION, SUSPICION);
        let it = state.process_mut(process);
        it.log = Some(log);
        it.role = Role::Looking;
        it.rejoined = None;
        match self.bug {
            Some(Bug::P2) => {
                it.role = Role::Sealing;
                it.record = Some(record);
            }
            Some(Bug::P3) => it.free = free,
            Some(Bug::P9 | Bug::P21) => it.sight = Some(suspicion),
            _ => {}
        }
        Some(())
    }

    /// R-b.
    pub(crate) fn claim(&self, state: &mut State, process: u8, how: Delivery) -> Option<()> {
        let log = state.process(process).log?;
        let tag = state.bucket.record.tag(self.bug);
        let is_told = self.deliver(state, tag, Change::Claim { log }, how);
        let record = state.bucket.record;
        let it = state.process_mut(process);
        it.role = if is_told { Role::Sealing } else { Role::Unsure };
        it.record = is_told.then_some(record);
        Some(())
    }

    /// The outcome of the claim is unknown: the record decides.
    pub(crate) fn learn(&self, state: &mut State, process: u8) -> Option<()> {
        let record = state.bucket.record;
        let log = state.process(process).log?;
        let is_own = self.is_owner(state, process, log);
        let it = state.process_mut(process);
        if is_own {
            it.role = Role::Sealing;
            it.record = Some(record);
            return Some(());
        }
        it.settle(Role::Following);
        // Somebody claimed later: the log is named, and its id is used.
        if record.log(log).epoch > 0 {
            it.log = None;
        }
        Some(())
    }

    /// Returns true if the record has this incarnation as the owner.
    fn is_owner(&self, state: &State, process: u8, log: u8) -> bool {
        match state.bucket.record.owner {
            // P22: the node's name is the same, the incarnation is not.
            Some(owner) if self.bug == Some(Bug::P22) => state.writer(owner).process == process,
            owner => owner == Some(log),
        }
    }

    /// R-c: the first slot for the seal of the next log.
    pub(crate) fn probe(&self, state: &mut State, process: u8, head: Option<u8>) -> Option<()> {
        let it = state.process(process);
        let log = unsealed(it)?;
        let entry = *it.record?.log(log);
        let sight = head.and_then(|head| self.newer(state, it, entry.epoch, head));
        let start = match (self.bug, head) {
            (Some(Bug::P3), _) => it.free,
            (_, None) => entry.first,
            (Some(Bug::P24), Some(head)) => head + 1,
            (_, Some(head)) => entry.first.max((head + 1).saturating_sub(WINDOW)),
        };
        let it = state.process_mut(process);
        it.sight = sight.or(it.sight);
        it.seal = Some(Seal { log, start, found: [None; 2] });
        Some(())
    }

    /// R-c: one tombstone of the window.
    pub(crate) fn tombstone(&self, state: &mut State, process: u8, slot: u8, how: Delivery) -> Option<()> {
        let it = state.process(process);
        let mut seal = it.seal?;
        if how == Delivery::Late {
            state.budget.messages -= 1;
            state.delay(Late::Create { log: seal.log, slot, object: Object::Tombstone });
            return Some(());
        }
        let epoch = it.record?.log(seal.log).epoch;
        state.bucket.create(seal.log, slot, Object::Tombstone);
        if how == Delivery::AnswerLost {
            state.budget.messages -= 1;
            return Some(());
        }
        let object = state.bucket.get(seal.log, slot);
        let is_data = matches!(object, Object::Data(_));
        let sight = is_data.then(|| self.newer(state, state.process(process), epoch, slot)).flatten();
        seal.found[usize::from(slot - seal.start)] = Some(object);
        let it = state.process_mut(process);
        it.sight = sight.or(it.sight);
        it.seal = Some(seal);
        let is_waiting =
            |index: usize| seal.found[index].is_none() && usize::from(seal.start) + index < SLOTS;
        if !is_waiting(0) && !is_waiting(1) {
            self.window_known(it, seal);
        }
        Some(())
    }

    /// The first tombstone is the end of the log, also if data are above it.
    fn window_known(&self, it: &mut Process, seal: Seal) {
        let mut tombstones = (0..2).filter(|index| seal.found[*index] == Some(Object::Tombstone));
        let chosen = if self.bug == Some(Bug::P5) { tombstones.next_back() } else { tombstones.next() };
        match chosen {
            Some(index) => {
                it.ends[usize::from(seal.log)] = Some(seal.start + index as u8);
                it.seal = None;
            }
            None => it.seal = Some(Seal { start: seal.start + 2, found: [None; 2], ..seal }),
        }
    }

    /// R-d, and the drain that follows it.
    pub(crate) fn confirm(&self, state: &mut State, process: u8, how: Delivery) -> Option<()> {
        let it = state.process(process);
        let (log, ends, own) = (it.log?, it.ends, it.record?);
        let record = state.bucket.record;
        if self.bug == Some(Bug::P4) {
            let mut local = own;
            local.apply(Change::Confirm { ends, claim: None });
            return (how == Delivery::Answered).then(|| self.open(state, process, &local));
        }
        let claim = (self.bug == Some(Bug::P2) && record.log(log).epoch == 0).then_some(log);
        if !self.is_owner(state, process, log) && claim.is_none() {
            let it = state.process_mut(process);
            it.settle(Role::Following);
            it.log = None;
            return (how == Delivery::Answered).then_some(());
        }
        let is_there = record.others(Some(log)).iter().all(|other| record.log(*other).end.is_some());
        if !is_there || claim.is_some() {
            if !self.deliver(state, record.tag(self.bug), Change::Confirm { ends, claim }, how) {
                state.process_mut(process).role = Role::Confirming;
                return Some(());
            }
        } else if how != Delivery::Answered {
            return None;
        }
        let record = state.bucket.record;
        self.open(state, process, &record);
        Some(())
    }

    /// R-e: applies everything up to the end of each log, and creates slot 0 of the own log.
    fn open(&self, state: &mut State, process: u8, record: &Record) {
        let it = state.process(process);
        let Some(log) = it.log else { return };
        let replay = state.bucket.restored(record);
        let mut sight = it.sight;
        let (mut is_exempt, mut is_own_restart) = (false, false);
        if let Some((newest, slot, segment)) = state.bucket.newest(record, Some(log)) {
            // The newest data slot of all logs counts, also of one that somebody else sealed.
            let counts = self.bug != Some(Bug::Q3) || it.ends[usize::from(newest)].is_some();
            if counts && let Some(newer) = self.newer(state, it, record.log(newest).epoch, slot) {
                sight = Some(newer);
            }
            is_own_restart = it.previous == Some(newest);
            // An owner sends slot 1 when its own wait is over, not before: so nobody before it has a lease.
            let served = slot > 0 || self.bug == Some(Bug::Q4);
            is_exempt = segment.kind == Kind::Close || is_own_restart && served;
        }
        let local = it.previous.map_or(0, |previous| state.writer(previous).written);
        let others = record.others(Some(log)).into_iter();
        let floor =
            others.filter_map(|log| Some(state.last_sealed(log, record.log(log).end?))).max().unwrap_or(0);
        let resends = is_own_restart || self.bug == Some(Bug::Q5);
        // A tail is sent again only if no other log came between.
        let tail = if resends { local & !replay } else { 0 };
        let base = self.first_version(local | replay, replay | tail, floor, is_own_restart);
        let mut writer = Writer::new(process, base, tail);
        writer.renewed = 1;
        writer.begin(Segment { kind: Kind::Opening, versions: tail });
        *state.writer_mut(log) = writer;
        let it = state.process_mut(process);
        it.settle(Role::Opening);
        it.store = replay | tail;
        it.sight = sight;
        it.is_exempt = is_exempt;
        it.previous = None;
    }

    /// T7: the version above which the owner of a new log numbers. `floor` is the highest last LSN of the logs before: an opening has its
    /// owner's first number, because versions above the seal were in use although no record of them remains.
    fn first_version(&self, local: Versions, replay: Versions, floor: u32, is_own_restart: bool) -> u32 {
        match self.bug {
            Some(Bug::Q8) if is_own_restart => highest(local),
            // The same files: it continues above all versions that it used.
            _ if is_own_restart => highest(local).max(floor),
            Some(Bug::P20) => highest(replay),
            Some(Bug::Q9) => highest(replay) + JUMP,
            _ => highest(replay).max(floor) + JUMP,
        }
    }

    /// R-e: slot 0 is archived, and T_wait has passed since the first sight of the newest data slot: so every lease that ran then has
    /// lapsed. Other leases need not: time is an order of such moments here, and a lease that runs longer only helps the old owner.
    pub(crate) fn serve(&self, state: &mut State, process: u8) -> Option<()> {
        let it = state.process(process);
        // P23: a shorter wait than the lease of the record.
        let waits = !it.is_exempt && self.bug != Some(Bug::P23);
        if let Some(sight) = it.sight.filter(|_| waits) {
            for (writer, leases) in state.writers.iter_mut().zip(sight.leases) {
                writer.lapsed = writer.lapsed.max(leases);
            }
        }
        let it = state.process_mut(process);
        it.role = Role::Serving;
        it.sight = None;
        Some(())
    }
}

/// The next log that needs a seal, oldest first.
fn unsealed(it: &Process) -> Option<u8> {
    let record = it.record?;
    let open = |log: &u8| record.log(*log).end.is_none() && it.ends[usize::from(*log)].is_none();
    record.others(it.log).into_iter().find(open)
}
