//! Writes that wait for the file to grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use shoal_base::Run;
use shoal_device::{Device, MemDevice};
use shoal_space_manager::Shortage;

use crate::testing::fixtures::{environment, open_in, options};
use crate::{Error, FormatOptions, ObjectKey, PutOptions, Store, block_on};

fn growable() -> Store {
    let device = Device::new(Arc::new(MemDevice::growable(1)));
    let format = FormatOptions { initial_blocks: Some(0), ..FormatOptions::for_blocks(1 << 16) };
    block_on(Store::format(&device, &format, &environment())).unwrap();
    let mut options = options();
    options.tuning.growth_blocks = 64;
    open_in(&device, options, environment())
}

/// A write that finds no room runs an apply to free dead blocks, and the apply may find no room either: the file grows for both.
#[test]
fn claim_continues_when_apply_finds_no_room() {
    let store = growable();
    let put = |name: &[u8], bytes: usize| {
        let key = ObjectKey::new("default", name).unwrap();
        block_on(store.put(&key, vec![1; bytes].into(), PutOptions::default())).map(|_| ())
    };
    put(b"in the log", 30).unwrap();
    let taken: Vec<Run> = std::iter::from_fn(|| store.0.space.allocate(1)).collect();
    put(b"without room", 20_000).unwrap();
    store.0.space.give_back(&taken);
    block_on(store.close()).unwrap();
}

/// Others may take the blocks of each step before the writer that made them: no write is refused while the file can grow. The writer
/// waits for one apply while the file can grow, and for all of them before it is refused.
#[test]
fn claim_continues_while_file_can_grow() {
    let store = growable();
    for name in 0..32_u8 {
        let key = ObjectKey::new("default", &[name]).unwrap();
        block_on(store.put(&key, vec![1; 30].into(), PutOptions::default())).unwrap();
    }
    let unapplied = || store.0.tablets.all().iter().filter(|it| it.first_unapplied().is_some()).count();
    let all = unapplied();
    assert!(all > 1);
    let attempts = AtomicU32::new(0);
    let until = |last: u32| {
        let attempts = &attempts;
        move || {
            let taken = attempts.fetch_add(1, Ordering::Relaxed) < last;
            if taken { Err(Shortage { needed: 8, available: 0 }) } else { Ok(()) }
        }
    };
    block_on(store.0.claim(until(20))).unwrap();
    assert_eq!(unapplied(), all - 1);
    // When the file cannot grow any more, no further attempts are made.
    let full = block_on(store.0.claim(until(u32::MAX)));
    assert!(matches!(full, Err(Error::Full { needed: 8, .. })), "{full:?}");
    assert_eq!((store.stat().device_blocks, unapplied()), (1 << 16, 0));
}
