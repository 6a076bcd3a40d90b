//! What `shoal check --repair` does with a store: free space and accounting anew from the trees, the log's records into them,
//! what the log has behind damage (`behind.rs`), and what the trees lost out of the log (`salvage.rs`). It goes on where one part fails, and says so.

use shoal_device::Device;

use crate::behind::{Behind, read_behind};
use crate::check::{CheckOptions, CheckReport, Trees, rebuild_image};
use crate::error::Result;
use crate::open::Recovery;
use crate::options::{Environment, OpenOptions};
use crate::salvage::{Known, held_bytes_max, read_known, read_ring};
use crate::space_image;
use crate::store::Store;
use crate::superblock;

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
    rewrite_image(&device, recovery, behind.expiry_clock_ns, announce, report).await?;
    let store = Store::open(device, open, Environment::default()).await?;
    let restored = restore(&store, behind, known, report).await;
    let closed = store.close().await;
    if report.restored_count > 0 {
        let count = report.restored_count;
        report.notes.push(format!("repair: {count} object(s) were restored from what the log still had"));
    }
    restored.and(closed)
}

/// Publishes a new image from the trees, and a clock of expiry that is not behind `expiry_clock_ns`.
async fn rewrite_image(
    device: &Device,
    recovery: Recovery,
    expiry_clock_ns: u64,
    announce: Option<&(dyn Fn(&str) + Send + Sync)>,
    report: &mut CheckReport,
) -> Result<()> {
    let Recovery { pool, mut superblock, .. } = recovery;
    let image = rebuild_image(device, &pool, &superblock, Trees::AsFarAsTheyGo).await?;
    if let Some(announce) = announce {
        announce(NOT_TWICE);
    }
    superblock.expiry_clock_ns = superblock.expiry_clock_ns.max(expiry_clock_ns);
    let before = superblock.number;
    superblock.number += 1;
    superblock.space = space_image::rewrite(device, &superblock, &image).await?;
    device.flush().await.ok()?;
    superblock::write(device, &superblock).await?;
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
    let mut recounted = 0;
    for tablet in inner.tablets.all() {
        let counted = inner.recount(tablet).await;
        recounted += noted(store, "what is alive in packed runs could not be counted", counted, report)?;
    }
    if recounted > 0 {
        report.notes.push(format!("repair: what is alive in {recounted} packed run(s) was counted again"));
    }
    // Before older records are looked at: an object that was written again needs none.
    store.do_again(behind, report).await?;
    apply(store, report).await?;
    store.salvage(known, report).await?;
    apply(store, report).await?;
    report.notes.push(
        "repair: the log's records were applied where that was possible; damaged objects stay and answer with an error"
            .into(),
    );
    Ok(())
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
        store.0.poison.check().map(|()| T::default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::by_hand::ByHand;

    /// One part that fails does not end the others; a device that failed does.
    #[test]
    fn what_fails_is_noted_and_ends_the_repair_of_a_failed_device_only() {
        let mut made = ByHand::new();
        made.publish();
        let store = made.open().unwrap();
        let mut report = CheckReport::default();
        assert_eq!(noted(&store, "counting", Ok(7), &mut report).unwrap(), 7);
        assert!(report.notes.is_empty());
        let failed = || Err(Error::Busy("a test"));
        assert_eq!(noted::<usize>(&store, "counting", failed(), &mut report).unwrap(), 0);
        assert_eq!(report.notes, ["repair: counting: the store is busy: a test; try again"]);
        store.0.poison.set("the device failed".into());
        let ended = noted::<usize>(&store, "counting", failed(), &mut report);
        assert!(matches!(ended, Err(Error::Poisoned(why)) if why == "the device failed"));
        assert_eq!(report.notes.len(), 2);
    }
}
