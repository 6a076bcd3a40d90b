//! The rules against a map of the owner of each block: several clients, crashes, late commits, restarts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const GROUP: u32 = 16;
const GROUPS: u64 = 24;
const TIME_TO_LIVE: u32 = 1000;

/// The owner of blocks that were allocated without a lease.
const NOBODY: u64 = 0;

struct Client {
    session: u64,
    sequence: u64,
    is_dead: bool,
    /// Leases, and the committed part of each.
    leases: BTreeMap<u64, (Vec<Run>, Vec<Run>)>,
}

struct World {
    state: SpaceState,
    log: Vec<Change>,
    /// The state at the start of the log.
    base: Vec<Part>,
    /// Block to lease, or to nobody: the blocks that are allocated for good.
    owned: BTreeMap<u64, u64>,
    direct: Vec<Run>,
    clients: Vec<Client>,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let state = SpaceState::new(GROUPS * u64::from(GROUP), GROUP);
        let base = state.parts();
        let (owned, direct) = (BTreeMap::new(), Vec::new());
        Self { state, log: Vec::new(), base, owned, direct, clients: Vec::new(), now_ms: 1 }
    }

    fn act(&mut self, client: usize, action: SpaceCommand) -> Result<SpaceReply, Refusal> {
        let client = &mut self.clients[client];
        let sequence = client.sequence + 1;
        let (answer, change) = self.state.act(client.session, sequence, action.clone(), self.now_ms)?;
        client.sequence = sequence;
        self.log.extend(change);
        // A lost answer is asked for again, and is the same.
        assert_eq!(self.state.act(client.session, sequence, action, self.now_ms), Ok((answer.clone(), None)));
        Ok(answer)
    }

    fn own(&mut self, run: Run, owner: u64) {
        for block in run.block..run.end() {
            assert_eq!(self.owned.insert(block, owner), None, "block {block} has two owners");
            let leased =
                self.clients.iter().filter(|client| !client.is_dead).flat_map(|client| &client.leases);
            for (&lease, (groups, _)) in leased {
                let is_in = groups.iter().any(|group| group.overlaps(Run::new(block, 1)));
                assert_eq!(is_in, lease == owner, "block {block} of {owner} and lease {lease}");
            }
        }
    }

    fn disown(&mut self, run: Run) {
        self.owned.retain(|&block, _| !run.overlaps(Run::new(block, 1)));
    }

    /// Releases a lease: a run that was committed in it belongs to nobody's lease.
    fn release(&mut self, committed: Vec<Run>) {
        for run in committed {
            self.owned.extend((run.block..run.end()).map(|block| (block, NOBODY)));
            self.direct.push(run);
        }
    }

    fn step(&mut self, kind: u8, a: usize, b: u32) {
        let count = self.clients.len();
        if kind < 2 || count == 0 {
            let Ok((session, change)) = self.state.open(TIME_TO_LIVE, self.now_ms) else { return };
            self.log.push(change);
            self.clients.push(Client { session, sequence: 0, is_dead: false, leases: BTreeMap::new() });
            return;
        }
        let client = a % count;
        if self.clients[client].is_dead {
            let lease = self.clients[client].leases.keys().next().copied().unwrap_or(1);
            let run = Run::new(u64::from(b) % 300, 1);
            let session = self.clients[client].session;
            for action in [
                SpaceCommand::Commit { lease, kept: vec![run], freed: vec![] },
                SpaceCommand::GiveBack { lease },
                SpaceCommand::Allocate { sizes: vec![1], runs_max: 1 },
            ] {
                assert_eq!(self.act(client, action), Err(Refusal::Fenced { session }), "a late call");
            }
            return;
        }
        match kind {
            2..=4 => {
                let sizes = vec![1 + b % 20, 1 + b % 7];
                if let Ok(SpaceReply::Values(values)) =
                    self.act(client, SpaceCommand::Allocate { sizes: sizes.clone(), runs_max: 3 })
                {
                    for (runs, blocks) in values.iter().zip(sizes) {
                        assert_eq!(blocks_of(runs), u64::from(blocks));
                        runs.iter().for_each(|&run| self.own(run, NOBODY));
                        self.direct.extend(runs);
                    }
                }
            }
            5 | 6 => {
                if self.direct.is_empty() {
                    return;
                }
                let run = self.direct.swap_remove(b as usize % self.direct.len());
                let lies_in_lease = self.state.is_leased(run);
                let freed = self.act(client, SpaceCommand::Free { runs: vec![run] });
                assert!(!lies_in_lease && freed == Ok(SpaceReply::Done), "{run}: {freed:?}");
                self.disown(run);
                assert!(self.act(client, SpaceCommand::Free { runs: vec![run] }).is_err(), "twice");
            }
            7 | 8 => {
                let groups = 1 + b as usize % 4;
                if let Ok(SpaceReply::Lease { lease, groups }) =
                    self.act(client, SpaceCommand::Grant { groups })
                {
                    for group in &groups {
                        assert!(
                            self.owned.range(group.block..group.end()).next().is_none(),
                            "{group} is in use"
                        );
                    }
                    self.clients[client].leases.insert(lease, (groups, Vec::new()));
                }
            }
            9..=12 => {
                let leases = &self.clients[client].leases;
                let Some((&lease, (groups, committed))) = leases.iter().nth(b as usize % leases.len().max(1))
                else {
                    return;
                };
                let group = groups[b as usize % groups.len()];
                let run = Run::new(group.block + u64::from(b % GROUP), 1 + b % 5);
                let freed: Vec<Run> = committed.iter().copied().filter(|_| kind == 12).take(1).collect();
                let is_right = lies_in(run, groups) && !committed.iter().any(|other| other.overlaps(run));
                let action = SpaceCommand::Commit { lease, kept: vec![run], freed: freed.clone() };
                let answer = self.act(client, action);
                assert_eq!(answer.is_ok(), is_right, "{run} in {lease}: {answer:?}");
                if is_right {
                    freed.iter().for_each(|&run| self.disown(run));
                    self.own(run, lease);
                    let held = self.clients[client].leases.get_mut(&lease).unwrap();
                    held.1.retain(|other| !freed.contains(other));
                    held.1.push(run);
                }
            }
            13 => {
                let Some(&lease) = self.clients[client].leases.keys().next() else { return };
                assert_eq!(self.act(client, SpaceCommand::GiveBack { lease }), Ok(SpaceReply::Done));
                let (_, committed) = self.clients[client].leases.remove(&lease).unwrap();
                self.release(committed);
            }
            14 => self.crash(client),
            _ => self.restart(b.is_multiple_of(2)),
        }
    }

    /// A client goes silent, all others do not.
    fn crash(&mut self, dead: usize) {
        for state in self.clients.iter().filter(|state| !state.is_dead) {
            self.state.touch(state.session, self.now_ms).unwrap();
        }
        self.now_ms += u64::from(TIME_TO_LIVE) - 1;
        for (client, state) in self.clients.iter().enumerate() {
            if client != dead && !state.is_dead {
                self.state.touch(state.session, self.now_ms).unwrap();
            }
        }
        self.now_ms += 2;
        let session = self.clients[dead].session;
        // Fenced even before the search for late sessions.
        assert_eq!(self.state.touch(session, self.now_ms), Err(Refusal::Fenced { session }));
        assert_eq!(self.state.late(self.now_ms), [session]);
        let change = self.state.end(session).unwrap();
        self.log.push(change);
        let state = &mut self.clients[dead];
        state.is_dead = true;
        let leases = std::mem::take(&mut state.leases);
        leases.into_values().for_each(|(_, committed)| self.release(committed));
    }

    /// Reads everything back from the log; with a snapshot, the log starts anew.
    fn restart(&mut self, with_snapshot: bool) {
        let before = self.state.parts();
        if with_snapshot {
            (self.base, self.log) = (before.clone(), Vec::new());
        }
        let mut state = SpaceState::empty(GROUPS * u64::from(GROUP), GROUP);
        self.base.iter().for_each(|part| state.put(part.clone()).unwrap());
        self.log.iter().for_each(|change| state.replay(change).unwrap());
        assert_eq!(state.parts(), before);
        state.grace(self.now_ms);
        self.state = state;
    }

    fn check(&self) {
        let status = self.state.status();
        let committed = self.owned.values().filter(|&&owner| owner != NOBODY).count() as u64;
        assert_eq!(status.committed_blocks, committed);
        let direct = self.owned.len() as u64 - committed;
        assert_eq!(
            status.free_blocks + status.leased_blocks + direct,
            status.blocks,
            "every block is somewhere"
        );
        assert_eq!(status.sessions as usize, self.clients.iter().filter(|client| !client.is_dead).count());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_block_is_lost_or_owned_twice(steps in prop::collection::vec((0_u8..16, any::<usize>(), any::<u32>()), 1..120)) {
        let mut world = World::new();
        for (kind, a, b) in steps {
            world.step(kind, a, b);
            world.check();
        }
        for client in 0..world.clients.len() {
            if !world.clients[client].is_dead {
                world.crash(client);
            }
        }
        world.restart(false);
        world.check();
        prop_assert_eq!(world.state.status().leases, 0);
        world.state.space.audit();
    }
}

