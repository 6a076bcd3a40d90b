//! `shoal check --acknowledge`: lost keys are absent for good, and no mark says that their state is unknown.
//!
//! Each tablet gets an apply that changes only damage: leaves marked "base lost" become ordinary leaves with the
//! entries that they have, and pages that cannot be read are removed from their parents. It is published like every
//! apply, so a crash leaves the tablet in the old or in the new state.

use bytes::Bytes;
use shoal_base::list::DamagedRange;
use shoal_common::error::{Error, Result};
use shoal_space_manager::TREE_BLOCKS_PER_RECORD;
use shoal_tablets::checkpoint::checkpointer::Checkpointer;
use shoal_tablets::compaction::GivenUp;
use shoal_tablets::gc::rewrite::Moves;
use shoal_tablets::tablet::damage::Unread;
use shoal_tablets::tablet::tree_io::tree_of;
use shoal_tablets::tablet::view::Tablet;

use crate::recovery::repair::gaps::gaps_of;

/// Gives up the keys that the tablet's tree lost, durably, and returns their ranges and the known ones of the
/// keys. The memtables must have been applied.
///
/// # Errors
/// [`Error::Full`] if there is no space for the new pages; as an apply.
pub(crate) async fn acknowledge_tablet(checkpointer: &Checkpointer, tablet: &Tablet) -> Result<GivenUp> {
    let _turn = checkpointer.applier.turn().await;
    checkpointer.log.poison.check()?;
    let view = tablet.view();
    if view.frozen.is_some() {
        return Err(Error::Busy("an apply of the tablet failed before"));
    }
    let tree = tree_of(checkpointer.identity, tablet.id);
    // What cannot be read now is lost for good.
    checkpointer.pool.forget_all_damage();
    let mut given_up = GivenUp::default();
    if !gaps_of(&checkpointer.pool, tree, &view.trees).await?.is_empty() {
        given_up = checkpointer.give_up_layers(tablet).await?;
    }
    let view = tablet.view();
    let gaps = gaps_of(&checkpointer.pool, tree, &view.trees).await?;
    if gaps.is_empty() {
        return Ok(given_up);
    }
    let ranges: Vec<DamagedRange> = gaps.into_iter().map(|gap| gap.in_tablet(tablet.id)).collect();
    let blocks = ranges.len() as u64 * TREE_BLOCKS_PER_RECORD;
    let reservation = checkpointer.space.reserve_for_moves(blocks, true);
    let reservation = reservation.ok_or(Error::full(blocks, checkpointer.space.available()))?;
    let mut touches: Vec<Bytes> = ranges.iter().map(|range| range.from.clone().into()).collect();
    touches.dedup();
    assert!(!touches.is_empty() && touches.len() <= ranges.len(), "each range that is given up is touched");
    let moves = Moves { touches, reservation: Some(reservation), ..Moves::default() };
    checkpointer.run_apply(tablet, &view, (view.applied, None), moves, Unread::IsAbsent).await?;
    given_up.ranges.extend(ranges);
    Ok(given_up)
}
