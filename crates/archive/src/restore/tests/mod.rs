//! Restores of random histories against a model; damage of each kind; a bucket that fails.

mod damage;
mod faults;
mod history;
mod moments;
mod pieces;
mod upkeep;

use std::sync::Arc;

use bytes::Bytes;
use shoal_backup::{Loss, ObjectHead, ObjectRecord};
use shoal_base::SeededEntropy;
use shoal_base::task::Boxed;

use self::history::{Held, History, Objects};
use super::*;
use crate::bucket::fault::{FaultStore, Latency};

/// A store in memory.
#[derive(Default)]
struct MemoryTarget {
    objects: Objects,
    buckets: Vec<String>,
    long: Option<(ObjectHead, Vec<u8>)>,
    missing: u64,
}

impl MemoryTarget {
    fn put(&mut self, head: &ObjectHead, value: Vec<u8>) {
        assert_eq!(value.len() as u64, head.value_bytes);
        let held = Held {
            value,
            content_type: head.metadata.content_type.clone(),
            end_ns: head.expiry.map(|expiry| expiry.at_ns),
        };
        self.objects.insert(head.key.encoded().to_vec(), held);
    }
}

fn done<'a>() -> Boxed<'a, Result<(), TargetError>> {
    Box::pin(std::future::ready(Ok(())))
}

impl RestoreTarget for MemoryTarget {
    fn write(&mut self, writes: Vec<RestoredWrite>) -> Boxed<'_, Result<(), TargetError>> {
        for write in writes {
            match write {
                RestoredWrite::Put(object) => {
                    let ObjectRecord { head, value } = *object;
                    self.put(&head, value.to_vec());
                }
                RestoredWrite::Delete(key) => drop(self.objects.remove(key.encoded())),
                RestoredWrite::Bucket { name, .. } => self.buckets.push(name),
            }
        }
        done()
    }

    fn start_long(&mut self, head: ObjectHead) -> Boxed<'_, Result<(), TargetError>> {
        assert!(self.long.replace((head, Vec::new())).is_none(), "one after the other");
        done()
    }

    fn piece(&mut self, bytes: Bytes) -> Boxed<'_, Result<(), TargetError>> {
        self.long.as_mut().unwrap().1.extend_from_slice(&bytes);
        done()
    }

    fn finish_long(&mut self) -> Boxed<'_, Result<(), TargetError>> {
        let (head, value) = self.long.take().unwrap();
        self.put(&head, value);
        done()
    }

    fn missing(&mut self, _: &Loss) {
        self.long = None;
        self.missing += 1;
    }
}

/// The bucket of a history.
fn store_of(history: &History, seed: u64, rate: u64) -> FaultStore {
    let store = FaultStore::new(seed, rate, Latency::None);
    for (name, bytes) in &history.objects {
        store.plant(name, bytes.clone());
    }
    store.plant("record", history.record.encode().unwrap().into());
    store
}

/// Restores from `store`.
async fn restore(
    store: &FaultStore,
    moment: RestoreMoment,
) -> Result<(Objects, RestoredState), RestoreError> {
    let bucket = Arc::new(store.bucket(5));
    let keeper = RecordKeeper::new(bucket.clone(), Arc::new(SeededEntropy::new(1)));
    let reader = ArchiveReader::open(bucket, &keeper).await?;
    let plan = reader.plan(moment)?;
    let mut target = MemoryTarget::default();
    let state = reader.restore(&plan, &mut target, &RestoreProgress::default()).await?;
    assert_eq!((target.missing, target.long), (0, None));
    Ok((target.objects, state))
}
