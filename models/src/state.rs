//! A state: the bucket, the writer's side of each log, the processes, and the requests that are late.

use crate::bucket::{Bucket, Kind, LOGS, Late, LogEntry, Object, Record, SLOTS, Segment, Versions, highest};

/// The number of processes.
pub const PROCESSES: usize = 3;
/// Slots in flight (R-a).
pub const WINDOW: u8 = 2;

/// The create of one slot, from the owner's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flight {
    Unsent,
    Sent,
    /// It reached the bucket; the answer is on its way.
    Landed {
        created: bool,
    },
    /// The owner knows that the slot holds its bytes.
    Done,
}

/// A log as its owner knows it, and the clock that its lease runs by. It outlives the owner's process as far as its files and its
/// requests in flight do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    pub process: u8,
    /// The owner's versions are above this one.
    pub base: u32,
    /// Records of the local log, those that a restart took over included.
    pub written: Versions,
    /// The bytes of the slots, fixed when they are sent (INV-40 of the design).
    pub segments: [Segment; SLOTS],
    pub flights: [Flight; SLOTS],
    /// Slots that were sent, ever.
    pub started: u8,
    /// Slots that the owner counts as archived (R-a).
    pub frontier: u8,
    /// The time since the start of this many slots is longer than T_serve: time is only an order of such moments.
    pub lapsed: u8,
    /// P9 only: renewals of the member object.
    pub renewed: u8,
}

impl Writer {
    pub fn new(process: u8, base: u32, written: Versions) -> Self {
        Self {
            process,
            base,
            written,
            segments: [Segment { kind: Kind::Opening, versions: 0 }; SLOTS],
            flights: [Flight::Unsent; SLOTS],
            started: 0,
            frontier: 0,
            lapsed: 0,
            renewed: 0,
        }
    }

    /// Records in slots that were sent.
    pub fn sent(&self) -> Versions {
        self.segments[..usize::from(self.started)].iter().fold(0, |all, segment| all | segment.versions)
    }

    /// Records that the owner reports as archived.
    pub fn archived(&self) -> Versions {
        self.segments[..usize::from(self.frontier)].iter().fold(0, |all, segment| all | segment.versions)
    }

    /// Versions that this owner was the first to use.
    pub fn fresh(&self) -> Versions {
        self.written & !((2 << self.base) - 1)
    }

    /// The first two records are one write batch.
    pub fn batch(&self) -> Versions {
        0b110 << self.base
    }

    pub fn begin(&mut self, segment: Segment) {
        let slot = usize::from(self.started);
        self.segments[slot] = segment;
        self.flights[slot] = Flight::Sent;
        self.started += 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Dead, or not started.
    Off,
    Following,
    /// It suspects the owner and has a log id, no claim.
    Looking,
    /// The outcome of its claim is unknown.
    Unsure,
    Sealing,
    Confirming,
    /// Slot 0 of the own log is sent; the wait is not over.
    Opening,
    Serving,
    Closing,
    /// It left the log in order.
    Released,
    /// A tombstone is in its slot.
    Fenced,
}

/// The newest data slot that a process saw, and the leases that ran when it first saw it: when all of them have lapsed, T_wait has passed
/// since then at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sight {
    pub epoch: u8,
    pub slot: u8,
    pub leases: [u8; LOGS],
}

/// The seal of one log: a window of two tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seal {
    pub log: u8,
    pub start: u8,
    /// The objects that were found or created, once known.
    pub found: [Option<Object>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub role: Role,
    /// The own log: the incarnation.
    pub log: Option<u8>,
    /// The log of the incarnation before, whose files are here.
    pub previous: Option<u8>,
    /// The local store, its log included.
    pub store: Versions,
    /// The record of the claim, until it is confirmed.
    pub record: Option<Record>,
    pub sight: Option<Sight>,
    /// P3 only: the free slot that was found before the claim.
    pub free: u8,
    pub seal: Option<Seal>,
    pub ends: [Option<u8>; LOGS],
    /// No wait is needed: the old owner closed its log, or is dead on this host.
    pub is_exempt: bool,
    /// The store was cut to the end of this log.
    pub rejoined: Option<u8>,
    /// P15 only: the slots that a collection wants to delete, whether or not its CAS succeeded.
    pub firsts: [u8; LOGS],
}

