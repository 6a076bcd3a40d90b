//! `cargo x bugs`: the laboratory must catch each injected bug (T24).
//!
//! One build of the engine's tests with `--cfg shoal_bugs` has all injected bugs; the variable `SHOAL_BUG` names the
//! active one. For each there is a hunter here, a test that must fail with it, and pass without any.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "Usage: cargo x bugs [--count N] [--seed N] [NAME...]

Builds the engine's tests with injected bugs, and demands that the laboratory catches them: those that are named, or N that
the seed draws, or all of them. The first of the list is the canary: it is always among them.

  --count N  this number of them, drawn by chance [default: all]
  --seed N   the dice [default: 1]";

/// A hunter that runs longer than this with a bug at work has found it, too: the store hangs.
const HANGS_AFTER: Duration = Duration::from_secs(600);

/// The test binaries: `crates/engine/tests/store`, the engine's unit tests, those of the crates below it, and the schedules.
const STORE: &str = "store";
const UNITS: &str = "shoal_engine";
const TREE: &str = "shoal_tree";
const TABLETS: &str = "shoal_tablets";
const SCHEDULES: &str = "shoal_schedules";

/// Schedules that hunt: the rarest bug shows after some five hundred.
const SCHEDULES_OF_A_HUNT: &str = "3000";