#[test]
fn invalid_calls_change_nothing() {
    let mut state = SpaceState::new(100, GROUP);
    assert!(state.open(10, 1).is_err(), "too short a life");
    let (session, _) = state.open(TIME_TO_LIVE, 1).unwrap();
    let before = state.parts();
    let far = Run::new(u64::MAX - 1, 4);
    let actions = [
        SpaceCommand::Allocate { sizes: vec![0], runs_max: 1 },
        SpaceCommand::Allocate { sizes: vec![1, 101], runs_max: 1 },
        SpaceCommand::Allocate { sizes: vec![1; ITEMS_MAX], runs_max: 8 },
        SpaceCommand::Free { runs: vec![far] },
        SpaceCommand::Free { runs: vec![Run::new(5, 0)] },
        SpaceCommand::Free { runs: vec![Run::new(5, 1)] },
        SpaceCommand::Grant { groups: 0 },
        SpaceCommand::Grant { groups: 7 },
        SpaceCommand::Commit { lease: 1, kept: vec![], freed: vec![] },
        SpaceCommand::GiveBack { lease: 1 },
    ];
    for action in actions {
        assert!(state.act(session, 1, action.clone(), 1).is_err(), "{action:?}");
        assert_eq!(state.parts(), before, "{action:?}");
    }
    assert!(state.act(session, 2, SpaceCommand::Grant { groups: 1 }, 1).is_err(), "a sequence is left out");
    assert_eq!(
        state.act(session, 1, SpaceCommand::Grant { groups: 6 }, 1).map(|(_, change)| change.is_some()),
        Ok(true)
    );
    let other = SpaceCommand::Allocate { sizes: vec![1], runs_max: 1 };
    assert!(state.act(session, 1, other, 1).is_err(), "the same sequence, another call");
    let commit = |kept: Run| SpaceCommand::Commit { lease: 1, kept: vec![kept], freed: vec![] };
    for wrong in [far, Run::new(95, 2), Run::new(0, 0)] {
        assert!(state.act(session, 2, commit(wrong), 1).is_err(), "{wrong}");
    }
    let (stranger, _) = state.open(TIME_TO_LIVE, 1).unwrap();
    assert!(state.act(stranger, 1, commit(Run::new(0, 1)), 1).is_err(), "a lease of somebody else");
}

