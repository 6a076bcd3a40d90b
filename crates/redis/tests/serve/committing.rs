//! The committing thread: the dispatch thread if it has one client, otherwise the committer's.

use std::sync::{Arc, Mutex};

use shoal_device::sim::SimDevice;
use shoal_device::{BlockDevice, Op, Ticket};
use shoal_engine::Environment;
use shoal_redis::{Durability, RedisOptions};
use shoal_testkit::device::{Intercept, Intercepted};

use crate::support::{BLOCKS, Client, Seen, Served, kit, serve_store};

/// Notes the thread of each log batch, which is a durable write.
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
        // Others write superblocks.
        let may_commit = matches!(name, "shoal-redis" | "shoal-commit");
        let commits = tickets.iter().filter(|ticket| may_commit && ticket.op() == Op::WriteDurable);
        self.by.lock().unwrap().extend(commits.map(|_| name.to_owned()));
        tickets
    }
}

struct Fixture {
    _served: Served,
    noting: Arc<Intercepted<Noting>>,
    clients: Vec<Client>,
}

/// A server with one dispatch thread and some clients that have sent nothing.
fn fixture(clients: usize, durability: Durability) -> Fixture {
    let environment = Environment::default();
    let inner = SimDevice::new(BLOCKS);
    let (noting, device) = Intercepted::new(Noting { inner, by: Mutex::default() });
    let store = kit().with(environment.clone()).create(&device);
    let options = RedisOptions { threads: Some(1), durability, ..RedisOptions::default() };
    let served = serve_store(store, options, environment);
    let clients = (0..clients).map(|_| Client::new(&served)).collect();
    Fixture { _served: served, noting, clients }
}

impl Fixture {
    /// Returns true if the dispatch thread commits SETs of this client. The committer's thread may commit some of them: it
    /// seals, and if it loses its core after a commit, it is still the driver.
    fn commits_itself(&mut self, client: usize) -> bool {
        (0..2_000).any(|_| self.committer_of_set(client) == "shoal-redis")
    }

    /// Returns true if the committer's thread commits all SETs of this client.
    fn hands_over(&mut self, client: usize) -> bool {
        (0..40).all(|_| self.committer_of_set(client) == "shoal-commit")
    }

    /// The thread that commits a SET of this client.
    fn committer_of_set(&mut self, client: usize) -> String {
        self.noting.by.lock().unwrap().clear();
        assert_eq!(self.clients[client].run("set k v"), Seen::ok());
        while self.noting.by.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let by = self.noting.by.lock().unwrap();
        by.first().cloned().unwrap()
    }
}

#[test]
fn the_thread_of_a_lone_client_commits_itself() {
    let mut fixture = fixture(1, Durability::Sync);
    assert!(fixture.commits_itself(0));
    assert_eq!(fixture.clients[0].run("get k"), Seen::from("v"));
    assert!(fixture.commits_itself(0));
}

#[test]
fn the_thread_of_several_clients_hands_over() {
    let mut fixture = fixture(2, Durability::Sync);
    // The second connection may not have been accepted yet.
    assert_eq!(fixture.clients[1].run("ping"), Seen::Simple("PONG".into()));
    for client in [0, 1] {
        assert!(fixture.hands_over(client));
    }
    drop(fixture.clients.pop());
    assert!(fixture.commits_itself(0));
}

/// In the relaxed mode no client waits for the device.
#[test]
fn no_client_of_the_relaxed_mode_waits() {
    let mut fixture = fixture(1, Durability::Relaxed(std::time::Duration::from_secs(1)));
    assert!(fixture.hands_over(0));
}
