//! Rates, windows and units of samples made of readings by hand.

use shoal_base::histogram::AtomicHistogram;
use shoal_engine::StoreStat;
use shoal_metrics::{MemoryParts, RequestCounts};

use super::*;

const S: u64 = 1_000_000_000;

/// Durations in nanoseconds, each with its count.
fn durations(of: &[(u64, u64)]) -> Durations {
    let histogram = AtomicHistogram::default();
    of.iter().for_each(|&(ns, times)| histogram.add(ns, times));
    let mut sum = Durations::default();
    histogram.read(&mut sum);
    sum
}

fn counts(operation: Operation, result: RequestResult, of: &[(u64, u64)]) -> RequestCounts {
    RequestCounts { operation, result, durations: durations(of) }
}

fn reading(at_ns: u64, requests: Vec<RequestCounts>) -> Reading {
    let frontend = FrontendReading { name: "grpc", requests, ..FrontendReading::default() };
    Reading { at_ns, wall_ns: at_ns, frontends: vec![frontend], ..Reading::default() }
}

fn puts(of: &[(u64, u64)]) -> Vec<RequestCounts> {
    vec![counts(Operation::Put, RequestResult::Ok, of)]
}

#[test]
fn rates_are_those_of_the_time_between_two_readings() {
    let requests = |times: u64| {
        vec![
            counts(Operation::Get, RequestResult::Ok, &[(1_000, times)]),
            counts(Operation::Get, RequestResult::NotFound, &[(1_000, times)]),
            counts(Operation::Put, RequestResult::Refused, &[(1_000, 2 * times)]),
            counts(Operation::MultiPut, RequestResult::Ok, &[(1_000, 3 * times)]),
            counts(Operation::Transaction, RequestResult::Failed, &[(1_000, times)]),
        ]
    };
    let mut past = Past::new(reading(5 * S, requests(10)), 2 * S);
    let mut now = reading(7 * S, requests(30));
    now.frontends[0].sent_bytes = 4_000;
    // A frontend that serves since the last reading.
    now.frontends.push(FrontendReading {
        name: "s3",
        requests: vec![counts(Operation::Head, RequestResult::Ok, &[(5, 8)])],
        ..FrontendReading::default()
    });
    let sample = past.sample(now);
    let grpc = &sample.frontends[0];
    let rates = &grpc.per_s;
    assert_eq!((rates.get, rates.put, rates.multi, rates.delete, rates.other), (20.0, 20.0, 40.0, 0.0, 0.0));
    assert_eq!((grpc.failed_per_s, grpc.sent_per_s, grpc.received_per_s), (30.0, 2_000.0, 0.0));
    assert_eq!((sample.frontends[1].name, sample.frontends[1].per_s.get), ("s3", 4.0));
    assert_eq!((sample.uptime_s, sample.at_ms), (5, 7_000));
    // A second without requests.
    let mut calm = reading(8 * S, requests(30));
    calm.frontends[0].sent_bytes = 4_000;
    let sample = past.sample(calm);
    assert_eq!((sample.frontends[0].per_s.get, sample.frontends[0].sent_per_s), (0.0, 0.0));
}

