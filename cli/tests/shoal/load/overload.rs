//! Overload (T16): twice the server's maximum. Each operation is done or gets a busy answer, memory stays bounded, nothing that was
//! acknowledged is lost, and afterwards there is full service again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_base::SeededEntropy;
use shoal_storekit::{eventually, in_time};
use shoal_testkit::lab;

use super::{Ended, Full, Kind, Open, World, client, closed, figure, open};
use crate::harness::{Frontends, assert_clean};
use crate::kill::CACHE_BYTES;
use crate::machine::{disk_folder, runtime};
use crate::memory::LOOK_EVERY;
use crate::process::{memory, memory_peak, mib};

const CONNECTIONS: usize = 2;
/// The rate of this many clients, each of which waits for its answer, counts as the peak. More under way may get more done.
const TASKS: u64 = 48;
/// The number that the server takes on these connections at a time, and some that wait for them.
const UNDER_WAY_MAX: usize = 600;

/// Bytes of requests and answers that these connections may hold (`connection_bytes_in_flight_max`), and the number of their copies in
/// memory: a long value is there as it came and as it goes to the device, and the allocator keeps some of the freed memory.
const COPIES: u64 = 3;
const IN_FLIGHT_BYTES: u64 = CONNECTIONS as u64 * (128 << 20);
/// Bytes that HTTP/2 may hold besides: a window, and the parts that it took over of the answers of 256 streams
/// (`crates/http/src/limits.rs`).
const HTTP2_BYTES: u64 = CONNECTIONS as u64 * ((89 << 20) + 256 * (128 << 10));

/// Code, stacks, memtables and the like, in the dev profile.
const BESIDE_BYTES: u64 = 112 << 20;

/// The maximum length of a value in one message.
const LONGEST: usize = 4 << 20;

/// Lengths of values, each as frequent as the others: long ones, so that it is bytes that are too many.
const LENGTHS: [usize; 3] = [1_000, 2 << 20, LONGEST];

/// One delete to six puts: in the long run six of seven keys are there.
fn draw(dice: &SeededEntropy) -> Kind {
    match dice.below(20) {
        0..13 => Kind::Get,
        13..19 => Kind::Put(LENGTHS[dice.below(3) as usize]),
        _ => Kind::Delete,
    }
}

#[test]
fn overload_costs_only_the_client_that_asks_for_too_much() {
    let seconds = lab::number("OVERLOAD_S", 3);
    // More than operations under way.
    let keys = lab::number("OVERLOAD_KEYS", 650) as usize;
    let runtime = runtime();
    let folder = disk_folder();
    let data = folder.path().join("data");
    let server = Frontends::start(Frontends::command(&data, "8G"));
    let pid = server.pid();
    let world = Arc::new(World::new("overload", keys));
    runtime.block_on(async {
        let client = client(&server.grpc, CONNECTIONS).await;
        // As much to read as there will be later, or the same load would cost less now than afterwards.
        for key in (0..keys).filter(|key| key % 7 > 0) {
            assert_eq!(world.run(&client, key, Kind::Put(LENGTHS[key % 3])).await, Ended::Done);
        }
        // And no more work left over from it than there will be.
        eventually("the applies", || async { figure(&client, "overlay.records").await == 0 }).await;
        let warm = Duration::from_secs((seconds / 6).clamp(1, 3));
        let peak = closed(&world, &client, draw, TASKS, warm).await;
        let ended = Arc::new(AtomicBool::new(false));
        let looks = std::thread::spawn({
            let ended = ended.clone();
            move || {
                let mut most = 0;
                while !ended.load(Ordering::Relaxed) {
                    most = memory(pid).max(most);
                    std::thread::sleep(LOOK_EVERY);
                }
                most
            }
        });
        let (time, mut rate) = (Duration::from_secs(seconds), peak * 2.0);
        let (tally, drained, goodput) = loop {
            let began = Instant::now();
            let load = Open { draw, rate, time, under_way_max: UNDER_WAY_MAX, full: Full::LeavesOut };
            let (tally, drained) = open(&world, &client, &load).await;
            let goodput = tally.done as f64 / began.elapsed().as_secs_f64();
            if tally.busy > 0 {
                break (tally, drained, goodput);
            }
            // The machine had other things to do when it was measured: this was not too much.
            println!("overload: nobody was told that it is busy at {rate:.0} a second");
            rate *= 2.0;
        };
        ended.store(true, Ordering::Relaxed);
        let most = looks.join().unwrap().max(memory_peak(pid));
        // A client that asks for one thing at a time is served at once.
        let began = Instant::now();
        for key in 0..20 {
            for kind in [Kind::Put(100_000), Kind::Get] {
                assert_eq!(in_time("a call", world.run(&client, key, kind)).await, Ended::Done);
            }
        }
        let first_calls = began.elapsed();
        let again = closed(&world, &client, draw, TASKS, warm).await;
        let held = world.verify(&client).await;
        let (refused, in_all_us) =
            (figure(&client, "server.requests_refused").await, figure(&client, "server.refused_us").await);
        let mean_us = in_all_us as f64 / refused as f64;
        let longest_us = figure(&client, "server.refused_us_max").await;
        let limit = CACHE_BYTES + BESIDE_BYTES + COPIES * IN_FLIGHT_BYTES + HTTP2_BYTES;
        let [half, most_of, all] = [500, 990, 1000].map(|permille| tally.to_busy.quantile_us(permille) / 1000.0);
        println!(
            "overload: {rate:.0} operations a second for {seconds} s, {:.1} times {peak:.0}: {} done ({goodput:.0} a second, {:.0} % of the \
             peak), {} told that it is busy after p50 {half:.2} ms, p99 {most_of:.1}, max {all:.1}, of which the server had them {:.2} ms on \
             average, {:.1} at most; {} left out; done ones: {}; at most \
             {:.0} MiB (bound {:.0}); the last answer {:.2} s after the last call, then 40 calls in {:.0} ms and {again:.0} a second ({:.0} \
             %); {held} objects, none lost",
            rate / peak,
            tally.done,
            goodput * 100.0 / peak,
            tally.busy,
            mean_us / 1000.0,
            longest_us as f64 / 1000.0,
            tally.left_out,
            tally.latencies(),
            mib(most),
            mib(limit),
            drained.as_secs_f64(),
            first_calls.as_secs_f64() * 1000.0,
            again * 100.0 / peak,
        );
        assert!(tally.kinds.iter().all(|&count| count > 0), "not every kind: {:?}", tally.kinds);
        assert!(most <= limit, "{most} bytes of memory, {limit} are its bound");
        assert!(figure(&client, "server.bytes_in_flight").await < 4096, "something is left of it");
        assert!(again > 0.0);
    });
    server.stop();
    assert_clean(&data);
    // Acknowledged writes are in the store, too, and not only in its memory.
    let server = Frontends::start(Frontends::command(&data, "8G"));
    runtime.block_on(async { world.verify(&client(&server.grpc, 1).await).await });
    server.stop();
}
