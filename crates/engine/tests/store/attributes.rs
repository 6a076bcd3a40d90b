//! Attributes of objects (`docs/format/object.md`): they survive all that moves an object, a listing shows those of the value
//! without reading values, and no program that does not know them opens a store with them.

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{
    Attributes, ByteRange, Error, ListRequest, ListSink, Metadata, ObjectInfo, PutOptions, Store, block_on,
};
use shoal_testkit::bytes::number;

use crate::common::{
    ByName, assert_clean, blank, key, open, quiet, repaired, tiny, tiny_with_layers, tiny_without_layers,
};

const BLOCKS: u64 = 2_048;
const COPIES: [u64; 4] = [0, 1, 32, 33];
/// The flag of the feature among the incompatible ones.
const ATTRIBUTES: u64 = 1 << 4;
/// Bytes of values: in a leaf, packed, with extents, with a manifest.
const SIZES: [usize; 4] = [20, 1_200, 9_000, 400_000];

/// Metadata of object `which`: every other one is stored before the value.
fn metadata(which: u64) -> Metadata {
    let mut metadata = Metadata { content_type: "text/plain".into(), ..Metadata::default() };
    metadata.attributes.set(Attributes::ETAG, Some(&[which as u8; 16]));
    metadata.attributes.set(Attributes::CHECKSUM, Some(&[1, 1, 7, 7, 7, which as u8]));
    if which.is_multiple_of(2) {
        metadata.attributes.set(9, Some(&[b't'; 600]));
    }
    metadata.attributes.set(200, Some(b"a tag of a later program"));
    metadata.user.push(("colour".into(), vec![b'b'; 20].into()));
    metadata
}

fn put(store: &Store, which: u64) {
    let options = PutOptions { metadata: metadata(which), ..PutOptions::default() };
    store.set_with(name(which), vec![which as u8; SIZES[(which / 2 % 4) as usize]], options).unwrap();
}

fn name(which: u64) -> Vec<u8> {
    format!("object-{which:03}").into_bytes()
}

fn assert_all(store: &Store, count: u64) {
    for which in 0..count {
        let found = store.find(name(which)).unwrap().unwrap_or_else(|| panic!("{which} is gone"));
        assert_eq!(found.info.metadata, metadata(which), "{which}");
        assert_eq!(found.value.len(), SIZES[(which / 2 % 4) as usize], "{which}");
        let head = block_on(store.head(&key(name(which)))).unwrap().unwrap();
        assert_eq!(head.metadata, metadata(which), "{which}");
    }
    let request = ListRequest { bucket: "default".into(), ..ListRequest::default() };
    let page = block_on(store.list(&request)).unwrap();
    assert_eq!(page.entries.len() as u64, count);
    for (which, (_, info)) in (0..).zip(page.entries) {
        assert_eq!(info.metadata, metadata(which), "{which}");
    }
}

/// Inline, packed, in extents and with a manifest; as records, in layers and in the base; after openings, compactions, a check and a
/// repair.
#[test]
fn attributes_survive_all_that_moves_an_object() {
    for options in [tiny_with_layers(), tiny_without_layers()] {
        let (sim, device) = blank(BLOCKS, 5);
        for round in 0..3 {
            let store = open(&device, options.clone()).unwrap();
            (0..16).for_each(|which| put(&store, which));
            assert_all(&store, 16);
            // Garbage in packed runs and layers.
            for other in 0..40 {
                store.set(format!("other-{}", other % 10), vec![round; 700]).unwrap();
            }
            (0..10).for_each(|other| store.remove(format!("other-{other}")).unwrap());
            block_on(store.close()).unwrap();
        }
        assert_clean(&device, "with attributes");
        repaired(&device).unwrap();
        assert_all(&open(&device, options).unwrap(), 16);
        assert!(names_attributes(&sim.image()).iter().all(|names| *names));
    }
}

/// A listing without metadata except that of the value.
#[derive(Default)]
struct Summaries(Vec<ObjectInfo>);

impl ListSink for Summaries {
    fn take(&mut self, _key: &[u8], info: ObjectInfo) -> bool {
        self.0.push(info);
        true
    }

    fn needs_only_summary(&self) -> bool {
        true
    }
}

