//! Small durable SETs of one client beside eight with long values under new keys: on a file that grows, and on one that has grown.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use shoal_bench::enough::Enough;
use shoal_bench::redis::{Link, command, crowd, load};

use super::Figures;
use super::server::Used;

/// On a file that grows, and on one that has grown.
pub(super) const CASES: [&str; 2] = ["set-100b-beside-growth", "set-100b-beside-writes"];

const LONG_BYTES: usize = 64 << 10;
const LONG_CLIENTS: usize = 8;
/// Small keys, which are overwritten.
const KEYS: u64 = 100_000;

/// How the two cases are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Time of a case.
    pub(super) time: Duration,
    /// Long values that fill the cache first: the first touch of its memory costs more than the growth of the file.
    pub(super) filled: u64,
    /// Pause after the removal of all objects, until their space is free.
    pub(super) pause: Duration,
}

/// The figures of both cases, of the small SETs; `used` returns the server's use of resources. An unmeasured
/// turn before them makes the file, its log and the server's memory as large as they get.
pub(super) fn measure(
    address: SocketAddr,
    used: &dyn Fn() -> Result<Used>,
    plan: Plan,
) -> Result<[Figures; 2]> {
    let mut link = Link::connect(address)?;
    let mut fill = |name: &str, values: u64| {
        load(&mut link, values, LONG_BYTES, |number| format!("{name}:{number}").into_bytes()).map(drop)
    };
    fill("cache", plan.filled)?;
    beside_long_ones(address, used, plan.time)?;
    let mut flush = Vec::new();
    command(&mut flush, &[b"FLUSHALL"]);
    Link::connect(address)?.call(&flush, 1)?;
    thread::sleep(plan.pause);
    let writes = beside_long_ones(address, used, plan.time)?;
    // Free blocks of the file: those of the first values, and a step ahead of need.
    fill("free", plan.filled * 2)?;
    Ok([beside_long_ones(address, used, plan.time)?, writes])
}

fn beside_long_ones(address: SocketAddr, used: &dyn Fn() -> Result<Used>, time: Duration) -> Result<Figures> {
    let set = |key: String, bytes: usize| {
        let mut commands = Vec::new();
        command(&mut commands, &[b"SET", key.as_bytes(), &vec![b'w'; bytes]]);
        commands
    };
    let next = AtomicU64::new(0);
    let long = |_: &mut _| set(format!("long:{}", next.fetch_add(1, Ordering::Relaxed)), LONG_BYTES);
    let before = used()?;
    let (small, long) = thread::scope(|scope| {
        let long = scope.spawn(|| crowd(address, Enough::after(time), LONG_CLIENTS, 1, long));
        let small = crowd(address, Enough::after(time), 1, 1, |random| {
            set(format!("key:{:012}", random.below(KEYS)), 100)
        });
        (small, long.join())
    });
    let (small, long) = (small?, long.map_err(|_| anyhow!("a client panicked"))??);
    Ok(Figures::beside(&small, long.times.count(), before, used()?))
}

#[cfg(test)]
mod tests {
    use shoal_bench::machine;
    use shoal_bench::redis::{Bed, StoreLocation};

    use super::*;

    #[test]
    fn both_cases_give_figures() {
        let bed = Bed::new(StoreLocation::Memory).unwrap();
        let plan = Plan { time: Duration::ZERO, filled: 2, pause: Duration::ZERO };
        let used = || Ok(Used { cpu: machine::cpu_time(), flushes: None });
        for figures in measure(bed.address, &used, plan).unwrap() {
            assert!(figures.per_s > 0.0 && figures.p99_us >= figures.p50_us, "{figures:?}");
        }
    }
}
