//! A store and the model side by side.

use std::collections::BTreeMap;
use std::ops::Bound;

use shoal_device_sim::SimDevice;
use shoal_engine::{DamagedRange, Error, ListRequest, Lsn, PutOptions, RejectRules, Store, block_on};
use shoal_testkit::{Condition, Effect, Model, Observed, Operation, Workload};

use super::{ByName, key, long_life};

pub(crate) fn rules(condition: Condition) -> RejectRules {
    match condition {
        Condition::None => RejectRules::default(),
        Condition::IfExists => RejectRules { if_exists: true, ..RejectRules::default() },
        Condition::IfMissing => RejectRules { if_missing: true, ..RejectRules::default() },
        Condition::IfVersionNot(version) => {
            RejectRules { if_version_not: Some(Lsn(version)), ..RejectRules::default() }
        }
        Condition::IfVersionAtMost(version) => {
            RejectRules { if_version_at_most: Some(Lsn(version)), ..RejectRules::default() }
        }
    }
}

/// Performs one operation on the store; returns the version of its write.
pub(crate) async fn perform(store: &Store, operation: &Operation) -> shoal_engine::Result<Lsn> {
    let key = key(&operation.key);
    let rules = rules(operation.condition);
    match operation.effect {
        Effect::Put(value) => {
            let options = PutOptions { rules, expiry: long_life(value.seed), ..PutOptions::default() };
            store.put(&key, value.to_vec().into(), options).await.map(|put| put.version)
        }
        Effect::Delete => store.delete(&key, rules).await.map(|delete| delete.version),
    }
}

/// Performs one operation and passes the result to the model. Errors that leave the outcome open are allowed only with `faulty`.
pub(crate) fn step(
    store: &Store,
    model: &mut Model,
    operation: &Operation,
    faulty: bool,
    in_flight: impl FnOnce(&Model),
) {
    let id = model.begin(&operation.key, operation.effect, operation.condition);
    in_flight(model);
    match block_on(perform(store, operation)) {
        Ok(version) => model.acknowledge(id, version.0).unwrap(),
        Err(Error::ConditionFailed { current, .. }) => {
            model.rejected(id, current.map(|version| version.0)).unwrap();
        }
        Err(Error::Full { .. } | Error::Poisoned(_)) => model.refused(id).unwrap(),
        Err(Error::Unknown(_) | Error::Io(_)) if faulty => {}
        Err(error) => panic!("{operation:?}: {error}"),
    }
}

/// Performs the next operation on a store on `sim`, with a mark before and after it: mark n corresponds to `models[n]`.
pub(crate) fn marked_step(
    store: &Store,
    sim: &SimDevice,
    workload: &mut Workload,
    (model, models): (&mut Model, &mut Vec<Model>),
) {
    let operation = workload.next(model);
    step(store, model, &operation, false, |in_flight| {
        models.push(in_flight.clone());
        sim.mark(models.len() as u64 - 1);
    });
    models.push(model.clone());
    sim.mark(models.len() as u64 - 1);
}

/// Reads a key and returns the data that the model needs to judge it.
pub(crate) fn read(store: &Store, name: &[u8]) -> shoal_engine::Result<Option<(u64, Vec<u8>)>> {
    let object = store.find(name)?;
    Ok(object.map(|object| (object.info.version.0, object.value.to_vec())))
}

/// Compares every key of the model with the running store.
pub(crate) fn observe_all(store: &Store, model: &mut Model) {
    let names: Vec<Vec<u8>> = model.keys().map(<[u8]>::to_vec).collect();
    for name in names {
        match read(store, &name).unwrap() {
            None => model.observe(&name, Observed::Absent),
            Some((version, bytes)) => model.observe(&name, Observed::Present { version, bytes: &bytes }),
        }
        .unwrap();
    }
}

/// Compares every key with the states that a crash may have left.
pub(crate) fn recover_all(store: &Store, model: &mut Model) -> Result<(), String> {
    let names: Vec<Vec<u8>> = model.keys().map(<[u8]>::to_vec).collect();
    for name in names {
        match read(store, &name).map_err(|error| format!("{}: {error}", name.escape_ascii()))? {
            None => model.recovered(&name, Observed::Absent),
            Some((version, bytes)) => model.recovered(&name, Observed::Present { version, bytes: &bytes }),
        }
        .map_err(|violation| violation.to_string())?;
    }
    Ok(())
}

/// The result of a listing over damage.
pub(crate) struct Judged {
    /// The keys that the listing left out, with the damaged ranges that name them.
    pub missing: BTreeMap<Vec<u8>, DamagedRange>,
    /// True if any page named a range.
    pub damaged: bool,
}

/// Lists everything in pages of `limit` and checks each page against `expected`, the existing keys, with their versions if these are known.
/// Each page completes and follows the previous one; each of its keys is expected, and each expected key that it omits is in a damaged
/// range of the key's tablet that this page names.
pub(crate) fn judge_listing(
    store: &Store,
    expected: &BTreeMap<Vec<u8>, Option<u64>>,
    limit: usize,
) -> Result<Judged, String> {
    let mut request = ListRequest { bucket: "default".into(), limit, ..ListRequest::default() };
    let mut judged = Judged { missing: BTreeMap::new(), damaged: false };
    for _ in 0..=expected.len() + 1 {
        let page = block_on(store.list(&request)).map_err(|error| format!("listing: {error}"))?;
        let listed: BTreeMap<Vec<u8>, u64> =
            page.entries.into_iter().map(|(key, info)| (key, info.version.0)).collect();
        for (name, version) in &listed {
            let is_right = match expected.get(name) {
                Some(Some(right)) => right == version,
                Some(None) => true,
                None => false,
            };
            if !is_right {
                return Err(format!("the listing has {} with version {version}", name.escape_ascii()));
            }
        }
        let from = match request.start_after.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(request.start_after.clone()),
        };
        let to = page.next.clone().map_or(Bound::Unbounded, Bound::Included);
        if page.next.as_ref().is_some_and(|next| *next <= request.start_after) {
            return Err("a page does not lie behind the one before".into());
        }
        judged.damaged |= !page.damaged.is_empty();
        let left_out = expected.range((from, to)).map(|(name, _)| name);
        for name in left_out.filter(|name| !listed.contains_key(*name)) {
            let tablet = store.tablet_id(&key(name));
            let named = page.damaged.iter().find(|range| range.tablet == tablet && range.contains(name));
            let range = named.ok_or_else(|| {
                format!("the listing left out {}, and no range names it", name.escape_ascii())
            })?;
            judged.missing.insert(name.clone(), range.clone());
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => return Ok(judged),
        }
    }
    Err("the listing does not end".into())
}

/// Continues with a store after a crash: makes `count` writes over the free space, and checks that every object still exists. Detects a
/// block in use that counts as free, as it is overwritten, and a version that is issued again after a reader may have seen it.
pub(crate) fn works_on(
    store: &Store,
    model: &mut Model,
    workload: &mut Workload,
    count: usize,
) -> Result<(), String> {
    for _ in 0..count {
        let operation = workload.next(model);
        step(store, model, &operation, false, |_| {});
    }
    recover_all(store, model)
}
