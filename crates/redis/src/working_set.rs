//! The working set of a transaction: the states of its keys in memory, on which its commands run one after the other.
//!
//! A command that runs here sees the changes of the commands before it, and changes only the set. At the end, the transaction
//! writes the set, one change for each key. The states are loaded up to a guessed level; a command that needs more is noted,
//! and the transaction restarts with more (`command/transactions.rs`).

use std::cell::RefCell;
use std::collections::HashMap;

use shoal_base::Lsn;
use shoal_engine::{Change, Deadline, Expiry, Metadata, Object, ObjectInfo, ObjectKey, ReadLevel};

use crate::answer::{Answer, Failed};

/// The error of a command whose transaction restarts; it never reaches a client.
const LACKS: &str = "ERR a transaction loaded less than it needs";

/// The version of the transaction's own writes, which is not known yet.
const OWN: Lsn = Lsn(u64::MAX);

/// The lowest level that covers both.
pub(crate) fn more_of(one: ReadLevel, other: ReadLevel) -> ReadLevel {
    let of = |look| match look {
        ReadLevel::Nothing => (0, false),
        ReadLevel::Existence => (1, false),
        ReadLevel::Info => (2, false),
        ReadLevel::Value => (3, false),
        ReadLevel::Version => (2, true),
        ReadLevel::Whole => (3, true),
    };
    let ((one, version), (other, also_version)) = (of(one), of(other));
    match (one.max(other), version || also_version) {
        (0, _) => ReadLevel::Nothing,
        (1, _) => ReadLevel::Existence,
        (2, false) => ReadLevel::Info,
        (2, true) => ReadLevel::Version,
        (_, false) => ReadLevel::Value,
        (_, true) => ReadLevel::Whole,
    }
}

/// A key's state.
struct KeyState {
    look: ReadLevel,
    object: Option<Object>,
    /// True if it existed when it was looked at.
    existed: bool,
    change: Change,
}

/// See the top of the file.
pub(crate) struct WorkingSet {
    numbers: HashMap<ObjectKey, usize>,
    states: RefCell<Vec<KeyState>>,
    /// The keys that were looked at too little.
    lacks: RefCell<Vec<(ObjectKey, ReadLevel)>>,
    /// Returns the deadline of an expiry that is written now.
    deadline_of: Box<dyn Fn(Expiry) -> Option<Deadline>>,
}

impl WorkingSet {
    /// The keys with their states.
    pub(crate) fn new(
        keys: &[(ObjectKey, ReadLevel)],
        objects: &[Option<Object>],
        deadline_of: impl Fn(Expiry) -> Option<Deadline> + 'static,
    ) -> Self {
        let numbers = keys.iter().enumerate().map(|(number, (key, _))| (key.clone(), number)).collect();
        let states = keys.iter().zip(objects).map(|((_, look), object)| KeyState {
            look: *look,
            existed: object.is_some(),
            object: object.clone(),
            change: Change::NoChange,
        });
        Self {
            numbers,
            states: RefCell::new(states.collect()),
            lacks: RefCell::default(),
            deadline_of: Box::new(deadline_of),
        }
    }

    /// A key's state now.
    ///
    /// # Errors
    /// If the key was not looked at enough, which is noted.
    pub(crate) fn see(&self, key: &ObjectKey, look: ReadLevel) -> Result<Option<Object>, Failed> {
        let states = self.states.borrow();
        if let Some(state) = self.numbers.get(key).and_then(|&number| states.get(number)) {
            let is_own = !matches!(state.change, Change::NoChange);
            if is_own || more_of(state.look, look) == state.look {
                let is_over = |object: &Object| {
                    is_own && object.info.expiry.is_some_and(|deadline| deadline.left_ns == 0)
                };
                return Ok(state.object.clone().filter(|object| !is_over(object)));
            }
        }
        self.lacks.borrow_mut().push((key.clone(), look));
        Err(LACKS.into())
    }

    /// The version of the object that [`Self::see`] returned.
    pub(crate) fn version_of(&self, key: &ObjectKey, object: &Object) -> Answer {
        match object.info.version {
            OWN => self.own_version(key),
            version => Answer::Integer(version.0 as i64),
        }
    }

    /// The version that the transaction's write of a key will have.
    pub(crate) fn own_version(&self, key: &ObjectKey) -> Answer {
        Answer::VersionOf(self.numbers.get(key).copied().unwrap_or_default())
    }

