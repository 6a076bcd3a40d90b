//! Clients that write over all protocols until their server is gone, and record each write with its outcome.

use std::time::Instant;

use shoal_base::SeededEntropy;
use shoal_client::{Error, RejectRules};
use shoal_testkit::Value;
use shoal_testkit::bytes::name_of;

use super::history::{Histories, KeyState, KeyWrite, of_increments};
use crate::both::{Objects, PART_BYTES};

/// The names of the protocols, in the order of [`Writer::frontends`].
pub(super) const PROTOCOLS: [&str; 3] = ["gRPC", "RESP", "S3"];
const RESP: usize = 1;
const S3: usize = 2;

/// The longest value that a Redis client can get at once, in bytes.
pub(super) const REDIS_GET_MAX: usize = 4 << 20;

/// The number that all writers increment.
const COUNTER: &[u8] = b"counter";

/// Keys that a writer uses at a time, and its steps until it leaves the oldest of them as it is: the last writes of keys are all over the
/// log, and a lost one shows.
const KEYS: u64 = 24;
const STEPS_PER_KEY: u64 = 6;

/// The server is gone.
struct Gone;

/// A client. Nobody else writes its keys, so it knows the result of each of its writes.
pub(super) struct Writer {
    id: u64,
    frontends: [Objects; 3],
    dice: SeededEntropy,
    steps: u64,
    next_value: u64,
    notes: WriterNotes,
}

/// The writes of one writer.
#[derive(Default)]
pub(super) struct WriterNotes {
    histories: Histories,
    /// Its increments: the sum, and the moments of request and answer.
    increments: Vec<(u64, Instant, Instant)>,
    pending_increments: Vec<Instant>,
    /// Acknowledged writes of each protocol.
    pub(super) acknowledged: [usize; 3],
}

impl Writer {
    pub(super) fn new(id: u64, frontends: [Objects; 3], seed: u64) -> Self {
        let (dice, notes) = (SeededEntropy::new(seed), WriterNotes::default());
        Self { id, frontends, dice, steps: 0, next_value: id << 32, notes }
    }

    /// Writes until the server is gone.
    pub(super) async fn work(mut self) -> WriterNotes {
        while self.step().await.is_ok() {
            self.steps += 1;
        }
        self.notes
    }

    async fn step(&mut self) -> Result<(), Gone> {
        if self.dice.below(12) == 0 {
            return self.increment().await;
        }
        let key = (self.id << 32) + self.steps / STEPS_PER_KEY + self.dice.below(KEYS);
        let frontend = self.dice.below(3) as usize;
        let has_object = matches!(self.state_of(key), KeyState::Value(_));
        let was_deleted = !has_object && self.notes.histories.contains_key(&name_of(key));
        // Most deletes are the last write of their key: a lost one shows.
        if was_deleted && !key.is_multiple_of(4) {
            return Ok(());
        }
        match (self.dice.below(8), has_object) {
            (0..=2, _) => self.put(key, frontend, RejectRules::default()).await,
            (3, true) => self.write(key, frontend, KeyState::Absent, RejectRules::default()).await,
            (4, true) => self.create_in_vain(key, frontend).await,
            (_, true) => self.swap(key, frontend).await,
            (_, false) => {
                let rules = RejectRules { if_exists: true, ..RejectRules::default() };
                self.put(key, frontend, rules).await
            }
        }
    }

    fn state_of(&self, key: u64) -> KeyState {
        let writes = self.notes.histories.get(&name_of(key));
        writes.and_then(|writes| writes.last()).map_or(KeyState::Absent, |write| write.state)
    }

    /// A value in each of the store's places; over S3 sometimes one of two parts.
    fn value(&mut self, key: u64, frontend: usize) -> Value {
        let most = match self.dice.below(40) {
            0..20 => 900,
            20..36 => 16_000,
            36..39 => 70_000,
            _ => 400_000,
        };
        let is_of_parts = frontend == S3 && self.dice.below(1_000) == 0;
        let least = if is_of_parts { PART_BYTES as u64 + (3 << 20) } else { 16 };
        self.next_value += 1;
        Value { key, seed: self.next_value, bytes: (least + self.dice.below(most)) as usize }
    }

