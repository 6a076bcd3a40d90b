//! The bucket: slots of logs, one record, the parts of one base, and the axioms that the protocol asks of a store.
//!
//! X1: of creates of an absent key one takes effect, of a present key none ([`Bucket::create`]). X2: reads and lists return completed
//! writes, so a step of a process reads the state itself. X3: a CAS succeeds on the named version only ([`Bucket::swap`]). X4: any
//! request may take effect late, and any answer may be lost ([`Delivery`], [`Late`]). X5: nobody else deletes.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::bugs::Bug;

/// The number of logs. A log is named by its number, and each belongs to one incarnation of a process.
pub const LOGS: usize = 3;
/// The slots of a log. The last one never has data, so that a seal finds room for its tombstone.
pub const SLOTS: usize = 4;
/// The parts of a base.
pub const PARTS: u8 = 2;

/// A set of versions: bit `v` stands for the record with version `v`.
pub type Versions = u32;

/// The highest version of a set; 0 if it is empty, because no record has the version 0.
pub fn highest(versions: Versions) -> u32 {
    versions.checked_ilog2().unwrap_or(0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Slot 0. It has records only if a restart sends a tail again.
    Opening,
    /// Records; without any it is a heartbeat.
    Records,
    /// The owner answers nothing any more.
    Close,
}

/// The bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Segment {
    pub kind: Kind,
    pub versions: Versions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    Absent,
    Tombstone,
    Data(Segment),
}

/// A log in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogEntry {
    /// The epoch of its claim; 0: the record does not name it.
    pub epoch: u8,
    /// The first slot that may not be deleted.
    pub first: u8,
    /// The slot of the first tombstone, once a claimant confirmed it. The log has left the record if `first` is here.
    pub end: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// R-j: every version of the record differs.
    pub revision: u8,
    pub epoch: u8,
    /// The owner's log, which is also its incarnation; none after a hand-over.
    pub owner: Option<u8>,
    pub logs: [LogEntry; LOGS],
    /// A base is being built: its parts stay.
    pub is_building: bool,
    /// The contents of the named base.
    pub base: Option<Versions>,
}

/// The changes of the record, each of which is one CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// R-b.
    Claim {
        log: u8,
    },
    /// R-d. `claim` is for P2 only: one CAS claims and confirms.
    Confirm {
        ends: [Option<u8>; LOGS],
        claim: Option<u8>,
    },
    Announce,
    Name {
        versions: Versions,
    },
    Abandon,
    /// A base is named, and `first` of all logs grows (R-g).
    Collect {
        versions: Versions,
        firsts: [u8; LOGS],
    },
    /// The hand-over's last step.
    Release,
}

impl Record {
    pub fn apply(&mut self, change: Change) {
        self.revision += 1;
        match change {
            Change::Claim { log } => {
                self.epoch += 1;
                self.owner = Some(log);
                self.logs[usize::from(log)].epoch = self.epoch;
            }
            Change::Confirm { ends, claim } => {
                for (log, end) in self.logs.iter_mut().zip(ends) {
                    log.end = end.or(log.end);
                }
                if let Some(log) = claim {
                    self.revision -= 1;
                    self.apply(Change::Claim { log });
                }
            }
            Change::Announce => self.is_building = true,
            Change::Name { versions } => {
                self.is_building = false;
                self.base = Some(versions);
            }
            Change::Abandon => self.is_building = false,
            Change::Collect { versions, firsts } => {
                self.base = Some(versions);
                for (log, first) in self.logs.iter_mut().zip(firsts) {
                    log.first = log.first.max(first);
                }
            }
            Change::Release => self.owner = None,
        }
    }

    /// The version that a CAS names. P13: the hash of a content that may come back.
    pub fn tag(&self, bug: Option<Bug>) -> u64 {
        if bug != Some(Bug::P13) {
            return u64::from(self.revision);
        }
        let mut hasher = DefaultHasher::new();
        Self { revision: 0, ..*self }.hash(&mut hasher);
        hasher.finish()
    }

