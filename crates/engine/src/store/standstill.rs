//! Notices that no write gets through: each one is refused as full, or the device does not make any durable.
//!
//! The watch of the data file looks every few seconds, and so does each question for the reason. Writes get through while the durable number of the log moves. A
//! refused write counts until another one gets through or its room is there again, so a store without writes while it
//! is not ready becomes ready again by itself. A write pays only for a refusal.

use shoal_base::Lsn;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};

/// The store counts as at a standstill after this time without a write that gets through.
const STANDSTILL_NS: u64 = 10_000_000_000;

/// The findings of one look at the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub now_ns: u64,
    /// Records up to this one are durable.
    pub durable: Lsn,
    /// Records wait for the device.
    pub is_pending: bool,
    /// Blocks that a write may take now, those included that the file can grow by.
    pub room_blocks: u64,
    /// Writes since the opening that found no room for free blocks in the data file.
    pub without_room: u64,
    /// True if the newest of these writes would find no room now.
    pub lacks_room: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Refused,
    Waits,
}

#[derive(Default)]
struct State {
    durable: Option<Lsn>,
    /// Refusals at the time when a write last got through.
    refusals: u64,
    /// The start of the standstill, to the accuracy of the looks, and its cause.
    since: Option<(u64, Cause)>,
    looked_ns: u64,
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Standstill {
    refusals: AtomicU64,
    /// Blocks that the write lacked that was refused last.
    needed: AtomicU64,
    state: Mutex<State>,
}

impl Standstill {
    /// Notes that a write was refused because it found no room for `needed` blocks.
    pub(crate) fn refused(&self, needed: u64) {
        self.needed.store(needed, Ordering::Relaxed);
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Evaluates a look.
    pub(crate) fn look(&self, look: Look) {
        let refusals = self.refusals.load(Ordering::Relaxed) + look.without_room;
        let has_room = !look.lacks_room && look.room_blocks >= self.needed.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        state.looked_ns = look.now_ns;
        if state.durable != Some(look.durable) || refusals != state.refusals && has_room {
            (state.durable, state.refusals) = (Some(look.durable), refusals);
        }
        let cause = match () {
            () if refusals != state.refusals => Some(Cause::Refused),
            () if look.is_pending => Some(Cause::Waits),
            () => None,
        };
        let begun = state.since.map_or(look.now_ns, |(since_ns, _)| since_ns);
        state.since = cause.map(|cause| (begun, cause));
    }

    /// The reason why no write got through for ten seconds; `None` if some did, or if none was tried. `full` is the reason for
    /// refusals.
    pub(crate) fn reason(&self, full: &str) -> Option<String> {
        let state = self.state.lock();
        let (since_ns, cause) = state.since?;
        let stood_ns = state.looked_ns.saturating_sub(since_ns);
        if stood_ns < STANDSTILL_NS {
            return None;
        }
        let seconds = stood_ns / 1_000_000_000;
        let why = match cause {
            Cause::Refused => full,
            Cause::Waits => "the device has not made any durable",
        };
        Some(format!("no write got through for {seconds} s: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, durable: u64, is_pending: bool, room_blocks: u64) -> Look {
        Look {
            now_ns: seconds * 1_000_000_000,
            durable: Lsn(durable),
            is_pending,
            room_blocks,
            without_room: 0,
            lacks_room: false,
        }
    }

    /// Symptom: `/readyz` was ready while each value was refused, because its blocks had no room in the data file. Cause: only writes
    /// without free blocks counted. Fix: those count, too, until the room is there.
    #[test]
    fn writes_without_free_blocks_are_a_standstill() {
        let standstill = Standstill::default();
        let look = |seconds, durable, without_room, lacks_room| {
            standstill.look(Look { without_room, lacks_room, ..look(seconds, durable, false, 1_000) });
            standstill.reason("why")
        };
        assert_eq!(look(0, 5, 0, false), None);
        for seconds in [3, 6, 9, 12] {
            assert_eq!(look(seconds, 5, seconds, true), None);
        }
        let reason = look(15, 5, 12, true).unwrap();
        assert_eq!(reason, "no write got through for 12 s: why");
        // There is room, and no client writes.
        assert_eq!(look(18, 5, 12, false), None);
        // Short writes get through.
        for seconds in 19..40 {
            assert_eq!(look(seconds, seconds, seconds, true), None);
        }
    }

    #[test]
    fn refused_writes_are_a_standstill_until_one_succeeds() {
        let standstill = Standstill::default();
        standstill.look(look(0, 5, false, 0));
        for seconds in [3, 6, 9, 12] {
            standstill.refused(40);
            standstill.look(look(seconds, 5, false, 39));
            assert!(standstill.reason("").is_none(), "{seconds} s");
        }
        // No client writes any more: a load balancer took the store out.
        standstill.look(look(15, 5, false, 39));
        let reason = standstill.reason("the store is full").unwrap();
        assert_eq!(reason, "no write got through for 12 s: the store is full");
        standstill.look(look(18, 5, false, 40));
        assert!(standstill.reason("").is_none(), "the room is there");
        // Some are refused, and others get through.
        for seconds in 19..40 {
            standstill.refused(40);
            standstill.look(look(seconds, seconds, false, 0));
            assert!(standstill.reason("").is_none(), "{seconds} s");
        }
    }

    #[test]
    fn writes_that_wait_for_the_device_are_a_standstill() {
        let standstill = Standstill::default();
        for seconds in [0, 3, 6, 9, 12, 15] {
            standstill.look(look(seconds, 5, true, 100));
        }
        assert!(standstill.reason("").unwrap().contains("the device has not made any durable"));
        standstill.look(look(18, 6, true, 100));
        standstill.look(look(21, 6, false, 100));
        assert!(standstill.reason("").is_none());
        standstill.look(look(60, 6, false, 100));
        assert!(standstill.reason("").is_none(), "nobody writes");
    }
}