    async fn put(&mut self, key: u64, frontend: usize, rules: RejectRules) -> Result<(), Gone> {
        let value = self.value(key, frontend);
        self.write(key, frontend, KeyState::Value(value), rules).await
    }

    /// Sends a write that must succeed, and records it.
    async fn write(
        &mut self,
        key: u64,
        frontend: usize,
        state: KeyState,
        rules: RejectRules,
    ) -> Result<(), Gone> {
        let (name, objects) = (name_of(key), &self.frontends[frontend]);
        let sent = Instant::now();
        let result = match state {
            KeyState::Value(value) => objects.put(&name, value.to_vec().into(), rules).await,
            KeyState::Absent | KeyState::Count(_) => objects.delete(&name).await,
        };
        let (acknowledged, version) = match result {
            Ok(version) => (Some(Instant::now()), version),
            Err(Error::Busy(_)) => return Ok(()),
            Err(Error::Unknown(_) | Error::Unavailable { .. }) => (None, None),
            Err(error) => panic!("writing key {key} over {}: {error}", PROTOCOLS[frontend]),
        };
        self.notes.acknowledged[frontend] += usize::from(acknowledged.is_some());
        let write = KeyWrite { state, sent, acknowledged, version };
        self.notes.histories.entry(name).or_default().push(write);
        acknowledged.map(drop).ok_or(Gone)
    }

    /// Replaces the object if it has the version that was read.
    async fn swap(&mut self, key: u64, frontend: usize) -> Result<(), Gone> {
        let KeyState::Value(value) = self.state_of(key) else { unreachable!("it has an object") };
        let frontend = if value.bytes > REDIS_GET_MAX { S3 } else { frontend };
        let found = match self.frontends[frontend].get_versioned(&name_of(key)).await {
            Ok(found) => found,
            Err(Error::Unavailable { .. }) => return Err(Gone),
            Err(error) => panic!("reading key {key} over {}: {error}", PROTOCOLS[frontend]),
        };
        let (version, bytes) = found.unwrap_or_else(|| panic!("key {key} is lost"));
        value.check(&bytes).unwrap_or_else(|wrong| panic!("key {key}: {wrong}"));
        let rules = RejectRules { if_version_not: Some(version), ..RejectRules::default() };
        self.put(key, frontend, rules).await
    }

    /// Creates an object that exists: that changes nothing.
    async fn create_in_vain(&mut self, key: u64, frontend: usize) -> Result<(), Gone> {
        let rules = RejectRules { if_exists: true, ..RejectRules::default() };
        let value = self.value(key, frontend).to_vec();
        match self.frontends[frontend].put(&name_of(key), value.into(), rules).await {
            Err(Error::ConditionFailed { .. } | Error::Busy(_)) => Ok(()),
            Err(Error::Unknown(_) | Error::Unavailable { .. }) => Err(Gone),
            Ok(_) => panic!("key {key} was created twice over {}", PROTOCOLS[frontend]),
            Err(error) => panic!("creating key {key} over {}: {error}", PROTOCOLS[frontend]),
        }
    }

    async fn increment(&mut self) -> Result<(), Gone> {
        let sent = Instant::now();
        match self.frontends[RESP].increment(COUNTER).await {
            Ok(sum) => {
                self.notes.increments.push((sum, sent, Instant::now()));
                self.notes.acknowledged[RESP] += 1;
                Ok(())
            }
            Err(Error::Busy(_)) => Ok(()),
            Err(Error::Unknown(_) | Error::Unavailable { .. }) => {
                self.notes.pending_increments.push(sent);
                Err(Gone)
            }
            Err(error) => panic!("adding 1: {error}"),
        }
    }
}

/// The histories of all writers, with that of the counter.
pub(super) fn histories_of(writers: Vec<WriterNotes>) -> Histories {
    let (mut histories, mut increments, mut pending) = (Histories::new(), Vec::new(), Vec::new());
    for writer in writers {
        histories.extend(writer.histories);
        increments.extend(writer.increments);
        pending.extend(writer.pending_increments);
    }
    histories.insert(COUNTER.to_vec(), of_increments(&increments, &pending));
    histories
}
