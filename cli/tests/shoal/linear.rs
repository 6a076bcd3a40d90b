//! Linearizability of the answers to clients of all frontends, over `kill -9` (T11 of `docs/reliability.md`): clients of gRPC, of
//! the Redis protocol and of S3 use the same keys of one server, which is killed at random moments and started again. S3 stores long
//! values by uploads, whose completions carry the conditions.
//!
//! A write whose answer never came stays pending: it may have taken effect or not, but once. The checker is the testkit's.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use shoal_base::{Entropy, SeededEntropy};
use shoal_client::{Error, Lsn, RejectRules};
use shoal_testkit::Value;
use shoal_testkit::bytes::name_of;
use shoal_testkit::linear::{HistoryEntry, KeyAction, KeyHistories, World};

use crate::both::Objects;
use crate::harness::Frontends;
use crate::machine::runtime;

pub(crate) const BUCKET: &str = "both";
/// Clients, of the frontends in turn.
const CLIENTS: u64 = 8;
const KEYS: u64 = 64;
/// In the leaf, in the log and packed, in extents.
const SIZES: [usize; 5] = [16, 200, 2_000, 9_000, 40_000];

/// A few lives of one server; `LINEAR_HISTORIES` asks for more.
#[test]
fn all_frontends_are_linearizable_over_kills() {
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let runtime = runtime();
    let first = 100 * number("LINEAR_SEED", 1);
    let (mut kills, mut operations, mut pending) = (0, 0, 0);
    let began = Instant::now();
    for seed in first..first + number("LINEAR_HISTORIES", 1) {
        let (history, killed) = runtime.block_on(history(seed, number("LINEAR_LIVES", 3)));
        kills += killed;
        operations += history.counts().0;
        pending += history.counts().1;
        history
            .check()
            .unwrap_or_else(|wrong| panic!("history {seed} (its timing does not repeat): {wrong}"));
    }
    println!(
        "{operations} operations over {kills} kills, {pending} of unknown outcome, in {:?}: linearizable",
        began.elapsed()
    );
    assert!(operations > 200 && pending > 0, "{pending} pending of {operations} operations");
}

/// A server with all frontends on one bucket, and its address of S3.
pub(crate) fn serve(data: &Path) -> (Frontends, String) {
    let mut command = Frontends::command(data, "256M");
    command.args(["--resp-bucket", BUCKET, "--s3", "127.0.0.1:0"]);
    let mut server = Frontends::start(command);
    let s3 = server.child.says("S3    http://");
    (server, s3)
}

/// One client: its number, its dice, its notes.
struct User {
    id: u64,
    world: Arc<World>,
    dice: SeededEntropy,
    history: KeyHistories,
}

impl User {
    fn note(&mut self, key: u64, called: u64, answered: Option<u64>, action: KeyAction) {
        self.history.push(&name_of(key), HistoryEntry { client: self.id, called, answered, action });
    }

    /// Reads a key and notes it; nothing if the server is gone.
    async fn read(&mut self, objects: &Objects, key: u64) -> Option<Option<(Lsn, u64)>> {
        let called = self.world.now();
        match objects.get_versioned(&name_of(key)).await {
            Ok(found) => {
                let answered = self.world.now();
                let found = found.map(|(version, bytes)| (version, Value::write_of(key, &bytes, &SIZES)));
                self.note(key, called, Some(answered), KeyAction::Read(found.map(|(_, number)| number)));
                Some(found)
            }
            Err(Error::Unavailable { .. }) => None,
            Err(error) => panic!("reading key {key}: {error}"),
        }
    }

    /// Notes the result of a write; false if the server is gone.
    fn ended(
        &mut self,
        key: u64,
        called: u64,
        result: shoal_client::Result<Option<Lsn>>,
        action: KeyAction,
        rejected: KeyAction,
    ) -> bool {
        match result {
            Ok(_) => self.note(key, called, Some(self.world.now()), action),
            Err(Error::ConditionFailed { .. }) => self.note(key, called, Some(self.world.now()), rejected),
            Err(Error::Busy(_)) => {}
            Err(Error::Unknown(_) | Error::Unavailable { .. }) => {
                self.note(key, called, None, action);
                return false;
            }
            Err(error) => panic!("writing key {key}: {error}"),
        }
        true
    }

    /// Works until the server is gone.
    async fn work(mut self, objects: Objects) -> Self {
        loop {
            let key = self.dice.below(KEYS);
            let kind = self.dice.below(8);
            let number = self.world.next_write();
            let bytes = Bytes::from(Value::of_write(key, number, &SIZES).to_vec());
            let goes_on = match kind {
                0..=2 => self.read(&objects, key).await.is_some(),
                3 | 4 => {
                    let called = self.world.now();
                    let result = objects.put(&name_of(key), bytes, RejectRules::default()).await;
                    self.ended(key, called, result, KeyAction::Write(number), KeyAction::Write(number))
                }
                5 => {
                    let called = self.world.now();
                    let rules = RejectRules { if_exists: true, ..RejectRules::default() };
                    let result = objects.put(&name_of(key), bytes, rules).await;
                    self.ended(
                        key,
                        called,
                        result,
                        KeyAction::Create(number, true),
                        KeyAction::Create(number, false),
                    )
                }
                6 => {
                    let called = self.world.now();
                    let result = objects.delete(&name_of(key)).await;
                    self.ended(key, called, result, KeyAction::Delete, KeyAction::Delete)
                }
                _ => match self.read(&objects, key).await {
                    None => false,
                    Some(None) => true,
                    Some(Some((version, before))) => {
                        let called = self.world.now();
                        let rules = RejectRules { if_version_not: Some(version), ..RejectRules::default() };
                        let result = objects.put(&name_of(key), bytes, rules).await;
                        let action = |done| KeyAction::Swap(before, number, done);
                        self.ended(key, called, result, action(true), action(false))
                    }
                },
            };
            if !goes_on {
                return self;
            }
        }
    }
}

/// One history of several lives; returns it with the number of kills.
async fn history(seed: u64, lives: u64) -> (KeyHistories, u64) {
    let dice = SeededEntropy::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let world = Arc::new(World::default());
    let mut history = KeyHistories::default();
    for life in 0..lives {
        let (mut server, s3) = serve(&data);
        let mut tasks = Vec::new();
        for id in 0..CLIENTS {
            let dice = SeededEntropy::new(dice.next_u64());
            let user = User { id, world: world.clone(), dice, history: KeyHistories::default() };
            // One attempt: a write is in the history once.
            let objects = match id % 3 {
                0 => Objects::grpc(&server.grpc, BUCKET).await,
                1 => Objects::redis(&server.resp).await,
                _ => Objects::s3(&s3, &data, BUCKET).await,
            };
            tasks.push(tokio::spawn(user.work(objects)));
        }
        tokio::time::sleep(Duration::from_millis(150 + dice.below(250))).await;
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        for task in tasks {
            let user = tokio::time::timeout(Duration::from_secs(90), task).await;
            history.merge(user.unwrap_or_else(|_| panic!("life {life}: a client hangs")).unwrap().history);
        }
    }
    let (server, _) = serve(&data);
    let objects = Objects::grpc(&server.grpc, BUCKET).await;
    let mut last = User { id: CLIENTS, world, dice, history: KeyHistories::default() };
    for key in 0..KEYS {
        last.read(&objects, key).await.unwrap();
    }
    history.merge(last.history);
    (history, lives)
}
