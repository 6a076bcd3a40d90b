//! The cost of the ways to run a request on this machine: latencies at depth 1, batches, and reads at depth 64.
//!
//! `cargo run --release -p shoal-device --example latency -- [FILE [SECONDS]]`: the file is created, written once, and
//! removed. Figures are medians and 99th percentiles in microseconds, and CPU time of the process an operation.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shoal_base::SeededEntropy;
use shoal_base::task::block_on;
use shoal_device::{Device, DeviceError, FileOptions, IoBuf, IoFuture, IoMemory, IoMode, Outcome, open};

const FILE_BLOCKS: u64 = 64 << 10;
const CHUNK_BLOCKS: u64 = 256;

type Done = Result<(), DeviceError>;

/// Runs on the calling thread or in the background.
#[derive(Clone, Copy)]
enum Method {
    Execute,
    Submit,
}

impl Method {
    fn run<M: IoMemory>(self, request: IoFuture<M>) -> Outcome<M> {
        match self {
            Self::Execute => block_on(request),
            Self::Submit => block_on(request.in_background()),
        }
    }

    fn run_all<M: IoMemory>(self, device: &Device, requests: Vec<IoFuture<M>>) -> Done {
        let mut batch = device.batch();
        let requests: Vec<_> = requests.into_iter().map(|request| batch.add(request)).collect();
        block_on(async {
            match self {
                Self::Execute => batch.start(),
                Self::Submit => batch.start_in_background(),
            }
            for request in requests {
                request.await.result?;
            }
            Ok(())
        })
    }
}

struct Bench {
    device: Device,
    random: SeededEntropy,
    time: Duration,
}

impl Bench {
    fn block(&self) -> u64 {
        self.random.below(FILE_BLOCKS)
    }

    fn write(&self, way: Method) -> Done {
        way.run(self.device.write(self.block(), IoBuf::copied_from(&[1; 4096]))).result
    }

    fn writes(&self, count: usize) -> Vec<IoFuture<IoBuf>> {
        (0..count).map(|_| self.device.write(self.block(), IoBuf::copied_from(&[1; 4096]))).collect()
    }

    fn flush(&self, way: Method) -> Done {
        way.run(self.device.flush()).result
    }

    /// Runs `operation`, which performs `count` operations, repeatedly and prints the cost of one run.
    fn measure(
        &self,
        name: &str,
        count: u32,
        mut operation: impl FnMut() -> Done,
    ) -> Result<(), Box<dyn Error>> {
        let mut times = Vec::new();
        let (start, cpu) = (Instant::now(), cpu_ticks()?);
        while start.elapsed() < self.time {
            let began = Instant::now();
            operation()?;
            times.push(began.elapsed());
        }
        let cpu_us = (cpu_ticks()? - cpu) * 10_000 / (times.len() as u64 * u64::from(count)).max(1);
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        let rate = times.len() as f64 * f64::from(count) / start.elapsed().as_secs_f64();
        println!("{name:34} p50 {:8.1} us  p99 {:8.1} us  {rate:9.0}/s  {cpu_us:4} us CPU", at(50), at(99));
        Ok(())
    }

    fn all(&self) -> Result<(), Box<dyn Error>> {
        let device = &self.device;
        let both = [("execute", Method::Execute), ("submit", Method::Submit)];
        for (name, way) in both {
            let read = || way.run(device.read(self.block(), IoBuf::new(1))).result;
            self.measure(&format!("read 4 KiB, {name}"), 1, read)?;
        }
        for (name, way) in both {
            let reads = || {
                let reads = (0..16).map(|_| device.read(self.block(), IoBuf::new(1)));
                way.run_all(device, reads.collect())
            };
            self.measure(&format!("16 reads 4 KiB, {name}"), 16, reads)?;
        }
        for (name, way) in both {
            self.measure(&format!("write 4 KiB + flush, {name}"), 1, || {
                self.write(way)?;
                self.flush(way)
            })?;
            let durable =
                || way.run(device.write_durable(self.block(), IoBuf::copied_from(&[1; 4096]))).result;
            self.measure(&format!("write 4 KiB durable, {name}"), 1, durable)?;
            self.measure(&format!("16 writes 4 KiB + flush, {name}"), 16, || {
                way.run_all(device, self.writes(16))?;
                self.flush(way)
            })?;
        }
        let deep = || {
            Method::Submit
                .run_all(device, (0..64).map(|_| device.read(self.block(), IoBuf::new(1))).collect())
        };
        self.measure("64 reads 4 KiB, submit", 64, deep)
    }
}

/// User and system time of this process, in hundredths of a second.
fn cpu_ticks() -> Result<u64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    Ok(ticks(11) + ticks(12))
}

fn prepared(path: &Path, io: IoMode) -> Result<Device, Box<dyn Error>> {
    let device = open(path, &FileOptions { create: true, io, ..FileOptions::default() })?;
    if device.blocks() < FILE_BLOCKS {
        device.inner().grow(FILE_BLOCKS)?;
        for block in (0..FILE_BLOCKS).step_by(CHUNK_BLOCKS as usize) {
            block_on(device.write(block, IoBuf::new(CHUNK_BLOCKS as usize))).result?;
        }
        block_on(device.flush()).result?;
    }
    Ok(device)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map_or_else(|| std::env::temp_dir().join("shoal-latency"), PathBuf::from);
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    for io in [IoMode::Uring, IoMode::Threads] {
        let bench = Bench {
            device: prepared(&path, io)?,
            random: SeededEntropy::new(1),
            time: Duration::from_secs_f64(seconds),
        };
        println!("{}", bench.device.inner().describe());
        bench.all()?;
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
