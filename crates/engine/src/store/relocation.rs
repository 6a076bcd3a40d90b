//! The state of relocation, which `maintenance/relocate` keeps between its steps.

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};

use crate::common::event::Token;

/// The state of relocation.
#[derive(Default)]
pub(crate) struct Relocation {
    pub load: Mutex<Load>,
    pub urgent_until_ns: AtomicU64,
    /// The progress of the round; its holder takes the next step.
    pub round: Token<Option<Round>>,
    pub avoid: Mutex<Vec<(Run, u64)>>,
    /// Whole free groups at the beginning of the round.
    pub whole_before: AtomicU64,
    /// Emptied groups at the beginning of the round.
    pub emptied_before: AtomicU64,
    /// The last round gained nothing: no new one begins before this time.
    pub quiet_until_ns: AtomicU64,
    pub bytes_moved: AtomicU64,
    pub groups_emptied: AtomicU64,
    pub bytes_discarded: AtomicU64,
}

/// The load by requests.
#[derive(Default)]
pub(crate) struct Load {
    pub operations: u64,
    pub last_ns: u64,
    pub is_busy: bool,
}

/// The progress of a round.
pub(crate) enum Round {
    /// The walk is in this tablet, at this key.
    Walk { tablet: usize, position: Vec<u8> },
    /// All values have moved. The space that readers still hold is free by this time, or not in this round.
    Drain { until_ns: u64 },
}

impl Relocation {
    pub(crate) fn is_urgent(&self, now_ns: u64) -> bool {
        now_ns < self.urgent_until_ns.load(Ordering::Relaxed)
    }
}
