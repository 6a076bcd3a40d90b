//! Client and server on a core each: otherwise chance decides whether a call wakes a thread of the same core, which is four
//! times as fast on some machines.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of clients and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    client: usize,
    server: usize,
}

impl Cores {
    /// Pins this thread, and the threads and processes that it starts later, to the first core that it may use. `None` if there
    /// is only one core, or if the system refuses: then nothing changes.
    #[must_use]
    pub fn take() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        let cores = Self { client: cores.next()?, server: cores.next()? };
        pin(cores.client).then_some(cores)
    }

    /// Runs `start` so that the threads and processes that it starts stay on the servers' core, if there is one.
    pub fn on_servers<T>(cores: Option<Self>, start: impl FnOnce() -> T) -> T {
        let Some(cores) = cores else { return start() };
        pin(cores.server);
        let started = start();
        pin(cores.client);
        started
    }

    /// The text of a report about `cores`.
    #[must_use]
    pub fn describe(cores: Option<Self>) -> &'static str {
        if cores.is_some() { "one for the clients, another one for the servers" } else { "shared" }
    }
}

/// Pins this thread, and the threads and processes that it starts later, to one core; returns true on success.
fn pin(core: usize) -> bool {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).is_ok()
}
