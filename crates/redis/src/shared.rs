//! The state that the connections of a thread share: the frontend, the time, the memory held by all of them, and in the relaxed
//! mode the acknowledged writes that are not durable yet.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use shoal_base::{AwakeClock, BLOCK_BYTES};
use shoal_engine::{CountedReader, Ticket};
use smallvec::SmallVec;

use crate::frontend::FrontendRef;
use crate::memory::Ledger;
use crate::options::Durability;
use crate::timing::TurnFigures;

/// Interval at which a thread checks the limits of time of its connections; while it has any, it sleeps no longer.
pub(crate) const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Acknowledged writes of one thread that need not be durable yet, in the relaxed mode.
const RELAXED_WRITES_MAX: usize = 65_536;

/// Waiting answers of all threads together may pin the cache divided by this number; further ones hold copies.
const PINNED_SHARE: usize = 8;

/// The state that the connections of a thread share.
pub(crate) struct Shared {
    pub frontend: FrontendRef,
    /// The gets of this thread.
    pub reader: CountedReader,
    /// Memory that requests are received into; filled parts are split off.
    pub block: BytesMut,
    /// Bytes of unfinished commands.
    pub received: usize,
    /// Bytes of the buffers that long values are received into.
    pub receive_buffers: usize,
    /// Bytes of untaken answers, and of commands in progress.
    pub answers: usize,
    ledger: Ledger,
    /// Cache memory pinned by answers that were not taken or wait for others, and its limit.
    pub pinned: usize,
    pub pinned_max: usize,
    /// The figures of this turn.
    pub figures: TurnFigures,
    /// Commands since the last update of the counter.
    pub commands: u64,
    /// In the relaxed mode: acknowledged writes that may not be durable, with the time of the acknowledgement.
    relaxed: VecDeque<(Ticket, u64)>,
    /// Now, on the monotonic clock; read once a turn.
    pub now_ns: u64,
    /// The clock for the timeouts of clients, and its time in this turn.
    awake: AwakeClock,
    pub awake_ns: u64,
}

impl Shared {
    pub(crate) fn new(frontend: FrontendRef) -> Self {
        let now_ns = frontend.clock.monotonic_ns();
        let threads = frontend.options.threads.unwrap_or(1).max(1);
        let reader = frontend.store.reader();
        let pinned_max = frontend.store.stat().pool.frames * BLOCK_BYTES / PINNED_SHARE / threads;
        let ledger = Ledger::new(frontend.memory.clone());
        Self {
            frontend,
            reader,
            ledger,
            block: BytesMut::new(),
            received: 0,
            receive_buffers: 0,
            answers: 0,
            pinned: 0,
            pinned_max,
            figures: TurnFigures::default(),
            commands: 0,
            relaxed: VecDeque::new(),
            now_ns,
            awake: AwakeClock::new(now_ns, CHECK_PERIOD),
            awake_ns: now_ns,
        }
    }

    /// Publishes the memory of this thread's connections to the other threads.
    pub(crate) fn settle_memory(&mut self) {
        self.ledger.settle(self.received + self.answers);
    }

    /// Reads the clocks for a turn.
    pub(crate) fn look_at_clocks(&mut self) {
        self.now_ns = self.frontend.clock.monotonic_ns();
        self.awake_ns = self.awake.look(self.now_ns);
    }

    /// Returns true if a write may be acknowledged although it is not durable, and then remembers it.
    pub(crate) fn relax(&mut self, pending: &mut SmallVec<[Ticket; 1]>) -> bool {
        let Durability::Relaxed(window) = self.frontend.options.durability else { return false };
        while self.relaxed.front().is_some_and(|(oldest, _)| oldest.is_durable()) {
            self.relaxed.pop_front();
        }
        let oldest = self.relaxed.front().map_or(self.now_ns, |&(_, since)| since);
        if self.relaxed.len() >= RELAXED_WRITES_MAX
            || u128::from(self.now_ns.saturating_sub(oldest)) > window.as_nanos()
        {
            return false;
        }
        // The log is in order: the last ticket covers all of them.
        self.relaxed.extend(pending.pop().map(|last| (last, self.now_ns)));
        pending.clear();
        true
    }

    /// The newest write that this thread acknowledged before it was durable, if it is not durable yet. The log is in order:
    /// when this write is durable, all before it are.
    pub(crate) fn acknowledged(&self) -> Option<Ticket> {
        self.relaxed.back().map(|(last, _)| last).filter(|last| !last.is_durable()).cloned()
    }
}