#[test]
fn listing_of_summaries_reads_no_values() {
    const COUNT: u64 = 60;
    let (_, device) = blank(BLOCKS, 6);
    let store = open(&device, tiny()).unwrap();
    let mut before = metadata(0);
    for which in 0..COUNT {
        before.attributes.set(Attributes::ETAG, Some(&[which as u8; 16]));
        let options = PutOptions { metadata: before.clone(), ..PutOptions::default() };
        store.set_with(name(which), vec![1; 5_000], options).unwrap();
    }
    block_on(store.close()).unwrap();
    let request = ListRequest { bucket: "default".into(), ..ListRequest::default() };
    let reads_of = |summaries: bool| {
        let store = open(&device, tiny()).unwrap();
        let reads = device.counters().reads;
        let mut sink = Summaries::default();
        if summaries {
            block_on(store.list_into(&request, &mut sink)).unwrap();
            for (which, info) in (0..).zip(&sink.0) {
                let etag = info.metadata.attributes.get(Attributes::ETAG);
                assert_eq!((info.bytes, etag), (5_000, Some(&[which; 16][..])));
                assert_eq!(info.metadata.attributes.get(Attributes::CHECKSUM).unwrap().len(), 6);
            }
            assert_eq!(sink.0.len() as u64, COUNT);
        } else {
            let page = block_on(store.list(&request)).unwrap();
            assert!(page.entries.iter().all(|(_, info)| info.metadata.attributes.get(9).is_some()));
        }
        device.counters().reads - reads
    };
    let (all, summaries) = (reads_of(false), reads_of(true));
    assert!(summaries + COUNT <= all, "{summaries} reads, and {all} for all of the metadata");
}

#[test]
fn too_long_attributes_change_nothing() {
    let (sim, device) = blank(BLOCKS, 7);
    let store = open(&device, tiny()).unwrap();
    let before = sim.image();
    let mut metadata = Metadata::default();
    metadata.attributes.set(9, Some(&[1; 24 << 10]));
    let options = PutOptions { metadata, ..PutOptions::default() };
    let refused = store.set_with("a", "value", options.clone());
    assert!(
        matches!(&refused, Err(Error::Invalid(why)) if why.contains("attributes included")),
        "{refused:?}"
    );
    assert!(store.put_stream(&key("a"), options).is_err());
    assert_eq!(sim.image(), before, "neither a record nor a feature");
    assert!(block_on(store.get(&key("a"), ByteRange::ALL)).unwrap().is_none());
}

/// Of each valid copy of the superblock, whether it names the feature.
fn names_attributes(image: &Image) -> Vec<bool> {
    let is_valid = |bytes: &&[u8; BLOCK_BYTES]| {
        let crc = number(&bytes[..], (BLOCK_BYTES - 4, 4));
        bytes[..7] == *b"SHOALSB" && crc == u64::from(crc32c(&bytes[..BLOCK_BYTES - 4]))
    };
    let copies = COPIES.iter().map(|&block| image.block(block)).filter(is_valid);
    copies.map(|bytes| number(&bytes[..], (172, 4)) & ATTRIBUTES != 0).collect()
}

/// Before the first record with attributes is in the log, both slots of the superblock name the feature: a program that does not know it
/// opens no store with such a record, whichever copy it reads. A store without attributes never has the flag.
#[test]
fn every_crash_before_the_first_attributes_is_safe() {
    let sim = SimDevice::from_image(blank(256, 8).0.image());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    sim.mark(0);
    (0..4).for_each(|which| _ = store.set(format!("plain-{which}"), vec![1; 50]).unwrap());
    assert!(names_attributes(&sim.image()).iter().all(|names| !names), "a store without attributes");
    sim.mark(1);
    put(&store, 1);
    sim.mark(2);
    store.set("plain-0", vec![2; 50]).unwrap();
    put(&store, 3);
    sim.mark(3);
    drop(store);
    let (mut without, mut half, mut with) = (0, 0, 0);
    sim.history().for_each_crash_state(64, 1, |point, image| {
        let names = names_attributes(&image);
        let acknowledged = point.marks.last().copied().unwrap_or(0);
        let reopened = SimDevice::from_image(image);
        let store = open(&Device::new(reopened), tiny()).unwrap();
        let exists = store.find(name(1)).unwrap().is_some();
        assert!(exists || acknowledged < 2, "state {}: an acknowledged object is lost", point.id);
        if exists {
            assert!(names.iter().all(|names| *names), "state {}: {names:?}", point.id);
            assert_eq!(store.find(name(1)).unwrap().unwrap().info.metadata, metadata(1));
            with += 1;
        } else if names.iter().any(|names| *names) {
            half += 1;
        } else {
            without += 1;
        }
        put(&store, 5);
        assert_eq!(store.find(name(5)).unwrap().unwrap().info.metadata, metadata(5));
    });
    assert!(without > 10 && half > 3 && with > 10, "{without} without, {half} in between, {with} with");
}

/// After any crash, also in the middle of a publish, one more put with attributes leaves the flag in all copies.
#[test]
fn all_copies_have_the_flag_after_an_interrupted_publish() {
    let sim = SimDevice::from_image(blank(256, 9).0.image());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    put(&store, 1);
    drop(store);
    sim.history().for_each_crash_state(16, 2, |point, image| {
        let (sim, device) = quiet(&image);
        let store = open(&device, tiny()).unwrap();
        put(&store, 3);
        drop(store);
        let names = names_attributes(&sim.image());
        assert!(names.iter().all(|names| *names), "state {}: {names:?}", point.id);
    });
}