    pub fn log(&self, log: u8) -> &LogEntry {
        &self.logs[usize::from(log)]
    }

    /// The named logs without `own`, oldest first.
    pub fn others(&self, own: Option<u8>) -> Vec<u8> {
        let mut logs: Vec<u8> =
            (0..LOGS as u8).filter(|log| Some(*log) != own && self.log(*log).epoch > 0).collect();
        logs.sort_by_key(|log| self.log(*log).epoch);
        logs
    }

    /// Returns true if the record names the slot: nobody deletes it (R-g).
    pub fn names(&self, log: u8, slot: u8) -> bool {
        let entry = self.log(log);
        entry.epoch > 0 && slot >= entry.first && entry.end.is_none_or(|end| slot < end)
    }

    pub fn names_base(&self) -> bool {
        self.is_building || self.base.is_some()
    }
}

/// The fate of a request (X4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Delivery {
    /// It takes effect, and its answer arrives.
    Answered,
    /// It takes effect, and its sender times out.
    AnswerLost,
    /// Its sender times out, and it may take effect at any time after that.
    Late,
}

/// A request whose sender has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Late {
    Create { log: u8, slot: u8, object: Object },
    Swap { tag: u64, change: Change },
    Part(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    pub record: Record,
    pub slots: [[Object; SLOTS]; LOGS],
    /// The parts of the base that are present, as bits.
    pub parts: u8,
}

impl Bucket {
    pub fn get(&self, log: u8, slot: u8) -> Object {
        self.slots[usize::from(log)][usize::from(slot)]
    }

    /// X1; returns true if it took effect.
    pub fn create(&mut self, log: u8, slot: u8, object: Object) -> bool {
        let present = &mut self.slots[usize::from(log)][usize::from(slot)];
        let is_absent = *present == Object::Absent;
        if is_absent {
            *present = object;
        }
        is_absent
    }

    /// X3; returns true if it took effect.
    pub fn swap(&mut self, tag: u64, change: Change, bug: Option<Bug>) -> bool {
        let is_current = self.record.tag(bug) == tag;
        if is_current {
            self.record.apply(change);
        }
        is_current
    }

    pub fn land(&mut self, request: Late, bug: Option<Bug>) {
        match request {
            Late::Create { log, slot, object } => _ = self.create(log, slot, object),
            Late::Swap { tag, change } => _ = self.swap(tag, change, bug),
            Late::Part(part) => self.parts |= 1 << part,
        }
    }

    pub fn delete(&mut self, log: u8, slot: u8) {
        self.slots[usize::from(log)][usize::from(slot)] = Object::Absent;
    }

    /// The number of the first slot from `first` on that has no data: the end of an open log for now.
    pub fn head(&self, log: u8, first: u8) -> u8 {
        let is_data = |slot: &u8| matches!(self.get(log, *slot), Object::Data(_));
        first + (first..SLOTS as u8).take_while(is_data).count() as u8
    }

    /// The newest slot with data before its log's first tombstone, with the epoch of its log.
    pub fn newest(&self, record: &Record, own: Option<u8>) -> Option<(u8, u8, Segment)> {
        record.others(own).into_iter().rev().find_map(|log| {
            let entry = record.log(log);
            let end = entry.end.unwrap_or_else(|| self.head(log, entry.first));
            match self.get(log, end.checked_sub(1)?) {
                Object::Data(segment) => Some((log, end - 1, segment)),
                _ => None,
            }
        })
    }

    /// The records that a restore finds without any process: the base's, then the logs' up to the end of each.
    pub fn restored(&self, record: &Record) -> Versions {
        let mut versions = record.base.unwrap_or(0);
        for log in record.others(None) {
            let entry = record.log(log);
            let end = entry.end.unwrap_or(SLOTS as u8);
            for slot in entry.first..end {
                let Object::Data(segment) = self.get(log, slot) else { break };
                versions |= segment.versions;
            }
        }
        versions
    }
}