/// An injected bug (`crates/common/src/injected_bug.rs`), the test binary that catches it, and the test in it.
type Hunt = (&'static str, &'static str, &'static str);

const HUNTS: &[Hunt] = &[
    ("AckBeforeFlush", STORE, "explore::crash_states"),
    ("ValuesNotFlushed", STORE, "explore::crash_states"),
    ("ValueErrorIgnored", STORE, "faults::a_write_fails"),
    ("FlushRetried", STORE, "faults::a_flush_fails"),
    ("PromiseAhead", STORE, "explore::crash_states"),
    ("NeverSealed", STORE, "crash::the_last_batch_of_an_idle_store_is_promised"),
    ("WriteBatchDivided", STORE, "explore::crash_states"),
    ("ReadsNotValidated", STORE, "transactions::histories_are_serializable"),
    ("WatchesForgotten", STORE, "transactions::histories_are_serializable"),
    ("OldSuperblockNamed", STORE, "crash::damaged_newest_superblock_is_detected_or_harmless"),
    ("LogNotChecked", STORE, "explore::crash_states"),
    ("GhostsReplayed", STORE, "crash::a_ghost_of_an_older_life_is_never_replayed"),
    ("DamageIgnored", STORE, "crash::damaged_newest_superblock_is_detected_or_harmless"),
    ("LostSuperblockIgnored", STORE, "crash::damaged_newest_superblock_is_detected_or_harmless"),
    ("TailIgnoresOthers", STORE, "explore::crash_states"),
    ("PagesNotFlushed", STORE, "explore::crash_states"),
    ("FailedSuperblockForgiven", STORE, "faults::a_flush_fails"),
    ("TakenNotPublished", STORE, "explore::crash_states"),
    ("FreedNotPublished", STORE, "explore::crash_states"),
    ("OneSlot", STORE, "explore::crash_states"),
    ("OldSlotStays", STORE, "upgrade::every_crash_of_an_upgrade_recovers"),
    ("AttributesNotNamed", STORE, "attributes::every_crash_before_the_first_attributes_is_safe"),
    ("ClosingIgnored", STORE, "buckets::no_put_is_lost_in_a_deleted_bucket"),
    ("SuperblockNotFlushed", STORE, "explore::crash_states"),
    ("OldestSuperblock", STORE, "explore::crash_states"),
    ("SuperblockNotChecked", STORE, "explore::crash_states"),
    ("SecondCopyForgotten", STORE, "format_refusal::second_copies_serve_when_the_first_are_gone"),
    ("ReplayNotFlushed", STORE, "crash::power_cut_after_kill"),
    ("VersionsAgain", STORE, "explore::crash_states"),
    ("ReplayedTwice", STORE, "explore::crash_states"),
    ("ReplayTakesNothing", STORE, "explore::crash_states"),
    ("DeletesNotReplayed", STORE, "explore::crash_states"),
    ("UnfinishedKept", STORE, "explore::crash_states"),
    ("ExpiryGoesBack", STORE, "updating::expired_object_is_absent"),
    ("RelativeByWall", STORE, "clocks::a_time_to_live_is_elapsed_time"),
    ("StepBackForgotten", STORE, "clocks::an_absolute_deadline_follows_the_wall_clock"),
    ("ReusedAtOnce", STORE, "crash::damaged_newest_superblock_is_detected_or_harmless"),
    ("ReusedUnderReaders", STORE, "packed::a_slow_reader_of_a_packed_value"),
    ("ReserveGivenAway", STORE, "full::fills_up_and_is_empty_again"),
    ("ExtentsNotKept", STORE, "explore::crash_states"),
    ("NotPoisoned", STORE, "faults::a_flush_fails"),
    ("ValueNotChecked", STORE, "explore::crash_states"),
    ("ReplacedNotFreed", STORE, "explore::crash_states"),
    ("DeadStayCounted", STORE, "explore::crash_states"),
    ("MovedBesideNewer", STORE, "relocation::moving_races_with_writers"),
    ("FreedBeforePublish", SCHEDULES, "readers::a_slow_reader_keeps_its_value"),
    ("DroppedFreedAtOnce", STORE, "crash::an_overwritten_extent_is_not_used_again_before_its_apply"),
    ("DroppedNeverFreed", STORE, "full::an_extent_overwritten_before_its_apply_is_free_again"),
    ("IdentityIgnored", STORE, "identity::reused_block_never_serves_old_value"),
    ("ConditionsForgetFrozen", SCHEDULES, "sessions::conditions_let_one_through"),
    ("InFlightServed", SCHEDULES, "readers::value_seen_by_reader_survives_crash"),
    ("TornReadCache", SCHEDULES, "read_cache::no_cached_value_is_torn"),
    ("FrozenNotRead", SCHEDULES, "readers::operations_on_a_key_are_linearizable"),
    ("OutcomesForgotten", STORE, "write_batches::repeated_write_after_crash_is_applied_once"),
    ("ReaperUnconditional", STORE, "updating::the_reaper_gives_space_back"),
    ("MarkerTooLate", TABLETS, "tablet::view::tests::freeze_queues_marker_before_publishing_view"),
    ("ParentNotAsked", STORE, "faults::a_write_is_lost"),
    ("LostIsAbsent", TREE, "tests::damage::only_keys_of_replaced_pages_are_lost"),
    (
        "FlushesAlone",
        UNITS,
        "testing::fence_tests::a_commit_waits_for_a_flush_beside_it_and_shares_its_failure",
    ),
    ("WriteBatchesInPart", UNITS, "recovery::repair::log_salvage::tests::salvaged_batch_is_all_or_nothing"),
    (
        "UnlinkedBelieved",
        UNITS,
        "recovery::repair::log_salvage::tests::salvage_uses_only_batches_linked_to_newest",
    ),
    ("ForeignFreed", UNITS, "testing::hostile::child::child_outside_page_area_is_rejected"),
    ("GrownNotZeroed", STORE, "full::grown_blocks_are_zeroed_and_flushed_before_their_use"),
    ("PageWithoutEnd", STORE, "model::conforms_with_background_threads"),
    ("LostNotNamed", STORE, "past_damage::many_blocks_together"),
    ("LossesForgotten", STORE, "losses::repair_losses_are_reported_and_recorded"),
    ("ShadowedOwn", STORE, "explore::crash_states"),
    ("FrontierForgotten", STORE, "layers::a_write_below_the_frontier_decides"),
    (
        "SliceOfOldBase",
        UNITS,
        "testing::tests::compaction::a_slice_is_put_again_into_a_base_that_an_apply_changed",
    ),
    ("FrontierTooFar", STORE, "layers::any_division_into_layers_reads_the_same"),
    ("DirectBesideLayer", STORE, "layers::any_division_into_layers_reads_the_same"),
    ("NotSettled", STORE, "explore::crash_states"),
    ("OwnersUnread", STORE, "unsettled::unread_overwrites_are_counted"),
    ("EstimatesKept", STORE, "unsettled::unread_overwrites_are_counted"),
    ("TombstoneLeftOut", STORE, "layers::any_division_into_layers_reads_the_same"),
    ("DamagedLayerSkipped", STORE, "layers::damage_in_each_page_of_a_layer"),
    ("KeyNotInFilter", STORE, "past_damage::every_block_alone"),
    ("SnapshotHoldsNothing", STORE, "snapshots::blocks_that_a_snapshot_reaches_are_not_reused"),
    ("SnapshotOfMoments", STORE, "snapshots::a_snapshot_under_load_is_of_one_version"),
    ("RecordOfOtherTablet", STORE, "explore::crash_states"),
    ("LayerBelowNewest", STORE, "layers::any_division_into_layers_reads_the_same"),
    ("SliceNotShortened", STORE, "layers::a_full_store_has_no_layers"),
    ("LayersUnbounded", STORE, "layers::the_number_of_layers_is_bounded"),
    ("GrownAreasNotFlushed", STORE, "growing::every_crash_of_growth_leaves_old_or_new_cap"),
    ("GrownAreasFree", STORE, "growing::full_store_accepts_writes_after_cap_is_raised_twice"),
    ("LogMovedWithRecords", STORE, "growing::log_size_follows_growth"),
    ("GoneNotTold", STORE, "changes::a_chain_of_changes_is_the_store_of_each_version"),
    ("MapWithoutRoom", UNITS, "testing::tests::map_room::a_map_has_its_room_before_the_blocks_that_need_it"),
    ("LongerRingFree", STORE, "growing::log_size_follows_growth"),
    ("PunchedBeforePublish", STORE, "relocation::every_crash_beside_holes_leaves_all_objects"),
    ("HoleWithoutRoom", STORE, "relocation::holes_without_room_refuse_writes"),
    ("AdoptedFreed", STORE, "uploads_crash::every_crash_leaves_whole_uploads"),
    ("AdoptedTwice", STORE, "uploads_crash::every_crash_leaves_whole_uploads"),
    ("AlarmAfterAck", STORE, "shared_device::the_former_server_stops_at_its_next_flush"),
    ("ReadBeforeClaim", STORE, "shared_device::writes_acknowledged_while_another_server_opens_are_there"),
    ("FloorIgnored", STORE, "archived::everything_above_the_floor_is_read"),
    ("UnreadReused", STORE, "archived::everything_above_the_floor_is_read"),
    ("UnreadForgotten", STORE, "archived::every_crash_keeps_records_above_the_floor"),
];

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    count: usize,
    seed: u64,
    names: Vec<String>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { count: HUNTS.len(), seed: 1, names: Vec::new() };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut number = || -> Result<u64> {
                let value = words.next().with_context(|| format!("{word} needs a value"))?;
                value.parse().with_context(|| format!("{value:?} is no number"))
            };
            match word {
                "--count" => options.count = number()? as usize,
                "--seed" => options.seed = number()?,
                word if word.starts_with('-') => bail!("there is no option {word}"),
                name => options.names.push(name.to_owned()),
            }
        }
        if let Some(name) = options.names.iter().find(|name| HUNTS.iter().all(|(known, ..)| known != name)) {
            bail!("there is no injected bug {name}");
        }
        Ok(options)
    }

    fn chosen(&self) -> Vec<&'static Hunt> {
        if !self.names.is_empty() {
            return HUNTS
                .iter()
                .filter(|(name, ..)| self.names.iter().any(|wanted| wanted == name))
                .collect();
        }
        // A permutation by the seed: multiplication with an odd number modulo a power of two, skipping numbers that are
        // too large.
        let size = HUNTS.len().next_power_of_two() as u64;
        let place = |turn: u64| turn.wrapping_mul(2 * self.seed + 1).wrapping_add(self.seed >> 3) % size;
        let drawn = (0..size).map(place).filter_map(|place| HUNTS.get(place as usize));
        let canary = &HUNTS[0];
        std::iter::once(canary)
            .chain(drawn.filter(|hunt| hunt.0 != canary.0))
            .take(self.count.max(1))
            .collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = options.chosen();
    let mut targets: Vec<&str> = chosen.iter().map(|(_, target, _)| *target).collect();
    targets.sort_unstable();
    targets.dedup();
    let binaries = build(&targets)?;
    let binary = |target: &str| -> Result<&PathBuf> {
        let found = binaries.iter().find(|(name, _)| name == target);
        found.map(|(_, path)| path).with_context(|| format!("no test binary {target}"))
    };
    // Without a bug the hunters find nothing.
    let mut tests: Vec<(&str, &str)> = chosen.iter().map(|(_, target, test)| (*target, *test)).collect();
    tests.sort_unstable();
    tests.dedup();
    for (target, test) in tests {
        if let Outcome::Failed | Outcome::Hung = hunt(binary(target)?, test, "")? {
            let output = std::fs::read_to_string(last_output()?).unwrap_or_default();
            bail!("{target} {test} fails without an injected bug:\n{output}");
        }
    }
    let mut missed = Vec::new();
    for (name, target, test) in &chosen {
        let began = Instant::now();
        let outcome = hunt(binary(target)?, test, name)?;
        let seconds = began.elapsed().as_secs_f64();
        match outcome {
            Outcome::Failed => println!("{name}: caught by {target} {test} in {seconds:.1} s"),
            Outcome::Hung => println!("{name}: caught by {target} {test}: it hangs"),
            Outcome::Passed => {
                println!("{name}: NOT CAUGHT by {target} {test} in {seconds:.1} s");
                missed.push(*name);
            }
        }
    }
    println!("{} of {} injected bugs were caught", chosen.len() - missed.len(), chosen.len());
    if !missed.is_empty() {
        bail!("not caught: {}", missed.join(", "));
    }
    Ok(())
}

