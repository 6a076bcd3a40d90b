//! The interface of all pools under test, and the threads that load them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::page::{Page, THREADS, Versions, checked, stamp};
use super::zipf::{Random, Zipf};
use shoal_bench::enough::OPERATIONS_MIN;
use shoal_bench::machine::cpu_time;

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Walks over the pages from the first number to before the second one, again and again.
    Scan(u64, u64),
    /// Picks pages.
    Get,
}

/// A pool under test.
pub(crate) trait PagePool: Sync {
    /// The state of a thread.
    type Session<'a>: Session
    where
        Self: 'a;

    /// A session for a thread that does this.
    fn session(&self, role: Role) -> Self::Session<'_>;
}

/// One thread's access to a pool.
pub(crate) trait Session {
    /// Shows a page.
    fn read<R>(&mut self, number: u64, see: impl FnOnce(&Page) -> R) -> R;

    /// Changes a page.
    fn write<R>(&mut self, number: u64, change: impl FnOnce(&mut Page) -> R) -> R;
}

/// Which of the course's benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Scans write, gets read.
    Spring2023,
    /// Scans read, gets write the pages that are theirs.
    Since2024,
}

/// The load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) version: Version,
    pub(crate) pages: u64,
    pub(crate) scans: u64,
    pub(crate) gets: u64,
    pub(crate) theta: f64,
    pub(crate) time: Duration,
}

/// The results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) scans_per_s: f64,
    pub(crate) gets_per_s: f64,
    pub(crate) ops_per_cpu_s: f64,
}

struct Shared<'a> {
    load: &'a Load,
    zipf: Zipf,
    versions: &'a Versions,
    stop: AtomicBool,
    start: Barrier,
}

/// Operations between two looks at the clock: the threads look at a flag instead.
pub(crate) fn run<P: PagePool>(pool: &P, versions: &Versions, load: &Load) -> Tally {
    assert!(load.scans <= THREADS && load.gets <= THREADS, "pages are dealt to {THREADS} threads");
    let shared = Shared {
        load,
        zipf: Zipf::new(load.pages, load.theta),
        versions,
        stop: AtomicBool::new(false),
        start: Barrier::new((load.scans + load.gets) as usize + 1),
    };
    thread::scope(|scope| {
        let shared = &shared;
        let scans: Vec<_> =
            (0..load.scans).map(|thread| scope.spawn(move || scan(pool, shared, thread))).collect();
        let gets: Vec<_> =
            (0..load.gets).map(|thread| scope.spawn(move || get(pool, shared, thread))).collect();
        shared.start.wait();
        let (start, cpu) = (Instant::now(), cpu_time());
        thread::sleep(load.time);
        shared.stop.store(true, Ordering::Relaxed);
        let sum = |threads: Vec<thread::ScopedJoinHandle<'_, u64>>| -> f64 {
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) as f64)
                .sum()
        };
        let (scans, gets) = (sum(scans), sum(gets));
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
        Tally {
            scans_per_s: scans / seconds,
            gets_per_s: gets / seconds,
            ops_per_cpu_s: (scans + gets) / cpu.as_secs_f64(),
        }
    })
}

impl Shared<'_> {
    /// Returns true if a thread may stop after `operations`.
    fn is_over(&self, operations: u64) -> bool {
        operations >= OPERATIONS_MIN && self.stop.load(Ordering::Relaxed)
    }

    fn read(&self, session: &mut impl Session, number: u64) {
        let at_least = self.versions.at_least(number);
        let version = session.read(number, |page| checked(page, number));
        assert!(
            version >= at_least,
            "page {number}: version {version} was read after {at_least} was written"
        );
    }

    /// For the only thread that writes this page.
    fn write(&self, session: &mut impl Session, number: u64) {
        let expected = self.versions.at_least(number);
        session.write(number, |page| {
            let version = checked(page, number);
            assert_eq!(version, expected, "page {number}: an update was lost");
            stamp(page, number, expected + 1);
        });
        self.versions.wrote(number, expected + 1);
    }
}

fn scan(pool: &impl PagePool, shared: &Shared<'_>, thread: u64) -> u64 {
    let Load { version, pages, scans, .. } = *shared.load;
    let (first, end) = (pages * thread / scans, pages * (thread + 1) / scans);
    let mut session = pool.session(Role::Scan(first, end));
    let mut count = 0;
    shared.start.wait();
    loop {
        for number in first..end {
            match version {
                Version::Spring2023 => shared.write(&mut session, number),
                Version::Since2024 => shared.read(&mut session, number),
            }
            count += 1;
            if shared.is_over(count) {
                return count;
            }
        }
    }
}

fn get(pool: &impl PagePool, shared: &Shared<'_>, thread: u64) -> u64 {
    let Load { version, pages, .. } = *shared.load;
    let mut session = pool.session(Role::Get);
    let mut random = Random::new(0x5EED + thread);
    let mut count = 0;
    shared.start.wait();
    while !shared.is_over(count) {
        let number = shared.zipf.number(random.next());
        match version {
            Version::Since2024 => {
                let mine = number / THREADS * THREADS + thread;
                shared.write(&mut session, mine.min(pages - THREADS + thread));
            }
            Version::Spring2023 => shared.read(&mut session, number),
        }
        count += 1;
    }
    count
}
