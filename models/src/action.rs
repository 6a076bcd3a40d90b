//! The steps of the model, and their form in a trace: one line a step, `ACTOR VERB ARGUMENTS`.

use std::fmt;

use crate::bucket::Delivery;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // The owner.
    Write {
        process: u8,
    },
    Send {
        process: u8,
    },
    Land {
        log: u8,
        slot: u8,
    },
    Answer {
        log: u8,
        slot: u8,
    },
    Retry {
        log: u8,
        slot: u8,
    },
    /// P9 only.
    Renew {
        process: u8,
    },
    HandOver {
        process: u8,
    },
    Release {
        process: u8,
        how: Delivery,
    },
    // The claimant.
    Follow {
        process: u8,
    },
    Look {
        process: u8,
    },
    Claim {
        process: u8,
        how: Delivery,
    },
    Learn {
        process: u8,
    },
    Probe {
        process: u8,
        head: Option<u8>,
    },
    Tombstone {
        process: u8,
        slot: u8,
        how: Delivery,
    },
    Confirm {
        process: u8,
        how: Delivery,
    },
    Serve {
        process: u8,
    },
    // Processes and requests.
    Crash {
        process: u8,
    },
    Restart {
        process: u8,
    },
    Rejoin {
        process: u8,
    },
    LandLate {
        index: u8,
    },
    // Upkeep.
    Collect {
        process: u8,
        how: Delivery,
    },
    Delete {
        log: u8,
        slot: u8,
    },
    Announce {
        how: Delivery,
    },
    Part {
        part: u8,
        how: Delivery,
    },
    Name {
        how: Delivery,
    },
    Abandon,
    List,
    ReadRecord,
    SweepSlot {
        log: u8,
        slot: u8,
    },
    SweepPart {
        part: u8,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |process: u8| char::from(b'A' + process);
        match *self {
            Self::Write { process } => write!(f, "{} write", name(process)),
            Self::Send { process } => write!(f, "{} send", name(process)),
            Self::Land { log, slot } => write!(f, "bucket land {log}/{slot}"),
            Self::Answer { log, slot } => write!(f, "bucket answer {log}/{slot}"),
            Self::Retry { log, slot } => write!(f, "bucket time-out {log}/{slot}"),
            Self::Renew { process } => write!(f, "{} renew", name(process)),
            Self::HandOver { process } => write!(f, "{} hand-over", name(process)),
            Self::Release { process, how } => write!(f, "{} release {how}", name(process)),
            Self::Follow { process } => write!(f, "{} follow", name(process)),
            Self::Look { process } => write!(f, "{} suspect", name(process)),
            Self::Claim { process, how } => write!(f, "{} claim {how}", name(process)),
            Self::Learn { process } => write!(f, "{} learn", name(process)),
            Self::Probe { process, head: Some(head) } => write!(f, "{} probe {head}", name(process)),
            Self::Probe { process, head: None } => write!(f, "{} probe none", name(process)),
            Self::Tombstone { process, slot, how } => write!(f, "{} tombstone {slot} {how}", name(process)),
            Self::Confirm { process, how } => write!(f, "{} confirm {how}", name(process)),
            Self::Serve { process } => write!(f, "{} serve", name(process)),
            Self::Crash { process } => write!(f, "{} crash", name(process)),
            Self::Restart { process } => write!(f, "{} restart", name(process)),
            Self::Rejoin { process } => write!(f, "{} rejoin", name(process)),
            Self::LandLate { index } => write!(f, "bucket late {index}"),
            Self::Collect { process, how } => write!(f, "{} collect {how}", name(process)),
            Self::Delete { log, slot } => write!(f, "anybody delete {log}/{slot}"),
            Self::Announce { how } => write!(f, "A announce {how}"),
            Self::Part { part, how } => write!(f, "A part {part} {how}"),
            Self::Name { how } => write!(f, "A name {how}"),
            Self::Abandon => write!(f, "A abandon"),
            Self::List => write!(f, "sweep list"),
            Self::ReadRecord => write!(f, "sweep record"),
            Self::SweepSlot { log, slot } => write!(f, "sweep delete {log}/{slot}"),
            Self::SweepPart { part } => write!(f, "sweep part {part}"),
        }
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "answered",
            Self::AnswerLost => "answer-lost",
            Self::Late => "late",
        })
    }
}
