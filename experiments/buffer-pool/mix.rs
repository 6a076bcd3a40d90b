//! `mix-*` and `recorded`: the number of gets that find their page, one access after the other, beside the number of a
//! clairvoyant policy.
//!
//! `mix-*`: eight walkers scan their parts in turn; the case sets the number of pages that are scanned between
//! two gets. `recorded`: the requests of sixteen threads to the default pool, in the order in which they came.
//! Scans run without read-ahead: the comparison is of the policy and the scan class.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::PoolBenchOptions;
use super::bed::{Load, PagePool, Role, Session, Version, run};
use super::case::{Kind, Variant};
use super::frames::Frames;
use super::page::{Page, Versions, checked};
use super::policies::{Clock, Kind as Ranking, Ranked, S3Fifo, Sieve};
use super::shoal::{Settings, Shoal};
use super::sim::{Handling, Latency, Sim};
use super::zipf::{Random, Zipf};

/// Gets of a trace.
const GETS: u64 = 200_000;

/// The part of the gets before hits are counted.
const WARM_UP: u64 = 4;

const WALKERS: u64 = 8;

/// The time for which a trace is recorded, and its most accesses: accesses after them are not kept.
const RECORDED: Duration = Duration::from_millis(400);
const RECORDED_MAX: usize = 1_000_000;

/// One access of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    page: u64,
    is_get: bool,
}

/// The trace of a case, if it has one.
pub(crate) fn trace(options: &PoolBenchOptions, kind: Kind, default: Settings) -> Option<Vec<Access>> {
    match kind {
        Kind::Mix(scans_per_get) => Some(mixed(options, scans_per_get)),
        Kind::Recorded => Some(recorded(options, default)),
        Kind::Load(_) | Kind::Device | Kind::Resident => None,
    }
}

fn mixed(options: &PoolBenchOptions, scans_per_get: u64) -> Vec<Access> {
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

/// A pool that writes down its requests.
struct Recorder<P> {
    pool: P,
    next: AtomicU64,
    accesses: Mutex<Vec<(u64, Access)>>,
}

struct Recording<'a, S> {
    session: S,
    is_get: bool,
    next: &'a AtomicU64,
    own: Vec<(u64, Access)>,
    all: &'a Mutex<Vec<(u64, Access)>>,
}

impl<P: PagePool> PagePool for Recorder<P> {
    type Session<'a>
        = Recording<'a, P::Session<'a>>
    where
        P: 'a;

    fn session(&self, role: Role) -> Self::Session<'_> {
        let session = self.pool.session(role);
        Recording {
            session,
            is_get: role == Role::Get,
            next: &self.next,
            own: Vec::new(),
            all: &self.accesses,
        }
    }
}

impl<S> Recording<'_, S> {
    fn note(&mut self, page: u64) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if (number as usize) < RECORDED_MAX {
            self.own.push((number, Access { page, is_get: self.is_get }));
        }
    }
}

impl<S> Drop for Recording<'_, S> {
    fn drop(&mut self) {
        self.all.lock().append(&mut self.own);
    }
}

impl<S: Session> Session for Recording<'_, S> {
    fn read<R>(&mut self, number: u64, see: impl FnOnce(&Page) -> R) -> R {
        self.note(number);
        self.session.read(number, see)
    }

    fn write<R>(&mut self, number: u64, change: impl FnOnce(&mut Page) -> R) -> R {
        self.note(number);
        self.session.write(number, change)
    }
}

fn recorded(options: &PoolBenchOptions, default: Settings) -> Vec<Access> {
    let PoolBenchOptions { pages, frames, scans, gets, theta, .. } = *options;
    let load = Load { version: Version::Since2024, pages, scans, gets, theta, time: RECORDED };
    let sim = Sim::new(pages, Latency::None, Handling::default());
    let pool = Shoal::new(&sim, frames, default);
    let recorder = Recorder { pool, next: AtomicU64::new(0), accesses: Mutex::default() };
    run(&recorder, &Versions::new(pages), &load);
    let mut accesses = recorder.accesses.into_inner();
    accesses.sort_unstable_by_key(|&(number, _)| number);
    accesses.into_iter().map(|(_, access)| access).collect()
}

/// The share of gets after the warm-up for which `hit` returns true.
fn rate(trace: &[Access], mut hit: impl FnMut(Access) -> bool) -> f64 {
    let warm_up = trace.iter().filter(|access| access.is_get).count() as u64 / WARM_UP;
    let (mut gets, mut hits) = (0_u64, 0_u64);
    for &access in trace {
        let is_hit = hit(access);
        if access.is_get {
            gets += 1;
            hits += u64::from(is_hit && gets > warm_up);
        }
    }
    hits as f64 / (gets - warm_up).max(1) as f64
}

/// The hit rate of gets of a variant; none if its difference from the default is not measured here.
pub(crate) fn hit_rate(options: &PoolBenchOptions, trace: &[Access], variant: &Variant) -> Option<f64> {
    let frames = options.frames;
    let ranked = |kind| {
        let mut cache = Ranked::new(kind, frames);
        Some(rate(trace, |access| cache.access(access.page)))
    };
    match variant.name {
        "naive" => {
            let mut frames = Frames::new(options.pages, frames, options.k);
            Some(rate(trace, |access| {
                let there = frames.pin(access.page);
                let frame = there.or_else(|| frames.replace(access.page).map(|(frame, _)| frame));
                if let Some(frame) = frame {
                    frames.unpin(frame, false);
                }
                there.is_some()
            }))
        }
        "belady" => Some(belady(trace, frames)),
        "lru" => ranked(Ranking::Lru),
        "lfu" => ranked(Ranking::Lfu),
        "lfu-aged" => ranked(Ranking::AgedLfu),
        "clock" => {
            let mut cache = Clock::new(frames);
            Some(rate(trace, |access| cache.access(access.page)))
        }
        "s3-fifo" => {
            let mut cache = S3Fifo::new(frames);
            Some(rate(trace, |access| cache.access(access.page)))
        }
        "sieve" => {
            let mut cache = Sieve::new(frames);
            Some(rate(trace, |access| cache.access(access.page)))
        }
        "naive-scheduler" | "proxy" => None,
        "no-scan-marking" => Some(pool_rate(options, trace, variant.settings)),
        name if name.starts_with("no-") => None,
        _ => Some(pool_rate(options, trace, variant.settings)),
    }
}

fn pool_rate(options: &PoolBenchOptions, trace: &[Access], settings: Settings) -> f64 {
    let sim: Arc<Sim> = Sim::new(options.pages, Latency::None, Handling::default());
    let pool = Shoal::new(&sim, options.frames, Settings { reads_ahead: false, ..settings });
    let mut gets = pool.session(Role::Get);
    let mut scans = pool.session(Role::Scan(0, options.pages));
    rate(trace, |access| {
        let before = sim.pages_read();
        let session = if access.is_get { &mut gets } else { &mut scans };
        session.read(access.page, |page| checked(page, access.page));
        sim.pages_read() == before
    })
}

/// The optimal policy knows the future: it evicts the page that is needed last, and does not even keep a page that is needed later
/// than all resident ones.
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
        // Only the warm-up's length matters to `rate`: the trace is repeated.
        let trace: Vec<_> =
            [1, 2, 3, 1, 2, 3].iter().cycle().take(GETS as usize).map(|&page| get(page)).collect();
        let one = belady(&trace, 1);
        let two = belady(&trace, 2);
        assert!((0.2..0.4).contains(&one), "one of three stays: {one}");
        assert!((0.6..0.7).contains(&two), "two of three stay: {two}");
    }
}
