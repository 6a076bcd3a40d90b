//! Every device against a model: the bytes as a `Vec<u8>`, and random requests by all ways of running them.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use shoal_base::plug::plug;
use shoal_base::task::block_on;
use shoal_device::{
    BLOCK_BYTES, Completion, Device, DeviceError, FileOptions, IoBuf, IoFuture, IoMode, MemDevice, open,
};
use shoal_device_sim::{Image, Latency, SimDevice, SimOptions};

const BLOCKS: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// On the calling thread.
    Here,
    /// Submitted.
    Background,
    /// Submitted one by one, by a thread that holds writes back meanwhile.
    Plugged,
}

#[derive(Clone, Debug)]
enum Request {
    Read {
        block: u64,
        segments: Vec<usize>,
    },
    Write {
        block: u64,
        segments: Vec<usize>,
        durable: bool,
    },
    /// Writes of single blocks that do not overlap, and then reads of them, each as one batch.
    IoBatch {
        first: u64,
        count: u64,
        step: u64,
    },
    Flush,
    Grow {
        blocks: u64,
    },
}

fn request() -> impl Strategy<Value = Request> {
    let segments = || prop::collection::vec(0..4_usize, 0..5);
    let block = || 0..BLOCKS + 8;
    prop_oneof![
        4 => (block(), segments()).prop_map(|(block, segments)| Request::Read { block, segments }),
        4 => (block(), segments(), any::<bool>())
            .prop_map(|(block, segments, durable)| Request::Write { block, segments, durable }),
        2 => (0..20_u64, 0..90_u64, 1..3_u64).prop_map(|(first, count, step)| Request::IoBatch { first, count, step }),
        1 => Just(Request::Flush),
        1 => (BLOCKS..BLOCKS + 40).prop_map(|blocks| Request::Grow { blocks }),
    ]
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Here), Just(Way::Background), Just(Way::Plugged)]
}

struct Checked {
    device: Device,
    model: Vec<u8>,
    next_tag: u8,
}

/// The device's answer to a request outside its range.
fn is_out_of_range(error: &DeviceError) -> bool {
    matches!(error, DeviceError::OutOfRange { .. })
}

fn finish<M: shoal_device::IoMemory>(way: Way, future: IoFuture<M>) -> Completion<M> {
    match way {
        Way::Here => block_on(future),
        Way::Background => block_on(future.in_background()),
        Way::Plugged => block_on(plug(|| future.in_background())),
    }
}

impl Checked {
    fn new(device: Device) -> Self {
        let model = vec![0; device.blocks() as usize * BLOCK_BYTES];
        Self { device, model, next_tag: 0 }
    }

    fn fits(&self, block: u64, blocks: usize) -> bool {
        (block as usize + blocks) * BLOCK_BYTES <= self.model.len()
    }

    /// A buffer that no other write filled alike, as far as 250 of them go.
    fn filled(&mut self, blocks: usize) -> IoBuf {
        let mut buf = IoBuf::new(blocks);
        for (place, bytes) in buf.chunks_mut(8).enumerate() {
            bytes.fill(self.next_tag.wrapping_add((place / 64) as u8));
        }
        self.next_tag = self.next_tag.wrapping_add(7);
        buf
    }

