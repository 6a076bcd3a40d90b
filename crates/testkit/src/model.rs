//! The oracle: the legal states of a key, from the operations that were started and acknowledged.
//!
//! Each key has one *settled* state, the newest whose effect is certain, and the operations *in flight*, whose effect is not. Legal is the
//! settled state, or the result of any operation in flight. A state that was read is certain from then on: a store that shows a state and
//! loses it afterwards, by a crash or by a later read, violates the model. Versions are numbers that grow per key and that no two writes of
//! a store share.
//!
//! The model is for one store and one thread of control; a test with threads puts it under a mutex, starts an operation before it calls the
//! store and finishes it after the store answered. Clone it to check several crash states of one moment.

use std::collections::BTreeMap;
use std::fmt;

use crate::value::Value;

/// An operation of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(u64);

/// The effect of a write on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key has this value afterwards.
    Put(Value),
    /// The key does not exist afterwards.
    Delete,
}

/// The condition under which a write is rejected, as the store's reject rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Never.
    #[default]
    None,
    /// If the key exists.
    IfExists,
    /// If it does not.
    IfMissing,
    /// Unless it exists with this version.
    IfVersionNot(u64),
    /// If it exists with this version or an older one.
    IfVersionAtMost(u64),
}

impl Condition {
    /// Returns true if the condition rejects a write to a key at `version` (`None`: it does not exist).
    #[must_use]
    pub fn rejects(self, version: Option<u64>) -> bool {
        match self {
            Self::None => false,
            Self::IfExists => version.is_some(),
            Self::IfMissing => version.is_none(),
            Self::IfVersionNot(wanted) => version != Some(wanted),
            Self::IfVersionAtMost(at_most) => version.is_some_and(|version| version <= at_most),
        }
    }
}

/// The answer of the store for a key.
#[derive(Clone, Copy)]
pub enum Observed<'a> {
    /// There is no such object.
    Absent,
    /// There is one.
    Present {
        /// Its version.
        version: u64,
        /// Its whole value.
        bytes: &'a [u8],
    },
}

/// The store broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

#[derive(Clone, Copy)]
struct Op {
    id: OpId,
    effect: Effect,
    condition: Condition,
    /// True if no other operation on the key overlapped with it: its answer is determined then.
    alone: bool,
    /// The version with which it was read before it was acknowledged.
    seen: Option<u64>,
}

#[derive(Clone, Default)]
struct Key {
    /// The newest effect that is certain; `None` if the key does not exist.
    value: Option<Value>,
    /// The version of that effect, or the newest known version before it if a delete's is unknown. 0: none ever.
    version: u64,
    in_flight: Vec<Op>,
}

impl Key {
    fn current(&self) -> Option<u64> {
        self.value.map(|_| self.version)
    }

    fn settle(&mut self, effect: Effect, version: u64) {
        self.value = match effect {
            Effect::Put(value) => Some(value),
            Effect::Delete => None,
        };
        self.version = version;
    }
}

/// The knowledge about a store.
#[derive(Clone, Default)]
pub struct Model {
    keys: BTreeMap<Vec<u8>, Key>,
    /// The operation of each version.
    versions: BTreeMap<u64, OpId>,
    /// The key of each unfinished operation.
    open: BTreeMap<OpId, Vec<u8>>,
    ops: u64,
}

