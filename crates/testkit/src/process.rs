//! This process's limits.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that this process may open, raised as far as it is allowed.
pub fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.map_or(1 << 20, |most| most as usize)
}
