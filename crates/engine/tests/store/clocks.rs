//! Time to live under clocks that jump forward and back (R18): a time to live is measured in elapsed time, no object without a deadline is
//! lost, an object that was absent by its deadline stays absent, and all kinds of reads agree.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::{Clock, Entropy, ManualClock, SeededEntropy};
use shoal_device::Device;
use shoal_device_sim::SimDevice;
use shoal_engine::{
    ByteRange, Expiry, ListRequest, ObjectInfo, OpenOptions, PutOptions, RejectRules, Store, block_on,
};

use crate::common::{ByName, assert_clean, formatted, key, memory, open_at, tiny};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// The wall clock at the start of a test.
const BEGIN: u64 = 20_000 * DAY;
const BLOCKS: u64 = 4_096;

/// A store and its clocks.
struct Timed {
    device: Device,
    clock: Arc<ManualClock>,
    store: Store,
}

fn open(device: &Device, clock: &Arc<ManualClock>) -> Store {
    open_at(device, OpenOptions { background: false, ..tiny() }, clock).unwrap()
}

impl Timed {
    fn new() -> Self {
        let (device, clock) = (memory(BLOCKS), Arc::new(ManualClock::new(BEGIN)));
        let store = open(&device, &clock);
        Self { device, clock, store }
    }

    /// Closes or crashes the store, runs `meanwhile`, and opens the store again.
    fn again(&mut self, clean: bool, meanwhile: impl FnOnce(&ManualClock)) {
        if clean {
            block_on(self.store.close()).unwrap();
        } else {
            // The store's reaper thread does this ten times a second.
            self.tick();
        }
        // The last user of the device releases its lock.
        let (device, clock) = (self.device.clone(), self.clock.clone());
        drop(std::mem::replace(&mut self.store, open(&memory(BLOCKS), &clock)));
        meanwhile(&clock);
        self.store = open(&device, &clock);
    }

    fn tick(&self) {
        block_on(self.store.reap()).unwrap();
    }

    fn put(&self, name: &str, expiry: Expiry) {
        let options = PutOptions { expiry, ..PutOptions::default() };
        self.store.set_with(name, name.as_bytes().to_vec(), options).unwrap();
    }

    fn info(&self, name: &str) -> Option<ObjectInfo> {
        block_on(self.store.head(&key(name.as_bytes()))).unwrap()
    }

    /// Returns true if the object exists; a get, a head, a listing, a stream and a condition must agree.
    fn is_there(&self, name: &str) -> bool {
        let key = key(name.as_bytes());
        let head = self.info(name);
        let got = block_on(self.store.get(&key, ByteRange::ALL)).unwrap();
        let streamed = block_on(self.store.get_stream(&key, ByteRange::ALL)).unwrap();
        let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
        let listed = block_on(self.store.list(&request)).unwrap().entries;
        let listed = listed.into_iter().find(|(found, _)| found == name.as_bytes()).map(|(_, info)| info);
        assert_eq!(listed, head, "{name}: listing and head");
        assert_eq!(got.map(|object| object.info), head, "{name}: get and head");
        assert_eq!(streamed.is_some(), head.is_some(), "{name}: stream and head");
        let rules = RejectRules { if_exists: true, if_missing: true, ..RejectRules::default() };
        let options = PutOptions { rules, ..PutOptions::default() };
        let rejected = block_on(self.store.put(&key, Vec::new().into(), options));
        let Err(shoal_engine::Error::ConditionFailed { current, .. }) = rejected else {
            panic!("{rejected:?}")
        };
        assert_eq!(current, head.as_ref().map(|info| info.version), "{name}: condition and head");
        head.is_some()
    }

    /// Returns the seconds left, and the deadline by the wall clock, in seconds after the start of the test.
    fn left(&self, name: &str) -> (u64, i64) {
        let deadline = self.info(name).unwrap().expiry.unwrap();
        (deadline.left_ns / SECOND, (deadline.at_ns as i64 - BEGIN as i64) / SECOND as i64)
    }
}

fn after(seconds: u64) -> Expiry {
    Expiry::After(Duration::from_secs(seconds))
}

