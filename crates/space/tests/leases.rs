//! Leases and direct allocations beside each other against an ownership map: holders that commit, give back, die.

#![allow(clippy::unwrap_used, reason = "a test may")]

use proptest::prelude::*;
use shoal_base::{Run, SeededEntropy};
use shoal_space::{Lease, LeaseBook, LeaseError, LeaseId, Space};

const BLOCKS: u64 = 2000;
const GROUP: u32 = 64;

struct Holder {
    id: LeaseId,
    lease: Lease,
    expires_ms: u64,
}

/// Who owns each block for good; what was handed out and not committed is nobody's.
struct Owners(Vec<bool>);

impl Owners {
    fn swap(&mut self, run: Run, is_owned: bool) {
        for flag in &mut self.0[run.block as usize..run.end() as usize] {
            assert_ne!(*flag, is_owned, "{run} has two owners, or none");
            *flag = is_owned;
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().filter(|is_owned| **is_owned).count() as u64
    }
}

fn check(seed: u64) {
    let random = SeededEntropy::new(seed);
    let space = Space::with_shards(BLOCKS, GROUP, 512);
    space.free(Run::new(0, BLOCKS as u32)).unwrap();
    let (book, mut owners) = (LeaseBook::default(), Owners(vec![false; BLOCKS as usize]));
    let mut holders: Vec<Holder> = Vec::new();
    let mut ended: Vec<LeaseId> = Vec::new();
    let mut live: Vec<Run> = Vec::new();
    let mut now_ms = 0;
    for _ in 0..400 {
        now_ms += random.below(3);
        let blocks = 1 + random.below(50) as u32;
        let chosen = random.below(holders.len() as u64) as usize;
        match random.below(9) {
            0 => {
                let expires_ms = now_ms + random.below(40);
                if let Ok((id, lease)) = book.grant(&space, 1 + random.below(3) as usize, expires_ms) {
                    holders.push(Holder { id, lease, expires_ms });
                }
            }
            1 if !holders.is_empty() => {
                let holder = holders.swap_remove(chosen);
                book.give_back(&space, holder.id).unwrap();
                ended.push(holder.id);
            }
            2 => {
                // Whoever did not renew is fenced.
                let expired = book.expire(&space, now_ms);
                holders.retain(|holder| {
                    assert_eq!(expired.contains(&holder.id), holder.expires_ms < now_ms);
                    holder.expires_ms >= now_ms
                });
                ended.extend(expired);
            }
            3..=5 if !holders.is_empty() => {
                let holder = &mut holders[chosen];
                let Some(run) = holder.lease.allocate(blocks) else { continue };
                assert!(holder.lease.groups().iter().any(|group| group.overlaps(run)));
                // One in three is written but never committed.
                if random.below(3) > 0 {
                    book.commit(holder.id, run).unwrap();
                    owners.swap(run, true);
                    live.push(run);
                }
            }
            6 if !live.is_empty() => {
                let run = live.swap_remove(random.below(live.len() as u64) as usize);
                // Also while its lease is still out: it stays committed, so the end of the lease does not free it again.
                owners.swap(run, false);
                space.free(run).unwrap();
            }
            7 if !ended.is_empty() => {
                let id = ended[random.below(ended.len() as u64) as usize];
                assert_eq!(book.commit(id, Run::new(0, 1)), Err(LeaseError::Fenced { id }));
                assert_eq!(book.renew(id, u64::MAX), Err(LeaseError::Fenced { id }));
            }
            _ => {
                if let Some(run) = space.allocate(blocks) {
                    owners.swap(run, true);
                    live.push(run);
                }
            }
        }
        assert_eq!(book.len(), holders.len());
    }
    holders.iter().for_each(|holder| book.give_back(&space, holder.id).unwrap());
    assert_eq!(space.free_blocks() + owners.count(), BLOCKS, "nothing is lost with a lease");
    live.iter().for_each(|&run| assert!(space.take_free_part(run) == Ok(0), "{run} is owned and free"));
    space.audit();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_block_is_lost_or_owned_twice(seed: u64) {
        check(seed);
    }
}
