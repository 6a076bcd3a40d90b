//! R11: block and identity tell cached units apart. Two values that lie at one block one after the other are two, even
//! if their checksums and lengths are the same.

use shoal_base::checksum::crc32c;
use shoal_device::sim::SimDevice;
use shoal_engine::{ByteRange, PutOptions, RejectRules, Store, block_on};

use crate::common::{device, format, key, open, tiny};

/// The generator of CRC-32C, its lowest bit first: added to a message anywhere, it leaves the checksum as it is.
const GENERATOR: [u8; 5] = [0xF1, 0x76, 0xEC, 0x05, 0x01];
/// One block, so that the cache keeps it.
const BYTES: usize = 4_096;

fn twins() -> [Vec<u8>; 2] {
    let one: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let mut other = one.clone();
    other[2_000..].iter_mut().zip(GENERATOR).for_each(|(byte, term)| *byte ^= term);
    assert!(one != other && crc32c(&one) == crc32c(&other), "twins");
    [one, other]
}

fn put(store: &Store, name: &[u8], value: Vec<u8>) {
    block_on(store.put(&key(name), value.into(), PutOptions::default())).unwrap();
}

#[test]
fn a_block_that_is_used_again_never_serves_the_old_value() {
    let sim = SimDevice::new(220);
    let device = device(&sim);
    format(&device, 220, 3);
    let store = open(&device, tiny()).unwrap();
    let twins = twins();
    for round in 0..20 {
        let value = &twins[round % 2];
        put(&store, b"twin", value.clone());
        for _ in 0..2 {
            let object = block_on(store.get(&key(b"twin"), ByteRange::ALL)).unwrap().unwrap();
            assert!(object.value.to_vec() == *value, "round {round}: the other twin");
        }
        block_on(store.delete(&key(b"twin"), RejectRules::default())).unwrap();
        // Some applies, so that its blocks are free for the next one.
        for small in 0..20_u8 {
            put(&store, &[b's', small], vec![small; 20]);
        }
    }
}
