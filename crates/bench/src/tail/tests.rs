//! Whole runs against servers in this process, one of which stalls.

use std::time::Duration;

use serde_json::Value;
use shoal_device::IoMode;

use super::echo::{Echo, Pause};
use super::generator::{self, ANSWER_MAX, Clients, Pace};
use super::record::{Figures, Kind, Second};
use super::work::{Objects, Work};
use super::*;
use crate::histogram::Histogram;

const STALL: Duration = Duration::from_secs(1);

/// The options of a short run.
pub(super) fn options(server: TailServer) -> TailOptions {
    TailOptions {
        version: "test".into(),
        json: true,
        server,
        objects: 200,
        value_bytes: 1_000,
        filled: false,
        connections: 4,
        in_flight: 1,
        get_share: 0.0,
        arrivals: Arrivals::Poisson,
        rates: Rates::PerSecond(vec![1_000.0]),
        measure: Duration::from_millis(50),
        time: Duration::from_millis(200),
        warm_up: Duration::ZERO,
        pause: Duration::ZERO,
        device_file: None,
        device_time: Duration::from_millis(50),
        plot: None,
    }
}

fn clients(echo: &Echo) -> Clients {
    let address = echo.address;
    Clients { address, connections: 4, in_flight: 1, value_bytes: 100, answer_max: ANSWER_MAX }
}

/// 1.5 s at 1,000 operations a second over four connections; the server stalls for one second at the 100th command.
fn through_a_stall(in_flight: usize) -> (Figures, Vec<Second>) {
    let objects = Objects::new(100, 100);
    let echo = Echo::start(100, Some(Pause { after: 100, time: STALL })).unwrap();
    let clients = Clients { in_flight, ..clients(&echo) };
    let schedule = Schedule::new(1_000.0, Duration::from_millis(1_500), Arrivals::Constant, 1);
    let mut seconds = Vec::new();
    let mut complete = |second| seconds.push(second);
    let pace = Pace::Open(schedule, Duration::ZERO);
    let figures = generator::run(&clients, pace, Work::random(&objects, 0.0, 1), &mut complete).unwrap();
    (figures, seconds)
}

/// Latencies of at least `least`, found by bisection of the quantiles.
fn longer_than(latencies: &Histogram, least: Duration) -> u64 {
    let us = least.as_secs_f64() * 1e6;
    let shorter = (1..=1000).take_while(|&permille| latencies.quantile_us(permille) < us).count() as u64;
    latencies.count() * (1000 - shorter) / 1000
}

/// Symptom of an uncorrected generator: the server answers nothing for a second, in which a thousand operations are due, and
/// only those that were in flight, four, have a long latency: p99 does not show the stall. Counted from the actual sending, this
/// test fails.
#[test]
fn every_operation_that_is_due_during_a_stall_counts_with_its_wait() {
    for in_flight in [1, 8] {
        let (figures, seconds) = through_a_stall(in_flight);
        let sets = &figures.latencies[Kind::Set as usize];
        assert_eq!(sets.count(), 1_500, "an operation is sent for each time of the schedule");
        // Due at 100 ms + t, answered not before 1,100 ms: a wait of a second minus t.
        for (least_ms, operations) in [(900, 90), (500, 490), (100, 890)] {
            let longer = longer_than(sets, Duration::from_millis(least_ms));
            assert!(longer >= operations, "{in_flight}: {longer} operations above {least_ms} ms");
        }
        assert!(sets.max() >= STALL - Duration::from_millis(10) && figures.stall >= STALL / 2);
        assert!(figures.queued >= 900, "{in_flight}: {} waited for a connection", figures.queued);
        assert_eq!(figures.unanswered, 0);
        let due: u64 = seconds.iter().map(|second| second.count).sum();
        assert_eq!((due, seconds[0].number, seconds[0].count), (1_500, 0, 1_000));
        assert!(seconds[0].max == sets.max());
    }
}

