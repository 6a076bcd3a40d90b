//! The changes since an earlier version: a chain of them yields the store of each version, under any mix of applies, compactions and moves.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use shoal_base::ManualClock;
use shoal_device::Device;
use shoal_engine::{
    ChangedObject, ChangesPlace, Expiry, KeyPlace, Lsn, ObjectKey, OpenOptions, PutOptions, RejectRules,
    Since, Snapshot, Store, TreePage, Tuning, block_on,
};
use shoal_testkit::lab;

use crate::common::{memory, open, open_at, tiny_with_layers, tiny_without_layers};

const SIZES: [usize; 4] = [0, 100, 2_000, 9_000];
const GROUPS: u8 = 8;
const GROUP: u8 = 12;

/// Keys of one group differ only in their last bytes, so separators are long, and trees of few keys are high.
fn name(group: u8, which: u8) -> ObjectKey {
    let key = [&vec![group; 900][..], &[0xFF, 0, which]].concat();
    ObjectKey::new(["alpha", "beta"][usize::from(group % 2)], &key).unwrap()
}

/// A version as kept by the reader of the changes: the version, and for each live key its tablet and place.
#[derive(Clone, Debug, Default)]
struct Kept {
    version: u64,
    keys: BTreeMap<(u16, Vec<u8>), KeyPlace>,
    versions: BTreeMap<Vec<u8>, u64>,
}

impl Kept {
    fn since(&self) -> Option<Since> {
        let pages = self.keys.values().filter_map(|place| match place {
            KeyPlace::Page(page) => Some(*page),
            _ => None,
        });
        (self.version > 0).then(|| Since::new(Lsn(self.version), pages))
    }

    /// Returns the next version: this one plus the changes.
    fn next(&self, snapshot: &Snapshot, limit: usize) -> Result<Self, String> {
        let since = self.since();
        let (mut kept, mut told) = (HashSet::<TreePage>::new(), BTreeMap::new());
        let mut versions = self.versions.clone();
        let (mut place, mut last) = (Some(ChangesPlace::default()), None);
        while let Some(at) = place {
            let page = block_on(snapshot.changes(since.as_ref(), &at, limit)).map_err(|it| it.to_string())?;
            if !page.damaged.is_empty() {
                return Err(format!("damage: {:?}", page.damaged));
            }
            for placed in page.keys {
                let key = (page.tablet.0, placed.key);
                match placed.place {
                    KeyPlace::Kept(page) => {
                        kept.insert(page);
                        continue;
                    }
                    place => {
                        // A key before this one, under an unchanged page, must be decided by now.
                        let from = last.clone().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
                        for ((_, before), old) in
                            self.keys.range((from, std::ops::Bound::Excluded(key.clone())))
                        {
                            if let KeyPlace::Page(page) = old
                                && !kept.contains(page)
                            {
                                versions.remove(before);
                            }
                        }
                        if last.as_ref() >= Some(&key) {
                            return Err("keys are out of order".into());
                        }
                        last = Some(key.clone());
                        told.insert(key, place);
                    }
                }
            }
            for ChangedObject { key, version, .. } in page.objects {
                if version.0 <= self.version {
                    return Err(format!("{key} has not changed"));
                }
                versions.insert(key.encoded().to_vec(), version.0);
            }
            place = page.next;
        }
        let mut keys = self.keys.clone();
        keys.retain(|key, place| match place {
            KeyPlace::Page(page) => kept.contains(page) && !told.contains_key(key),
            _ => false,
        });
        keys.extend(told.into_iter().filter(|(_, place)| *place != KeyPlace::Gone));
        let alive: HashSet<&Vec<u8>> = keys.keys().map(|(_, key)| key).collect();
        versions.retain(|key, _| alive.contains(key));
        if versions.len() != keys.len() {
            return Err(format!("{} of {} keys have a version", versions.len(), keys.len()));
        }
        Ok(Self { version: snapshot.version().0, keys, versions })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, usize, u8),
    Delete(u8, u8),
    DeleteGroup(u8),
    Move,
    Wait,
    Take(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (group, which) = (|| 0..GROUPS, || 0..GROUP);
    let step = prop_oneof![
        20 => (group(), which(), 0..SIZES.len(), 0..12_u8)
            .prop_map(|(group, which, size, life)| Step::Put(group, which, size, life)),
        6 => (group(), which()).prop_map(|(group, which)| Step::Delete(group, which)),
        1 => group().prop_map(Step::DeleteGroup),
        2 => Just(Step::Move),
        1 => Just(Step::Wait),
        2 => (1..40_usize).prop_map(Step::Take),
    ];
    prop::collection::vec(step, 1..200)
}

struct Run {
    store: Store,
    clock: Arc<ManualClock>,
    /// Version and deadline of each object.
    now: BTreeMap<Vec<u8>, (u64, Option<u64>)>,
    chain: Kept,
    time: u64,
}

impl Run {
    fn begin(options: OpenOptions) -> Self {
        let clock = Arc::new(ManualClock::new(1_000));
        let tuning = Tuning { snapshot_max_age_ns: u64::MAX, ..options.tuning };
        let options = OpenOptions { cache_bytes: 2 << 20, tuning, ..options };
        let store = open_at(&memory(16_384), options, &clock).unwrap();
        Self { store, clock, now: BTreeMap::new(), chain: Kept::default(), time: 0 }
    }

