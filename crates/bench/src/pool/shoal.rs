//! This project's pool under the benchmark, and the ablations that are ways to use it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use shoal_base::Run;
use shoal_base::task::block_on;
use shoal_pool::{Hint, PolicyKind, Pool, PoolOptions, Stream};

use super::bed::{PagePool, Role, Session};
use super::page::Page;
use super::sim::Sim;

/// How the pool is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The device completes everything that is submitted on its own thread, also what takes no time.
    pub(crate) hands_off: bool,
    /// Scans go through a stream.
    pub(crate) reads_ahead: bool,
    /// Scans say that they are scans.
    pub(crate) marks_scans: bool,
    /// Threads say that they may block.
    pub(crate) inline: bool,
    /// Frames that scans may have; none: the pool's default.
    pub(crate) scan_frames: Option<usize>,
    /// What chooses the pages that go.
    pub(crate) policy: PolicyKind,
    /// LRU-K's k, and how many evicted pages it remembers; none: the pool's default.
    pub(crate) lru_k: Option<(usize, usize)>,
}

/// See the module.
pub(crate) struct Shoal {
    pool: Pool,
    settings: Settings,
}

impl Shoal {
    pub(crate) fn new(sim: &Arc<Sim>, frames: usize, settings: Settings) -> Self {
        let mut options = PoolOptions { pin_wait_ms: 10_000, ..PoolOptions::new(frames) };
        options.scan_frames_max = settings.scan_frames.unwrap_or(options.scan_frames_max);
        (options.k, options.history) = settings.lru_k.unwrap_or((options.k, options.history));
        options.policy = settings.policy;
        match Pool::new(sim.device(), options) {
            Ok(pool) => Self { pool, settings },
            Err(error) => panic!("{error}"),
        }
    }

    /// What the pool counted, for whoever looks for the reason of a figure.
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
    pool: &'a Pool,
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
        ShoalSession { pool: &self.pool, settings: self.settings, hint, stream }
    }
}

impl ShoalSession<'_> {
    fn run<F: Future>(settings: Settings, future: F) -> F::Output {
        if settings.inline { block_on(future) } else { hand_off_on(future) }
    }
}

impl Session for ShoalSession<'_> {
    fn read<R>(&mut self, number: u64, see: impl FnOnce(&Page) -> R) -> R {
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
