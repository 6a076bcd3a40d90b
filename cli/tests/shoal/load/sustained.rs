//! Sustained load (T15): seven tenths of the rate that the server just reached, through applies and publishes. Every get returns the
//! value that was put; memory and open files stay level.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_base::SeededEntropy;
use shoal_testkit::lab;

use super::{Full, Kind, Open, World, client, closed, figure, open};
use crate::harness::{Frontends, assert_clean};
use crate::machine::{disk_folder, runtime};
use crate::memory::{GROWTH_PERCENT_MAX, LEVEL_AFTER, LOOK_EVERY};
use crate::process::{memory, mib, middle, open_files, sockets};

const KEYS: usize = 12_000;
const CONNECTIONS: usize = 4;
/// Tasks that measure the server's maximum.
const TASKS: u64 = 32;
/// Further ones wait: a slow machine must not have more in memory than a fast one.
const UNDER_WAY_MAX: usize = 128;
/// The sleep of a thread that hardly does anything else: a late wake-up shows a machine that stalled, or had no core to spare.
const NAP: Duration = Duration::from_millis(5);

/// Of every home that values have: leaf, log and packed run, extents.
fn draw(dice: &SeededEntropy) -> Kind {
    match dice.below(10) {
        0..5 => Kind::Get,
        5..9 => {
            let most = [300, 900, 4_000, 16_000, 70_000][dice.below(5) as usize];
            Kind::Put(dice.below(most) as usize)
        }
        _ => Kind::Delete,
    }
}

#[test]
fn sustained_load_is_served_and_leaves_nothing_behind() {
    let seconds = lab::number("LOAD_S", 3);
    let runtime = runtime();
    let folder = disk_folder();
    let data = folder.path().join("data");
    let server = Frontends::start(Frontends::command(&data, "4G"));
    let pid = server.pid();
    let world = Arc::new(World::new("sustained", KEYS));
    runtime.block_on(async {
        let client = client(&server.grpc, CONNECTIONS).await;
        let warm = Duration::from_secs((seconds / 12).clamp(1, 5));
        // So that there is something to read when it is measured.
        closed(&world, &client, draw, TASKS, warm).await;
        let capacity = closed(&world, &client, draw, TASKS, warm).await;
        let applies = figure(&client, "applies").await;
        let ended = Arc::new(AtomicBool::new(false));
        let looks = std::thread::spawn({
            let ended = ended.clone();
            move || {
                let (mut looks, mut late) = (Vec::new(), Duration::ZERO);
                while !ended.load(Ordering::Relaxed) {
                    looks.push((memory(pid), sockets(pid) as u64));
                    let next = Instant::now() + LOOK_EVERY;
                    while Instant::now() < next {
                        let began = Instant::now();
                        std::thread::sleep(NAP);
                        late = late.max(began.elapsed().saturating_sub(NAP));
                    }
                }
                (looks, late)
            }
        });
        let rate = capacity * 0.7;
        let time = Duration::from_secs(seconds);
        let load = Open { draw, rate, time, under_way_max: UNDER_WAY_MAX, full: Full::Waits };
        let (tally, _) = open(&world, &client, &load).await;
        ended.store(true, Ordering::Relaxed);
        let (looks, late) = looks.join().unwrap();
        let applies = figure(&client, "applies").await - applies;
        let held = world.verify(&client).await;
        // A machine that does less by now was asked for more than seven tenths: the meaning of latencies follows from both.
        let afterwards = closed(&world, &client, draw, TASKS, warm).await;

        let part = |first: usize, last: usize| &looks[looks.len() * first / 4..looks.len() * last / 4];
        let memory_in = |first, last| middle(part(first, last).iter().map(|look| look.0).collect());
        let sockets_in = |first, last| middle(part(first, last).iter().map(|look| look.1).collect());
        let [third, last] = [memory_in(2, 3), memory_in(3, 4)];
        let sockets = [sockets_in(0, 2), sockets_in(2, 4)];
        let [puts, gets, deletes] = tally.kinds;
        println!(
            "sustained: {} operations ({puts} puts, {gets} gets, {deletes} deletes) in {seconds} s at {rate:.0} a second, 70 % of \
             {capacity:.0} ({afterwards:.0} afterwards): {}, a sleeping thread was woken up to {:.1} ms late; {} busy, {} left \
             out; {applies} applies; memory {:.1} MiB in the first half, {:.1} in the second \
             ({:.1} and {:.1} in its quarters), {} and {} sockets, {} files; every get right, {held} objects at the end",
            tally.done,
            tally.latencies(),
            late.as_secs_f64() * 1000.0,
            tally.busy,
            tally.left_out,
            mib(memory_in(0, 2)),
            mib(memory_in(2, 4)),
            mib(third),
            mib(last),
            sockets[0],
            sockets[1],
            open_files(pid),
        );
        assert!(tally.kinds.iter().all(|&count| count > 0) && held > 0, "not every kind: {:?}", tally.kinds);
        // A shorter run still fills its cache, and may see no apply.
        if time >= LEVEL_AFTER {
            assert_eq!(sockets[0], sockets[1], "sockets");
            assert!(last <= third + third * GROWTH_PERCENT_MAX / 100, "it grows: from {third} to {last} bytes");
            assert!(applies > 0, "no apply was under way");
        }
    });
    server.stop();
    assert_clean(&data);
}
