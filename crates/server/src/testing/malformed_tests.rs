//! Requests that are wrong in every way, or too long: each is refused or answered, and has no other effect. T21 of `docs/reliability.md`;
//! `tests/serve/hostile.rs` attacks HTTP/2, the layer before it.

use bytes::Bytes;
use prost::Message;
use shoal_api::{MESSAGE_BYTES_MAX, v1};
use shoal_base::SeededEntropy;
use shoal_engine::block_on;
use tonic::{Code, Status};

use super::calls::{admitted, exchanged};
use super::frames::Frames;
use crate::call::decode::Decoders;
use crate::call::receive::receive_for_test;
use crate::operations::multi_delete::multi_delete;
use crate::operations::multi_get::multi_get;
use crate::operations::multi_put::multi_put;

/// The number of requests; each goes to all readers of requests.
const CASES: usize = 200_000;

/// One case in this number reaches the store, which is slower than the layers before it.
const STORE_EVERY: usize = 8;

/// A length of any size, most of them near one that matters.
fn length(dice: &SeededEntropy) -> u64 {
    let edges = [
        0,
        1,
        5,
        127,
        128,
        1 << 14,
        1 << 21,
        4 << 20,
        MESSAGE_BYTES_MAX as u64,
        1 << 31,
        1 << 32,
        1 << 63,
        u64::MAX,
    ];
    let near = edges[dice.below(edges.len() as u64) as usize];
    match dice.below(4) {
        0 => near.wrapping_add(1),
        1 => near.wrapping_sub(1),
        2 => near,
        _ => 1 << dice.below(64),
    }
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A request as a client sends it.
fn valid(dice: &SeededEntropy) -> Vec<u8> {
    let bytes = |most| -> Bytes { (0..dice.below(most)).map(|i| i as u8).collect::<Vec<_>>().into() };
    let rules = (dice.below(3) == 0).then(v1::RejectRules::default);
    match dice.below(5) {
        0 => {
            // Some values are long enough to be received into memory of the store.
            let value = bytes(if dice.below(16) == 0 { 40_000 } else { 900 });
            v1::PutRequest { key: bytes(40), value, rules, ..Default::default() }.encode_to_vec()
        }
        1 => v1::GetRequest { bucket: "b".into(), key: bytes(40), ..Default::default() }.encode_to_vec(),
        2 => {
            let item = || v1::MultiGetItem { key: bytes(40), range: Some(v1::ByteRange::default()) };
            let items = (0..dice.below(5)).map(|_| item()).collect();
            v1::MultiGetRequest { items, ..Default::default() }.encode_to_vec()
        }
        3 => {
            let item = || v1::MultiPutItem { key: bytes(40), value: bytes(200), rules, ..Default::default() };
            let items = (0..dice.below(5)).map(|_| item()).collect();
            v1::MultiPutRequest { items, ..Default::default() }.encode_to_vec()
        }
        _ => {
            let operation = || v1::Operation {
                number: dice.below(u64::MAX),
                action: dice.below(6) as i32,
                key: bytes(40),
                value: bytes(200),
                ..Default::default()
            };
            let operations = (0..dice.below(5)).map(|_| operation()).collect();
            v1::OperationsRequest { operations, ..Default::default() }.encode_to_vec()
        }
    }
}

/// The same, wrong in one or more places.
fn damaged(dice: &SeededEntropy) -> Vec<u8> {
    let mut message = valid(dice);
    for _ in 0..dice.below(3) {
        let at = dice.below(message.len() as u64 + 1) as usize;
        match dice.below(5) {
            0 => message.truncate(at),
            1 => drop(message.splice(at..at, varint(length(dice)))),
            2 if at < message.len() => drop(message.splice(at..=at, varint(length(dice)))),
            3 if at < message.len() => message[at] = dice.below(256) as u8,
            _ => message.extend(varint(dice.below(1 << 20))),
        }
    }
    message
}

/// With a prefix, which may be wrong.
fn framed(dice: &SeededEntropy, message: &[u8]) -> Vec<u8> {
    let flag = if dice.below(16) == 0 { dice.below(256) as u8 } else { 0 };
    let claimed = if dice.below(8) == 0 { length(dice) as u32 } else { message.len() as u32 };
    [&[flag][..], &claimed.to_be_bytes(), message].concat()
}

fn frames(dice: &SeededEntropy, bytes: &[u8]) -> Frames {
    let cut = 1 + dice.below(if dice.below(2) == 0 { 20 } else { 4_000 }) as usize;
    Frames(bytes.chunks(cut).map(Bytes::copy_from_slice).collect::<Vec<_>>().into_iter())
}

/// Checks the code of a refusal.
fn check(status: &Status) {
    let known = [Code::Internal, Code::ResourceExhausted, Code::Unimplemented, Code::InvalidArgument];
    assert!(known.contains(&status.code()), "{status:?}");
}

#[test]
fn malformed_requests_fail_cleanly() {
    let store = crate::testing::store();
    let dice = SeededEntropy::new(21);
    let (mut taken, mut refused) = (0_usize, 0_usize);
    let mut count = |result: Result<(), Status>| match result {
        Ok(()) => taken += 1,
        Err(status) => {
            check(&status);
            refused += 1;
        }
    };
    for case in 0..CASES {
        let message = damaged(&dice);
        let sent = framed(&dice, &message);
        count(receive_for_test(&store, frames(&dice, &sent), dice.below(4)));
        if case % STORE_EVERY > 0 {
            continue;
        }
        let message = Bytes::from(message);
        let failed = |failure: crate::failure::Failure| failure.into_status();
        let got = block_on(multi_get(admitted(&store, message.clone())));
        count(got.map(drop).map_err(failed));
        let put = block_on(multi_put(admitted(&store, message.clone())));
        count(put.map(drop).map_err(failed));
        let deleted = block_on(multi_delete(admitted(&store, message)));
        count(deleted.map(drop).map_err(failed));
        for answer in exchanged(&store, frames(&dice, &sent)) {
            count(answer.map(drop).map_err(failed));
        }
        let mut decoders = Decoders::new(dice.below(2) == 0, true).unwrap();
        count(decoders.push(sent.into()).and_then(|()| {
            while decoders.next()?.is_some() {}
            decoders.end()
        }));
    }
    println!("{CASES} requests: {taken} readings took one, {refused} refused one");
    assert!(taken > CASES / 10 && refused > CASES / 10, "{taken} {refused}");
    assert!(store.stat().poisoned.is_none());
}