/// Builds the test binaries with all injected bugs, in a separate folder; returns their names and paths.
fn build(targets: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let root = super::root()?;
    let cargo = || {
        let mut command = Command::new("cargo");
        command.args(["test", "--no-run", "--quiet", "--message-format=json"]);
        command
    };
    let mut commands = Vec::new();
    let mut of_engine = cargo();
    super::lab::of_engine(&mut of_engine)?;
    for &target in targets {
        match target {
            UNITS => _ = of_engine.arg("--lib"),
            TREE | TABLETS => {
                let mut command = cargo();
                super::lab::of_crates_below(&mut command)?;
                commands.push(command);
            }
            SCHEDULES => {
                let mut command = cargo();
                super::lab::of_schedules(&mut command)?;
                commands.push(command);
            }
            _ => _ = of_engine.args(["--test", target]),
        }
    }
    if targets.iter().any(|&target| ![TREE, TABLETS, SCHEDULES].contains(&target)) {
        commands.push(of_engine);
    }
    let mut binaries = Vec::new();
    for mut command in commands {
        let output =
            command.current_dir(&root).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("the tests with injected bugs do not build ({})", output.status);
        }
        binaries.extend(String::from_utf8_lossy(&output.stdout).lines().filter_map(executable));
    }
    Ok(binaries)
}

