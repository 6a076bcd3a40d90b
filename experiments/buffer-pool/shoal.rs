//! This project's pool under the benchmark, and the ablations that are ways to use it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Run};
use shoal_device::Device;
use shoal_pool::{Hint, Pool, PoolOptions, Stream, Unit};

use super::bed::{PagePool, Role, Session};
use super::page::Page;
use super::sim::{Handling, Sim};

/// How the pool is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The way of the device.
    pub(crate) device: Handling,
    /// A miss of a page whose read is under way joins that read.
    pub(crate) coalesces: bool,
    /// Pages are written before their frames are needed.
    pub(crate) writes_ahead: bool,
    /// Scans go through a stream.
    pub(crate) reads_ahead: bool,
    /// Scans are marked as scans.
    pub(crate) marks_scans: bool,
    /// Threads declare that they may block.
    pub(crate) inline: bool,
    /// LRU-K's k, and the number of evicted pages that it remembers; none: the pool's default.
    pub(crate) lru_k: Option<(usize, usize)>,
    /// Frames for scans, and frames to keep ready; none: the pool's defaults.
    pub(crate) scan_frames: Option<usize>,
    /// See `scan_frames`.
    pub(crate) ready_frames: Option<usize>,
    /// Buffers beside the frames.
    pub(crate) side_buffers: usize,
}

impl Settings {
    /// Returns true if the simulator takes a mechanism away.
    pub(crate) fn needs_simulator(&self) -> bool {
        let Handling { hands_off, writes_wait, tells_writes } = self.device;
        hands_off || writes_wait || tells_writes || !self.coalesces
    }
}

/// See the module.
pub(crate) struct Shoal {
    pool: Pool,
    settings: Settings,
    sim: Option<Arc<Sim>>,
    /// Threads that fetch a page, if reads are not shared.
    fetching: Box<[AtomicU32]>,
}

impl Shoal {
    pub(crate) fn new(sim: &Arc<Sim>, frames: usize, settings: Settings) -> Self {
        let counts = if settings.coalesces { 0 } else { sim.device().blocks() };
        let fetching = (0..counts).map(|_| AtomicU32::new(0)).collect();
        let mut shoal = Self::on(sim.device(), frames, settings);
        (shoal.sim, shoal.fetching) = (Some(sim.clone()), fetching);
        shoal
    }

    /// Over a device that is not the simulator.
    pub(crate) fn on(device: Device, frames: usize, settings: Settings) -> Self {
        let mut options = PoolOptions { pin_wait_ms: 10_000, ..PoolOptions::new(frames) };
        (options.k, options.history) = settings.lru_k.unwrap_or((options.k, options.history));
        options.scan_frames_max = settings.scan_frames.unwrap_or(options.scan_frames_max);
        options.side_buffers = settings.side_buffers;
        options.ready_frames = settings.ready_frames.unwrap_or(options.ready_frames);
        if !settings.writes_ahead {
            options.ready_frames = 0;
        }
        match Pool::new(device, options) {
            Ok(pool) => Self { pool, settings, sim: None, fetching: Box::default() },
            Err(error) => panic!("{error}"),
        }
    }

    /// The counts of the pool, which explain a figure.
    pub(crate) fn explain(&self) {
        if std::env::var_os("SHOAL_BENCH_EXPLAIN").is_some() {
            eprintln!("{:?}", self.pool.counters());
        }
    }
}

impl Drop for Shoal {
    fn drop(&mut self) {
        if let Err(error) = block_on(self.pool.flush_all()) {
            panic!("flushing: {error}");
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// As [`block_on`], but I/O is handed to the device's thread.
fn hand_off_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
    }
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    })
}

/// A thread's access: a scan has a stream.
pub(crate) struct ShoalSession<'a> {
    shoal: &'a Shoal,
    pool: &'a Pool,
    /// Something is done before each access.
    is_ablated: bool,
    settings: Settings,
    hint: Hint,
    stream: Option<Stream>,
}

impl PagePool for Shoal {
    type Session<'a> = ShoalSession<'a>;

    fn session(&self, role: Role) -> ShoalSession<'_> {
        let Settings { reads_ahead, marks_scans, .. } = self.settings;
        let (hint, stream) = match role {
            Role::Scan(first, end) if reads_ahead => {
                (Hint::Scan, Some(self.pool.stream(Run::new(first, (end - first) as u32))))
            }
            Role::Scan(..) if marks_scans => (Hint::Scan, None),
            _ => (Hint::Lookup, None),
        };
        let is_ablated = self.settings.device.tells_writes || !self.settings.coalesces;
        ShoalSession { shoal: self, pool: &self.pool, is_ablated, settings: self.settings, hint, stream }
    }
}

/// A thread fetches a page, if reads are not shared.
struct Fetching<'a>(&'a AtomicU32);

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shoal {
    /// The extra work of a pool without one of the mechanisms, before it has the page.
    fn ablated(&self, number: u64) -> Option<Fetching<'_>> {
        let sim = self.sim.as_deref()?;
        if self.settings.device.tells_writes {
            sim.wait_until_written(number);
        }
        if self.settings.coalesces || self.pool.is_resident(&Unit::mutable(number).id) {
            return None;
        }
        let count = &self.fetching[number as usize];
        let others = count.fetch_add(1, Ordering::AcqRel);
        if others > 0 {
            sim.read(number, &mut [0; BLOCK_BYTES]);
        }
        Some(Fetching(count))
    }
}

impl ShoalSession<'_> {
    fn run<F: Future>(settings: Settings, future: F) -> F::Output {
        if settings.inline { block_on(future) } else { hand_off_on(future) }
    }
}

impl Session for ShoalSession<'_> {
    fn read<R>(&mut self, number: u64, see: impl FnOnce(&Page) -> R) -> R {
        let _fetching = self.is_ablated.then(|| self.shoal.ablated(number));
        let page = match &mut self.stream {
            Some(stream) => Self::run(self.settings, stream.read(number)),
            None => Self::run(self.settings, self.pool.read(number, self.hint)),
        };
        match page {
            Ok(page) => see(page.page()),
            Err(error) => panic!("reading page {number}: {error}"),
        }
    }

    fn write<R>(&mut self, number: u64, change: impl FnOnce(&mut Page) -> R) -> R {
        let _fetching = self.is_ablated.then(|| self.shoal.ablated(number));
        let page = match &mut self.stream {
            Some(stream) => Self::run(self.settings, stream.write(number)),
            None => Self::run(self.settings, self.pool.write(number, self.hint)),
        };
        match page {
            Ok(mut page) => change(&mut page),
            Err(error) => panic!("writing page {number}: {error}"),
        }
    }
}
