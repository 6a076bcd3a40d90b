//! The working set of a transaction: the states of its keys in memory, on which its commands run one after the other.
//!
//! A command that runs here finds what the commands before it left, and changes only the set. What is left at the end is what the
//! transaction writes, one change for each key. The states were loaded as far as it was guessed that they are needed; a command that
//! needs more is noted, and the transaction begins again with more (`command/transactions.rs`).

use std::cell::RefCell;
use std::collections::HashMap;

use shoal_base::Lsn;
use shoal_engine::{Change, Deadline, Expiry, Look, Metadata, Object, ObjectInfo, ObjectKey};

use crate::answer::{Answer, Failed};

/// Said by a command whose transaction begins again; nobody reads it.
const LACKS: &str = "ERR a transaction looked at less than it needs";

/// The version of what the transaction itself wrote, which is not known yet.
const OWN: Lsn = Lsn(u64::MAX);

/// What is looked at where both are wanted.
pub(crate) fn more_of(one: Look, other: Look) -> Look {
    let of = |look| match look {
        Look::Nothing => (0, false),
        Look::Existence => (1, false),
        Look::Info => (2, false),
        Look::Value => (3, false),
        Look::Version => (2, true),
        Look::Whole => (3, true),
    };
    let ((one, version), (other, also_version)) = (of(one), of(other));
    match (one.max(other), version || also_version) {
        (0, _) => Look::Nothing,
        (1, _) => Look::Existence,
        (2, false) => Look::Info,
        (2, true) => Look::Version,
        (_, false) => Look::Value,
        (_, true) => Look::Whole,
    }
}

/// A key's state.
struct Place {
    look: Look,
    object: Option<Object>,
    /// Whether there was something when it was looked at.
    existed: bool,
    change: Change,
}

/// See the top of the file.
pub(crate) struct WorkingSet {
    numbers: HashMap<ObjectKey, usize>,
    places: RefCell<Vec<Place>>,
    /// What was looked at too little.
    lacks: RefCell<Vec<(ObjectKey, Look)>>,
    /// Tells when what is written here would be over.
    deadline_of: Box<dyn Fn(Expiry) -> Option<Deadline>>,
}

impl WorkingSet {
    /// The keys with their states.
    pub(crate) fn new(
        keys: &[(ObjectKey, Look)],
        objects: &[Option<Object>],
        deadline_of: impl Fn(Expiry) -> Option<Deadline> + 'static,
    ) -> Self {
        let numbers = keys.iter().enumerate().map(|(number, (key, _))| (key.clone(), number)).collect();
        let places = keys.iter().zip(objects).map(|((_, look), object)| Place {
            look: *look,
            existed: object.is_some(),
            object: object.clone(),
            change: Change::Keep,
        });
        Self {
            numbers,
            places: RefCell::new(places.collect()),
            lacks: RefCell::default(),
            deadline_of: Box::new(deadline_of),
        }
    }

    /// A key's state now.
    ///
    /// # Errors
    /// Where it was not looked at enough, which is noted.
    pub(crate) fn see(&self, key: &ObjectKey, look: Look) -> Result<Option<Object>, Failed> {
        let places = self.places.borrow();
        if let Some(place) = self.numbers.get(key).and_then(|&number| places.get(number)) {
            let is_own = !matches!(place.change, Change::Keep);
            if is_own || more_of(place.look, look) == place.look {
                let is_over = |object: &Object| {
                    is_own && object.info.expiry.is_some_and(|deadline| deadline.left_ns() == 0)
                };
                return Ok(place.object.clone().filter(|object| !is_over(object)));
            }
        }
        self.lacks.borrow_mut().push((key.clone(), look));
        Err(LACKS.into())
    }

    /// The version of what [`Self::see`] gave.
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
        let mut places = self.places.borrow_mut();
        let Some(place) = self.numbers.get(key).and_then(|&number| places.get_mut(number)) else {
            self.lacks.borrow_mut().push((key.clone(), Look::Nothing));
            return;
        };
        place.object = match &change {
            Change::Keep => return,
            Change::Delete => None,
            Change::Placed(_) => unreachable!("only a stream of the store makes one"),
            Change::Put { value, metadata, expiry } => {
                Some(self.object(value.clone(), metadata.clone(), *expiry))
            }
            Change::PutWith { value, options } => {
                Some(self.object(value.clone(), options.metadata.clone(), options.expiry))
            }
        };
        let is_nothing = place.object.is_none() && !place.existed && place.look != Look::Nothing;
        place.change = if is_nothing { Change::Keep } else { change };
    }

    fn object(&self, value: shoal_buffer::Buffer, metadata: Metadata, expiry: Expiry) -> Object {
        let bytes = value.len() as u64;
        let expiry = (self.deadline_of)(expiry);
        let info = ObjectInfo { version: OWN, bytes, modified_ns: 0, expiry, metadata };
        Object { info, value }
    }

    /// What was looked at too little.
    pub(crate) fn take_lacks(&self) -> Vec<(ObjectKey, Look)> {
        self.lacks.take()
    }

    /// What the transaction writes, one change for each key.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        self.places.take().into_iter().map(|place| place.change).collect()
    }
}

#[cfg(test)]
mod tests {
    use shoal_engine::Bucket;

    use super::*;
    use crate::face::set_value;

    fn key(name: &str) -> ObjectKey {
        Bucket::new("b").unwrap().key(name.as_bytes()).unwrap()
    }

    fn value(set: &WorkingSet, name: &str) -> Option<Vec<u8>> {
        set.see(&key(name), Look::Value).unwrap().map(|object| object.value.to_vec())
    }

    #[test]
    fn commands_see_what_those_before_them_left() {
        let keys = [(key("a"), Look::Value), (key("b"), Look::Nothing), (key("c"), Look::Info)];
        let set = WorkingSet::new(&keys, &[None, None, None], |_| None);
        assert_eq!(value(&set, "a"), None);
        set.change(&key("a"), set_value(&b"1"[..].into(), Expiry::Never));
        set.change(&key("b"), set_value(&b"2"[..].into(), Expiry::Never));
        assert_eq!((value(&set, "a"), value(&set, "b")), (Some(b"1".to_vec()), Some(b"2".to_vec())));
        let object = set.see(&key("b"), Look::Whole).unwrap().unwrap();
        assert!(matches!(set.version_of(&key("b"), &object), Answer::VersionOf(1)));
        set.change(&key("a"), Change::Delete);
        set.change(&key("b"), Change::Delete);
        assert!(set.take_lacks().is_empty());
        let changes = set.take_changes();
        // What was not there need not be deleted; what was not looked at must be.
        assert!(matches!(changes[..], [Change::Keep, Change::Delete, Change::Keep]));
    }

    #[test]
    fn what_was_not_looked_at_is_noted() {
        let keys = [(key("a"), Look::Info), (key("b"), Look::Nothing)];
        let set = WorkingSet::new(&keys, &[None, None], |_| None);
        assert!(set.see(&key("a"), Look::Info).is_ok() && set.see(&key("a"), Look::Value).is_err());
        assert!(set.see(&key("b"), Look::Info).is_err() && set.see(&key("z"), Look::Version).is_err());
        let lacks = set.take_lacks();
        assert_eq!(lacks, [(key("a"), Look::Value), (key("b"), Look::Info), (key("z"), Look::Version)]);
        assert_eq!(more_of(Look::Value, Look::Version), Look::Whole);
        assert_eq!(more_of(Look::Info, Look::Version), Look::Version);
        assert_eq!(more_of(Look::Nothing, Look::Info), Look::Info);
    }
}
