//! [`SpaceState`]: allocated blocks, leases with their holders, and live sessions. Without files and without a network.
//!
//! Every change is decided first, then carried out. Each is a [`Change`]: replayed on the same state before, it leads to the same state
//! after ([`SpaceState::replay`]). The owner writes the changes down in their order.
//!
//! A session's number is its fencing token. Fencing comes first, reuse later: a session is removed and all of its later calls are refused;
//! only then are the blocks free that it leased and did not commit.

use std::collections::{BTreeMap, BTreeSet};

use shoal_base::Run;
use shoal_base::checksum::crc32c_seeded;
use shoal_space::{FreeImage, Space, SpaceError};

use crate::coverage::Coverage;
use crate::refusal::Refusal;

/// Most sessions at a time.
pub const SESSIONS_MAX: usize = 4096;

/// Most leases of one session, and most groups of one lease.
pub const LEASES_OF_SESSION_MAX: usize = 4096;
/// Most groups of one lease.
pub const GROUPS_OF_LEASE_MAX: usize = 4096;

/// Most runs, or values, in one list of a call.
pub const ITEMS_MAX: usize = 65_536;

/// Most runs in one answer.
const ANSWERED_RUNS_MAX: usize = 2 * ITEMS_MAX;

/// The longest silence of a client, in milliseconds.
pub const TIME_TO_LIVE_MS: std::ops::RangeInclusive<u32> = 1000..=3_600_000;

/// Runs in one part of a snapshot.
const PART_RUNS: usize = 4096;

/// The request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpaceCommand {
    /// Blocks for good, for each of these sizes.
    Allocate {
        /// Blocks of each value.
        sizes: Vec<u32>,
        /// Most runs of a value.
        runs_max: usize,
    },
    /// Frees blocks that are allocated for good and in no lease.
    Free {
        /// The runs to free; no two overlap.
        runs: Vec<Run>,
    },
    /// Leases whole groups.
    Grant {
        /// The number of groups.
        groups: usize,
    },
    /// Allocates blocks of a lease for good, and frees such ones into it.
    Commit {
        /// The lease.
        lease: u64,
        /// Blocks of it that were not committed.
        kept: Vec<Run>,
        /// Blocks of it that were committed.
        freed: Vec<Run>,
    },
    /// Closes a lease.
    GiveBack {
        /// The lease.
        lease: u64,
    },
}

/// The answer to an [`SpaceCommand`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SpaceReply {
    /// The action was carried out.
    #[default]
    Done,
    /// The runs of each value.
    Values(Vec<Vec<Run>>),
    /// A lease.
    Lease {
        /// Its number.
        lease: u64,
        /// Its groups.
        groups: Vec<Run>,
    },
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Open { session: u64, time_to_live_ms: u32 },
    Did { session: u64, sequence: u64, deed: Deed },
    End { session: u64 },
}

/// A change that a session made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Allocated { values: Vec<Vec<Run>> },
    Freed { runs: Vec<Run> },
    Granted { lease: u64, groups: Vec<Run> },
    Committed { lease: u64, kept: Vec<Run>, freed: Vec<Run> },
    GivenBack { lease: u64 },
}

/// A part of a snapshot: together they are the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Counters(Counters),
    Free(Vec<Run>),
    Session(SessionState),
    Lease(HeldLease),
    Committed { lease: u64, runs: Vec<Run> },
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) next_session: u64,
    pub(crate) next_lease: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionState {
    pub(crate) session: u64,
    pub(crate) time_to_live_ms: u32,
    /// The last sequence that changed something, and its answer.
    pub(crate) sequence: u64,
    pub(crate) mark: u32,
    pub(crate) answer: SpaceReply,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldLease {
    pub(crate) lease: u64,
    pub(crate) session: u64,
    pub(crate) groups: Vec<Run>,
}

/// The use of the space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Blocks of the space.
    pub blocks: u64,
    /// Free and not leased.
    pub free_blocks: u64,
    /// In leases, committed or not.
    pub leased_blocks: u64,
    /// Of these, committed.
    pub committed_blocks: u64,
    /// Sessions that live.
    pub sessions: u64,
    /// Leases that are out.
    pub leases: u64,
}