    /// Changes a key's state.
    pub(crate) fn change(&self, key: &ObjectKey, change: Change) {
        let mut states = self.states.borrow_mut();
        let Some(state) = self.numbers.get(key).and_then(|&number| states.get_mut(number)) else {
            self.lacks.borrow_mut().push((key.clone(), ReadLevel::Nothing));
            return;
        };
        state.object = match &change {
            Change::NoChange => return,
            Change::Delete => None,
            Change::Placed(_) => unreachable!("only a stream of the store makes one"),
            Change::Put { value, metadata, expiry } => {
                Some(self.object(value.clone(), metadata.clone(), *expiry))
            }
            Change::PutWith { value, options } => {
                Some(self.object(value.clone(), options.metadata.clone(), options.expiry))
            }
        };
        let is_nothing = state.object.is_none() && !state.existed && state.look != ReadLevel::Nothing;
        state.change = if is_nothing { Change::NoChange } else { change };
    }

    fn object(&self, value: shoal_buffer::Buffer, metadata: Metadata, expiry: Expiry) -> Object {
        let bytes = value.len() as u64;
        let expiry = (self.deadline_of)(expiry);
        let info = ObjectInfo { version: OWN, bytes, modified_ns: 0, expiry, metadata };
        Object { info, value }
    }

    /// The keys that were looked at too little.
    pub(crate) fn take_lacks(&self) -> Vec<(ObjectKey, ReadLevel)> {
        self.lacks.take()
    }

    /// The writes of the transaction, one change for each key.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        self.states.take().into_iter().map(|state| state.change).collect()
    }
}

#[cfg(test)]
mod tests {
    use shoal_engine::Bucket;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        Bucket::new("b").unwrap().key(name.as_bytes()).unwrap()
    }

    fn set_value(value: &[u8]) -> Change {
        let value = shoal_buffer::Buffer::from(value.to_vec());
        Change::Put { value, metadata: Metadata::default(), expiry: Expiry::Never }
    }

    fn value(set: &WorkingSet, name: &str) -> Option<Vec<u8>> {
        set.see(&key(name), ReadLevel::Value).unwrap().map(|object| object.value.to_vec())
    }

    #[test]
    fn commands_see_earlier_changes() {
        let keys =
            [(key("a"), ReadLevel::Value), (key("b"), ReadLevel::Nothing), (key("c"), ReadLevel::Info)];
        let set = WorkingSet::new(&keys, &[None, None, None], |_| None);
        assert_eq!(value(&set, "a"), None);
        set.change(&key("a"), set_value(b"1"));
        set.change(&key("b"), set_value(b"2"));
        assert_eq!((value(&set, "a"), value(&set, "b")), (Some(b"1".to_vec()), Some(b"2".to_vec())));
        let object = set.see(&key("b"), ReadLevel::Whole).unwrap().unwrap();
        assert!(matches!(set.version_of(&key("b"), &object), Answer::VersionOf(1)));
        set.change(&key("a"), Change::Delete);
        set.change(&key("b"), Change::Delete);
        assert!(set.take_lacks().is_empty());
        let changes = set.take_changes();
        // A key without an object need not be deleted; one that was not looked at must be.
        assert!(matches!(changes[..], [Change::NoChange, Change::Delete, Change::NoChange]));
    }

    #[test]
    fn unloaded_keys_are_noted() {
        let keys = [(key("a"), ReadLevel::Info), (key("b"), ReadLevel::Nothing)];
        let set = WorkingSet::new(&keys, &[None, None], |_| None);
        assert!(set.see(&key("a"), ReadLevel::Info).is_ok() && set.see(&key("a"), ReadLevel::Value).is_err());
        assert!(
            set.see(&key("b"), ReadLevel::Info).is_err() && set.see(&key("z"), ReadLevel::Version).is_err()
        );
        let lacks = set.take_lacks();
        assert_eq!(
            lacks,
            [(key("a"), ReadLevel::Value), (key("b"), ReadLevel::Info), (key("z"), ReadLevel::Version)]
        );
        assert_eq!(more_of(ReadLevel::Value, ReadLevel::Version), ReadLevel::Whole);
        assert_eq!(more_of(ReadLevel::Info, ReadLevel::Version), ReadLevel::Version);
        assert_eq!(more_of(ReadLevel::Nothing, ReadLevel::Info), ReadLevel::Info);
    }
}