#[test]
fn a_run_without_answers_is_abandoned_and_everything_due_counts() {
    let objects = Objects::new(100, 100);
    let echo = Echo::start(100, Some(Pause { after: 50, time: STALL })).unwrap();
    let clients = Clients { answer_max: Duration::from_millis(100), ..clients(&echo) };
    let schedule = Schedule::new(1_000.0, Duration::from_secs(60), Arrivals::Constant, 1);
    let (pace, work) = (Pace::Open(schedule, Duration::ZERO), Work::random(&objects, 0.0, 1));
    let figures = generator::run(&clients, pace, work, &mut |_| ()).unwrap();
    // Four were in flight, and the others due.
    assert!(figures.unanswered >= 90, "{}", figures.unanswered);
    assert_eq!(figures.all().count(), 50 + figures.unanswered);
    assert!(figures.all().max() >= Duration::from_millis(90));
}

fn lines(options: &TailOptions) -> Vec<Value> {
    options.check().unwrap();
    let mut out = Vec::new();
    run(options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn value(lines: &[Value], case: &str, variant: &str, metric: &str) -> f64 {
    let is_it =
        |line: &&Value| line["case"] == case && line["variant"] == variant && line["metric"] == metric;
    let line = lines.iter().find(is_it).unwrap_or_else(|| panic!("{case} {variant} {metric}: {lines:?}"));
    line["value"].as_f64().unwrap()
}

#[test]
fn a_share_of_the_maximum_of_an_own_store_has_rows_for_sets_gets_and_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let own = |keep| {
        TailServer::Own(OwnStore {
            data: Some(data.clone()),
            keep,
            cache: 32 << 20,
            memtable: None,
            size: 1 << 30,
            io: IoMode::Auto,
        })
    };
    let options = TailOptions {
        get_share: 0.5,
        rates: Rates::Shares(vec![0.2]),
        plot: Some(folder.path().join("chart.svg")),
        ..options(own(true))
    };
    let found = lines(&options);
    assert!(value(&found, "closed", "all", "ops_per_s") > 0.0);
    for variant in ["set", "get", "all", "device-write", "device-read"] {
        assert!(value(&found, "share-0.2", variant, "p50_ms") > 0.0, "{variant}");
        let [p90, max] = ["p90_ms", "max_ms"].map(|metric| value(&found, "share-0.2", variant, metric));
        assert!(max >= p90 * 0.98, "{variant}: {p90} {max}");
    }
    assert_eq!(value(&found, "share-0.2", "all", "unanswered"), 0.0);
    assert!(value(&found, "share-0.2", "second-0", "operations") > 0.0);
    assert!(folder.path().join("chart.svg").exists());
    // The kept file is used again, and stays.
    let rates = Rates::PerSecond(vec![200.0]);
    let again = TailOptions { filled: true, plot: None, get_share: 1.0, rates, ..options };
    assert!(value(&lines(&again), "rate-200", "get", "ops_per_s") > 0.0);
    assert!(data.exists());
    let other = TailOptions { value_bytes: 999, ..again };
    assert!(run(&other, &mut Vec::new()).unwrap_err().to_string().contains("--filled"));
}

#[test]
fn a_running_server_and_the_generator_alone_are_measured() {
    let bed = Bed::new(StoreLocation::Memory).unwrap();
    let of_server = lines(&options(TailServer::Address(bed.address)));
    assert!(value(&of_server, "rate-1000", "set", "operations") > 100.0);
    let alone = TailOptions { get_share: 1.0, arrivals: Arrivals::Constant, ..options(TailServer::Echo) };
    let found = lines(&alone);
    assert_eq!(value(&found, "rate-1000", "get", "operations"), 200.0);
    assert!(value(&found, "rate-1000", "sent-late", "p50_ms") > 0.0);
}

#[test]
fn an_object_that_is_missing_is_an_error() {
    let bed = Bed::new(StoreLocation::Memory).unwrap();
    let server = TailServer::Address(bed.address);
    let filled = TailOptions { filled: true, ..options(server) };
    assert!(run(&filled, &mut Vec::new()).is_err());
}