/// The wall clock was a day ahead for one read of the store, then right again. (Seen by users: `SET k v EX 60` returned OK and GET nil, for
/// a day, over restarts, because the clock of expiry never went back.)
#[test]
fn wall_clock_that_was_ahead_keeps_ttl() {
    for restart in [None, Some(false), Some(true)] {
        let mut timed = Timed::new();
        timed.put("stays", Expiry::Never);
        timed.clock.step_wall(DAY as i64);
        assert!(timed.is_there("stays"));
        timed.put("seen", Expiry::Never);
        timed.clock.step_wall(-(DAY as i64));
        if let Some(clean) = restart {
            timed.again(clean, |_| {});
        }
        timed.put("k", after(60));
        assert!(timed.is_there("k") && timed.is_there("stays"));
        assert_eq!(timed.left("k"), (60, 60));
        timed.clock.advance(59 * SECOND);
        if let Some(clean) = restart {
            timed.again(clean, |_| {});
        }
        assert!(timed.is_there("k"));
        assert_eq!(timed.left("k"), (1, 60));
        timed.clock.advance(SECOND);
        assert!(!timed.is_there("k") && timed.is_there("stays"));
    }
}

/// A step back of 5 s neither shortens nor lengthens a time to live of 3 s; nor does a step forward. (Seen by users: the step lost the
/// object.)
#[test]
fn a_time_to_live_is_elapsed_time() {
    for step in [-5, 5, 3_600, -3_600] {
        let timed = Timed::new();
        timed.put("k", after(3));
        timed.clock.step_wall(step * SECOND as i64);
        timed.put("later", after(3));
        for elapsed in 0..3 {
            assert!(timed.is_there("k") && timed.is_there("later"), "step {step}: after {elapsed} s");
            assert_eq!(timed.left("k"), (3 - elapsed, 3 + step), "step {step}");
            timed.clock.advance(SECOND);
        }
        assert!(!timed.is_there("k") && !timed.is_there("later"));
        let stat = timed.store.stat();
        assert_eq!((stat.clock_steps, stat.clock_skew_ns), (1, step * SECOND as i64));
    }
}

/// Elapsed time counts while the store is closed: by boot time within one boot, regardless of the wall clock; otherwise by the difference
/// of the wall clock, which is at least 0.
#[test]
fn ttl_elapses_while_store_is_closed() {
    for clean in [false, true] {
        let mut timed = Timed::new();
        timed.put("k", after(60));
        timed.again(clean, |clock| {
            clock.advance(20 * SECOND);
            clock.step_wall(DAY as i64);
        });
        assert_eq!(timed.left("k").0, 40, "the same boot");
        timed.again(clean, |clock| clock.step_wall(-2 * DAY as i64));
        assert_eq!(timed.left("k").0, 40, "the same boot, and a step back");
        timed.again(clean, |clock| {
            clock.advance(30 * SECOND);
            clock.reboot();
        });
        assert_eq!(timed.left("k").0, 10, "another boot");
        timed.again(clean, |clock| {
            clock.advance(5 * SECOND);
            clock.step_wall(-(DAY as i64));
            clock.reboot();
        });
        assert_eq!(timed.left("k").0, 10, "another boot whose wall clock is behind");
        timed.clock.advance(10 * SECOND);
        assert!(!timed.is_there("k"));
    }
}

/// An absolute deadline is compared with the current wall clock; a reader that saw the object absent never sees it again.
#[test]
fn an_absolute_deadline_follows_the_wall_clock() {
    for restart in [None, Some(false), Some(true)] {
        let mut timed = Timed::new();
        let at = |seconds: u64| Expiry::At(BEGIN + seconds * SECOND);
        timed.put("soon", at(10));
        timed.put("late", at(3_600));
        timed.put("next day", at(86_400 + 50));
        assert!(timed.is_there("soon") && timed.is_there("late"));
        assert_eq!(timed.left("late"), (3_600, 3_600));
        // Ahead by 1,000 s: one object is expired, and stays so when the clock is right again.
        timed.clock.step_wall(1_000 * SECOND as i64);
        assert!(!timed.is_there("soon") && timed.is_there("late"));
        if restart == Some(false) {
            timed.tick();
        }
        timed.clock.step_wall(-1_000 * SECOND as i64);
        if let Some(clean) = restart {
            timed.again(clean, |_| {});
        }
        assert!(!timed.is_there("soon"), "once absent, never seen again");
        assert!(timed.is_there("late"), "its time was not reached");
        // An object written now is judged by the current clock.
        timed.put("new", at(10));
        assert!(timed.is_there("new"));
        timed.put("soon", at(20));
        assert!(timed.is_there("soon"), "it was put anew");
        // Several steps, over openings.
        for step in [500, 300, 100] {
            timed.clock.step_wall(step * SECOND as i64);
            assert!(!timed.is_there("new") && !timed.is_there("soon"));
            if step == 300 {
                timed.tick();
            }
            timed.clock.step_wall(-step * SECOND as i64);
            if let Some(clean) = restart {
                timed.again(clean, |_| {});
            }
            assert!(!timed.is_there("new") && !timed.is_there("soon") && timed.is_there("late"));
        }
        timed.clock.advance(3_600 * SECOND);
        assert!(!timed.is_there("late") && timed.is_there("next day"), "met by the clock as it is");
        timed.clock.advance(DAY);
        assert!(!timed.is_there("next day"));
    }
}

