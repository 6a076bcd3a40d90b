//! How far relocation is: what `maintenance/relocate` keeps between its steps.

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::event::Token;
use crate::store::rate::Rate;

/// The state of moving.
pub(crate) struct Relocation {
    pub paused: AtomicBool,
    pub rate: Mutex<Rate>,
    pub load: Mutex<Load>,
    pub urgent_until_ns: AtomicU64,
    /// One step at a time, and how far the round is.
    pub round: Token<Option<Round>>,
    pub avoid: Mutex<Vec<(Run, u64)>>,
    /// Whole free groups when the round began.
    pub whole_before: AtomicU64,
    /// Groups that had been emptied when the round began.
    pub emptied_before: AtomicU64,
    /// The last round gained nothing; until then there is no other.
    pub quiet_until_ns: AtomicU64,
    pub bytes_moved: AtomicU64,
    pub groups_emptied: AtomicU64,
    pub bytes_discarded: AtomicU64,
}

/// Whether others use the store.
#[derive(Default)]
pub(crate) struct Load {
    pub operations: u64,
    pub last_ns: u64,
    pub is_busy: bool,
}

/// How far a round is.
pub(crate) enum Round {
    /// The walk is in this tablet, at this key.
    Walk { tablet: usize, position: Vec<u8> },
    /// Everything moved; what readers still hold comes free until then, or not at all.
    Drain { until_ns: u64 },
}

impl Relocation {
    pub(crate) fn new(paused: bool) -> Self {
        Self {
            paused: AtomicBool::new(paused),
            rate: Mutex::default(),
            load: Mutex::default(),
            urgent_until_ns: AtomicU64::new(0),
            round: Token::new(None),
            avoid: Mutex::default(),
            whole_before: AtomicU64::new(0),
            emptied_before: AtomicU64::new(0),
            quiet_until_ns: AtomicU64::new(0),
            bytes_moved: AtomicU64::new(0),
            groups_emptied: AtomicU64::new(0),
            bytes_discarded: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Notes bytes that were read, written or discarded.
    pub(crate) fn charge(&self, bytes: u64) {
        if bytes > 0 {
            self.rate.lock().charge(bytes);
        }
    }

    pub(crate) fn is_urgent(&self, now_ns: u64) -> bool {
        now_ns < self.urgent_until_ns.load(Ordering::Relaxed)
    }
}
