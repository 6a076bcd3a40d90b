//! What `shoal check --repair` does with a store: free space and accounting anew from the trees, the log's records into them,
//! what the log has behind damage (`log_salvage.rs`), and what the trees lost out of the log (`tree_salvage.rs`). It goes on where one part fails, and says so.

pub(crate) mod acknowledge;
pub(crate) mod check;
mod log_salvage;
mod tree_salvage;

use shoal_device::Device;

use crate::checkpoint::space_image;
use crate::common::error::Result;
use crate::common::options::{Environment, OpenOptions};
use crate::recovery::owners::Completeness;
use crate::recovery::read::Recovery;
use crate::recovery::rebuild::rebuild_image;
use crate::recovery::repair::log_salvage::{Behind, read_behind};
use crate::recovery::repair::tree_salvage::{Known, held_bytes_max, read_known, read_ring};
use crate::recovery::report::{CheckOptions, CheckReport, PROBLEMS_MAX};
use crate::store::losses::Losses;
use crate::store::{Store, copies};
use crate::tablet::damage;
use crate::testing::injected_bug::{Bug, injected};

/// What is said before the first write where the log is cut: what lies behind the damage is then in memory only.
const NOT_TWICE: &str = "repair: it begins to write now; do not interrupt it: what the log has behind the damage is held in memory and \
                         written anew, and a repair that was interrupted can only be repeated on a copy that was made before";

/// Makes the store consistent again: a new image from the trees, and a new epoch behind what is left of the log. What the log has
/// behind damage and memory has no room for ends it before anything is written, unless it was asked to go on.
///
/// # Errors
/// As the device, and as opening; what was done until then is in the report.
pub(crate) async fn repair(
    device: Device,
    recovery: Recovery,
    open: OpenOptions,
    options: &CheckOptions,
    report: &mut CheckReport,
) -> Result<()> {
    let held = held_bytes_max(open.cache_bytes);
    repair_holding(held, device, recovery, open, options, report).await
}

/// As [`repair`], holding no more than about `held` bytes of each kind.
pub(crate) async fn repair_holding(
    held: usize,
    device: Device,
    recovery: Recovery,
    open: OpenOptions,
    options: &CheckOptions,
    report: &mut CheckReport,
) -> Result<()> {
    // Before anything is written: an opening overwrites the oldest of it.
    let found = read_ring(&recovery).await;
    let known = read_known(&recovery, &found, held).await;
    let behind = read_behind(&recovery, &found, held).await;
    drop(found);
    if behind.is_full && !options.in_part {
        report.notes.push(format!(
            "repair: nothing was written: {} MiB of values behind the damage in the log are all that memory allows, and what is in \
             front of them would be lost: repeat it with more --cache, or with --in-part to give that up",
            behind.held_mib()
        ));
        return Ok(());
    }
    let cannot_be_repeated = recovery.is_cut && (behind.has_steps() || known.has_any());
    let announce = options.before_writing.as_deref().filter(|_| cannot_be_repeated);
    // It consumes the recovery: its pool and its records are gone before the opening makes others.
    behind.lost.iter().for_each(|records| report.were_lost(records));
    if options.acknowledge && !report.remembered.is_none() {
        report.notes.push(format!("acknowledged: what repairs lost before ({})", report.remembered));
    }
    rewrite_image(&device, recovery, &behind, announce, options.acknowledge, report).await?;
    let store = Store::open(device, open, Environment::default()).await?;
    let mut restored = restore(&store, behind, known, report).await;
    if restored.is_ok() && options.acknowledge {
        restored = acknowledge(&store, report).await;
    }
    let closed = store.close().await;
    if report.restored_count > 0 {
        let count = report.restored_count;
        report.notes.push(format!("repair: {count} object(s) were restored from what the log still had"));
    }
    restored.and(closed)
}

/// Publishes a new image from the trees, what batches behind the damage say of time and numbers, and what is lost with the log's
/// damage: the opening that follows cuts the log. Where `acknowledges`, what was lost before is not remembered any more.
async fn rewrite_image(
    device: &Device,
    recovery: Recovery,
    behind: &Behind,
    announce: Option<&(dyn Fn(&str) + Send + Sync)>,
    acknowledges: bool,
    report: &mut CheckReport,
) -> Result<()> {
    let Recovery { pool, mut superblock, layers, log, .. } = recovery;
    // The opening that follows writes the other slot before it writes to the log.
    let is_older = superblock.upgrade()?;
    let image = rebuild_image(device, &pool, &superblock, &layers, Completeness::AsFarAsTheyGo).await?;
    if let Some(announce) = announce {
        announce(NOT_TWICE);
    }
    let mut time = superblock.time(is_older);
    log.batches.iter().for_each(|batch| time.note(&batch.header));
    behind.headers.iter().rev().for_each(|header| time.note(header));
    (superblock.clock, superblock.wall_high_ns) = time.into_parts();
    superblock.epoch = superblock.epoch.max(behind.given.0);
    superblock.lsn_ceiling = superblock.lsn_ceiling.max(behind.given.1);
    let before = superblock.number;
    superblock.number += 1;
    let remembered = if acknowledges { Losses::default() } else { superblock.losses };
    if !injected(Bug::LossesForgotten) {
        superblock.losses = remembered.and(report.losses, superblock.number);
    }
    superblock.space = space_image::rewrite(device, &superblock, &image).await?;
    device.flush().await.ok()?;
    copies::write(device, &superblock).await?;
    report.notes.push(format!(
        "repair: the free space was rebuilt from the trees ({} blocks free), published as superblock {} after {before}",
        image.free_blocks(),
        superblock.number
    ));
    Ok(())
}

