//! R11: block and identity tell cached units apart. Two successive values at one block are different, even if their checksums and lengths
//! are the same.

use shoal_base::checksum::crc32c;

use crate::common::{ByName, device, formatted, open, tiny};

/// The generator of CRC-32C, its lowest bit first: adding it to a message at any offset keeps the checksum.
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

#[test]
fn reused_block_never_serves_old_value() {
    let sim = formatted(220, 3);
    let device = device(&sim);
    let store = open(&device, tiny()).unwrap();
    let twins = twins();
    for round in 0..20 {
        let value = &twins[round % 2];
        store.set(b"twin", value.clone()).unwrap();
        for _ in 0..2 {
            let object = store.find(b"twin").unwrap().unwrap();
            assert!(object.value.to_vec() == *value, "round {round}: the other twin");
        }
        // Some applies, so that a tree has it: a delete of a value in a memtable removes it from the pool at once.
        let applies = || {
            for small in 0..20_u8 {
                store.set([b's', small], vec![small; 20]).unwrap();
            }
        };
        applies();
        store.remove(b"twin").unwrap();
        // Some more, so that its blocks are free for the next one.
        applies();
    }
}