struct ClientSession {
    time_to_live_ms: u32,
    deadline_ms: u64,
    sequence: u64,
    /// The checksum of the request with that sequence.
    mark: u32,
    answer: SpaceReply,
    leases: BTreeSet<u64>,
}

struct Lease {
    session: u64,
    groups: Vec<Run>,
    committed: Coverage,
}

/// Everything that the service knows.
pub(crate) struct SpaceState {
    space: Space,
    sessions: BTreeMap<u64, ClientSession>,
    leases: BTreeMap<u64, Lease>,
    /// First block of each leased group, and its lease.
    leased: BTreeMap<u64, u64>,
    counters: Counters,
}

/// Records that do not follow each other, or the state before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction(pub(crate) &'static str);

impl SpaceState {
    /// A space of `blocks` blocks, all free.
    pub(crate) fn new(blocks: u64, group_blocks: u32) -> Self {
        let image = FreeImage::from_used(blocks, group_blocks, &[]);
        let state = image.map(|image| Self::with_space(Space::from_image(&image)));
        state.unwrap_or_else(|_| Self::empty(blocks, group_blocks))
    }

    /// A space without a free block, into which a snapshot's parts are put.
    pub(crate) fn empty(blocks: u64, group_blocks: u32) -> Self {
        Self::with_space(Space::new(blocks, group_blocks))
    }

