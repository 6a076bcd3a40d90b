//! The benchmark's device: pages in memory with a latency, as in the course's simulator.
//!
//! - *Flat*: every access takes the latency.
//! - *Sequential-aware*: an access takes a tenth of it if its page is in the same aligned group of four as one of the last
//!   four pages that any thread accessed, or up to three pages after one.
//!
//! Requests in flight do not wait for each other: the device has no bandwidth and no queue. A request for several pages
//! takes the time of the same pages requested at once, one by one: the longest of their latencies.
//!
//! A blocking request sleeps on its caller's thread, as there; a submitted one sleeps in one timer thread's queue, which takes the
//! place of one sleeping thread a request.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use shoal_base::BLOCK_BYTES;
use shoal_device::{BlockDevice, Device, DeviceCounters, DeviceError, Op, Request, Ticket};

use super::page::{Page, stamp};

/// Accesses that the sequential-aware simulator remembers, and pages of a group.
const NEAR: u64 = 4;

/// The latency of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Latency {
    None,
    Flat(Duration),
    SequentialAware(Duration),
}

/// The mechanisms that a comparison takes from the pools.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handling {
    /// Submitted requests complete on the device's thread, even if they take no time.
    pub(crate) hands_off: bool,
    /// The submitter of a write waits for it.
    pub(crate) writes_wait: bool,
    /// Reports the pages that are being written: see [`Sim::wait_until_written`].
    pub(crate) tells_writes: bool,
}

struct Waiting {
    due: Instant,
    number: u64,
    ticket: Ticket,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

#[derive(Default)]
struct Queue {
    waiting: BinaryHeap<Reverse<Waiting>>,
    submitted: u64,
    closed: bool,
}

/// Groups of threads that count by themselves: pools must not wait for the simulator's counters.
const CELLS: usize = 16;

#[derive(Default)]
#[repr(align(64))]
struct Counters {
    reads: AtomicU64,
    blocks_read: AtomicU64,
    writes: AtomicU64,
    blocks_written: AtomicU64,
}

fn cell() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static CELL: usize = THREADS.fetch_add(1, Ordering::Relaxed) % CELLS;
    }
    CELL.with(|&cell| cell)
}

thread_local! {
    /// On the timer's thread: the delay that a completion owes for writes that it would have waited for. The timer does not
    /// sleep, it has others to serve; requests that this completion submits next are due later by this delay.
    static OWED: Cell<Option<Duration>> = const { Cell::new(None) };
}

struct Core {
    pages: Box<[Mutex<Box<Page>>]>,
    latency: Latency,
    handling: Handling,
    /// Writes under way of each page, if a pool queries them.
    writing: Box<[AtomicU32]>,
    written: (Mutex<()>, Condvar),
    recent: Mutex<([u64; NEAR as usize], usize)>,
    queue: Mutex<Queue>,
    changed: Condvar,
    counters: [Counters; CELLS],
}

/// See the module. After a drop its thread exits when nothing waits any more.
pub(crate) struct Sim {
    core: Arc<Core>,
}

impl Sim {
    /// `pages` pages of version 1.
    pub(crate) fn new(pages: u64, latency: Latency, handling: Handling) -> Arc<Self> {
        let filled = |number| {
            let mut page = Box::new([0; BLOCK_BYTES]);
            stamp(&mut page, number, 1);
            Mutex::new(page)
        };
        let core = Arc::new(Core {
            pages: (0..pages).map(filled).collect(),
            latency,
            handling,
            writing: (0..if handling.tells_writes { pages } else { 0 }).map(|_| AtomicU32::new(0)).collect(),
            written: Default::default(),
            recent: Mutex::new(([u64::MAX - NEAR; NEAR as usize], 0)),
            queue: Mutex::default(),
            changed: Condvar::new(),
            counters: Default::default(),
        });
        let timer = core.clone();
        thread::spawn(move || timer.serve());
        Arc::new(Self { core })
    }

    pub(crate) fn device(self: &Arc<Self>) -> Device {
        Device::new(self.clone())
    }

