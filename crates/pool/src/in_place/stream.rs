//! Read-ahead for one scan: the pages after the current one are in flight, or resident and pinned.
//!
//! - One request of a stream is in flight at a time, for several adjacent pages; its completion starts the next one. A
//!   device that is faster in sequence sees the sequence.
//! - The number of pages of a request is found by trial: the number with the most pages a second.
//! - The window (pages in flight or not yet read by the scan) doubles whenever the scan has to wait, up to the stream's
//!   part of the scans' share; it starts anew after pages were read in vain.
//! - On a fast device there is no read-ahead: the stream is dormant, and the scan itself reads each page into the frame
//!   of the last one.
//! - Pages that the scan changed are written after it has passed them, neighbours with one request. Such a stream reads
//!   its window with one request, which starts after the scan read the last window and the write of that window
//!   started. So it holds no more frames than two windows, or one window if the pages go to side buffers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::Ordering;
use shoal_base::task::may_block;

use super::page_write::PageWrite;
use super::read_length::ReadLength;
use crate::PoolError;
use crate::fetch::read::Read;
use crate::fetch::{Attempt, grouped};
use crate::policy::Scanned;
use crate::pool::Pool;
use crate::requests::start;
use crate::resident::pin::Pinned;
use crate::table::load::Wait;
use crate::unit::{Hint, Unit};
use crate::write_back::After;

/// Pages of a window at first, and at most: 256 KiB.
const WINDOW_MIN: u64 = 2;
const WINDOW_MAX: u64 = 64;

/// A page that was read ahead.
enum Entry {
    There(Pinned),
    OnItsWay(Wait<'static>),
}

struct State {
    /// `None` once the stream is dropped.
    pool: Option<Pool>,
    /// The pages from `next - entries.len()` to before `next`.
    entries: VecDeque<Entry>,
    next: u64,
    end: u64,
    window: u64,
    requests: usize,
    read_length: ReadLength,
    /// A thread is about to start a request.
    issuing: bool,
    /// No page is prefetched or in flight, and no request may start.
    dormant: bool,
    /// A window is read when the scan has read the last one: its pages are changed, and leave.
    bursts: bool,
}

/// The state that a stream shares with its requests.
struct Ahead(Mutex<State>);

/// Wakes a stream for its next request when one of its reads is complete.
struct ReadEnded(Arc<Ahead>);

/// A scan over adjacent pages that change in place. The scan looks at one page at a time, in any order; ascending
/// is fast.
pub struct Stream {
    pool: Pool,
    ahead: Arc<Ahead>,
    /// Pages that were changed and are to be written.
    changed: Vec<u64>,
    /// A copy of the field in `State`: only the scan changes it.
    dormant: bool,
    /// The page that a dormant stream read last.
    own: Option<Scanned>,
}

impl Pool {
    /// A scan over the pages of `run`; it reads ahead within `run`.
    #[must_use]
    pub fn stream(&self, run: Run) -> Stream {
        self.shared().streams.fetch_add(1, Ordering::Relaxed);
        let state = State {
            pool: Some(self.clone()),
            entries: VecDeque::new(),
            next: run.block,
            end: run.end(),
            window: WINDOW_MIN,
            requests: 0,
            read_length: ReadLength::default(),
            issuing: false,
            dormant: false,
            bursts: false,
        };
        let ahead = Arc::new(Ahead(Mutex::new(state)));
        Stream { pool: self.clone(), ahead, changed: Vec::new(), dormant: false, own: None }
    }

    /// Pages that one of the streams may hold.
    fn window_max(&self) -> u64 {
        let shared = self.shared();
        let streams = shared.streams.load(Ordering::Relaxed).max(1);
        ((shared.policy.scan_frames_max() / streams) as u64).clamp(1, WINDOW_MAX)
    }
}

impl Stream {
    /// The page at `block`, to be read.
    ///
    /// # Errors
    /// As [`Pool::fetch`].
    pub async fn read(&mut self, block: u64) -> Result<Pinned, PoolError> {
        let slow = self.pool.shared().latency.is_slow();
        if slow == self.dormant {
            self.change(block, !slow);
        }
        if self.dormant
            && may_block()
            && let Some(result) = self.pool.read_in_place(&Unit::mutable(block), &mut self.own)
        {
            return result;
        }
        self.write_behind();
        let entry = self.ahead.entry(&self.pool, block);
        let found = match entry {
            Some(Entry::There(pinned)) => Some(Ok(pinned)),
            Some(Entry::OnItsWay(wait)) => wait.await,
            None => None,
        };
        match found {
            Some(result) => result,
            None => self.pool.read(block, Hint::Scan).await,
        }
    }