/// However many runs a caller accepts, the answer fits in a record.
#[test]
fn an_answer_of_too_many_runs_is_refused() {
    const HOLES: usize = ITEMS_MAX + 2 * 1024;
    let mut state = SpaceState::new(2 * HOLES as u64, 1024);
    let (session, _) = state.open(TIME_TO_LIVE, 1).unwrap();
    let mut sequence = 0;
    let mut act = |action| {
        sequence += 1;
        let done = state.act(session, sequence, action, 1).map(|(answer, _)| answer);
        sequence -= u64::from(done.is_err());
        done
    };
    for _ in 0..2 * HOLES / 1024 {
        act(SpaceCommand::Allocate { sizes: vec![1024], runs_max: 1 }).unwrap();
    }
    for first in (0..HOLES).step_by(1024) {
        let runs = (first..first + 1024).map(|hole| Run::new(2 * hole as u64, 1)).collect();
        act(SpaceCommand::Free { runs }).unwrap();
    }
    let all = SpaceCommand::Allocate { sizes: vec![HOLES as u32], runs_max: usize::MAX };
    assert!(matches!(act(all), Err(Refusal::NoSpace { .. })));
    let most = SpaceCommand::Allocate { sizes: vec![ITEMS_MAX as u32], runs_max: usize::MAX };
    assert!(matches!(act(most), Ok(SpaceReply::Values(_))));
}

#[test]
fn parts_that_contradict_each_other_are_refused() {
    let put = |parts: &[Part]| {
        let mut state = SpaceState::empty(100, GROUP);
        parts.iter().try_for_each(|part| state.put(part.clone()))
    };
    let counters = Part::Counters(Counters { next_session: 2, next_lease: 2 });
    let session = Part::Session(SessionState {
        session: 1,
        time_to_live_ms: TIME_TO_LIVE,
        sequence: 3,
        mark: 0,
        answer: SpaceReply::Done,
    });
    let lease = |first: u64, blocks: u32| {
        Part::Lease(HeldLease { lease: 1, session: 1, groups: vec![Run::new(first, blocks)] })
    };
    let committed = |run: Run| Part::Committed { lease: 1, runs: vec![run] };
    let free = |block: u64, blocks: u32| Part::Free(vec![Run::new(block, blocks)]);
    let good = [counters.clone(), free(0, 16), session.clone(), lease(16, 16), committed(Run::new(20, 3))];
    assert_eq!(put(&good), Ok(()));
    assert!(put(&[free(0, 10), free(5, 10)]).is_err(), "free twice");
    assert!(put(&[free(90, 11)]).is_err(), "outside");
    assert!(put(std::slice::from_ref(&session)).is_err(), "a session of the future");
    assert!(put(&[counters.clone(), lease(16, 16)]).is_err(), "a lease without a session");
    for wrong in [lease(16, 8), lease(8, 16), lease(96, 16)] {
        assert!(put(&[counters.clone(), session.clone(), wrong.clone()]).is_err(), "{wrong:?}");
    }
    assert!(
        put(&[counters.clone(), free(16, 16), session.clone(), lease(16, 16)]).is_err(),
        "leased and free"
    );
    let outside = [counters, session, lease(16, 16), committed(Run::new(30, 3))];
    assert!(put(&outside).is_err(), "committed outside of the lease");
}