/// Counts again, applies, and restores what the log knows. What fails for one part is noted, and the next one follows.
///
/// # Errors
/// [`Error::Poisoned`], once the device failed.
async fn restore(store: &Store, behind: Behind, known: Known, report: &mut CheckReport) -> Result<()> {
    let inner = &*store.0;
    // Before anything is applied: what an apply finds dead is counted out.
    let recounted = recount(store, report).await?;
    if recounted > 0 {
        report.notes.push(format!("repair: what is alive in {recounted} packed run(s) was counted again"));
    }
    // Before older records are looked at: an object that was written again needs none.
    let mut not_done = store.do_again(behind, report).await?;
    not_done.extend(inner.not_replayed.iter().map(|key| (key.clone(), false)));
    apply(store, report).await?;
    store.salvage(known, report).await?;
    apply(store, report).await?;
    store.account_losses(not_done, report).await?;
    // Records that were applied above damaged layers found nothing to count out.
    recount(store, report).await?;
    report.notes.push(
        "repair: the log's records were applied where that was possible; damaged objects stay and answer with an error"
            .into(),
    );
    Ok(())
}

/// Gives up what is lost for good, tablet by tablet.
///
/// # Errors
/// [`Error::Poisoned`](crate::Error::Poisoned), once the device failed.
async fn acknowledge(store: &Store, report: &mut CheckReport) -> Result<()> {
    for tablet in store.0.tablets.all() {
        let ranges = store.0.acknowledge(tablet).await;
        for range in noted(store, "what was lost could not be given up", ranges, report)? {
            damage::add(&mut report.given_up, range, PROBLEMS_MAX);
        }
    }
    recount(store, report).await?;
    report.given_up.sort();
    for range in &report.given_up {
        report.notes.push(format!(
            "acknowledged: {} do not exist any more, but for those that were written since",
            range.words()
        ));
    }
    Ok(())
}

/// Counts every tablet again; gives how many packed runs were counted wrong.
async fn recount(store: &Store, report: &mut CheckReport) -> Result<usize> {
    let mut wrong = 0;
    for tablet in store.0.tablets.all() {
        let counted = store.0.recount(tablet).await;
        wrong += noted(store, "what is alive in packed runs could not be counted", counted, report)?;
    }
    Ok(wrong)
}

/// Applies every tablet, one after the other, even where one fails.
async fn apply(store: &Store, report: &mut CheckReport) -> Result<()> {
    for tablet in store.0.tablets.all() {
        let applied = store.0.apply_tablet(tablet).await;
        noted(store, "the log's records could not be applied", applied, report)?;
    }
    Ok(())
}

/// What `result` has; where it failed a note says so, and only a device that failed ends the repair.
fn noted<T: Default>(store: &Store, what: &str, result: Result<T>, report: &mut CheckReport) -> Result<T> {
    result.or_else(|error| {
        report.notes.push(format!("repair: {what}: {error}"));
        store.0.log.poison.check().map(|()| T::default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::testing::fixtures::Fixture;

    /// One part that fails does not end the others; a device that failed does.
    #[test]
    fn what_fails_is_noted_and_ends_the_repair_of_a_failed_device_only() {
        let mut made = Fixture::new();
        made.publish();
        let store = made.open().unwrap();
        let mut report = CheckReport::default();
        assert_eq!(noted(&store, "counting", Ok(7), &mut report).unwrap(), 7);
        assert!(report.notes.is_empty());
        let failed = || Err(Error::Busy("a test"));
        assert_eq!(noted::<usize>(&store, "counting", failed(), &mut report).unwrap(), 0);
        assert_eq!(report.notes, ["repair: counting: the store is busy: a test; try again"]);
        store.0.log.poison.set("the device failed".into());
        let ended = noted::<usize>(&store, "counting", failed(), &mut report);
        assert!(matches!(ended, Err(Error::Poisoned(why)) if why == "the device failed"));
        assert_eq!(report.notes.len(), 2);
    }
}
