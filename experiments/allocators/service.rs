//! The allocator as a service over gRPC, both ways: a call for each allocation, and a pool over leased groups.
//!
//! Server and client are in one process and talk through a connection over the loopback address; the owner's file is a real
//! one. The waits of a client are in `allocs_per_s`: calls, flushes, and the pool's leases and commits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shoal_base::{BLOCK_BYTES_U64, Run as Blocks, SystemClock, SystemEntropy};
use shoal_space_service::{ClientError, ClientOptions, Owner, OwnerOptions, Pool, SpaceClient, SpaceServer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::figures::Figures;
use super::load::{Random, Sizes};
use super::run::{Run, SEED};

/// Allocations of a round with a pool, and of one with a call for each.
const ROUND: usize = 100_000;
const ROUND_OF_CALLS: usize = 5000;

/// The share of a round that is freed again, in random order, and the number of runs at once.
const FREED_PERCENT: usize = 50;
const FREED_AT_ONCE: usize = 1000;

/// Groups that a pool leases at a time: 16 GiB, as in the seed's test.
const LEASED_GROUPS: usize = 64;

/// The seed's load on a space of `blocks` blocks, until the first request that is not served.
pub(crate) fn service(blocks: u64, is_cached: bool, sync: bool, run: &mut Run) -> Result<Figures> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let folder = OwnersFolder::create()?;
    let options = OwnerOptions { size: Some(blocks * BLOCK_BYTES_U64), sync };
    let owner = Owner::open(&folder.0.join("space"), &options, Arc::new(SystemClock::new()), &SystemEntropy)?;
    // Listeners belong to the runtime.
    let entered = runtime.enter();
    let server = SpaceServer::bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), &[], false)?;
    drop(entered);
    let url = format!("http://{}", server.addresses()[0]);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = runtime.spawn(server.run(owner, async { drop(stopped.await) }));
    let client = runtime.block_on(SpaceClient::connect(&ClientOptions::new(url)))?;
    let pool = is_cached.then(|| client.pool());
    let mut caller = Caller { runtime: &runtime, client: &client, pool, calls: 0 };
    let mut figures = Figures::default();
    let mut random = Random::new(SEED);
    let mut waited = Duration::ZERO;
    let mut round = 0;
    while figures.utilisation_at_first_failure.is_none() && !run.is_over() {
        let count = run.count(if is_cached { ROUND } else { ROUND_OF_CALLS });
        let sizes: Vec<u32> = (0..count).map(|_| Sizes::SEED.draw(&mut random)).collect();
        let mut runs: Vec<Blocks> = Vec::with_capacity(count);
        let mut failed = None;
        let began = Instant::now();
        figures.alloc.each_while(&sizes, |&blocks| match caller.allocate(blocks) {
            Ok(run) => {
                runs.push(run);
                true
            }
            Err(ClientError::NoSpace(_)) => false,
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        waited += began.elapsed();
        if let Some(error) = failed {
            return Err(error).context("an allocation failed");
        }
        figures.values += runs.len() as u64;
        figures.runs += runs.len() as u64;
        if runs.len() < count {
            let status = runtime.block_on(client.status())?;
            let free = status.free_blocks + caller.pool.as_ref().map_or(0, Pool::free_blocks);
            figures.utilisation_at_first_failure = Some(1.0 - free as f64 / blocks as f64);
        }
        random.shuffle(&mut runs);
        runs.truncate(runs.len() * FREED_PERCENT / 100);
        for batch in runs.chunks(FREED_AT_ONCE) {
            let mut freed = Ok(());
            figures.free_batched.batch(batch.len(), || freed = caller.free(batch));
            freed.context("a free failed")?;
        }
        // The caller reports to the owner the runs that it keeps: a part of the cost of an allocation.
        let began = Instant::now();
        caller.commit()?;
        waited += began.elapsed();
        round += 1;
        run.tell(round);
    }
    figures.memory_bytes = caller.pool.as_ref().map_or(0, Pool::memory_bytes);
    figures.calls_per_alloc = Some(caller.calls as f64 / figures.values.max(1) as f64);
    figures.wall_allocs_per_s = Some(figures.values as f64 / waited.as_secs_f64());
    drop(caller);
    runtime.block_on(client.close())?;
    drop(stop);
    runtime.block_on(serving)?;
    Ok(figures)
}

/// One client that waits for each of its calls.
struct Caller<'a> {
    runtime: &'a Runtime,
    client: &'a SpaceClient,
    pool: Option<Pool>,
    calls: u64,
}

impl Caller<'_> {
    fn allocate(&mut self, blocks: u32) -> Result<Blocks, ClientError> {
        let Some(pool) = &mut self.pool else {
            self.calls += 1;
            return self.runtime.block_on(self.client.allocate(blocks));
        };
        let mut groups = LEASED_GROUPS;
        loop {
            if let Some(run) = pool.allocate(blocks) {
                return Ok(run);
            }
            self.calls += 1;
            match self.runtime.block_on(pool.lease(groups)) {
                // The last ones: fewer at a time.
                Err(ClientError::NoSpace(_)) if groups > 1 => groups /= 2,
                leased => leased?,
            }
        }
    }

    fn free(&mut self, runs: &[Blocks]) -> Result<()> {
        if let Some(pool) = &mut self.pool {
            return Ok(pool.free_batch(runs)?);
        }
        self.calls += 1;
        Ok(self.runtime.block_on(self.client.free(runs))?)
    }

    fn commit(&mut self) -> Result<()> {
        let Some(pool) = &mut self.pool else { return Ok(()) };
        self.calls += pool.leases() as u64;
        Ok(self.runtime.block_on(pool.commit())?)
    }
}

/// The folder of the owner's files; removed after the measurement.
struct OwnersFolder(PathBuf);

impl OwnersFolder {
    fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("shoal-bench-space-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for OwnersFolder {
    fn drop(&mut self) {
        // A failure cannot be reported.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
