//! The sampler: one thread reads all counters once a second for all pages together.
//!
//! It starts with the first page and ends some time after the last one left; without it nothing is read, and no timer runs. A sample is
//! written as JSON once: all pages send the same bytes, and the history keeps the same bytes again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::document::Sample;
use super::reading::{Reading, Sources};
use super::sample::Past;
use crate::figures::space::SpaceMaps;

/// Samples of the history at most: 15 minutes.
pub(crate) const SAMPLES_MAX: usize = 900;

/// The start and the end of an event of a page's stream; between them is a sample.
const EVENT_START: &[u8] = b"event: live\ndata: ";
const EVENT_END: &[u8] = b"\n\n";

/// The times of the sampler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Between two samples.
    pub(crate) period: Duration,
    /// Between the first reading and the first sample, which is their difference.
    pub(crate) first: Duration,
    /// The number of samples after the last page has left.
    pub(crate) linger: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self { period: Duration::from_secs(1), first: Duration::from_millis(250), linger: 60 }
    }
}

/// The state that pages get.
#[derive(Clone, Default)]
struct News {
    /// The newest sample as an event; empty: there is none yet.
    event: Bytes,
    /// The server stops.
    is_over: bool,
}

#[derive(Default)]
struct State {
    pages: usize,
    /// Samples since the last page left.
    lonely: u32,
    is_running: bool,
    is_stopped: bool,
    /// The samples as JSON, the oldest first.
    samples: VecDeque<Bytes>,
    samples_bytes: usize,
}

struct Shared {
    /// Forgotten with the samples.
    maps: SpaceMaps,
    /// `None` once the server stops: the thread holds the store no longer.
    sources: Mutex<Option<Sources>>,
    started_ns: u64,
    timing: Timing,
    /// Bytes of all samples of the history at most.
    history_bytes: usize,
    state: Mutex<State>,
    /// The server stops.
    stopped: Condvar,
    news: watch::Sender<News>,
}

/// The sampler of a server.
pub(crate) struct Sampler(Arc<Shared>);

impl Sampler {
    /// A sampler with a history of at most as many bytes.
    pub(crate) fn new(sources: Sources, maps: SpaceMaps, (timing, history_bytes): (Timing, usize)) -> Self {
        let started_ns = sources.clock.monotonic_ns();
        Self(Arc::new(Shared {
            maps,
            sources: Mutex::new(Some(sources)),
            started_ns,
            timing,
            history_bytes,
            state: Mutex::default(),
            stopped: Condvar::new(),
            news: watch::Sender::default(),
        }))
    }

    /// A page that gets all samples from now on. The first page starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn join(&self) -> io::Result<LivePage> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if !state.is_running && !state.is_stopped {
            let its = Arc::clone(shared);
            std::thread::Builder::new().name("console-live".into()).spawn(move || its.run())?;
            state.is_running = true;
        }
        (state.pages, state.lonely) = (state.pages + 1, 0);
        let mut news = shared.news.subscribe();
        // The newest sample goes out at once.
        news.mark_changed();
        Ok(LivePage { shared: Arc::clone(shared), news })
    }

    /// The samples as JSON, the oldest first.
    pub(crate) fn history(&self) -> Vec<Bytes> {
        self.0.state.lock().samples.iter().cloned().collect()
    }

    /// Stops the streams of all pages, the thread and a census; the store is released.
    pub(crate) fn stop(&self) {
        self.0.state.lock().is_stopped = true;
        self.0.stopped.notify_all();
        self.0.maps.census.stop();
        self.0.news.send_modify(|news| news.is_over = true);
        drop(self.0.sources.lock().take());
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self) {
        let Some(mut past) = self.read().map(|first| Past::new(first, self.started_ns)) else {
            return self.end();
        };
        let mut wait = self.timing.first;
        while self.rest(wait) {
            let Some(now) = self.read() else { break };
            let at_ns = now.at_ns;
            if !self.publish(&past.sample(now)) {
                break;
            }
            // The next sample comes a period after this one, however long this one took.
            let took_ns = self.now_ns().unwrap_or(at_ns).saturating_sub(at_ns);
            wait = self.timing.period.saturating_sub(Duration::from_nanos(took_ns));
        }
        self.end();
    }

    fn read(&self) -> Option<Reading> {
        // Not under the lock: a reading waits for the file system.
        let sources = self.sources.lock().clone()?;
        Some(Reading::take(&sources))
    }

    fn now_ns(&self) -> Option<u64> {
        self.sources.lock().as_ref().map(|sources| sources.clock.monotonic_ns())
    }

    /// Waits; returns false if the server stops.
    fn rest(&self, wait: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.stopped.wait_for(&mut state, wait);
        }
        !state.is_stopped
    }

    /// Passes a sample to all pages. Returns false if there has been none for too long: then the thread ends.
    fn publish(&self, sample: &Sample) -> bool {
        let mut event = Vec::with_capacity(8 << 10);
        event.extend_from_slice(EVENT_START);
        // Strings and numbers only: it does not fail.
        let _ = serde_json::to_writer(&mut event, sample);
        let end = event.len();
        event.extend_from_slice(EVENT_END);
        event.shrink_to_fit();
        let event = Bytes::from(event);
        let mut state = self.state.lock();
        if state.pages == 0 {
            state.lonely += 1;
            if state.lonely > self.timing.linger {
                // Under the lock: a page that joins from now on starts another thread.
                self.forget(&mut state);
                return false;
            }
        }
        state.samples_bytes += event.len();
        while state.samples.len() == SAMPLES_MAX || state.samples_bytes > self.history_bytes {
            let Some(oldest) = state.samples.pop_front() else { break };
            let bytes = oldest.len() + EVENT_START.len() + EVENT_END.len();
            state.samples_bytes = state.samples_bytes.saturating_sub(bytes);
        }
        state.samples.push_back(event.slice(EVENT_START.len()..end));
        drop(state);
        self.news.send_modify(|news| news.event = event);
        true
    }

    fn end(&self) {
        let mut state = self.state.lock();
        if state.is_stopped {
            self.forget(&mut state);
        }
    }

    /// Nothing is kept of samples that no page sees.
    fn forget(&self, state: &mut State) {
        (state.is_running, state.samples, state.samples_bytes) = (false, VecDeque::new(), 0);
        self.maps.forget();
        self.news.send_modify(|news| news.event = Bytes::new());
    }
}

/// A page that gets all samples.
pub(crate) struct LivePage {
    shared: Arc<Shared>,
    news: watch::Receiver<News>,
}

impl LivePage {
    /// The next sample as an event, the newest if there are several; `None` when the server stops.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.news.changed().await.ok()?;
            let News { event, is_over } = self.news.borrow_and_update().clone();
            if is_over {
                return None;
            }
            if !event.is_empty() {
                return Some(event);
            }
        }
    }
}

impl Drop for LivePage {
    fn drop(&mut self) {
        self.shared.state.lock().pages -= 1;
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