    fn put(&mut self, key: &ObjectKey, bytes: usize, life: Option<u64>) {
        let expiry = life.map_or(Expiry::Never, |seconds| Expiry::After(Duration::from_secs(seconds)));
        let value = vec![bytes as u8; bytes];
        let options = PutOptions { expiry, ..PutOptions::default() };
        let put = block_on(self.store.put(key, value.into(), options)).unwrap();
        self.now.insert(key.encoded().to_vec(), (put.version.0, life.map(|seconds| self.time + seconds)));
    }

    fn delete(&mut self, key: &ObjectKey) {
        block_on(self.store.delete(key, RejectRules::default())).unwrap();
        self.now.remove(key.encoded());
    }

    fn take(&mut self, limit: usize) -> Result<(), String> {
        let snapshot = block_on(self.store.snapshot()).unwrap();
        self.chain = self.chain.next(&snapshot, limit)?;
        for (key, version) in &self.chain.versions {
            match self.now.get(key) {
                Some((newest, _)) if newest == version => {}
                found => return Err(format!("{key:?} of version {version} instead of {found:?}")),
            }
        }
        for (key, (_, deadline)) in &self.now {
            let is_over = deadline.is_some_and(|deadline| deadline <= self.time);
            if !is_over && !self.chain.versions.contains_key(key) {
                return Err(format!("{key:?} is missing"));
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Put(group, which, size, life) => {
                self.put(&name(group, which), SIZES[size], (life < 3).then_some(u64::from(life) * 100 + 50));
            }
            Step::Delete(group, which) => self.delete(&name(group, which)),
            Step::DeleteGroup(group) => (0..GROUP).for_each(|which| self.delete(&name(group, which))),
            Step::Move => {
                self.clock.advance(1_000_000_000);
                self.time += 1;
                block_on(self.store.move_step()).unwrap();
            }
            Step::Wait => {
                self.clock.advance(100_000_000_000);
                self.time += 100;
            }
            Step::Take(limit) => self.take(limit)?,
        }
        Ok(())
    }
}

fn run(steps: &[Step], options: OpenOptions) -> Result<(), String> {
    let mut run = Run::begin(options);
    for group in 0..GROUPS {
        for which in 0..GROUP {
            run.put(&name(group, which), 50, None);
        }
    }
    run.take(1_000)?;
    steps.iter().try_for_each(|step| run.step(step))?;
    run.take(7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: lab::number("CHANGES", 48) as u32, ..ProptestConfig::default() })]

    #[test]
    fn a_chain_of_changes_is_the_store_of_each_version(steps in steps(), layers in any::<bool>()) {
        let options = if layers { tiny_with_layers() } else { tiny_without_layers() };
        run(&steps, options).map_err(TestCaseError::fail)?;
    }
}

/// Returns the number of blocks that `work` reads from a freshly opened store.
fn blocks_read(device: &Device, work: impl FnOnce(&Store)) -> u64 {
    let tuning = Tuning { snapshot_max_age_ns: u64::MAX, ..tiny_without_layers().tuning };
    let options = OpenOptions { cache_bytes: 16 << 20, tuning, ..tiny_without_layers() };
    let store = open(device, options).unwrap();
    // The first snapshot applies the log that the opening found.
    drop(block_on(store.snapshot()).unwrap());
    let before = store.stat().device.blocks_read;
    work(&store);
    let read = store.stat().device.blocks_read - before;
    block_on(store.close()).unwrap();
    read
}