impl Process {
    pub fn new(role: Role) -> Self {
        Self {
            role,
            log: None,
            previous: None,
            store: 0,
            record: None,
            sight: None,
            free: 0,
            seal: None,
            ends: [None; LOGS],
            is_exempt: false,
            rejoined: None,
            firsts: [0; LOGS],
        }
    }

    pub fn is_live(&self) -> bool {
        self.role != Role::Off
    }

    /// Drops the findings of a claim.
    pub fn settle(&mut self, role: Role) {
        self.role = role;
        self.record = None;
        self.seal = None;
        self.ends = [None; LOGS];
        self.free = 0;
    }
}

/// A listing, and the record that was read with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sweep {
    /// Slots with data, a bit each, by log.
    pub slots: Option<[u8; LOGS]>,
    pub parts: u8,
    pub record: Option<Record>,
}

/// How often each accident, and each step that may happen at any time, happens yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Records that owners write: the first write is a batch of two.
    pub writes: u8,
    /// Requests that are late, or whose answer is lost.
    pub messages: u8,
    pub crashes: u8,
    pub restarts: u8,
    /// Claims although the owner lives.
    pub suspicions: u8,
    pub collections: u8,
    pub hand_overs: u8,
    pub rejoins: u8,
    pub uploads: u8,
    pub abandons: u8,
    pub sweeps: u8,
    /// Slots that the first log may have, and each later one.
    pub slots: u8,
    pub later_slots: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub bucket: Bucket,
    pub writers: [Writer; LOGS],
    pub processes: [Process; PROCESSES],
    /// Sorted: their order means nothing.
    pub late: Vec<Late>,
    /// Log ids in use.
    pub logs: u8,
    /// The base's upload by the first owner: parts that it knows of; none while it builds none.
    pub upload: Option<u8>,
    pub sweep: Option<Sweep>,
    pub budget: Budget,
}

impl State {
    /// The first process serves with slot 0 archived; the others follow.
    pub fn new(budget: Budget) -> Self {
        let opening = Segment { kind: Kind::Opening, versions: 0 };
        let mut slots = [[Object::Absent; SLOTS]; LOGS];
        slots[0][0] = Object::Data(opening);
        let unnamed = LogEntry { epoch: 0, first: 0, end: None };
        let mut logs = [unnamed; LOGS];
        logs[0].epoch = 1;
        let record = Record { revision: 1, epoch: 1, owner: Some(0), logs, is_building: false, base: None };
        let mut writers = std::array::from_fn(|_| Writer::new(0, 0, 0));
        writers[0].begin(opening);
        writers[0].flights[0] = Flight::Done;
        writers[0].frontier = 1;
        writers[0].renewed = 1;
        let mut processes = std::array::from_fn(|_| Process::new(Role::Following));
        processes[0].role = Role::Serving;
        processes[0].log = Some(0);
        Self {
            bucket: Bucket { record, slots, parts: 0 },
            writers,
            processes,
            late: Vec::new(),
            logs: 1,
            upload: None,
            sweep: None,
            budget,
        }
    }

    pub fn writer(&self, log: u8) -> &Writer {
        &self.writers[usize::from(log)]
    }

    pub fn writer_mut(&mut self, log: u8) -> &mut Writer {
        &mut self.writers[usize::from(log)]
    }

    pub fn process(&self, process: u8) -> &Process {
        &self.processes[usize::from(process)]
    }

    pub fn process_mut(&mut self, process: u8) -> &mut Process {
        &mut self.processes[usize::from(process)]
    }

    /// The live process whose present incarnation owns `log`.
    pub fn owner_of(&self, log: u8) -> Option<u8> {
        let owner = self.writer(log).process;
        let process = self.process(owner);
        (process.is_live() && process.log == Some(log)).then_some(owner)
    }

    /// The last LSN of a log whose end is `end`, as the record has it: an opening counts as its owner's first number.
    pub fn last_sealed(&self, log: u8, end: u8) -> u32 {
        let writer = self.writer(log);
        let segments = &writer.segments[..usize::from(end)];
        let versions = segments.iter().fold(0, |all, segment| all | segment.versions);
        if end == 0 { 0 } else { highest(versions).max(writer.base) }
    }

    pub fn slots_of(&self, log: u8) -> u8 {
        if log == 0 { self.budget.slots } else { self.budget.later_slots }
    }

    /// Keeps a request that is late.
    pub fn delay(&mut self, request: Late) {
        self.late.push(request);
        self.late.sort_unstable();
    }
}