    /// Reads one page; sleeps for its latency.
    pub(crate) fn read(&self, number: u64, page: &mut Page) {
        self.core.sleep(number, 1);
        self.core.read_now(number, page);
        self.core.counters[cell()].reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes one page; sleeps for its latency.
    pub(crate) fn write(&self, number: u64, page: &Page) {
        self.core.sleep(number, 1);
        self.core.write_now(number, page);
        self.core.counters[cell()].writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the page is not being written.
    pub(crate) fn wait_until_written(&self, number: u64) {
        let core = &self.core;
        if core.writing[number as usize].load(Ordering::Acquire) > 0 {
            let mut lock = core.written.0.lock();
            while core.writing[number as usize].load(Ordering::Acquire) > 0 {
                core.written.1.wait(&mut lock);
            }
        }
    }

    /// Pages read so far.
    pub(crate) fn pages_read(&self) -> u64 {
        self.core.total(|counters| &counters.blocks_read)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.core.queue.lock().closed = true;
        self.core.changed.notify_all();
    }
}

impl Core {
    fn total(&self, of: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.counters.iter().map(|counters| of(counters).load(Ordering::Relaxed)).sum()
    }

    fn duration(&self, first: u64, count: u64) -> Duration {
        match self.latency {
            Latency::None => Duration::ZERO,
            Latency::Flat(latency) => latency,
            Latency::SequentialAware(latency) => {
                let recent = self.recent.lock().0;
                let near = |page: u64| {
                    recent
                        .iter()
                        .any(|&seen| page / NEAR == seen / NEAR || (seen..seen + NEAR).contains(&page))
                };
                if (first..first + count).all(near) { latency / 10 } else { latency }
            }
        }
    }

    fn sleep(&self, first: u64, count: u64) {
        let duration = self.duration(first, count);
        if !duration.is_zero() {
            thread::sleep(duration);
        }
    }

    fn accessed(&self, number: u64) {
        if matches!(self.latency, Latency::SequentialAware(_)) {
            let (recent, next) = &mut *self.recent.lock();
            recent[*next % recent.len()] = number;
            *next += 1;
        }
    }

    fn read_now(&self, number: u64, page: &mut [u8]) {
        page.copy_from_slice(&self.pages[number as usize].lock()[..]);
        self.counters[cell()].blocks_read.fetch_add(1, Ordering::Relaxed);
        self.accessed(number);
    }

    fn write_now(&self, number: u64, page: &[u8]) {
        self.pages[number as usize].lock().copy_from_slice(page);
        self.counters[cell()].blocks_written.fetch_add(1, Ordering::Relaxed);
        self.accessed(number);
    }

    /// Notes that the ticket's pages are being written, or are not any more.
    fn marks(&self, request: &Request<'_>, begin: bool) {
        if !self.handling.tells_writes || request.op() != Op::Write {
            return;
        }
        for number in request.block()..request.block() + request.blocks() {
            let page = &self.writing[number as usize];
            if begin {
                page.fetch_add(1, Ordering::AcqRel)
            } else {
                page.fetch_sub(1, Ordering::AcqRel)
            };
        }
        if !begin {
            let _lock = self.written.0.lock();
            self.written.1.notify_all();
        }
    }

    fn serve_one(&self, request: &mut Request<'_>) -> Result<(), DeviceError> {
        request.check_range(self.pages.len() as u64)?;
        match request.op() {
            Op::Read => {
                request.fill_blocks(|number, page| self.read_now(number, page));
                self.counters[cell()].reads.fetch_add(1, Ordering::Relaxed);
            }
            Op::Write | Op::WriteDurable => {
                request.view_blocks(|number, page| self.write_now(number, page));
                self.marks(request, false);
                self.counters[cell()].writes.fetch_add(1, Ordering::Relaxed);
            }
            Op::Flush | Op::Discard { .. } => {}
        }
        Ok(())
    }

    fn run(&self, ticket: Ticket) {
        ticket.run(|request| self.serve_one(request));
    }

    /// Completes submitted requests when they are due, each wholly before the next: a request that its completion submits finds
    /// it among the last accesses.
    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            match queue.waiting.peek().map(|Reverse(next)| next.due) {
                Some(due) if due <= Instant::now() => {
                    let Some(Reverse(next)) = queue.waiting.pop() else { continue };
                    drop(queue);
                    OWED.set(Some(Duration::ZERO));
                    self.run(next.ticket);
                    queue = self.queue.lock();
                }
                Some(due) => {
                    self.changed.wait_until(&mut queue, due);
                }
                None if queue.closed => return,
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

impl BlockDevice for Sim {
    fn submit(&self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.core.marks(&ticket, true);
            let duration = self.core.duration(ticket.block(), ticket.blocks());
            let waits = self.core.handling.writes_wait && ticket.op() == Op::Write;
            let owed = OWED.get();
            if waits && owed.is_none() || duration.is_zero() && !self.core.handling.hands_off {
                thread::sleep(duration);
                self.core.run(ticket);
                continue;
            }
            let due = Instant::now() + owed.unwrap_or_default() + duration;
            if waits {
                OWED.set(owed.map(|owed| owed + duration));
            }
            let mut queue = self.core.queue.lock();
            let is_first = queue.waiting.peek().is_none_or(|Reverse(next)| due < next.due);
            queue.submitted += 1;
            let number = queue.submitted;
            queue.waiting.push(Reverse(Waiting { due, number, ticket }));
            drop(queue);
            if is_first {
                self.core.changed.notify_one();
            }
        }
    }

    fn execute(&self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.core.marks(&ticket, true);
            self.core.sleep(ticket.block(), ticket.blocks());
            self.core.run(ticket);
        }
    }

    fn run(&self, mut request: Request<'_>) -> Option<Result<(), DeviceError>> {
        self.core.marks(&request, true);
        self.core.sleep(request.block(), request.blocks());
        Some(self.core.serve_one(&mut request))
    }

    fn blocks(&self) -> u64 {
        self.core.pages.len() as u64
    }

    fn grow(&self, _blocks: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn describe(&self) -> String {
        format!("simulated, {:?}", self.core.latency)
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        let core = &self.core;
        DeviceCounters {
            reads: core.total(|counters| &counters.reads),
            blocks_read: core.total(|counters| &counters.blocks_read),
            writes: core.total(|counters| &counters.writes),
            blocks_written: core.total(|counters| &counters.blocks_written),
            ..DeviceCounters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::task::block_on;
    use shoal_device::IoBuf;

    use super::*;

    const LATENCY: Duration = Duration::from_millis(40);

    /// Starts a write when it is woken, as the completion of a read does that reads ahead.
    struct Writes {
        sim: Arc<Sim>,
        /// True if it was under way just after its start.
        was_under_way: Mutex<Option<bool>>,
    }

    impl std::task::Wake for Writes {
        fn wake(self: Arc<Self>) {
            let mut write = self.sim.device().write(1, IoBuf::new(1));
            write.start();
            // Had this thread, which completes requests, slept until it was due, it would be done.
            let polled = std::pin::Pin::new(&mut write)
                .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            *self.was_under_way.lock() = Some(polled.is_pending());
        }
    }

    #[test]
    fn writes_wait_where_they_are_begun_but_not_on_the_timers_thread() {
        let sim = Sim::new(64, Latency::Flat(LATENCY), Handling { writes_wait: true, ..Handling::default() });
        let begun = Instant::now();
        let mut write = sim.device().write(1, IoBuf::new(1));
        write.start();
        assert!(begun.elapsed() >= LATENCY);
        drop(write);

        let writes = Arc::new(Writes { sim: sim.clone(), was_under_way: Mutex::new(None) });
        let waker = std::task::Waker::from(writes.clone());
        let mut read = sim.device().read(2, IoBuf::unfilled(1));
        read.start();
        let polled = std::pin::Pin::new(&mut read).poll(&mut std::task::Context::from_waker(&waker));
        assert!(polled.is_pending());
        let begun = Instant::now();
        while writes.was_under_way.lock().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(100));
            thread::yield_now();
        }
        assert_eq!(*writes.was_under_way.lock(), Some(true), "the timer slept");
        assert!(block_on(sim.device().read(3, IoBuf::unfilled(1))).result.is_ok());
    }
}
