//! The first SETs of 64 KiB on a new server, whose file has grown in an earlier one, and its steady rate. A first SET touches memory
//! that nothing has touched before.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use shoal_bench::enough::Enough;

use super::server::Used;
use super::{Case, Figures, measure_for};

/// The first SETs, and the steady rate.
pub(super) const CASES: [&str; 2] = ["set-64k-c50-first", "set-64k-c50-steady"];

/// Keys enough that the file grows by more than the first SETs write.
const SETS: Case = Case { name: CASES[1], bytes: 64 << 10, clients: 50, at_once: 1, keys: 50_000 };
/// First SETs of each client: 3,000 of all.
const FIRST: u64 = 60;

/// Makes the file grow.
///
/// # Errors
/// The connection failed.
pub(super) fn grow(address: SocketAddr, time: Duration) -> Result<()> {
    super::sets(address, &SETS, Enough::after(2 * time)).map(drop)
}

/// The figures of both cases on a new server.
///
/// # Errors
/// The connection failed.
pub(super) fn measure(
    address: SocketAddr,
    used: &dyn Fn() -> Result<Used>,
    time: Duration,
) -> Result<[Figures; 2]> {
    let first = measure_for(address, used, &SETS, Enough::of(FIRST))?;
    super::sets(address, &SETS, Enough::after(time))?;
    Ok([first, measure_for(address, used, &SETS, Enough::after(time))?])
}

#[cfg(test)]
mod tests {
    use shoal_bench::machine;
    use shoal_bench::redis::{Bed, StoreLocation};

    use super::*;

    #[test]
    fn both_cases_give_figures() {
        let bed = Bed::new(StoreLocation::Memory).unwrap();
        grow(bed.address, Duration::ZERO).unwrap();
        let used = || Ok(Used { cpu: machine::cpu_time(), flushes: None });
        for figures in measure(bed.address, &used, Duration::ZERO).unwrap() {
            assert!(figures.per_s > 0.0 && figures.p99_us >= figures.p50_us, "{figures:?}");
        }
    }
}
