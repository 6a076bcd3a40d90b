//! injected bugs: each breaks one rule of the engine, so that a test can show that the laboratory sees it (T24).
//!
//! Only a build with `--cfg shoal_bugs` (by `cargo x bugs`) has them; there the variable `SHOAL_BUG` names the one that is
//! at work. In every other build [`injected`] is the constant `false`, and the compiler removes what stands behind it.

/// A injected bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// R15: a batch without extents counts as durable before its flush.
    AckBeforeFlush,
    /// R7: the durable write of the batch is taken for a flush of the values beside it.
    ValuesNotFlushed,
    /// R7: a batch becomes durable although the write of a value that it names failed.
    ValueErrorIgnored,
    /// R20: a failed flush of the log is tried again and believed.
    FlushRetried,
    /// R15: a batch promises itself.
    PromiseAhead,
    /// R15: an idle log is not sealed, nor one that is closed.
    NeverSealed,
    /// R22: the records of one step may go into two batches.
    StepDivided,
    /// R9: batches do not say which superblock is the newest.
    OldSuperblockNamed,
    /// R1: neither the batches nor the records of the log are checked against their checksums.
    LogNotChecked,
    /// R1: neither the epoch of a batch, nor its chain to the batch before, nor its first number is checked.
    GhostsReplayed,
    /// R15: whatever ends the log counts as a torn tail.
    DamageIgnored,
    /// R9, R15: that the log names a newer superblock than any valid one is not noticed.
    LostSuperblockIgnored,
    /// The log is given up although other tablets have unapplied records there.
    TailIgnoresOthers,
    /// A superblock is written before what it names is flushed.
    PagesNotFlushed,
    /// R20: a superblock that could not be written does not poison the store.
    FailedSuperblockForgiven,
    /// R10: the space image does not learn what an apply took.
    TakenNotPublished,
    /// R10: the space image does not learn what an apply freed.
    FreedNotPublished,
    /// 3.2: every superblock is written to the same slot.
    OneSlot,
    /// R9: an upgrade leaves a superblock of the old version in the slot that it does not write first.
    OldSlotStays,
    /// R9: what a superblock frees is used again before it is durable.
    SuperblockNotFlushed,
    /// 3.2: of two valid superblocks the older one counts.
    OldestSuperblock,
    /// A torn superblock is believed.
    SuperblockNotChecked,
    /// A superblock has one copy.
    SecondCopyForgotten,
    /// R22: what a transaction reads that writes nothing need not be of one moment.
    ReadsNotValidated,
    /// R22: a write does not tell those who watch its key.
    WatchesForgotten,
    /// R2: what was replayed is served although only the device's cache may have it.
    ReplayNotFlushed,
    /// R5: an opening numbers from the log's tail on.
    VersionsAgain,
    /// Records that a tree holds are replayed once more.
    ReplayedTwice,
    /// R10: what unapplied records own is not taken out of the free space.
    ReplayTakesNothing,
    /// Deletes are not replayed.
    DeletesNotReplayed,
    /// R7: the last batch is kept although a value that it names is not on the device.
    UnfinishedKept,
    /// R18: the clocks of expiry begin anew with each opening.
    ExpiryGoesBack,
    /// R18: a time to live is counted by the wall clock.
    RelativeByWall,
    /// R18: nobody remembers how far the wall clock was ahead before it was set back.
    StepBackForgotten,
    /// R9: what an apply freed is used again before a flushed batch names the superblock.
    ReusedAtOnce,
    /// R9, R16: what an apply freed is used again although readers of the older tree are there.
    ReusedUnderReaders,
    /// R3: values may take the blocks that are reserved for deletes and applies.
    ReserveGivenAway,
    /// R8: the extents of a queued record go back to the free space.
    ExtentsNotKept,
    /// R20: a failure of the log is answered, and the store goes on.
    NotPoisoned,
    /// P2: the bytes of a value are served unchecked.
    ValueNotChecked,
    /// The extents of what an apply replaces are never freed.
    ReplacedNotFreed,
    /// INV-25: the accounting of a packed run does not learn what died in it.
    DeadStayCounted,
    /// R13: a value is moved although the overlay has a newer one.
    MovedBesideNewer,
    /// R9: what an apply frees goes back before anything is published.
    FreedBeforePublish,
    /// R9: what a newer write supersedes before its apply is used again at once, while the log still names it.
    DroppedFreedAtOnce,
    /// What was overwritten before its apply is free after the next opening only.
    DroppedNeverFreed,
    /// R11: the cache tells the values that lay at one block one after the other apart by their checksums only.
    IdentityIgnored,
    /// R6: a condition does not look into the frozen overlay.
    ConditionsForgetFrozen,
    /// R6: readers are shown what is not durable yet.
    InFlightServed,
    /// R6: readers do not look into the frozen overlay.
    FrozenNotRead,
    /// R17: a write that is sent again is done again.
    RetriesForgotten,
    /// R18: the reaper deletes what was put anew meanwhile.
    ReaperUnconditional,
    /// R4: writers see the new overlay before the marker of the freeze is in the queue.
    MarkerTooLate,
    /// P2: a page is held to the checksum in itself, not to the one that its parent holds.
    ParentNotAsked,
    /// R19: keys of a damaged leaf that was replaced are said not to exist.
    LostIsAbsent,
    /// R20: whoever flushed well does not wait for the flushes beside it.
    FlushesAlone,
    /// R22: a repair does a part of a step again.
    StepsInPart,
    /// R24: a repair believes batches behind damage that are linked to nothing.
    UnlinkedBelieved,
    /// What a tree names is freed, wherever it lies.
    ForeignFreed,
    /// R21: what a file grew by is handed out unwritten.
    GrownNotZeroed,
    /// R23: a page of a listing goes on to the end of the bucket, under one view.
    PageWithoutEnd,
    /// R19: a listing goes past the leaf of a lost range without naming it.
    LostNotNamed,
    /// A repair reports what it lost, and the store does not remember it.
    LossesForgotten,
    /// INV-34: entries that a newer tree shadows count as owners.
    ShadowedOwn,
    /// INV-27: the frontier is published beyond what a slice merged.
    FrontierTooFar,
    /// INV-29: a record goes into the base although a layer holds its key.
    DirectBesideLayer,
    /// INV-26: what a record of a layer replaces is not freed.
    NotSettled,
    /// INV-30: a delete that goes into a layer leaves no tombstone.
    TombstoneLeftOut,
    /// INV-27: layers that are being merged have a say below the frontier.
    FrontierForgotten,
    /// INV-33: where a layer is damaged, the trees below it are asked.
    DamagedLayerSkipped,
    /// INV-28: the filter of a leaf lacks the leaf's first key.
    KeyNotInFilter,
}

/// Whether this bug is at work.
#[cfg(not(shoal_bugs))]
#[inline(always)]
pub(crate) const fn injected(_bug: Bug) -> bool {
    false
}

/// Whether this bug is at work: `SHOAL_BUG` names it.
#[cfg(shoal_bugs)]
pub(crate) fn injected(bug: Bug) -> bool {
    static CHOSEN: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("SHOAL_BUG").unwrap_or_default());
    if CHOSEN.is_empty() {
        return false;
    }
    // Names are compared by their first bytes as they are written: no memory is taken on the way of a request.
    struct Same<'a>(&'a str, bool);
    impl std::fmt::Write for Same<'_> {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            match self.0.strip_prefix(part) {
                Some(rest) => self.0 = rest,
                None => self.1 = false,
            }
            Ok(())
        }
    }
    let mut same = Same(&CHOSEN, true);
    let written = std::fmt::Write::write_fmt(&mut same, format_args!("{bug:?}"));
    written.is_ok() && same.1 && same.0.is_empty()
}