/// Leaves below an unchanged page of level 1 are not read, and values of unchanged objects never are.
#[test]
fn pages_and_values_that_did_not_change_are_not_read() {
    const COUNT: u32 = 8_000;
    let key = |which: u32| {
        let group = (which / 64).to_be_bytes();
        ObjectKey::new("b", &[&group.repeat(60)[..], &which.to_be_bytes()].concat()).unwrap()
    };
    let device = memory(65_536);
    let put = |store: &Store, which: u32, bytes: usize| {
        block_on(store.put(&key(which), vec![7; bytes].into(), PutOptions::default())).unwrap();
    };
    blocks_read(&device, |store| (0..COUNT).for_each(|which| put(store, which, 3_000)));
    let mut chain = Kept::default();
    let take = |chain: &mut Kept, store: &Store| {
        *chain = chain.next(&block_on(store.snapshot()).unwrap(), 500).unwrap();
        assert_eq!(chain.keys.len(), COUNT as usize);
    };
    let full = blocks_read(&device, |store| take(&mut chain, store));
    let unchanged = blocks_read(&device, |store| take(&mut chain, store));
    let one = blocks_read(&device, |store| {
        put(store, 4_000, 100);
        take(&mut chain, store);
    });
    assert!(full > 500, "{full} blocks: the index is too small for this test");
    assert!(unchanged * 8 < full, "{unchanged} of {full} blocks are read of a store that did not change");
    assert!(one * 6 < full, "{one} of {full} blocks are read for one changed object");
}

/// A key from a layer is gone after its delete was compacted with it past an unchanged page of the base.
#[test]
fn delete_absent_from_base_is_found() {
    for gone in 0..GROUP {
        let mut run = Run::begin(tiny_with_layers());
        for which in (0..GROUP).filter(|which| *which != gone) {
            (0..GROUPS).for_each(|group| run.put(&name(group, which), 50, None));
        }
        run.take(100).unwrap();
        for round in 0..40 {
            run.put(&name(3, gone), 50, None);
            run.take(100).unwrap();
            run.delete(&name(3, gone));
            if round % 2 == 0 {
                (0..round).for_each(|_| run.step(&Step::Move).unwrap());
            }
            run.take(100).unwrap();
        }
    }
}

/// An interrupted walk continues: every key after its last one is new, and every changed key before it follows.
#[test]
fn walk_resumes_after_last_key() {
    for limit in [1, 5, 17] {
        let mut run = Run::begin(tiny_with_layers());
        for group in 0..GROUPS {
            (0..GROUP).for_each(|which| run.put(&name(group, which), 50, None));
        }
        let first = block_on(run.store.snapshot()).unwrap();
        // The first pages only; the reader has some keys of the last page of the tree.
        let (mut place, mut told) = (ChangesPlace::default(), Vec::new());
        for _ in 0..3 {
            let page = block_on(first.changes(None, &place, limit)).unwrap();
            told.extend(page.keys.into_iter().map(|placed| (page.tablet, placed)));
            place = page.next.unwrap();
        }
        let (tablet, last) = told.last().cloned().unwrap();
        let known = told.iter().filter_map(|(_, placed)| match placed.place {
            KeyPlace::Page(page) if last.place != placed.place => Some(page),
            _ => None,
        });
        let since = Since::new(first.version(), known).up_to(tablet, last.key.clone());
        run.put(&name(0, 3), 100, None);
        run.put(&name(7, 3), 100, None);
        let changed: Vec<_> = [name(0, 3), name(7, 3)].iter().map(|key| key.encoded().to_vec()).collect();
        let second = block_on(run.store.snapshot()).unwrap();
        let (mut place, mut new) = (Some(ChangesPlace::default()), HashSet::new());
        while let Some(at) = place {
            let page = block_on(second.changes(Some(&since), &at, 7)).unwrap();
            new.extend(page.objects.into_iter().map(|object| object.key.encoded().to_vec()));
            place = page.next;
        }
        let had: HashSet<Vec<u8>> = told.into_iter().map(|(_, placed)| placed.key).collect();
        for key in run.now.keys() {
            assert_eq!(new.contains(key), !had.contains(key) || changed.contains(key), "{limit}: {key:?}");
        }
    }
}