impl Model {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All keys that were ever written to.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.keys().map(Vec::as_slice)
    }

    /// Keys that exist in their settled state: for certain if nothing is in flight.
    pub fn existing(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().filter(|(_, key)| key.value.is_some()).map(|(name, _)| name.as_slice())
    }

    /// The key's version, `None` if it does not exist; `Err` if operations in flight leave it open.
    ///
    /// # Errors
    /// The number of operations in flight.
    pub fn current(&self, key: &[u8]) -> Result<Option<u64>, usize> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(key) if key.in_flight.is_empty() => Ok(key.current()),
            Some(key) => Err(key.in_flight.len()),
        }
    }

    /// Notes an operation before it is passed to the store. It stays in flight until it is acknowledged, refused or rejected: one whose
    /// outcome is unknown stays so until [`recovered`](Self::recovered).
    pub fn begin(&mut self, key: &[u8], effect: Effect, condition: Condition) -> OpId {
        self.ops += 1;
        let id = OpId(self.ops);
        let entry = self.keys.entry(key.to_vec()).or_default();
        let alone = entry.in_flight.is_empty();
        entry.in_flight.iter_mut().for_each(|other| other.alone = false);
        entry.in_flight.push(Op { id, effect, condition, alone, seen: None });
        self.open.insert(id, key.to_vec());
        id
    }

    /// The store acknowledged the write, with its version.
    ///
    /// # Errors
    /// If the version was used before, is not newer than the version that the operation followed, or the condition had to reject.
    pub fn acknowledge(&mut self, id: OpId, version: u64) -> Result<(), Violation> {
        let (name, op) = self.end(id);
        self.claim(version, id, &name)?;
        let key = self.keys.entry(name.clone()).or_default();
        if op.alone && op.seen.is_none() {
            if op.condition.rejects(key.current()) {
                return Err(violation(
                    &name,
                    format!("{:?} was not rejected at {:?}", op.condition, key.current()),
                ));
            }
            if version <= key.version {
                return Err(violation(&name, format!("version {version} after version {}", key.version)));
            }
        }
        if op.seen.is_some_and(|seen| seen != version) {
            return Err(violation(&name, format!("acknowledged as {version}, but seen as {:?}", op.seen)));
        }
        if version > key.version {
            key.settle(op.effect, version);
        }
        Ok(())
    }

    /// The store rejected the write because of its condition, naming the key's current version.
    ///
    /// # Errors
    /// If the condition does not reject at that version, or the key cannot have it.
    pub fn rejected(&mut self, id: OpId, current: Option<u64>) -> Result<(), Violation> {
        let (name, op) = self.end(id);
        if !op.condition.rejects(current) {
            return Err(violation(&name, format!("{:?} was rejected at {current:?}", op.condition)));
        }
        let known = self.keys.get(&name).and_then(Key::current);
        if op.alone && current != known {
            return Err(violation(&name, format!("rejected at {current:?}, but it is at {known:?}")));
        }
        if op.seen.is_some() {
            return Err(violation(&name, "a rejected write was seen".to_owned()));
        }
        current.map_or(Ok(()), |version| self.observe_version(&name, version))
    }

    /// An answer named the key's version: counts as a read if the version has only one possible write.
    fn observe_version(&mut self, name: &[u8], version: u64) -> Result<(), Violation> {
        let key = self.keys.entry(name.to_vec()).or_default();
        if version <= key.version {
            // Known, or looked up before something newer was acknowledged.
            return Ok(());
        }
        let put = |op: &Op| matches!(op.effect, Effect::Put(_)) && op.seen.is_none();
        let candidates: Vec<usize> = (0..key.in_flight.len()).filter(|&at| put(&key.in_flight[at])).collect();
        match candidates[..] {
            [] => Err(violation(
                name,
                format!("is reported at version {version}, which no write in flight can have"),
            )),
            [only] => self.see(name, only, version),
            _ => Ok(()),
        }
    }

    /// The store refused the write without any effect, for lack of room or of time.
    ///
    /// # Errors
    /// If its effect was seen.
    pub fn refused(&mut self, id: OpId) -> Result<(), Violation> {
        let (name, op) = self.end(id);
        op.seen.map_or(Ok(()), |_| Err(violation(&name, "a refused write was seen".to_owned())))
    }

    /// The key was read from the running store.
    ///
    /// # Errors
    /// If no legal history leaves the key in this state.
    pub fn observe(&mut self, name: &[u8], observed: Observed<'_>) -> Result<(), Violation> {
        let key = self.keys.entry(name.to_vec()).or_default();
        match observed {
            Observed::Absent => {
                let deletes = key.in_flight.iter().any(|op| op.effect == Effect::Delete);
                if key.value.is_some() && !deletes {
                    return Err(violation(
                        name,
                        format!("is absent, but version {} was acknowledged", key.version),
                    ));
                }
                // Which delete it was is unknown, and so is its version: both stay open.
                key.value = None;
                Ok(())
            }
            Observed::Present { version, bytes } if version == key.version => match key.value {
                Some(value) => {
                    value.check(bytes).map_err(|why| violation(name, format!("version {version}: {why}")))
                }
                None => Err(violation(name, format!("version {version} is back after its delete was seen"))),
            },
            Observed::Present { version, .. } if version < key.version => Err(violation(
                name,
                format!("is at version {version}, but {} was acknowledged or seen", key.version),
            )),
            Observed::Present { version, bytes } => self.observe_in_flight(name, version, bytes),
        }
    }

    /// A version newer than the settled one must be that of a write in flight, which is certain from now on.
    fn observe_in_flight(&mut self, name: &[u8], version: u64, bytes: &[u8]) -> Result<(), Violation> {
        let key = self.keys.entry(name.to_vec()).or_default();
        let fits = |op: &Op| match op.effect {
            Effect::Put(value) => value.check(bytes).is_ok() && op.seen.is_none_or(|seen| seen == version),
            Effect::Delete => false,
        };
        let candidates: Vec<usize> =
            (0..key.in_flight.len()).filter(|&at| fits(&key.in_flight[at])).collect();
        match candidates[..] {
            [] => {
                let what = format!(
                    "has {} bytes at version {version} that none of the {} writes in flight leaves; settled is version {}",
                    bytes.len(),
                    key.in_flight.len(),
                    key.version
                );
                Err(violation(name, what))
            }
            [only] => self.see(name, only, version),
            // Values too short to be distinguished: the write stays open.
            [first, ..] => {
                key.settle(key.in_flight[first].effect, version);
                Ok(())
            }
        }
    }

    /// The key's write in flight with this index was read with `version`.
    fn see(&mut self, name: &[u8], index: usize, version: u64) -> Result<(), Violation> {
        let key = self.keys.entry(name.to_vec()).or_default();
        let op = &mut key.in_flight[index];
        op.seen = Some(version);
        let (id, effect) = (op.id, op.effect);
        key.settle(effect, version);
        self.claim(version, id, name)
    }

    /// The key's state after a crash and a recovery: as [`observe`](Self::observe), and none of its operations is in flight any more. To be
    /// called for all [`keys`](Self::keys).
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    pub fn recovered(&mut self, name: &[u8], observed: Observed<'_>) -> Result<(), Violation> {
        self.observe(name, observed)?;
        let key = self.keys.entry(name.to_vec()).or_default();
        for op in key.in_flight.drain(..) {
            self.open.remove(&op.id);
        }
        Ok(())
    }

    /// Returns true if a repair may have left the key with this value, or absent (`None`). A repair rewrites restored objects, so versions
    /// do not count.
    #[must_use]
    pub fn allows(&self, name: &[u8], bytes: Option<&[u8]>) -> bool {
        let Some(key) = self.keys.get(name) else { return bytes.is_none() };
        let fits = |value: Option<Value>| match (value, bytes) {
            (Some(value), Some(bytes)) => value.check(bytes).is_ok(),
            (None, None) => true,
            _ => false,
        };
        let in_flight = key.in_flight.iter().map(|op| match op.effect {
            Effect::Put(value) => Some(value),
            Effect::Delete => None,
        });
        in_flight.chain([key.value]).any(fits)
    }

    /// Takes an operation out of flight.
    fn end(&mut self, id: OpId) -> (Vec<u8>, Op) {
        let name = self.open.remove(&id);
        let op = name.as_ref().and_then(|name| self.keys.get_mut(name)).and_then(|key| {
            let at = key.in_flight.iter().position(|op| op.id == id)?;
            Some(key.in_flight.remove(at))
        });
        match (name, op) {
            (Some(name), Some(op)) => (name, op),
            _ => panic!("{id:?} has ended already: an error of the test"),
        }
    }

    fn claim(&mut self, version: u64, id: OpId, name: &[u8]) -> Result<(), Violation> {
        match self.versions.insert(version, id) {
            Some(other) if other != id => {
                Err(violation(name, format!("version {version} was given to {other:?} and to {id:?}")))
            }
            _ => Ok(()),
        }
    }
}