/// The name and path of the binary that one line of cargo's messages names.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let path = line.split_once("\"executable\":\"")?.1.split_once('"')?.0;
    let file = Path::new(path).file_name()?.to_str()?;
    Some((file.rsplit_once('-')?.0.to_owned(), PathBuf::from(path)))
}

enum Outcome {
    Passed,
    Failed,
    Hung,
}

/// The file with the output of the last hunter.
fn last_output() -> Result<PathBuf> {
    Ok(super::root()?.join("target/bugs/hunter.txt"))
}

fn hunt(binary: &Path, test: &str, bug: &str) -> Result<Outcome> {
    let output = File::create(last_output()?).context("cannot write the output of a hunter")?;
    let mut child = Command::new(binary)
        .args(["--exact", test])
        .env("SHOAL_BUG", bug)
        .env("LAB_SCHEDULES", SCHEDULES_OF_A_HUNT)
        .env("RUST_BACKTRACE", "0")
        .current_dir(super::root()?.join("crates/engine"))
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Outcome::Passed } else { Outcome::Failed });
        }
        if began.elapsed() > HANGS_AFTER {
            child.kill()?;
            child.wait()?;
            return Ok(Outcome::Hung);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_injected_bug_has_a_hunter() {
        let path = super::super::root().unwrap().join("crates/common/src/injected_bug.rs");
        let source = std::fs::read_to_string(path).unwrap();
        let body = source.split_once("enum Bug {").unwrap().1.split_once("\n}").unwrap().0;
        let mut injected: Vec<&str> = body
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"))
            .filter_map(|line| line.strip_suffix(','))
            .collect();
        let mut hunted: Vec<&str> = HUNTS.iter().map(|(name, ..)| *name).collect();
        injected.sort_unstable();
        hunted.sort_unstable();
        assert_eq!(injected, hunted);
        assert!(injected.len() >= 30);
    }

    /// All `.rs` files of a folder, one after the other.
    fn sources(folder: &Path) -> String {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries
            .map(|path| match path.extension() {
                _ if path.is_dir() => sources(&path),
                Some(end) if end == "rs" => std::fs::read_to_string(path).unwrap(),
                _ => String::new(),
            })
            .collect()
    }

    #[test]
    fn every_hunter_is_a_test() {
        let root = super::super::root().unwrap();
        let folders = [
            (STORE, "crates/engine/tests/store"),
            (UNITS, "crates/engine/src"),
            (TREE, "crates/tree/src"),
            (TABLETS, "crates/tablets/src"),
            (SCHEDULES, "schedules/src"),
        ];
        let sources = folders.map(|(binary, folder)| (binary, sources(&root.join(folder))));
        for (bug, binary, test) in HUNTS {
            let (_, source) = sources.iter().find(|(of, _)| of == binary).unwrap();
            let name = test.rsplit("::").next().unwrap();
            assert!(source.contains(&format!("fn {name}(")), "{bug}: {binary} has no test {test}");
        }
    }

    #[test]
    fn a_draw_has_the_canary_and_no_bug_twice() {
        for seed in 0..50 {
            let options = Options { count: 6, seed, names: Vec::new() };
            let mut names: Vec<&str> = options.chosen().iter().map(|hunt| hunt.0).collect();
            assert_eq!((names.len(), names[0]), (6, HUNTS[0].0));
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), 6, "seed {seed}");
        }
        assert_eq!(Options::parse(&[]).unwrap().chosen().len(), HUNTS.len());
        assert!(Options::parse(&["NoSuchBug"]).is_err() && Options::parse(&["--count"]).is_err());
    }

    #[test]
    fn binaries_are_found_in_cargo_output() {
        let line = r#"{"reason":"compiler-artifact","executable":"/t/deps/store-2020","fresh":true}"#;
        assert_eq!(executable(line), Some(("store".into(), PathBuf::from("/t/deps/store-2020"))));
        assert_eq!(executable(r#"{"executable":null}"#), None);
    }
}