    fn with_space(space: Space) -> Self {
        Self {
            space,
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            leased: BTreeMap::new(),
            counters: Counters { next_session: 1, next_lease: 1 },
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.space.blocks_max()
    }

    pub(crate) fn group_blocks(&self) -> u32 {
        self.space.group_blocks()
    }

    pub(crate) fn status(&self) -> Status {
        Status {
            blocks: self.blocks(),
            free_blocks: self.space.free_blocks(),
            leased_blocks: self.leases.values().map(|lease| blocks_of(&lease.groups)).sum(),
            committed_blocks: self.leases.values().map(|lease| lease.committed.blocks()).sum(),
            sessions: self.sessions.len() as u64,
            leases: self.leases.len() as u64,
        }
    }

    /// Starts a session, and returns its number.
    pub(crate) fn open(&mut self, time_to_live_ms: u32, now_ms: u64) -> Result<(u64, Change), Refusal> {
        if !TIME_TO_LIVE_MS.contains(&time_to_live_ms) {
            return Err(Refusal::Invalid("a time to live is 1,000 to 3,600,000 ms"));
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(Refusal::NoSpace { what: "as many sessions as there may be are open" });
        }
        let session = self.counters.next_session;
        self.add_session(session, time_to_live_ms);
        self.touch(session, now_ms)?;
        Ok((session, Change::Open { session, time_to_live_ms }))
    }

    /// Notes that a session lives.
    pub(crate) fn touch(&mut self, session: u64, now_ms: u64) -> Result<(), Refusal> {
        let fenced = Refusal::Fenced { session };
        let state = self.sessions.get_mut(&session).ok_or(fenced.clone())?;
        // A late session is fenced even before it was noticed.
        if state.deadline_ms != 0 && state.deadline_ms < now_ms {
            return Err(fenced);
        }
        state.deadline_ms = now_ms + u64::from(state.time_to_live_ms);
        Ok(())
    }

    /// Executes the action of a session; returns no change if it was executed before.
    pub(crate) fn act(
        &mut self,
        session: u64,
        sequence: u64,
        action: SpaceCommand,
        now_ms: u64,
    ) -> Result<(SpaceReply, Option<Change>), Refusal> {
        self.touch(session, now_ms)?;
        let state = self.sessions.get(&session).ok_or(Refusal::Fenced { session })?;
        if sequence == state.sequence && sequence > 0 {
            let other = Refusal::Invalid("this sequence was that of another call");
            return if mark_of_action(&action) == state.mark {
                Ok((state.answer.clone(), None))
            } else {
                Err(other)
            };
        }
        if sequence != state.sequence + 1 {
            return Err(Refusal::Invalid("a sequence follows on the one before"));
        }
        let deed = self.decide(session, action)?;
        self.carry_out(session, &deed)?;
        let answer = self.note(session, sequence, &deed);
        Ok((answer, Some(Change::Did { session, sequence, deed })))
    }

    /// Closes a session: it is fenced, and space that it leased and did not commit is free.
    pub(crate) fn end(&mut self, session: u64) -> Result<Change, Refusal> {
        let state = self.sessions.remove(&session).ok_or(Refusal::Fenced { session })?;
        state.leases.into_iter().for_each(|lease| self.end_lease(lease));
        Ok(Change::End { session })
    }

    /// The sessions that were silent for too long.
    pub(crate) fn late(&self, now_ms: u64) -> Vec<u64> {
        let is_late = |state: &ClientSession| state.deadline_ms != 0 && state.deadline_ms < now_ms;
        self.sessions.iter().filter(|(_, state)| is_late(state)).map(|(&session, _)| session).collect()
    }

    /// Restores every session's whole time to live: after a restart, or when the owner was stopped, no client could call.
    pub(crate) fn grace(&mut self, now_ms: u64) {
        for state in self.sessions.values_mut() {
            state.deadline_ms = now_ms + u64::from(state.time_to_live_ms);
        }
    }

    /// Carries out a change that was written down.
    pub(crate) fn replay(&mut self, change: &Change) -> Result<(), Contradiction> {
        match change {
            Change::Open { session, time_to_live_ms } => {
                if *session != self.counters.next_session {
                    return Err(Contradiction("a session's number does not follow"));
                }
                self.add_session(*session, *time_to_live_ms);
            }
            Change::Did { session, sequence, deed } => {
                let state = self.sessions.get(session).ok_or(Contradiction("a session is not open"))?;
                if *sequence != state.sequence + 1 {
                    return Err(Contradiction("a sequence does not follow"));
                }
                self.reserve(deed)?;
                let wrong = |_| Contradiction("a change does not follow on the state before it");
                self.carry_out(*session, deed).map_err(wrong)?;
                self.note(*session, *sequence, deed);
            }
            Change::End { session } => {
                self.end(*session).map_err(|_| Contradiction("a session that ends is not open"))?;
            }
        }
        Ok(())
    }

    /// The whole state, in parts.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::Counters(self.counters)];
        let mut free = Vec::with_capacity(PART_RUNS);
        self.space.for_each_run(&mut |run| {
            free.push(run);
            if free.len() == PART_RUNS {
                parts.push(Part::Free(std::mem::take(&mut free)));
            }
        });
        parts.push(Part::Free(free));
        parts.extend(self.sessions.iter().map(|(&session, state)| {
            Part::Session(SessionState {
                session,
                time_to_live_ms: state.time_to_live_ms,
                sequence: state.sequence,
                mark: state.mark,
                answer: state.answer.clone(),
            })
        }));
        for (&lease, held) in &self.leases {
            parts.push(Part::Lease(HeldLease { lease, session: held.session, groups: held.groups.clone() }));
            let committed: Vec<Run> = held.committed.runs().collect();
            let of_lease = |runs: &[Run]| Part::Committed { lease, runs: runs.to_vec() };
            parts.extend(committed.chunks(PART_RUNS).map(of_lease));
        }
        parts.push(Part::Finished);
        parts
    }

    /// Adds a part of a snapshot.
    pub(crate) fn put(&mut self, part: Part) -> Result<(), Contradiction> {
        match part {
            Part::Counters(counters) => self.counters = counters,
            Part::Free(runs) => {
                let wrong = |_| Contradiction("a free run is outside, or is free twice");
                self.space.free_batch(&runs).map_err(wrong)?;
            }
            Part::Session(state) => {
                let SessionState { session, time_to_live_ms, sequence, mark, answer } = state;
                if session >= self.counters.next_session || self.sessions.contains_key(&session) {
                    return Err(Contradiction("a session's number is wrong"));
                }
                let leases = BTreeSet::new();
                let state = ClientSession { time_to_live_ms, deadline_ms: 0, sequence, mark, answer, leases };
                self.sessions.insert(session, state);
            }
            Part::Lease(held) => {
                if held.lease >= self.counters.next_lease || !self.are_groups(&held.groups) {
                    return Err(Contradiction("a lease is wrong"));
                }
                if held.groups.iter().any(|&group| self.has_free(group) || self.is_leased(group)) {
                    return Err(Contradiction("a leased group is free, or leased twice"));
                }
                self.add_lease(held.session, held.lease, held.groups)
                    .map_err(|_| Contradiction("a lease has no session"))?;
            }
            Part::Committed { lease, runs } => {
                let wrong = Contradiction("a committed run is not in its lease");
                let held = self.leases.get_mut(&lease).ok_or(wrong)?;
                for run in runs {
                    if run.blocks == 0 || !lies_in(run, &held.groups) || !held.committed.add(run) {
                        return Err(wrong);
                    }
                }
            }
            Part::Finished => {}
        }
        Ok(())
    }