/// A deadline that another write inherits does not change.
#[test]
fn deadline_is_returned_unchanged() {
    let timed = Timed::new();
    timed.put("relative", after(100));
    timed.put("absolute", Expiry::At(BEGIN + 100 * SECOND));
    timed.clock.advance(SECOND);
    for name in ["relative", "absolute"] {
        let deadline = timed.info(name).unwrap().expiry;
        timed.put(name, deadline.into());
        assert_eq!(deadline.unwrap().is_relative(), name == "relative");
        assert_eq!(timed.info(name).unwrap().expiry, deadline);
    }
    timed.clock.step_wall(50 * SECOND as i64);
    assert_eq!((timed.left("relative"), timed.left("absolute")), ((99, 150), (49, 100)));
}

/// The reaper deletes the objects that expired by either clock, and no others; the clocks are saved while any object has a deadline.
#[test]
fn the_reaper_follows_both_clocks() {
    let timed = Timed::new();
    for number in 0..50 {
        timed.put(&format!("relative-{number}"), after(100 + number));
        timed.put(&format!("absolute-{number}"), Expiry::At(BEGIN + (100 + number) * SECOND));
    }
    timed.put("stays", Expiry::Never);
    timed.clock.step_wall(DAY as i64);
    block_on(timed.store.reap()).unwrap();
    assert_eq!(timed.store.stat().expired, 50, "those of the wall clock");
    timed.clock.step_wall(-(DAY as i64));
    timed.clock.advance(120 * SECOND);
    block_on(timed.store.reap()).unwrap();
    assert_eq!(timed.store.stat().expired, 50 + 21);
    timed.clock.advance(DAY);
    block_on(timed.store.reap()).unwrap();
    assert_eq!(timed.store.stat().expired, 100);
    assert!(timed.is_there("stays"));
    block_on(timed.store.close()).unwrap();
    drop(timed.store);
    assert_clean(&timed.device, "after the reaper");
}

/// While any object has a deadline, the clocks are saved at most ten seconds after any write. So a crash followed by a wrong wall clock
/// costs at most that much time, and restores none.
#[test]
fn time_is_written_down_while_anything_has_a_deadline() {
    let mut timed = Timed::new();
    timed.put("stays", Expiry::Never);
    let writes = |timed: &Timed| timed.store.stat().device.writes;
    let before = writes(&timed);
    for _ in 0..30 {
        timed.clock.advance(SECOND);
        block_on(timed.store.reap()).unwrap();
    }
    assert_eq!(writes(&timed), before, "nothing has a deadline");
    timed.put("k", after(1_000));
    let before = writes(&timed);
    for _ in 0..100 {
        timed.clock.advance(SECOND);
        block_on(timed.store.reap()).unwrap();
    }
    let written = writes(&timed) - before;
    assert!(
        (9 * 2..=11 * 2).contains(&written),
        "two copies of a superblock every ten seconds: {written} writes"
    );
    assert_eq!(timed.left("k").0, 900);
    timed.again(false, |clock| {
        clock.reboot();
        clock.set_wall(5 * DAY);
    });
    assert!((900..=910).contains(&timed.left("k").0), "{:?}", timed.left("k"));
}

/// The model of an object.
#[derive(Clone, Copy)]
enum Life {
    Ever,
    /// Until this much time has elapsed.
    Elapsed(u64),
    /// Until the wall clock reaches this time; true once it has.
    Wall(u64, bool),
}

