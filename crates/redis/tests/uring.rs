//! The face through real connections, over an io_uring where the kernel has one: all of `serve`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use io_uring::IoUring;
use shoal_redis::{RedisOptions, Sockets};

use crate::support::{Client, Seen, serve};

/// How the servers of these tests reach the network.
pub(crate) const SOCKETS: Sockets = Sockets::Uring;

#[path = "serve/admission.rs"]
mod admission;
#[path = "serve/backlog.rs"]
mod backlog;
#[path = "serve/bits.rs"]
mod bits;
#[path = "serve/clients.rs"]
mod clients;
#[path = "serve/commands.rs"]
mod commands;
#[path = "serve/expiring.rs"]
mod expiring;
#[path = "serve/introspection.rs"]
mod introspection;
#[path = "serve/limits.rs"]
mod limits;
#[path = "serve/once.rs"]
mod once;
#[path = "serve/pipelines.rs"]
mod pipelines;
#[path = "serve/support.rs"]
mod support;
#[path = "serve/tls.rs"]
mod tls;
#[path = "serve/transactions.rs"]
mod transactions;
#[path = "serve/values.rs"]
mod values;

/// The face uses epoll where it has no ring: without this, the suite would not be over an io_uring and nobody would know.
#[test]
fn every_thread_has_a_ring_where_the_kernel_allows_it() {
    if !kernel_allows_it() {
        return;
    }
    let served = serve(RedisOptions { threads: Some(2), ..RedisOptions::default() });
    // The threads get connections in turn: both of them serve.
    for _ in 0..2 {
        assert_eq!(Client::new(&served).run("ping"), Seen::Simple("PONG".into()));
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let rings = targets.filter(|target| target.to_string_lossy().contains("[io_uring]")).count();
    assert!(rings >= 2, "{rings} rings in this process");
}

/// Whether this is a kernel of 6.1 or later, and nothing forbids a ring.
fn kernel_allows_it() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.trim().split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(1)) && IoUring::new(8).is_ok()
}