    /// The page at `block`, to be changed.
    ///
    /// # Errors
    /// As [`Pool::fetch`].
    pub async fn write(&mut self, block: u64) -> Result<PageWrite, PoolError> {
        let mut pinned = self.read(block).await?;
        loop {
            if let Some(page) = self.pool.latched(pinned).await {
                if self.pool.shared().latency.is_slow() {
                    self.changed.push(block);
                    self.ahead.0.lock().bursts = true;
                }
                return Ok(page);
            }
            pinned = self.pool.read(block, Hint::Scan).await?;
        }
    }

    /// Falls asleep, unless something is ahead or on its way, or wakes up at `block`.
    #[cold]
    fn change(&mut self, block: u64, dormant: bool) {
        if dormant {
            self.write_changed();
        } else {
            self.give_back();
        }
        let mut state = self.ahead.0.lock();
        let idle = state.entries.is_empty() && state.requests == 0 && !state.issuing;
        if dormant && !idle {
            return;
        }
        state.dormant = dormant;
        state.next = block;
        self.dormant = dormant;
    }

    /// Moves the last page read to the scans' queue.
    fn give_back(&mut self) {
        if let Some(entry) = self.own.take() {
            self.pool.shared().policy.scanned.push(entry);
        }
    }

    /// Starts the write of the changed pages if they fill a request, or if there is nothing else to do.
    fn write_behind(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        let enough = (self.pool.window_max() / 2).max(1) as usize;
        let is_burst_over = || {
            let state = self.ahead.0.lock();
            state.bursts && state.entries.len() <= 1
        };
        if self.changed.len() >= enough || is_burst_over() {
            self.write_changed();
        }
    }