/// Histories of puts, deletes, elapsed time, steps of the wall clock, crashes, closings and boots of the machine,
/// against a model that knows elapsed time.
#[test]
fn clocks_that_jump_agree_with_the_model() {
    for seed in 1..=shoal_testkit::lab::number("CLOCKS", 20) {
        let dice = SeededEntropy::new(seed);
        let roll = |below: u64| dice.next_u64() % below;
        let mut timed = Timed::new();
        let mut lives = std::collections::BTreeMap::<String, Life>::new();
        let mut elapsed = 0;
        for step in 0..60 {
            let name = format!("object-{}", roll(6));
            match roll(12) {
                0..=4 => {
                    let life = match roll(3) {
                        0 => Life::Ever,
                        1 => Life::Elapsed(elapsed + (2 + roll(100)) * SECOND),
                        _ => Life::Wall(timed.clock.wall_ns() + (2 + roll(2_000)) * SECOND, false),
                    };
                    timed.put(
                        &name,
                        match life {
                            Life::Ever => Expiry::Never,
                            Life::Elapsed(end) => Expiry::After(Duration::from_nanos(end - elapsed)),
                            Life::Wall(at, _) => Expiry::At(at),
                        },
                    );
                    lives.insert(name, life);
                }
                5 => {
                    timed.store.remove(&name).unwrap();
                    lives.remove(&name);
                }
                6..=7 => {
                    let by = (1 + roll(40)) * SECOND;
                    timed.clock.advance(by);
                    elapsed += by;
                }
                8..=9 => timed.clock.step_wall((roll(4_000) as i64 - 2_000) * SECOND as i64),
                10 => timed.again(roll(2) == 0, |_| {}),
                // A boot takes no time here, and its wall clock is right, so no elapsed time is lost.
                _ => timed.again(true, ManualClock::reboot),
            }
            if roll(4) == 0 {
                block_on(timed.store.reap()).unwrap();
            }
            let wall = timed.clock.wall_ns();
            for (name, life) in &mut lives {
                let is_over = match life {
                    Life::Ever => false,
                    Life::Elapsed(end) => *end <= elapsed,
                    Life::Wall(at, was_over) => {
                        *was_over |= *at <= wall;
                        *was_over
                    }
                };
                assert_eq!(timed.is_there(name), !is_over, "seed {seed}, step {step}, {name}");
                if let (Life::Elapsed(end), false) = (&*life, is_over) {
                    let left = timed.info(name).unwrap().expiry.unwrap().left_ns;
                    assert_eq!(left, *end - elapsed, "seed {seed}, step {step}, {name}");
                }
            }
        }
        block_on(timed.store.close()).unwrap();
        drop(timed.store);
        assert_clean(&timed.device, &format!("seed {seed}"));
    }
}

/// Symptom: a key with an hour to live expired as soon as its store was opened in a container. Cause: the boot id identifies a boot, not
/// the clock of a time namespace.
#[test]
fn other_boot_clock_keeps_ttl() {
    const YEARS: i64 = 3_000 * DAY as i64;
    type Change = fn(&ManualClock);
    let changes: [(&str, Change); 5] = [
        ("a time namespace that is ahead", |clock| clock.enter_time_namespace(YEARS)),
        ("a time namespace that is behind", |clock| clock.enter_time_namespace(-YEARS)),
        ("another clock with the same identity, ahead", |clock| clock.skew_boot(YEARS)),
        ("another clock with the same identity, behind", |clock| clock.skew_boot(-YEARS)),
        ("a boot", ManualClock::reboot),
    ];
    for (what, change) in changes {
        for clean in [false, true] {
            let mut timed = Timed::new();
            timed.clock.advance(20 * DAY);
            timed.put("k", after(3_600));
            timed.again(clean, |clock| {
                change(clock);
                clock.advance(60 * SECOND);
            });
            assert!(timed.is_there("k"), "{what}, {clean}");
            assert_eq!(timed.left("k").0, 3_540, "{what}, {clean}");
            // The first write there saves the time.
            timed.put("other", Expiry::Never);
            timed.again(clean, |clock| clock.advance(60 * SECOND));
            assert_eq!(timed.left("k").0, 3_480, "{what}, {clean}");
        }
    }
}

/// After every crash state an object with time left exists, and an object that was seen expired does not.
#[test]
fn crashes_keep_time() {
    let sim = formatted(320, 1);
    let device = Device::new(sim.clone());
    let clock = Arc::new(ManualClock::new(BEGIN));
    let store = open(&device, &clock);
    let put = |name: &str, expiry| {
        let options = PutOptions { expiry, ..PutOptions::default() };
        store.set_with(name, b"v".to_vec(), options).unwrap();
    };
    put("relative", after(1_000));
    put("absolute", Expiry::At(BEGIN + 100 * SECOND));
    for number in 0..20 {
        put("other", Expiry::Never);
        if number == 10 {
            clock.step_wall(DAY as i64);
        }
        if number == 12 {
            assert!(block_on(store.head(&key(b"absolute"))).unwrap().is_none());
            clock.step_wall(-(DAY as i64));
            block_on(store.reap()).unwrap();
            sim.mark(1);
        }
    }
    drop(store);
    let mut states = 0;
    sim.history().for_each_crash_state(8, 1, |point, image| {
        let Some(_) = point.marks.last() else { return };
        states += 1;
        let device = Device::new(SimDevice::from_image(image));
        let store = open(&device, &clock);
        assert!(block_on(store.head(&key(b"absolute"))).unwrap().is_none(), "state {}", point.id);
        let left = block_on(store.head(&key(b"relative"))).unwrap().unwrap().expiry.unwrap().left_ns;
        assert_eq!(left, 1_000 * SECOND, "state {}", point.id);
    });
    assert!(states > 20, "{states} states");
}
