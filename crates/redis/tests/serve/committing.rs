//! The thread that commits: the dispatch thread where all its clients wait for writes, the committer's otherwise.

use std::sync::{Arc, Mutex};

use shoal_base::ManualClock;
use shoal_device::sim::SimDevice;
use shoal_device::{BlockDevice, Op, Ticket};
use shoal_engine::Environment;
use shoal_redis::{Durability, RedisOptions};
use shoal_testkit::device::{Intercept, Intercepted};

use crate::support::{BLOCKS, Client, Seen, Served, kit, serve_store};

/// Notes the thread of each durable write: those of the log are.
struct Noting {
    inner: Arc<SimDevice>,
    by: Mutex<Vec<String>>,
}

impl Intercept for Noting {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn pass(&self, tickets: Vec<Ticket>) -> Vec<Ticket> {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let commits = tickets.iter().filter(|ticket| ticket.op() == Op::WriteDurable);
        self.by.lock().unwrap().extend(commits.map(|_| name.to_owned()));
        tickets
    }
}

struct Fixture {
    served: Served,
    noting: Arc<Intercepted<Noting>>,
    clock: Arc<ManualClock>,
    clients: Vec<Client>,
}

/// A server with one dispatch thread and some clients that have sent nothing.
fn fixture(clients: usize, durability: Durability) -> Fixture {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let inner = SimDevice::new(BLOCKS);
    let (noting, device) = Intercepted::new(Noting { inner, by: Mutex::default() });
    let store = kit().with(environment.clone()).create(&device);
    let options = RedisOptions { threads: Some(1), durability, ..RedisOptions::default() };
    let served = serve_store(store, options, environment);
    let clients = (0..clients).map(|_| Client::new(&served)).collect();
    Fixture { served, noting, clock, clients }
}

impl Fixture {
    /// The thread that commits a SET of this client.
    fn committer_of_set(&mut self, client: usize) -> String {
        self.noting.by.lock().unwrap().clear();
        assert_eq!(self.clients[client].run("set k v"), Seen::Simple("OK".into()));
        while self.noting.by.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let by = self.noting.by.lock().unwrap();
        by.first().cloned().unwrap()
    }
}

#[test]
fn a_thread_whose_clients_only_write_commits_itself() {
    let mut fixture = fixture(2, Durability::Sync);
    for client in [0, 1, 1, 0] {
        assert_eq!(fixture.committer_of_set(client), "shoal-redis");
    }
    // The other client reads, and would wait for the device if it did so again.
    assert_eq!(fixture.clients[0].run("get k"), Seen::from("v"));
    assert_eq!(fixture.committer_of_set(1), "shoal-commit");
    fixture.clock.advance(20_000_000);
    assert_eq!(fixture.committer_of_set(1), "shoal-redis");
    assert_eq!(fixture.clients[0].run("exists k"), Seen::Integer(1));
    assert_eq!(fixture.committer_of_set(1), "shoal-commit");
    assert_eq!(fixture.served.store.stat().objects_with_log(), 1);
}

/// One client at a time waits for its own answers only, whatever it asks for.
#[test]
fn the_thread_of_a_lone_client_commits_itself() {
    let mut fixture = fixture(1, Durability::Sync);
    assert_eq!(fixture.committer_of_set(0), "shoal-redis");
    assert_eq!(fixture.clients[0].run("get k"), Seen::from("v"));
    assert_eq!(fixture.committer_of_set(0), "shoal-redis");
}

/// In the relaxed mode no client waits for the device.
#[test]
fn no_client_of_the_relaxed_mode_waits() {
    let mut fixture = fixture(1, Durability::Relaxed(std::time::Duration::from_secs(1)));
    assert_eq!(fixture.committer_of_set(0), "shoal-commit");
}