    fn model_write(&mut self, block: u64, bytes: &[u8]) {
        let at = block as usize * BLOCK_BYTES;
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn run(&mut self, request: &Request, way: Way) {
        match request {
            Request::Read { block, segments } => self.read(*block, segments, way),
            Request::Write { block, segments, durable } => self.write(*block, segments, *durable, way),
            Request::IoBatch { first, count, step } => self.batch(*first, *count, *step, way),
            Request::Flush => finish(way, self.device.flush()).result.unwrap(),
            Request::Grow { blocks } => {
                if self.device.inner().can_grow() {
                    self.device.inner().grow(*blocks).unwrap();
                    let bytes = (*blocks as usize * BLOCK_BYTES).max(self.model.len());
                    self.model.resize(bytes, 0);
                } else {
                    assert_eq!(self.device.inner().grow(*blocks).is_ok(), *blocks <= self.device.blocks());
                }
            }
        }
        assert_eq!(self.device.blocks() as usize * BLOCK_BYTES, self.model.len());
    }

    fn read(&mut self, block: u64, segments: &[usize], way: Way) {
        let memory: Vec<IoBuf> = segments.iter().map(|&blocks| IoBuf::new(blocks)).collect();
        let completion = finish(way, self.device.read(block, memory));
        if !self.fits(block, segments.iter().sum()) {
            return assert!(is_out_of_range(&completion.result.unwrap_err()));
        }
        let found: Vec<u8> = completion.ok().unwrap().iter().flat_map(|buf| buf.to_vec()).collect();
        assert!(
            found == self.model[block as usize * BLOCK_BYTES..][..found.len()],
            "wrong bytes at block {block}"
        );
    }

    fn write(&mut self, block: u64, segments: &[usize], durable: bool, way: Way) {
        let memory: Vec<IoBuf> = segments.iter().map(|&blocks| self.filled(blocks)).collect();
        let write = if durable { Device::write_durable } else { Device::write };
        let completion = finish(way, write(&self.device, block, memory));
        if !self.fits(block, segments.iter().sum()) {
            return assert!(is_out_of_range(&completion.result.unwrap_err()));
        }
        let written: Vec<u8> = completion.ok().unwrap().iter().flat_map(|buf| buf.to_vec()).collect();
        self.model_write(block, &written);
    }

    fn start<M: shoal_device::IoMemory>(
        &self,
        requests: Vec<(u64, IoFuture<M>)>,
        way: Way,
    ) -> Vec<(u64, IoFuture<M>)> {
        if way == Way::Plugged {
            let each = |(block, request): (u64, IoFuture<M>)| (block, request.in_background());
            return plug(|| requests.into_iter().map(each).collect());
        }
        let mut batch = self.device.batch();
        let requests = requests.into_iter().map(|(block, request)| (block, batch.add(request))).collect();
        match way {
            Way::Here => block_on(async { batch.start() }),
            Way::Background | Way::Plugged => batch.start_in_background(),
        }
        requests
    }

    fn batch(&mut self, first: u64, count: u64, step: u64, way: Way) {
        let blocks: Vec<u64> = (0..count).map(|number| first + number * step).collect();
        let writes: Vec<_> = blocks
            .iter()
            .map(|&block| {
                let memory = self.filled(1);
                (block, self.device.write(block, memory))
            })
            .collect();
        let writes = self.start(writes, way);
        for (block, write) in writes {
            let completion = block_on(write);
            if self.fits(block, 1) {
                let memory = completion.ok().unwrap();
                self.model_write(block, &memory);
            } else {
                assert!(is_out_of_range(&completion.result.unwrap_err()));
            }
        }
        let reads = blocks.iter().map(|&block| (block, self.device.read(block, IoBuf::new(1)))).collect();
        let reads = self.start(reads, way);
        for (block, read) in reads {
            let completion = block_on(read);
            if self.fits(block, 1) {
                let found = completion.ok().unwrap();
                assert!(found[..] == self.model[block as usize * BLOCK_BYTES..][..BLOCK_BYTES]);
            } else {
                assert!(is_out_of_range(&completion.result.unwrap_err()));
            }
        }
    }
}

fn file(folder: &Path, io: IoMode, direct: bool) -> Device {
    let options = FileOptions { create: true, io, direct, threads: 3, ..FileOptions::default() };
    let device = open(&folder.join("data"), &options).unwrap();
    let wanted = if io == IoMode::Uring { "io_uring" } else { "3 threads" };
    assert!(device.inner().describe().contains(wanted), "{device:?}");
    device.inner().grow(BLOCKS).unwrap();
    device
}

fn check(make: impl Fn(&Path) -> Device, requests: &[(Request, Way)]) {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = Checked::new(make(folder.path()));
    for (request, way) in requests {
        checked.run(request, *way);
    }
}

/// Test name, cases, device.
macro_rules! conforms {
    ($($name:ident, $cases:literal, $make:expr;)*) => {
        proptest! {$(
            #![proptest_config(ProptestConfig { cases: $cases, max_shrink_iters: 200, ..ProptestConfig::default() })]
            #[test]
            fn $name(requests in prop::collection::vec((request(), way()), 0..25)) {
                check($make, &requests);
            }
        )*}
    };
}

mod uring_direct {
    use super::*;
    conforms! { conforms, 24, |folder| file(folder, IoMode::Uring, true); }
}
mod uring_cached {
    use super::*;
    conforms! { conforms, 24, |folder| file(folder, IoMode::Uring, false); }
}
mod threads_direct {
    use super::*;
    conforms! { conforms, 24, |folder| file(folder, IoMode::Threads, true); }
}
mod threads_cached {
    use super::*;
    conforms! { conforms, 24, |folder| file(folder, IoMode::Threads, false); }
}
mod memory {
    use super::*;
    conforms! { fixed, 100, |_| Device::new(Arc::new(MemDevice::new(BLOCKS))); }
}
mod memory_growable {
    use super::*;
    conforms! { conforms, 100, |_| Device::new(Arc::new(MemDevice::growable(BLOCKS))); }
}
mod sim {
    use super::*;
    fn slow() -> SimOptions {
        let latency =
            Latency { read_ns: 20_000, write_ns: 10_000, flush_ns: 50_000, slow_every: 7, slow_times: 3 };
        SimOptions { latency, parallel: 4, growable: true, ..SimOptions::default() }
    }
    conforms! { instant, 100, |_| Device::new(SimDevice::new(BLOCKS)); }
    mod timed {
        use super::*;
        conforms! { conforms, 24, |_| Device::new(SimDevice::with_options(Image::new(BLOCKS), slow())); }
    }
}
