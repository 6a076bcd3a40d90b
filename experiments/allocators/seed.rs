//! The seed's load: rounds of allocations, of each of which a share is freed again, until one fails.

use shoal_base::Run as Blocks;

use super::allocator::{Allocator, Refusal};
use super::figures::Figures;
use super::load::{Random, Sizes};
use super::run::{Run, SEED};

/// Allocations of a round.
const ROUND: usize = 100_000;

/// Allocations between two looks at the clock.
const PART: usize = 10_000;

/// Runs freed in one call if frees are batched: the number of an apply of the store.
const BATCH: usize = 50_000;

/// Groups of one lease: 1 GiB.
const LEASE_GROUPS: usize = 4;

/// Until the first request that fails: sizes up to 4 MiB in at most `runs_max` runs, `freed_percent` of each round's runs
/// freed in random order.
pub(crate) fn seed(
    allocator: &dyn Allocator,
    freed_percent: usize,
    runs_max: usize,
    run: &mut Run,
) -> Figures {
    let mut figures = Figures::default();
    let mut random = Random::new(SEED);
    let mut round = 0;
    let count = run.count(ROUND);
    while figures.utilisation_at_first_failure.is_none() && !run.is_over() {
        let sizes: Vec<u32> = (0..count).map(|_| Sizes::SEED.draw(&mut random)).collect();
        let mut runs: Vec<Blocks> = Vec::with_capacity(count);
        let mut placed = 0;
        let mut first_failure = None;
        let before = figures.alloc.total();
        // In parts: a round of the slowest takes minutes.
        for part in sizes.chunks(PART) {
            figures.alloc.each_while(part, |&blocks| {
                let before = runs.len();
                if runs_max == 1 {
                    runs.extend(allocator.allocate(blocks));
                } else {
                    runs.extend(allocator.allocate_runs(blocks, runs_max).into_iter().flatten());
                }
                if runs.len() > before {
                    placed += 1;
                } else {
                    first_failure = Some(allocator.status().utilisation());
                }
                first_failure.is_none()
            });
            if first_failure.is_some() || run.is_over() {
                break;
            }
        }
        figures.values += placed;
        figures.runs += runs.len() as u64;
        round += 1;
        figures.point(round, &before, allocator);
        if first_failure.is_some() {
            figures.utilisation_at_first_failure = first_failure;
            break;
        }
        random.shuffle(&mut runs);
        runs.truncate(runs.len() * freed_percent / 100);
        give_back(allocator, &runs, round % 2 == 0, &mut figures);
        if round % 64 == 0 {
            figures.memory_bytes = figures.memory_bytes.max(allocator.memory_bytes());
        }
        run.show(round, allocator);
    }
    figures.look(allocator);
    figures
}

/// Frees runs singly or in batches.
pub(crate) fn give_back(allocator: &dyn Allocator, runs: &[Blocks], is_batched: bool, figures: &mut Figures) {
    let expect = |freed: Result<(), Refusal>| assert!(freed.is_ok(), "it was handed out: {freed:?}");
    if !is_batched {
        return figures.free.each(runs, |&run| expect(allocator.free(run)));
    }
    for batch in runs.chunks(BATCH) {
        figures.free_batched.batch(batch.len(), || expect(allocator.free_batch(batch)));
    }
}

/// Allocations from leases, one lease after the other, the call for the lease included.
pub(crate) fn leases(allocator: &dyn Allocator, run: &Run, figures: &mut Figures) {
    let Some(space) = allocator.space() else { return };
    let mut random = Random::new(SEED);
    let count = run.count(ROUND * 10);
    let sizes: Vec<u32> = (0..count).map(|_| Sizes::LogNormal(16_384.0).draw(&mut random)).collect();
    let mut sum = 0;
    figures.lease.batch(count, || {
        let mut lease = space.lease(LEASE_GROUPS);
        for &blocks in &sizes {
            let mut found = lease.as_mut().and_then(|lease| lease.allocate(blocks));
            if found.is_none() {
                lease = space.lease(LEASE_GROUPS);
                found = lease.as_mut().and_then(|lease| lease.allocate(blocks));
            }
            sum += found.map_or(0, |run| run.block);
        }
    });
    assert!(sum > 0, "a fresh device has groups to lease");
}