    fn write_changed(&mut self) {
        let pages = self.changed.drain(..).filter_map(|block| {
            let unit = Unit::mutable(block);
            let slot = |index: u32| self.pool.residents().slot(index);
            let index = self.pool.shared().table.glance(block).find(|&index| slot(index).is(&unit))?;
            self.pool.pin_dirty(index).filter(|pinned| pinned.unit() == unit)
        });
        let pages: Vec<_> = pages.collect();
        if !pages.is_empty() {
            let waker = Waker::from(self.ahead.clone());
            self.pool.write_back(pages, After::Evict, false, Some(&waker));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.give_back();
        self.write_changed();
        let (pool, entries) = {
            let mut state = self.ahead.0.lock();
            (state.pool.take(), std::mem::take(&mut state.entries))
        };
        let shared = self.pool.shared();
        shared.stats.ahead_wasted.add(entries.len() as u64);
        shared.streams.fetch_sub(1, Ordering::Relaxed);
        drop(entries);
        drop(pool);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Ahead {
    /// The page that the scan wants if it was prefetched; prefetches the pages after it.
    fn entry(self: &Arc<Self>, pool: &Pool, block: u64) -> Option<Entry> {
        let slow = pool.shared().latency.is_slow();
        let mut state = self.0.lock();
        let passed = state.pass_to(block);
        if !passed.is_empty() {
            drop(state);
            pool.shared().stats.ahead_wasted.add(passed.len() as u64);
            drop(passed);
            state = self.0.lock();
        }
        let stalls = match state.entries.front() {
            Some(Entry::OnItsWay(wait)) => !wait.is_over(),
            Some(Entry::There(_)) => false,
            None if slow => {
                drop(state);
                self.issue();
                state = self.0.lock();
                false
            }
            None => {
                state.next = block + 1;
                return None;
            }
        };
        if stalls {
            state.window = (state.window * 2).min(pool.window_max());
        }
        let entry = state.entries.pop_front();
        match &entry {
            Some(_) => pool.shared().stats.ahead_used.add(1),
            None => state.next = block + 1,
        }
        drop(state);
        if slow {
            self.issue();
        }
        entry
    }

    /// A request ended: the next one.
    fn completed(self: &Arc<Self>) {
        {
            let mut state = self.0.lock();
            state.requests -= 1;
            state.read_length.ended();
        }
        self.issue();
    }

    /// Starts the next request if none is in flight and the window has room for it.
    fn issue(self: &Arc<Self>) {
        let Some((pool, first, count)) = self.0.lock().next_request() else { return };
        let mut parts = Vec::new();
        let mut entries = VecDeque::new();
        for block in first..first + count {
            match pool.begin_now(&Unit::mutable(block), Hint::Scan, false) {
                Attempt::Hit(pinned) => entries.push_back(Entry::There(pinned)),
                Attempt::Joined(wait) => entries.push_back(Entry::OnItsWay(wait.unbound())),
                Attempt::Ours(wait, part) => {
                    entries.push_back(Entry::OnItsWay(wait.unbound()));
                    parts.push(part);
                }
                Attempt::Latched(_) | Attempt::FramesNeeded => break,
            }
        }
        let groups = grouped(parts);
        let mut state = self.0.lock();
        state.issuing = false;
        state.requests += groups.len();
        match &groups[..] {
            [(_, one)] => state.read_length.began(one.len() as u64),
            // Not comparable.
            _ => state.read_length.began_others(),
        }
        // The stream moved or was dropped meanwhile: the pages in flight are read and may be found.
        let vain = if state.next == first && state.pool.is_some() {
            state.next += entries.len() as u64;
            state.entries.append(&mut entries);
            VecDeque::new()
        } else {
            entries
        };
        drop(state);
        drop(vain);
        let ended = Waker::from(Arc::new(ReadEnded(self.clone())));
        let requests = groups.into_iter().map(|(_, group)| Read::request(&pool, group, Some(ended.clone())));
        drop(start(pool.device(), true, requests));
        drop_elsewhere(pool);
    }
}

impl Wake for Ahead {
    /// Frames that the stream may wait for are free.
    fn wake(self: Arc<Self>) {
        self.issue();
    }
}

impl Wake for ReadEnded {
    fn wake(self: Arc<Self>) {
        self.0.completed();
    }
}

impl State {
    /// Removes the pages before `block`, or all if it is not among them; returns them to be dropped.
    fn pass_to(&mut self, block: u64) -> VecDeque<Entry> {
        let first = self.next - self.entries.len() as u64;
        if block == first {
            return VecDeque::new();
        }
        if (first..self.next).contains(&block) {
            let rest = self.entries.split_off((block - first) as usize);
            return std::mem::replace(&mut self.entries, rest);
        }
        self.next = block;
        self.window = WINDOW_MIN;
        std::mem::take(&mut self.entries)
    }

    /// Pool, first page and number of pages.
    fn next_request(&mut self) -> Option<(Pool, u64, u64)> {
        if self.requests > 0 || self.issuing || self.dormant {
            return None;
        }
        let pool = self.pool.as_ref()?;
        let window = self.window.min(pool.window_max());
        if self.bursts {
            let left = self.end.saturating_sub(self.next);
            let count = if self.entries.is_empty() { self.read_length.pages(window).min(left) } else { 0 };
            self.issuing = count > 0;
            return self.issuing.then(|| (pool.clone(), self.next, count));
        }
        let room = window.saturating_sub(self.entries.len() as u64);
        // Half a window, so that the other half can be looked at meanwhile.
        let half = window.div_ceil(2).min(self.end.saturating_sub(self.next));
        let count = self.read_length.pages(half.max(1)).min(room).min(half);
        if count == 0 {
            return None;
        }
        self.issuing = true;
        Some((pool.clone(), self.next, count))
    }
}

/// Drops a handle that may be the last one, perhaps on a thread of the device that would have to wait for itself.
fn drop_elsewhere(pool: Pool) {
    if let Some(last) = pool.into_last() {
        thread::spawn(move || drop(last));
    }
}
