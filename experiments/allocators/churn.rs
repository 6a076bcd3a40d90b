//! Full devices: a random value is freed, a new one comes, until the device was written several times over.

use shoal_base::Run as Blocks;

use super::allocator::Allocator;
use super::figures::Figures;
use super::load::{Random, Sizes};
use super::run::{Run, SEED};
use super::seed::give_back;

/// Values that go and come together.
const CHUNK: usize = 1000;

/// Times that the device is written.
const TURNOVERS: f64 = 10.0;

/// Fills to `percent` and replaces random values.
pub(crate) fn churn(allocator: &dyn Allocator, percent: u64, sizes: Sizes, run: &mut Run) -> Figures {
    let mut figures = Figures { contiguous_failures: Some(0), ..Figures::default() };
    let mut random = Random::new(SEED);
    let blocks = allocator.status().blocks;
    let reserve = blocks * (100 - percent) / 100;
    let Some(mut live) = fill(allocator, reserve, sizes, &mut random, run) else { return figures };
    figures.fill_at_start = Some(allocator.status().utilisation());
    run.begin();
    let mut written = 0;
    let mut round = 0;
    while written as f64 / (blocks as f64) < TURNOVERS && !run.is_over() {
        round += 1;
        let (victims, wanted) = exchange(allocator, reserve, sizes, &mut live, &mut random);
        let is_batched = round % 2 == 0;
        give_back(allocator, &victims, is_batched, &mut figures);
        let before = live.len();
        if is_batched {
            let mut out = Vec::with_capacity(wanted.len());
            figures.alloc_batched.batch(wanted.len(), || {
                let served = allocator.allocate_batch(&wanted, &mut out);
                assert!(served.is_ok(), "nobody shut it down: {served:?}");
            });
            live.extend(out.into_iter().flatten());
        } else {
            figures.alloc.each(&wanted, |&blocks| live.extend(allocator.allocate(blocks)));
        }
        let placed = live.len() - before;
        let failed = (wanted.len() - placed) as u64;
        figures.contiguous_failures = figures.contiguous_failures.map(|failures| failures + failed);
        if failed > 0 && figures.utilisation_at_first_failure.is_none() {
            figures.utilisation_at_first_failure = Some(allocator.status().utilisation());
        }
        written += live[before..].iter().map(|run| u64::from(run.blocks)).sum::<u64>();
        figures.values += placed as u64;
        figures.runs += placed as u64;
        run.show(round, allocator);
    }
    figures.turnovers = Some(written as f64 / blocks as f64);
    figures.look(allocator);
    figures
}

/// Values until only `reserve` blocks are free; `None` if that takes too long or does not succeed.
pub(crate) fn fill(
    allocator: &dyn Allocator,
    reserve: u64,
    sizes: Sizes,
    random: &mut Random,
    run: &mut Run,
) -> Option<Vec<Blocks>> {
    let mut live = Vec::new();
    let mut free = allocator.status().free_blocks;
    while free > reserve {
        let found = allocator.allocate(sizes.draw(random)).ok()?;
        free -= u64::from(found.blocks);
        live.push(found);
        if live.len() % 4096 == 0 {
            run.show(live.len() as u64, allocator);
            if run.is_over() {
                return None;
            }
        }
    }
    Some(live)
}

/// A thousand sizes that come, and as many random values that go that `reserve` blocks stay free.
fn exchange(
    allocator: &dyn Allocator,
    reserve: u64,
    sizes: Sizes,
    live: &mut Vec<Blocks>,
    random: &mut Random,
) -> (Vec<Blocks>, Vec<u32>) {
    let (mut victims, mut wanted) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
    let mut balance = allocator.status().free_blocks as i64 - reserve as i64;
    while wanted.len() < CHUNK {
        let blocks = sizes.draw(random);
        balance -= i64::from(blocks);
        wanted.push(blocks);
        while balance < 0 {
            let Some(victim) = random.take(live) else { break };
            balance += i64::from(victim.blocks);
            victims.push(victim);
        }
    }
    (victims, wanted)
}
