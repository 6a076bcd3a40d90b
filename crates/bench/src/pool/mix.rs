//! `mix-*`: how many gets find their page, one access after the other, beside what a clairvoyant would reach.
//!
//! Eight walkers scan their parts in turn; between two gets so many pages are scanned as the case says. Scans go without
//! read-ahead: the policy and the scan class are what is compared.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PoolBenchOptions;
use super::bed::{PagePool, Role, Session};
use super::frames::Frames;
use super::page::checked;
use super::shoal::{Settings, Shoal};
use super::sim::{Latency, Sim};
use super::zipf::{Random, Zipf};

/// Gets of a trace.
const GETS: u64 = 200_000;

/// Gets before hits are counted.
const WARM_UP: u64 = GETS / 4;

const WALKERS: u64 = 8;

/// One access of a trace.
#[derive(Clone, Copy)]
struct Access {
    page: u64,
    is_get: bool,
}

fn trace(options: &PoolBenchOptions, scans_per_get: u64) -> Vec<Access> {
    let zipf = Zipf::new(options.pages, options.theta);
    let mut random = Random::new(0x00C0_FFEE);
    let part = options.pages / WALKERS;
    let mut scanned = 0;
    let mut trace = Vec::new();
    for _ in 0..GETS {
        trace.push(Access { page: zipf.number(random.next()), is_get: true });
        for _ in 0..scans_per_get {
            let (walker, step) = (scanned % WALKERS, scanned / WALKERS);
            trace.push(Access { page: walker * part + step % part, is_get: false });
            scanned += 1;
        }
    }
    trace
}

/// The share of gets after the warm-up that `hit` says of.
fn rate(trace: &[Access], mut hit: impl FnMut(Access) -> bool) -> f64 {
    let (mut gets, mut hits) = (0_u64, 0_u64);
    for &access in trace {
        let is_hit = hit(access);
        if access.is_get {
            gets += 1;
            hits += u64::from(is_hit && gets > WARM_UP);
        }
    }
    hits as f64 / (gets - WARM_UP) as f64
}

/// The hit rate of gets of a variant.
pub(crate) fn hit_rate(
    options: &PoolBenchOptions,
    scans_per_get: u64,
    variant: &str,
    settings: Settings,
) -> Option<f64> {
    let trace = trace(options, scans_per_get);
    match variant {
        "naive" => {
            let mut frames = Frames::new(options.pages, options.frames, options.k);
            Some(rate(&trace, |access| {
                let there = frames.pin(access.page);
                let frame = there.or_else(|| frames.replace(access.page).map(|(frame, _)| frame));
                if let Some(frame) = frame {
                    frames.unpin(frame, false);
                }
                there.is_some()
            }))
        }
        "belady" => Some(belady(&trace, options.frames)),
        // What differs from the default is not what is measured here.
        "naive-scheduler" | "proxy" | "no-read-ahead" | "no-inline-io" => None,
        _ => {
            let sim: Arc<Sim> = Sim::new(options.pages, Latency::None, false);
            let pool = Shoal::new(&sim, options.frames, Settings { reads_ahead: false, ..settings });
            let mut gets = pool.session(Role::Get);
            let mut scans = pool.session(Role::Scan(0, options.pages));
            Some(rate(&trace, |access| {
                let before = sim.pages_read();
                let session = if access.is_get { &mut gets } else { &mut scans };
                session.read(access.page, |page| checked(page, access.page));
                sim.pages_read() == before
            }))
        }
    }
}

/// Who knows the future evicts what is needed last, and does not even keep what is needed later than all it has.
fn belady(trace: &[Access], frames: usize) -> f64 {
    let mut next = vec![usize::MAX; trace.len()];
    let mut seen = std::collections::HashMap::new();
    for (at, access) in trace.iter().enumerate().rev() {
        next[at] = seen.insert(access.page, at).unwrap_or(usize::MAX - access.page as usize);
    }
    // When each page in the pool is needed next; numbers of pages that are never needed again differ.
    let mut resident: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut at = 0;
    rate(trace, |access| {
        let is_hit = resident.remove(&(at, access.page));
        resident.insert((next[at], access.page));
        if resident.len() > frames {
            resident.pop_last();
        }
        at += 1;
        is_hit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clairvoyant_is_ahead_and_keeps_what_comes_next() {
        let get = |page| Access { page, is_get: true };
        // Nothing but the warm-up's length matters to `rate`: the trace is repeated.
        let trace: Vec<_> =
            [1, 2, 3, 1, 2, 3].iter().cycle().take(GETS as usize).map(|&page| get(page)).collect();
        let one = belady(&trace, 1);
        let two = belady(&trace, 2);
        assert!((0.2..0.4).contains(&one), "one of three stays: {one}");
        assert!((0.6..0.7).contains(&two), "two of three stay: {two}");
    }
}