fn violation(key: &[u8], what: String) -> Violation {
    Violation(format!("key {}: {what}", key.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"k";

    fn value(seed: u64) -> Value {
        Value { key: 7, seed, bytes: 100 }
    }

    fn put(model: &mut Model, seed: u64) -> OpId {
        model.begin(KEY, Effect::Put(value(seed)), Condition::None)
    }

    /// Checks `seed`'s value at `version` (0: absent) after a crash against the model, without changing the model.
    fn after_crash(model: &Model, version: u64, seed: u64) -> Result<(), Violation> {
        let bytes = value(seed).to_vec();
        let observed =
            if version == 0 { Observed::Absent } else { Observed::Present { version, bytes: &bytes } };
        model.clone().recovered(KEY, observed)
    }

    #[test]
    fn acknowledged_is_there_and_in_flight_is_all_or_nothing() {
        let mut model = Model::new();
        assert!(after_crash(&model, 0, 0).is_ok());
        let first = put(&mut model, 1);
        assert!(after_crash(&model, 0, 0).is_ok() && after_crash(&model, 5, 1).is_ok());
        model.acknowledge(first, 5).unwrap();
        assert!(after_crash(&model, 5, 1).is_ok());
        assert!(after_crash(&model, 0, 0).is_err(), "lost");
        assert!(after_crash(&model, 5, 2).is_err(), "the bytes of nobody");
        assert!(after_crash(&model, 6, 1).is_err(), "a version that nobody has");
        let allows = |model: &Model, seed| model.allows(KEY, Some(&value(seed).to_vec()));
        assert!(allows(&model, 1) && !allows(&model, 2) && !model.allows(KEY, None));

        put(&mut model, 2);
        assert!(after_crash(&model, 5, 1).is_ok() && after_crash(&model, 6, 2).is_ok());
        assert!(allows(&model, 1) && allows(&model, 2) && !model.allows(KEY, None));
        assert!(after_crash(&model, 5, 2).is_err(), "new bytes under the old version");
        assert!(after_crash(&model, 0, 0).is_err());
        let mut half = value(2).to_vec();
        half[50..].copy_from_slice(&value(1).to_vec()[50..]);
        assert!(model.clone().recovered(KEY, Observed::Present { version: 6, bytes: &half }).is_err());
    }

    #[test]
    fn observed_state_is_final() {
        let mut model = Model::new();
        let first = put(&mut model, 1);
        model.acknowledge(first, 1).unwrap();
        let second = put(&mut model, 2);
        model.observe(KEY, Observed::Present { version: 2, bytes: &value(2).to_vec() }).unwrap();
        assert!(after_crash(&model, 1, 1).is_err(), "an older version after a newer one was seen");
        assert!(model.clone().acknowledge(second, 3).is_err());
        model.acknowledge(second, 2).unwrap();

        let delete = model.begin(KEY, Effect::Delete, Condition::None);
        model.observe(KEY, Observed::Absent).unwrap();
        assert!(after_crash(&model, 2, 2).is_err(), "back after its delete was seen");
        model.acknowledge(delete, 4).unwrap();
        assert!(after_crash(&model, 0, 0).is_ok());
    }

    #[test]
    fn a_rejection_shows_the_write_that_it_follows() {
        let mut model = Model::new();
        put(&mut model, 1);
        let create = model.begin(KEY, Effect::Put(value(2)), Condition::IfExists);
        model.rejected(create, Some(3)).unwrap();
        assert!(after_crash(&model, 3, 1).is_ok());
        assert!(after_crash(&model, 0, 0).is_err(), "the answer was given on a write that was lost then");
    }

    #[test]
    fn identical_writes_stay_ambiguous() {
        let mut model = Model::new();
        let empty = |seed| Effect::Put(Value { key: 7, seed, bytes: 0 });
        let first = model.begin(KEY, empty(1), Condition::None);
        let second = model.begin(KEY, empty(2), Condition::None);
        model.observe(KEY, Observed::Present { version: 4, bytes: &[] }).unwrap();
        model.acknowledge(first, 3).unwrap();
        model.acknowledge(second, 4).unwrap();
        assert_eq!(model.current(KEY), Ok(Some(4)));
    }

    #[test]
    fn a_write_of_unknown_outcome_ends_with_the_recovery() {
        let mut model = Model::new();
        put(&mut model, 1);
        model.recovered(KEY, Observed::Absent).unwrap();
        assert!(after_crash(&model, 1, 1).is_err(), "it cannot come back");
        assert_eq!(model.current(KEY), Ok(None));
    }

    #[test]
    fn writes_that_overlap_settle_by_version() {
        let mut model = Model::new();
        let (first, second) = (put(&mut model, 1), put(&mut model, 2));
        model.acknowledge(second, 2).unwrap();
        assert!(after_crash(&model, 2, 2).is_ok() && after_crash(&model, 3, 1).is_ok());
        model.acknowledge(first, 1).unwrap();
        assert!(after_crash(&model, 2, 2).is_ok() && after_crash(&model, 1, 1).is_err());
        assert_eq!(model.current(KEY), Ok(Some(2)));
        let third = put(&mut model, 3);
        assert!(model.clone().acknowledge(third, 2).is_err(), "a version used twice");
        assert!(model.acknowledge(third, 1).is_err(), "a version that does not grow");
    }

    #[test]
    fn conditions_are_decided_by_the_settled_state() {
        let mut model = Model::new();
        let begin = |model: &mut Model, seed| model.begin(KEY, Effect::Put(value(seed)), Condition::IfExists);
        let create = begin(&mut model, 1);
        assert!(model.clone().rejected(create, None).is_err(), "it does not exist");
        model.acknowledge(create, 1).unwrap();
        let again = begin(&mut model, 2);
        assert!(model.clone().acknowledge(again, 2).is_err(), "must not exist passed twice");
        assert!(model.clone().rejected(again, Some(9)).is_err(), "a version that it does not have");
        model.rejected(again, Some(1)).unwrap();
        assert_eq!(model.current(KEY), Ok(Some(1)));
    }
}