#[test]
fn latencies_are_those_of_ten_seconds_and_heat_of_one() {
    let mut past = Past::new(reading(0, puts(&[(1_000_000, 1_000)])), 0);
    // Slow ones in the first second, fast ones in the third.
    let slow = [(1_000_000, 1_000), (50_000_000, 10)];
    let both = [(1_000_000, 1_000), (50_000_000, 10), (2_000, 990)];
    let first = past.sample(reading(S, puts(&slow)));
    let put = &first.latency.put;
    assert_eq!((put.count, put.p50_us, put.max_us, put.window_s), (10, Some(50_000.0), Some(50_000.0), 1.0));
    assert_eq!(first.latency.get, Latency { window_s: 1.0, ..Latency::default() });
    past.sample(reading(2 * S, puts(&slow)));
    let third = past.sample(reading(3 * S, puts(&both)));
    let put = &third.latency.put;
    assert_eq!(
        (put.count, put.p50_us, put.p99_us, put.p999_us),
        (1_000, Some(2.0), Some(2.0), Some(50_000.0))
    );
    let heat: u64 = third.heat.put.iter().sum();
    assert_eq!((heat, third.heat.put.len()), (990, BOUNDS_NS.len() + 1));
    assert_eq!(third.heat.put[shoal_base::histogram::bucket_of(2_000)], 990);
    assert_eq!(heat_edges_us().count() + 1, third.heat.put.len());
    // The slow ones leave the window with the reading at its start.
    for second in 4..=10 {
        assert_eq!(past.sample(reading(second * S, puts(&both))).latency.put.count, 1_000, "{second}");
    }
    let later = past.sample(reading(11 * S, puts(&both)));
    assert_eq!((later.latency.put.count, later.latency.put.max_us), (990, Some(2.0)));
    let calm = past.sample(reading(13 * S, puts(&both)));
    assert_eq!((calm.latency.put.count, calm.latency.put.p50_us), (0, None));
}

#[test]
fn figures_of_the_store_have_their_units() {
    let mut stat = StoreStat { blocks_max: 1_000, device_blocks: 100, log_blocks: 8, ..StoreStat::default() };
    stat.pool.frames = 10;
    let before = Reading { at_ns: S, stat: stat.clone(), ..Reading::default() };
    let mut past = Past::new(before, S);
    (stat.batches, stat.records, stat.log_blocks_written) = (10, 25, 20);
    stat.commit_times = durations(&[(3_000, 10)]);
    (stat.pool.hits, stat.pool.misses, stat.pool.frames_used) = (3, 1, 5);
    (stat.paused_ns, stat.merged_bytes, stat.device_blocks, stat.moved_bytes, stat.bytes_evacuated) =
        (500_000_000, 77, 200, 1, 2);
    (stat.device.reads, stat.device.blocks_read) = (4, 6);
    (stat.memtable_bytes, stat.memtable_bytes_max, stat.taken_blocks) = (9, 99, 50);
    let mut now = Reading { at_ns: 2 * S, stat, file_blocks_max: Some(80), ..Reading::default() };
    (now.usage.user_seconds, now.usage.system_seconds, now.usage.threads) = (1.0, 0.5, 7);
    now.memory = MemoryParts { total: 5, parts: vec![("cache".into(), 4)] };
    let sample = serde_json::to_value(past.sample(now)).unwrap();
    let is = |path: &str, expected: serde_json::Value| {
        assert_eq!(sample.pointer(path), Some(&expected), "{path}");
    };
    is("/commit/batches_per_s", 10.0.into());
    is("/commit/records_per_batch", 2.5.into());
    is("/commit/bytes_per_s", 81_920.0.into());
    is("/commit/flush_p50_us", 3.15.into());
    is("/cache/hit_rate", 0.75.into());
    is("/cache/bytes", (5 * 4096).into());
    is("/cache/capacity_bytes", (10 * 4096).into());
    is("/background/paused_ms_per_s", 500.0.into());
    is("/background/merge_bytes_per_s", 77.0.into());
    is("/background/growth_bytes_per_s", 409_600.0.into());
    is("/background/moved_bytes_per_s", 3.0.into());
    is("/device/reads_per_s", 4.0.into());
    is("/device/read_bytes_per_s", 24_576.0.into());
    is("/room/cap_bytes", 4_096_000.into());
    is("/room/file_bytes", 819_200.into());
    is("/room/disk_free_bytes", (30 * 4096).into());
    is("/log/ring_bytes", 32_768.into());
    is("/memtable/max_bytes", 99.into());
    is("/process/cpu_cores", 1.5.into());
    is("/process/memory_parts/0/name", "cache".into());
    is("/backup", serde_json::Value::Null);
    is("/scrub/ended_ms", serde_json::Value::Null);
}