    /// Decides on the change for `action`. The blocks that it hands out are taken out of the free space already.
    fn decide(&mut self, session: u64, action: SpaceCommand) -> Result<Deed, Refusal> {
        match action {
            SpaceCommand::Allocate { sizes, runs_max } => self.allocate(&sizes, runs_max),
            SpaceCommand::Free { runs } => {
                if runs.len() > ITEMS_MAX {
                    return Err(Refusal::Invalid("at most 65,536 runs are freed at once"));
                }
                Ok(Deed::Freed { runs })
            }
            SpaceCommand::Grant { groups } => {
                if groups == 0 || groups > GROUPS_OF_LEASE_MAX {
                    return Err(Refusal::Invalid("a lease has 1 to 4,096 groups"));
                }
                let leases = self.sessions.get(&session).map_or(0, |state| state.leases.len());
                if leases >= LEASES_OF_SESSION_MAX {
                    return Err(Refusal::NoSpace { what: "the session has as many leases as it may have" });
                }
                let lease = self.space.lease(groups);
                let lease = lease.ok_or(Refusal::NoSpace { what: "there are too few free groups" })?;
                let per_group = lease.groups().iter().flat_map(|&run| self.groups_of(run));
                Ok(Deed::Granted { lease: self.counters.next_lease, groups: per_group.collect() })
            }
            SpaceCommand::Commit { lease, kept, freed } => {
                if kept.len() > ITEMS_MAX || freed.len() > ITEMS_MAX {
                    return Err(Refusal::Invalid("at most 65,536 runs are committed at once"));
                }
                Ok(Deed::Committed { lease, kept, freed })
            }
            SpaceCommand::GiveBack { lease } => Ok(Deed::GivenBack { lease }),
        }
    }

    fn allocate(&mut self, sizes: &[u32], runs_max: usize) -> Result<Deed, Refusal> {
        // The answer must fit in a record of the file.
        let runs_max = runs_max.clamp(1, ITEMS_MAX);
        if sizes.len() > ITEMS_MAX || sizes.contains(&0) {
            return Err(Refusal::Invalid("at most 65,536 sizes, of at least one block each"));
        }
        if sizes.len().saturating_mul(runs_max) > ANSWERED_RUNS_MAX {
            return Err(Refusal::Invalid("more than 131,072 runs could come of it"));
        }
        let mut values: Vec<Vec<Run>> = Vec::with_capacity(sizes.len());
        for &blocks in sizes {
            // One run is the common case, and one search.
            let runs = if runs_max == 1 {
                self.space.allocate(blocks).map(|run| vec![run])
            } else {
                self.space.allocate_runs(blocks, runs_max).map(|runs| runs.to_vec())
            };
            let Some(runs) = runs else {
                let all: Vec<Run> = values.into_iter().flatten().collect();
                let given_back = self.space.free_batch(&all);
                assert!(given_back.is_ok(), "they were handed out a moment ago: {given_back:?}");
                return Err(Refusal::NoSpace { what: "no free runs of this shape are left" });
            };
            values.push(runs);
        }
        Ok(Deed::Allocated { values })
    }

    /// Takes the blocks that a recorded change hands out.
    fn reserve(&mut self, deed: &Deed) -> Result<(), Contradiction> {
        let wrong = |_| Contradiction("a run handed out was not free");
        match deed {
            Deed::Allocated { values } => {
                values.iter().flatten().try_for_each(|&run| self.space.take(run)).map_err(wrong)
            }
            Deed::Granted { lease, groups } => {
                if *lease != self.counters.next_lease || !self.are_groups(groups) {
                    return Err(Contradiction("a lease's number or groups are wrong"));
                }
                groups.iter().try_for_each(|&run| self.space.take(run)).map_err(wrong)
            }
            _ => Ok(()),
        }
    }

