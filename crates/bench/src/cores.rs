//! Client and server on a core each: otherwise chance decides whether a call wakes a thread of its own core, which is four
//! times as fast on some machines.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that clients and servers are kept on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    client: usize,
    server: usize,
}

impl Cores {
    /// Keeps this thread, and what it starts from now on, on the first core that it may use. None where there is only one
    /// core, or where the system refuses: then everything stays as it is.
    #[must_use]
    pub fn take() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        let cores = Self { client: cores.next()?, server: cores.next()? };
        pin(cores.client).then_some(cores)
    }

    /// Runs `start` so that the threads and processes that it starts stay on the servers' core, where there is one.
    pub fn on_servers<T>(cores: Option<Self>, start: impl FnOnce() -> T) -> T {
        let Some(cores) = cores else { return start() };
        pin(cores.server);
        let started = start();
        pin(cores.client);
        started
    }

    /// The words of a report about `cores`.
    #[must_use]
    pub fn describe(cores: Option<Self>) -> &'static str {
        if cores.is_some() { "one for the clients, another one for the servers" } else { "shared" }
    }
}

/// Keeps this thread, and the threads and processes that it starts from now on, on one core; whether that could be done.
fn pin(core: usize) -> bool {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).is_ok()
}
