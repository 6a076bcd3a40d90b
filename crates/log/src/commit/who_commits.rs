//! Which thread commits queued writes: one function, and one test that walks its table.
//!
//! A commit is one write of the log and one flush. Handing it to the committer's thread costs two wake-ups, more than a fast device
//! takes for the flush. Running it on a thread that serves clients blocks all of them. So a thread commits by itself only
//! if no client needs it meanwhile.

use shoal_base::task::may_block;

/// A flush above this time hides the two wake-ups of the committer's thread, and a device that hangs must not take a thread that serves
/// clients with it. Nanoseconds of the last batch.
pub(super) const QUICK_BATCH_NS_MAX: u64 = 500_000;
/// Most writes of a turn before their commit is requested: the committer starts while the turn continues.
pub(super) const TURN_WRITES_MAX: usize = 256;

/// The point at which the commit of a write is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The write is queued, and the thread runs no turn (`Committer::gather`).
    Queued,
    /// The write is queued within a turn.
    QueuedInTurn,
    /// The write is queued and is the turn's [`TURN_WRITES_MAX`]th.
    TurnFull,
    /// The turn that queued it ends.
    TurnEnds,
    /// Its caller waits for it.
    Waits,
}

/// The facts that decide, besides the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The committer's thread runs. Small tools open stores without one, and a store that closes stops it first.
    pub(super) has_committer: bool,
    /// The calling thread runs under `block_on` and serves no clients.
    pub(super) may_block: bool,
    /// One client waits for the turn (`Waiting::One`).
    pub(super) one_client: bool,
    /// The last batch took at most [`QUICK_BATCH_NS_MAX`].
    pub(super) is_quick: bool,
    /// One write, or none with extents: several values take the device long enough to receive others meanwhile.
    pub(super) is_light: bool,
}

impl Facts {
    /// The facts of the calling thread that hold at any moment; a turn fills in the rest.
    pub(super) fn of_thread(has_committer: bool) -> Self {
        Self { has_committer, may_block: may_block(), one_client: false, is_quick: false, is_light: false }
    }
}

/// The thread that commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The calling thread, now. If another thread is committing, that one takes these writes, too.
    Caller,
    /// The committer's thread, which is woken now.
    Committer,
    /// Decided at [`Moment::TurnEnds`], for all writes of the turn together.
    TurnEnd,
}

/// Returns the thread that commits. A dot matches both.
///
/// | moment | committer | may block | one client | quick | light | commits |
/// |---|---|---|---|---|---|---|
/// | any | no | . | . | . | . | Caller |
/// | Queued | yes | . | . | . | . | Committer |
/// | QueuedInTurn | yes | yes | . | . | . | Committer |
/// | QueuedInTurn | yes | no | . | . | . | TurnEnd |
/// | TurnFull | yes | . | . | . | . | Committer |
/// | TurnEnds | yes | . | no | . | . | Committer |
/// | TurnEnds | yes | . | yes | no | . | Committer |
/// | TurnEnds | yes | . | yes | yes | no | Committer |
/// | TurnEnds | yes | . | yes | yes | yes | Caller |
/// | Waits | yes | no | . | . | . | Committer |
/// | Waits | yes | yes | . | . | . | Caller |
///
/// So a program that links the engine and calls `put` under `block_on` flushes on its own thread. A lone Redis or gRPC client is flushed
/// for by the thread that serves it. With several clients the committer's thread flushes, once for all that is queued by then.
pub(super) fn who_commits(moment: Moment, facts: Facts) -> Who {
    if !facts.has_committer {
        return Who::Caller;
    }
    match moment {
        Moment::QueuedInTurn if !facts.may_block => Who::TurnEnd,
        Moment::Queued | Moment::QueuedInTurn | Moment::TurnFull => Who::Committer,
        Moment::TurnEnds if facts.one_client && facts.is_quick && facts.is_light => Who::Caller,
        Moment::Waits if facts.may_block => Who::Caller,
        Moment::TurnEnds | Moment::Waits => Who::Committer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in the comment above.
    fn rows() -> Vec<Vec<&'static str>> {
        let lines = include_str!("who_commits.rs").lines().filter_map(|line| line.strip_prefix("/// | "));
        lines.skip(1).map(|line| line.trim_end_matches(" |").split(" | ").collect()).collect()
    }

    fn matches(cell: &str, fact: bool) -> bool {
        match cell {
            "." => true,
            "yes" => fact,
            "no" => !fact,
            other => panic!("{other} is no cell"),
        }
    }

    /// Each combination of facts is in one row of the table, and the function returns that row's answer.
    #[test]
    fn the_table_is_complete_and_true() {
        let rows = rows();
        assert_eq!(rows.len(), 11);
        let moments =
            [Moment::Queued, Moment::QueuedInTurn, Moment::TurnFull, Moment::TurnEnds, Moment::Waits];
        for (moment, bits) in moments.iter().flat_map(|moment| (0..32).map(move |bits| (*moment, bits))) {
            let [has_committer, may_block, one_client, is_quick, is_light] =
                [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1 == 1);
            let facts = Facts { has_committer, may_block, one_client, is_quick, is_light };
            let fits = |row: &&Vec<&str>| {
                (row[0] == "any" || row[0] == format!("{moment:?}"))
                    && row[1..6]
                        .iter()
                        .zip([has_committer, may_block, one_client, is_quick, is_light])
                        .all(|(cell, fact)| matches(cell, fact))
            };
            let found: Vec<_> = rows.iter().filter(fits).collect();
            assert_eq!(found.len(), 1, "{moment:?}, {facts:?}: {found:?}");
            assert_eq!(found[0][6], format!("{:?}", who_commits(moment, facts)), "{moment:?}, {facts:?}");
        }
    }
}