    /// Carries out all but the session's own bookkeeping; nothing if it is refused.
    fn carry_out(&mut self, session: u64, deed: &Deed) -> Result<(), Refusal> {
        match deed {
            Deed::Allocated { .. } => {}
            Deed::Freed { runs } => {
                if let Some(&run) = runs.iter().find(|&&run| self.is_leased(run)) {
                    return Err(Refusal::Wrong { run, what: "is in a lease: its holder frees it" });
                }
                self.space.free_batch(runs).map_err(|error| match error {
                    SpaceError::Outside { run, .. } => Refusal::Wrong { run, what: "is not in the space" },
                    SpaceError::AlreadyFree { run, .. } | SpaceError::NotFree { run, .. } => {
                        Refusal::Wrong { run, what: "is not in use" }
                    }
                })?;
            }
            Deed::Granted { lease, groups } => self.add_lease(session, *lease, groups.clone())?,
            Deed::Committed { lease, kept, freed } => self.commit(session, *lease, kept, freed)?,
            Deed::GivenBack { lease } => {
                self.holder(session, *lease)?;
                self.end_lease(*lease);
                if let Some(state) = self.sessions.get_mut(&session) {
                    state.leases.remove(lease);
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, session: u64, lease: u64, kept: &[Run], freed: &[Run]) -> Result<(), Refusal> {
        let held = self.holder(session, lease)?;
        let mut looked_at = Coverage::default();
        for (&run, is_kept) in kept.iter().map(|run| (run, true)).chain(freed.iter().map(|run| (run, false)))
        {
            if run.blocks == 0 || !lies_in(run, &held.groups) {
                return Err(Refusal::Wrong { run, what: "is not in the lease" });
            }
            let is_right = if is_kept { !held.committed.overlaps(run) } else { held.committed.covers(run) };
            if !is_right || !looked_at.add(run) {
                let what = "is committed twice, or freed without having been committed";
                return Err(Refusal::Wrong { run, what });
            }
        }
        let done = kept.iter().all(|&run| held.committed.add(run));
        let done = freed.iter().all(|&run| held.committed.remove(run)) && done;
        assert!(done, "every run was looked at before");
        Ok(())
    }

    /// A lease of this session.
    fn holder(&mut self, session: u64, lease: u64) -> Result<&mut Lease, Refusal> {
        let held = self.leases.get_mut(&lease).filter(|held| held.session == session);
        held.ok_or(Refusal::Invalid("the session has no such lease"))
    }

    /// Notes a session's last call.
    fn note(&mut self, session: u64, sequence: u64, deed: &Deed) -> SpaceReply {
        let answer = match deed {
            Deed::Allocated { values } => SpaceReply::Values(values.clone()),
            Deed::Granted { lease, groups } => SpaceReply::Lease { lease: *lease, groups: groups.clone() },
            _ => SpaceReply::Done,
        };
        if let Some(state) = self.sessions.get_mut(&session) {
            state.sequence = sequence;
            state.mark = mark_of_deed(deed);
            state.answer = answer.clone();
        }
        answer
    }

    fn add_session(&mut self, session: u64, time_to_live_ms: u32) {
        let state = ClientSession {
            time_to_live_ms,
            deadline_ms: 0,
            sequence: 0,
            mark: 0,
            answer: SpaceReply::Done,
            leases: BTreeSet::new(),
        };
        self.sessions.insert(session, state);
        self.counters.next_session = session + 1;
    }

    fn add_lease(&mut self, session: u64, lease: u64, groups: Vec<Run>) -> Result<(), Refusal> {
        let state = self.sessions.get_mut(&session).ok_or(Refusal::Fenced { session })?;
        state.leases.insert(lease);
        self.leased.extend(groups.iter().map(|group| (group.block, lease)));
        self.leases.insert(lease, Lease { session, groups, committed: Coverage::default() });
        self.counters.next_lease = self.counters.next_lease.max(lease + 1);
        Ok(())
    }

    fn end_lease(&mut self, lease: u64) {
        let Some(held) = self.leases.remove(&lease) else { return };
        let mut groups = Coverage::default();
        for &group in &held.groups {
            self.leased.remove(&group.block);
            assert!(groups.add(group), "groups do not overlap");
        }
        let freed = self.space.free_batch(&groups.without(&held.committed));
        assert!(freed.is_ok(), "leased groups were taken out of the space: {freed:?}");
    }

    /// Returns true if any block of a run within the space is free.
    fn has_free(&self, run: Run) -> bool {
        let taken = self.space.take_free_part(run);
        if taken.as_ref().is_ok_and(|&blocks| blocks == 0) {
            return false;
        }
        // The state is being read and is refused on this answer: the blocks that were taken do not matter.
        true
    }

    /// Returns true if any block of a run is leased. Blocks outside of the space are not.
    fn is_leased(&self, run: Run) -> bool {
        let group_blocks = u64::from(self.group_blocks());
        let first = run.block / group_blocks * group_blocks;
        let end = run.block.saturating_add(u64::from(run.blocks));
        first < end && self.leased.range(first..end).next().is_some()
    }

    /// Returns true if each of these is one whole group of the space, in ascending order.
    fn are_groups(&self, groups: &[Run]) -> bool {
        let group_blocks = u64::from(self.group_blocks());
        let is_group = |run: &Run| {
            run.block.is_multiple_of(group_blocks)
                && u64::from(run.blocks) == group_blocks
                && run.block.checked_add(group_blocks).is_some_and(|end| end <= self.blocks())
        };
        groups.iter().all(is_group) && groups.is_sorted_by(|one, next| one.block < next.block)
    }

    /// The groups that a run of whole groups is made of.
    fn groups_of(&self, run: Run) -> impl Iterator<Item = Run> + use<> {
        let group_blocks = self.group_blocks();
        (0..run.blocks / group_blocks)
            .map(move |index| Run::new(run.block + u64::from(index * group_blocks), group_blocks))
    }
}

/// A checksum of the request, which distinguishes a repeated call from another one with the same sequence.
fn mark_of_action(action: &SpaceCommand) -> u32 {
    match action {
        SpaceCommand::Allocate { sizes, .. } => mark(2, sizes.iter().map(|&blocks| u64::from(blocks))),
        SpaceCommand::Free { runs } => mark(3, numbers_of(runs)),
        SpaceCommand::Grant { groups } => mark(4, [*groups as u64]),
        SpaceCommand::Commit { lease, kept, freed } => mark_of_commit(*lease, kept, freed),
        SpaceCommand::GiveBack { lease } => mark(6, [*lease]),
    }
}

/// The same checksum from the recorded change: a repeated call is recognised after a restart, too.
fn mark_of_deed(deed: &Deed) -> u32 {
    match deed {
        Deed::Allocated { values } => mark(2, values.iter().map(|runs| blocks_of(runs))),
        Deed::Freed { runs } => mark(3, numbers_of(runs)),
        Deed::Granted { groups, .. } => mark(4, [groups.len() as u64]),
        Deed::Committed { lease, kept, freed } => mark_of_commit(*lease, kept, freed),
        Deed::GivenBack { lease } => mark(6, [*lease]),
    }
}

fn mark_of_commit(lease: u64, kept: &[Run], freed: &[Run]) -> u32 {
    let counts = [lease, kept.len() as u64];
    mark(5, counts.into_iter().chain(numbers_of(kept)).chain(numbers_of(freed)))
}

fn numbers_of(runs: &[Run]) -> impl Iterator<Item = u64> + '_ {
    runs.iter().flat_map(|run| [run.block, u64::from(run.blocks)])
}

fn mark(kind: u64, numbers: impl IntoIterator<Item = u64>) -> u32 {
    let mut bytes = Vec::new();
    numbers.into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    crc32c_seeded(kind, &bytes)
}

/// Returns true if all of a run is in groups, which are in ascending order.
fn lies_in(run: Run, groups: &[Run]) -> bool {
    let Some(end) = run.block.checked_add(u64::from(run.blocks)) else { return false };
    let mut at = run.block;
    let from = groups.partition_point(|group| group.end() <= at);
    for group in groups.iter().skip(from) {
        if group.block > at || at >= end {
            break;
        }
        at = group.end();
    }
    at >= end
}

fn blocks_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

#[cfg(test)]
mod tests;
