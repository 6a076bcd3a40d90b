//! Stores for the tests of maps.

use std::sync::Arc;

use shoal_device::{Device, MemDevice};
use shoal_engine::{ObjectKey, RejectRules, Store, block_on};
use shoal_storekit::{StoreKit, put};

/// A store with objects of `bytes` bytes in a shared bucket and in one with its own space, half of which are deleted: free runs in many
/// places. It has no threads, so nothing changes.
pub(super) fn fragmented(objects: u32, bytes: usize) -> Store {
    let mut kit = StoreKit::new(32_768);
    kit.options.own_space = vec!["films".into(), "photos".into()];
    let device = Device::new(Arc::new(MemDevice::new(kit.format.blocks_max)));
    let store = kit.create(&device);
    let bucket = |which: u32| if which.is_multiple_of(4) { "photos" } else { "b" };
    for which in 0..objects {
        put(&store, bucket(which), &which.to_be_bytes(), vec![1; bytes]);
    }
    for which in (0..objects).filter(|which| which % 8 < 4) {
        let key = ObjectKey::new(bucket(which), &which.to_be_bytes()).unwrap();
        block_on(store.delete(&key, RejectRules::default())).unwrap();
    }
    // Applies the records of the log, and frees the blocks of deleted objects.
    block_on(store.close()).unwrap();
    drop(store);
    kit.options.background = false;
    kit.open(&device)
}
