//! Maps and ranges of a store against its free runs and figures.

use serde_json::Value;
use shoal_base::ManualClock;
use shoal_engine::block_on;
use shoal_storekit::{StoreKit, put};

use super::*;
use crate::figures::space::survey::{PARTS_MAX, part_blocks_of};
use crate::figures::space::testing::fragmented;

fn store() -> Store {
    fragmented(600, 40_000)
}

fn map(store: &Store, cells: u64) -> Value {
    serde_json::from_slice(&draw(&mut None, store, 0, (cells, PARTS_MAX, None))).unwrap()
}

fn numbers(array: &Value) -> Vec<u64> {
    array.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn cells_cover_the_device_and_no_more_than_asked() {
    let store = store();
    let stat = store.stat();
    for cells in [64, 100, 1_000, 16_384] {
        let map = map(&store, cells);
        let (blocks, cell) = (map["blocks"].as_u64().unwrap(), map["cell_blocks"].as_u64().unwrap());
        assert_eq!(blocks, stat.device_blocks);
        let free = numbers(&map["free"]);
        assert!(free.len() as u64 <= cells && free.len() as u64 > cells / 4, "{} of {cells}", free.len());
        assert_eq!(free.len() as u64, blocks.div_ceil(cell));
        for array in ["kind", "bucket"] {
            assert_eq!(numbers(&map[array]).len(), free.len(), "{array}");
        }
        // Shares are rounded: each by less than one 255th of a cell.
        let sum: f64 = free.iter().map(|&share| share as f64 / 255.0 * cell as f64).sum();
        let error = (sum - map["free_blocks"].as_f64().unwrap()).abs();
        assert!(error <= free.len() as f64 * cell as f64 / 127.0, "{error}");
        let by_size: u64 =
            map["runs_by_size"].as_array().unwrap().iter().map(|bin| bin["blocks"].as_u64().unwrap()).sum();
        assert_eq!(Some(by_size), map["free_blocks"].as_u64());
        assert_eq!(map["runs_are_complete"], true);
    }
}

#[test]
fn kinds_and_buckets_are_those_of_the_store() {
    let store = store();
    let (map, plan) = (map(&store, 16_384), store.space_plan());
    let cell = map["cell_blocks"].as_u64().unwrap();
    let (kinds, free) = (numbers(&map["kind"]), numbers(&map["free"]));
    let of = |kind: u8| kinds.iter().filter(|&&found| found == u64::from(kind)).count() as u64 * cell;
    // The ends of the ring may share a cell with others.
    let log = plan.log.end - plan.log.start;
    assert!(of(LOG).abs_diff(log) <= 2 * cell, "{} of {log}", of(LOG));
    assert!(of(IMAGE) > 0 && of(DATA) > 1_000 && of(FREE) > 1_000);
    for (kind, free) in kinds.iter().zip(&free) {
        assert_eq!(*kind == u64::from(FREE), *free == 255);
    }
    assert_eq!(map["buckets"], serde_json::json!(["", "films", "photos"]));
    let buckets = numbers(&map["bucket"]);
    let of_photos = buckets.iter().filter(|&&bucket| bucket == 2).count() as u64 * cell;
    assert_eq!(of_photos, store.stat().own_blocks);
    assert!(!buckets.contains(&1));
}

#[tokio::test]
async fn a_survey_serves_all_pages_for_a_second() {
    let store = StoreKit::new(32_768).in_memory();
    let manual = Arc::new(ManualClock::new(5_000_000_000));
    let clock: Arc<dyn Clock> = manual.clone();
    let maps = SpaceMaps::new(Arc::clone(&clock), FigureLimits::within(u64::MAX));
    let draw = async |cells| maps.draw(&store, &clock, cells).await.unwrap();
    let before = draw(64).await;
    assert!(!String::from_utf8_lossy(&before).contains("buckets"), "none has its own space");
    put(&store, "b", b"k", vec![1; 1 << 20]);
    manual.advance(FRESH_NS - 1);
    assert_eq!(draw(64).await.as_ptr(), before.as_ptr());
    let free = |map: &Bytes| serde_json::from_slice::<Value>(map).unwrap()["free_blocks"].as_u64().unwrap();
    assert_eq!(free(&draw(128).await), free(&before), "of the same survey");
    manual.advance(1);
    let after = draw(64).await;
    assert!(free(&after) + 256 <= free(&before), "{} {}", free(&after), free(&before));
    maps.forget();
    assert!(maps.surveyed.try_lock().unwrap().is_none());
}

#[test]
fn shares_are_whole_only_if_cells_are() {
    assert_eq!([share(0, 9), share(9, 9), share(1, 10_000), share(9_999, 10_000)], [0, 255, 1, 254]);
    assert_eq!(share(50, 100), 127);
}

#[test]
fn ranges_list_their_runs_and_count_the_rest() {
    let store = store();
    let stat = store.stat();
    let all = range(&store, None, (0, u64::MAX), RUNS_MAX);
    assert_eq!((all.start, all.blocks), (0, stat.device_blocks));
    let free: Vec<Run> = store.free_space().collect();
    let blocks = |runs: &[Run]| runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>();
    assert_eq!((all.free_blocks, all.used_blocks), (blocks(&free), stat.device_blocks - blocks(&free)));
    assert_eq!((all.buckets, all.log_blocks), (vec!["photos".to_owned()], stat.log_blocks));
    // From the middle of one run to the middle of another.
    let (first, last) = (free[3], free[20]);
    let (start, end) = (first.block + 1, last.block + 1);
    let some = range(&store, None, (start, end - start), RUNS_MAX);
    let expected: Vec<Run> = free.iter().filter_map(|run| within(*run, &(start..end))).collect();
    assert_eq!(some.free_blocks, blocks(&expected));
    // A run across groups is listed in pieces.
    let listed: u64 = some.runs.iter().map(|run| u64::from(run.blocks)).sum();
    assert_eq!((listed, some.more), (blocks(&expected), false));
    assert!(some.runs.is_sorted_by_key(|run| run.block));
    let outside = range(&store, None, (u64::MAX, 5), RUNS_MAX);
    assert_eq!((outside.blocks, outside.free_blocks, outside.runs), (0, 0, vec![]));
}

#[test]
fn a_range_with_many_runs_lists_the_first_ones() {
    let store = store();
    let free: Vec<Run> = store.free_space().collect();
    assert!(free.len() > 40, "{} runs", free.len());
    let all = range(&store, None, (0, u64::MAX), 20);
    assert_eq!((all.runs.len(), all.more), (20, true));
    assert_eq!(all.free_blocks, free.iter().map(|run| u64::from(run.blocks)).sum::<u64>());
    assert!(all.runs.is_sorted_by_key(|run| run.block));
}

fn census(store: &Store, part_blocks: u64) -> TakenCensus {
    let mut census = store.new_census(part_blocks, 10);
    while !block_on(store.census_some(&mut census)).unwrap() {}
    TakenCensus { census, started_ms: 5, ended_ms: 7 }
}

#[test]
fn a_census_tells_pages_and_values_apart() {
    let store = store();
    let taken = census(&store, part_blocks_of(store.space_plan().device_blocks, PARTS_MAX));
    let map: Value =
        serde_json::from_slice(&draw(&mut None, &store, 0, (16_384, PARTS_MAX, Some(&taken)))).unwrap();
    let cell = map["cell_blocks"].as_u64().unwrap();
    assert_eq!(map["census_ms"], 7);
    let of =
        |kind: u8| numbers(&map["kind"]).iter().filter(|&&found| found == u64::from(kind)).count() as u64;
    // 300 values of ten blocks each are left.
    assert!(of(EXTENTS) * cell >= 2_500 && of(PAGES) > 0, "{} {}", of(EXTENTS), of(PAGES));
    assert!(of(DATA) * cell < 300, "{}: only freed blocks that are not free yet", of(DATA));
    let whole = range(&store, Some(&taken), (0, u64::MAX), 0).kinds.unwrap();
    assert_eq!(
        (whole.extents, whole.packed),
        (KindDocument { runs: 300, blocks: 3_000 }, KindDocument::default())
    );
    // Whole parts have their shares, and a range with other ends has none.
    let parts =
        (0..32_768 / cell).map(|part| range(&store, Some(&taken), (part * cell, cell), 0).kinds.unwrap());
    assert_eq!(parts.map(|kinds| kinds.extents.blocks).sum::<u64>(), 3_000);
    for odd in [(1, cell), (0, cell + 1)] {
        assert_eq!(range(&store, Some(&taken), odd, 0).kinds, None);
    }
    assert_eq!(range(&store, None, (0, 16_384), 0).kinds, None);
}

#[test]
fn blocks_that_were_freed_since_the_census_have_no_kind() {
    let store = store();
    let mut taken = census(&store, 64);
    for part in &mut taken.census.parts {
        part.extents.blocks = 64;
    }
    let map: Value =
        serde_json::from_slice(&draw(&mut None, &store, 0, (512, PARTS_MAX, Some(&taken)))).unwrap();
    let free = numbers(&map["free"]);
    for (kind, free) in numbers(&map["kind"]).iter().zip(&free) {
        assert_eq!(*kind == u64::from(FREE), *free == 255);
    }
    assert!(free.contains(&255));
}

#[test]
fn a_server_with_little_memory_has_coarser_maps() {
    let store = store();
    let parts_max = FigureLimits::within(0).parts_max;
    let map: Value = serde_json::from_slice(&draw(&mut None, &store, 0, (16_384, parts_max, None))).unwrap();
    let cells = numbers(&map["free"]).len() as u64;
    assert!(cells <= parts_max && cells > parts_max / 2, "{cells}");
}
