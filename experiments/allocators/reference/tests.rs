//! Every reference against a map of owners: no block has two, none is lost, parts may be freed.

use proptest::prelude::*;
use shoal_base::{Run, SeededEntropy};

use super::super::allocator::{Allocator, Refusal};
use super::super::hybrid::Hybrid;
use super::*;

const BLOCKS: u64 = 5000;

/// One of each, with a flag: true if it merges free runs by itself.
fn all(blocks: u64) -> Vec<(&'static str, Box<dyn Allocator>, bool)> {
    vec![
        ("bitmap", Box::new(Bitmap::new(7, blocks)), true),
        ("grouped", Box::new(Grouped::new(7, blocks)), true),
        ("pooled", Box::new(Pooled::new(7, blocks, Record::None)), false),
        ("pooled over bitmap", Box::new(Pooled::new(7, blocks, Record::Bitmap)), false),
        ("tree", Box::new(Tree::new(7, blocks)), true),
        ("hybrid", Box::new(Hybrid::new(7, blocks)), true),
    ]
}

/// A flag for each block that has an owner.
struct Owners(Vec<bool>);

impl Owners {
    fn swap(&mut self, run: Run, is_owned: bool) {
        for flag in &mut self.0[run.block as usize..run.end() as usize] {
            assert_ne!(*flag, is_owned, "{run} has two owners, or none");
            *flag = is_owned;
        }
    }

    fn free(&self) -> u64 {
        self.0.iter().filter(|is_owned| !**is_owned).count() as u64
    }
}

fn check(name: &str, allocator: &dyn Allocator, seed: u64, blocks: u64) {
    let random = SeededEntropy::new(seed);
    let mut owners = Owners(vec![false; blocks as usize]);
    let mut live: Vec<Run> = Vec::new();
    for _ in 0..400 {
        let wanted = 1 + random.below(60) as u32;
        let before = live.len();
        match random.below(8) {
            0..=2 => live.extend(allocator.allocate(wanted).inspect(|run| assert_eq!(run.blocks, wanted))),
            3 => {
                let runs_max = 1 + random.below(4) as usize;
                if let Ok(runs) = allocator.allocate_runs(wanted, runs_max) {
                    assert!(
                        runs.len() <= runs_max && runs.iter().map(|run| run.blocks).sum::<u32>() == wanted
                    );
                    live.extend(runs);
                }
            }
            4 => {
                let mut out = Vec::new();
                allocator.allocate_batch(&[3, wanted, 1], &mut out).unwrap();
                assert_eq!(out.len(), 3);
                live.extend(out.into_iter().flatten());
            }
            5 if live.len() > 2 => {
                let batch = live.split_off(live.len() - 2);
                batch.iter().for_each(|&run| owners.swap(run, false));
                allocator.free_batch(&batch).unwrap();
                continue;
            }
            _ if !live.is_empty() => {
                let run = live.swap_remove(random.below(live.len() as u64) as usize);
                // Part by part: the end first.
                let first = 1 + random.below(u64::from(run.blocks)) as u32;
                let parts = [(run.block + u64::from(first), run.blocks - first), (run.block, first)];
                for (block, blocks) in parts.into_iter().filter(|part| part.1 > 0) {
                    owners.swap(Run::new(block, blocks), false);
                    allocator.free(Run::new(block, blocks)).unwrap();
                }
                continue;
            }
            _ => {}
        }
        live[before..].iter().for_each(|&run| owners.swap(run, true));
        assert_eq!(allocator.status().free_blocks, owners.free(), "{name}");
    }
    allocator.free_batch(&live).unwrap();
    assert_eq!(allocator.status().free_blocks, blocks, "{name}");
    assert_eq!(allocator.device(), 7);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_block_has_two_owners_and_none_is_lost(seed: u64) {
        for (name, allocator, merges) in all(BLOCKS) {
            check(name, &*allocator, seed, BLOCKS);
            let whole = allocator.allocate(BLOCKS as u32);
            if merges {
                prop_assert_eq!(whole, Ok(Run::new(0, BLOCKS as u32)), "{}", name);
            } else if whole.is_err() {
                allocator.compact();
                prop_assert_eq!(allocator.allocate(BLOCKS as u32), Ok(Run::new(0, BLOCKS as u32)), "{}", name);
            }
        }
    }

    #[test]
    fn clients_of_a_server_neither(seed: u64) {
        let server = Server::start(Box::new(Bitmap::new(7, BLOCKS)));
        check("uncached", &server.client(), seed, BLOCKS);
        check("cached", &CachedClient::new(&server, 1000), seed, BLOCKS);
    }
}

#[test]
fn several_groups_serve_what_none_can() {
    let grouped = Grouped::new(7, (1 << 17) + 5);
    assert_eq!(
        grouped.allocate(1 << 17),
        Err(Refusal::NoSpace),
        "a run does not cross the border of a group"
    );
    assert_eq!(grouped.allocate_runs(1 << 17, 3).unwrap().iter().map(|run| run.blocks).sum::<u32>(), 1 << 17);
    assert_eq!(grouped.allocate_runs(6, 9), Err(Refusal::NoSpace));
    assert_eq!(grouped.status().free_blocks, 5, "a refused request gives back what it gathered");
}

#[test]
fn a_run_that_is_not_in_use_is_not_freed() {
    for (name, allocator, _) in all(BLOCKS) {
        let run = allocator.allocate(10).unwrap();
        assert_eq!(
            allocator.free(Run::new(BLOCKS - 1, 2)),
            Err(Refusal::NotInUse(Run::new(BLOCKS - 1, 2))),
            "{name}"
        );
        if name != "pooled" {
            let free = Run::new(run.end(), 4);
            assert_eq!(allocator.free(free), Err(Refusal::NotInUse(free)), "{name}");
        }
        allocator.free(run).unwrap();
    }
}

#[test]
fn nothing_is_served_after_the_shutdown() {
    for (name, allocator, _) in all(BLOCKS) {
        let run = allocator.allocate(10).unwrap();
        allocator.shutdown();
        assert_eq!(allocator.allocate(1), Err(Refusal::ShutDown), "{name}");
        assert_eq!(allocator.allocate_runs(1, 1), Err(Refusal::ShutDown), "{name}");
        assert_eq!(allocator.free(run), Err(Refusal::ShutDown), "{name}");
        assert_eq!(allocator.allocate_batch(&[1], &mut Vec::new()), Err(Refusal::ShutDown), "{name}");
    }
    let server = Server::start(Box::new(Bitmap::new(7, BLOCKS)));
    let client = server.client();
    client.shutdown();
    assert_eq!(client.allocate(1), Err(Refusal::ShutDown));
}
