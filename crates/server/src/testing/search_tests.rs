//! One request searches once, for any verb.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use shoal_api::v1;
use shoal_base::{BLOCK_BYTES, ManualClock};
use shoal_device::{Device, MemDevice};
use shoal_engine::{ObjectKey, Store, block_on};
use shoal_storekit::StoreKit;

use super::calls::{admitted, exchanged, permit};
use super::frames::Frames;
use crate::operations::get::get;
use crate::operations::multi_get::multi_get;

const BLOCKS: u64 = 4_096;
const VALUE_BYTES: usize = 15 * BLOCK_BYTES;

/// Pages and units that `request` takes from the pool's memory.
fn hits_of(store: &Store, request: impl FnOnce()) -> u64 {
    let before = store.stat().pool;
    request();
    let after = store.stat().pool;
    assert_eq!(after.misses, before.misses, "everything is in memory");
    after.hits - before.hits
}

/// A regression: gets of many keys and of streams of operations dropped the state of a search that memory could not finish, and searched
/// again. The value here is no part of its leaf, so each get resumes after its leaf.
#[test]
fn every_get_method_pins_each_page_once() {
    let kit = StoreKit::steady(BLOCKS, &Arc::new(ManualClock::new(1)));
    let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
    let store = kit.create(&device);
    let key = ObjectKey::new("default", b"k").unwrap();
    block_on(store.put(&key, vec![7; VALUE_BYTES].into(), Default::default())).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    // After a restart the object is in a tree, and not in a memtable.
    let store = kit.open(&device);

    let unary = || {
        let request = v1::GetRequest { key: "k".into(), ..Default::default() };
        let answer = block_on(get(admitted(&store, request), permit(1 << 20))).unwrap();
        assert_eq!(answer.value.unwrap().len(), VALUE_BYTES);
    };
    let of_many = || {
        let items = vec![v1::MultiGetItem { key: "k".into(), range: None }];
        let request = v1::MultiGetRequest { items, ..Default::default() }.encode_to_vec();
        let answer = block_on(multi_get(admitted(&store, request.into()))).unwrap();
        assert!(answer.len() > VALUE_BYTES);
    };
    let in_stream = || {
        let action = v1::operation::Action::Get.into();
        let operations = vec![v1::Operation { action, key: "k".into(), ..Default::default() }];
        let message = v1::OperationsRequest { operations, ..Default::default() }.encode_to_vec();
        let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let answers = exchanged(&store, Frames(vec![Bytes::from(framed)].into_iter()));
        assert_eq!(answers.len(), 1);
        assert!(answers[0].as_ref().unwrap().len() > VALUE_BYTES);
    };
    unary();
    let once = hits_of(&store, unary);
    assert!(once > 1, "the leaf, and the units of the value");
    assert_eq!(hits_of(&store, of_many), once);
    assert_eq!(hits_of(&store, in_stream), once);
}
