//! Injected bugs: each breaks one rule of the engine, so that a test can show that the laboratory detects it (T24).
//!
//! Only a build with `--cfg shoal_bugs` (by `cargo x bugs`) has them; there the variable `SHOAL_BUG` names the active one. In every other
//! build [`injected`] is the constant `false`, and the compiler removes the guarded code.

/// An injected bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// R15: a batch without extents counts as durable before its flush.
    AckBeforeFlush,
    /// R7: the durable write of the batch is taken for a flush of the values beside it.
    ValuesNotFlushed,
    /// R7: a batch becomes durable although the write of a value that it names failed.
    ValueErrorIgnored,
    /// R20: a failed flush of the log is retried, and its success believed.
    FlushRetried,
    /// R15: a batch promises itself.
    PromiseAhead,
    /// R15: neither an idle log nor a closed one is sealed.
    NeverSealed,
    /// R22: the records of one write batch may go into two log batches.
    WriteBatchDivided,
    /// R9: batches do not name the newest superblock.
    OldSuperblockNamed,
    /// R1: neither the batches nor the records of the log are checked against their checksums.
    LogNotChecked,
    /// R1: neither the epoch of a batch, nor its chain to the batch before, nor its first number is checked.
    GhostsReplayed,
    /// R15: any end of the log counts as a torn tail.
    DamageIgnored,
    /// R9, R15: recovery ignores that the log names a newer superblock than any valid one.
    LostSuperblockIgnored,
    /// The log's tail ignores the unapplied records of other tablets.
    TailIgnoresOthers,
    /// A superblock is written before the pages that it names are flushed.
    PagesNotFlushed,
    /// R20: a superblock that could not be written does not poison the store.
    FailedSuperblockForgiven,
    /// R10: the space image does not learn which blocks an apply took.
    TakenNotPublished,
    /// R10: the space image does not learn which blocks an apply freed.
    FreedNotPublished,
    /// 3.2: every superblock is written to the same slot.
    OneSlot,
    /// R9: an upgrade leaves a superblock of the old version in the slot that it writes last.
    OldSlotStays,
    /// R42: a record with attributes is queued before a superblock names the feature.
    AttributesNotNamed,
    /// R43: a put may go into a bucket that is being deleted.
    ClosingIgnored,
    /// R9: blocks that a superblock frees are reused before it is durable.
    SuperblockNotFlushed,
    /// 3.2: of two valid superblocks the older one counts.
    OldestSuperblock,
    /// A torn superblock is accepted.
    SuperblockNotChecked,
    /// A superblock has one copy.
    SecondCopyForgotten,
    /// R22: the reads of a transaction that writes nothing may be of different moments.
    ReadsNotValidated,
    /// R22: a write does not notify the watches of its key.
    WatchesForgotten,
    /// R2: replayed records are served although only the device's cache may have them.
    ReplayNotFlushed,
    /// R5: an opening continues the numbering from the log's tail.
    VersionsAgain,
    /// Records that a tree holds are replayed again.
    ReplayedTwice,
    /// R10: the runs of unapplied records stay in the free space.
    ReplayTakesNothing,
    /// Deletes are not replayed.
    DeletesNotReplayed,
    /// R7: the last batch is kept although a value that it names is not on the device.
    UnfinishedKept,
    /// R18: the clocks of expiry restart with each opening.
    ExpiryGoesBack,
    /// R18: a time to live is measured by the wall clock.
    RelativeByWall,
    /// R18: the wall clock's lead before a step back is ignored.
    StepBackForgotten,
    /// R9: blocks freed by an apply are reused before a flushed batch names the superblock.
    ReusedAtOnce,
    /// R9, R16: blocks freed by an apply are reused although readers of the older tree exist.
    ReusedUnderReaders,
    /// R3: values may take the blocks that are reserved for deletes and applies.
    ReserveGivenAway,
    /// R8: the extents of a queued record are freed.
    ExtentsNotKept,
    /// R20: the client gets an error for a failure of the log, and the store continues.
    NotPoisoned,
    /// P2: the bytes of a value are served unchecked.
    ValueNotChecked,
    /// The extents of replaced values are never freed.
    ReplacedNotFreed,
    /// INV-25: the liveness of a packed run does not learn which values died.
    DeadStayCounted,
    /// R13: a value is moved although the memtable has a newer one.
    MovedBesideNewer,
    /// R9: blocks that an apply frees are free before anything is published.
    FreedBeforePublish,
    /// R9: the blocks of a record superseded before its apply are reused at once, while the log still names them.
    DroppedFreedAtOnce,
    /// The blocks of a record overwritten before its apply are free only after the next opening.
    DroppedNeverFreed,
    /// R11: the cache distinguishes values that followed each other at one block only by their checksums.
    IdentityIgnored,
    /// R6: a condition does not read the frozen memtable.
    ConditionsForgetFrozen,
    /// R6: readers see records that are not durable yet.
    InFlightServed,
    /// R6: readers skip the frozen memtable.
    FrozenNotRead,
    /// R6: a reader of the read cache does not notice that the value was written meanwhile.
    TornReadCache,
    /// R17: a repeated write is executed again.
    OutcomesForgotten,
    /// R18: the reaper deletes an object that was rewritten meanwhile.
    ReaperUnconditional,
    /// R4: writers see the new memtable before the marker of the freeze is in the queue.
    MarkerTooLate,
    /// P2: a page is checked against its own checksum, not against its parent's.
    ParentNotAsked,
    /// R19: keys of a replaced damaged leaf are reported as absent.
    LostIsAbsent,
    /// R20: a thread whose flush succeeded does not wait for overlapping flushes.
    FlushesAlone,
    /// R22: a repair rewrites a part of a write batch.
    WriteBatchesInPart,
    /// R24: a repair accepts batches after damage without a link to them.
    UnlinkedBelieved,
    /// Blocks that a tree names are freed, regardless of their place.
    ForeignFreed,
    /// R21: the new blocks of a file are allocated unwritten.
    GrownNotZeroed,
    /// R23: a page of a listing continues to the end of the bucket, under one view.
    PageWithoutEnd,
    /// R19: a listing skips the leaf of a lost range without naming it.
    LostNotNamed,
    /// A repair reports its losses, and the store does not remember them.
    LossesForgotten,
    /// INV-35: entries that a newer tree shadows count as owners.
    ShadowedOwn,
    /// INV-28: the frontier is published beyond the end of the compacted slice.
    FrontierTooFar,
    /// INV-28: a listing takes a layer's entries below the frontier.
    FrontierForgotten,
    /// INV-28: a base with a slice is published although an apply changed the base meanwhile.
    SliceOfOldBase,
    /// INV-30: a record goes into the base although a layer holds its key.
    DirectBesideLayer,
    /// INV-27: the value that a record of a layer replaces is not freed.
    NotSettled,
    /// INV-27: entries that own blocks are shadowed unread.
    OwnersUnread,
    /// INV-27: a compaction into the base does not settle the estimates.
    EstimatesKept,
    /// INV-31: a delete that goes into a layer leaves no tombstone.
    TombstoneLeftOut,
    /// INV-34: if a layer is damaged, the trees below it are searched.
    DamagedLayerSkipped,
    /// INV-29: the filter of a leaf lacks the leaf's first key.
    KeyNotInFilter,
    /// R9, INV-36: a snapshot does not hold the space that it reaches.
    SnapshotHoldsNothing,
    /// INV-36: the memtables of a snapshot are frozen one after the other.
    SnapshotOfMoments,
    /// R14: the log names another tablet than the one of the record's key, so its extents change tablet at a replay.
    RecordOfOtherTablet,
    /// INV-26: a new layer is inserted below the newest one.
    LayerBelowNewest,
    /// INV-32: a slice of a compaction that finds no room is not shortened.
    SliceNotShortened,
    /// INV-33: an apply may write any number of layers.
    LayersUnbounded,
    /// INV-37: the superblock of a growth is written before the areas that it names are flushed.
    GrownAreasNotFlushed,
    /// INV-37: the new areas of the space image count as free space.
    GrownAreasFree,
    /// INV-38: the log gets a longer ring while the old one still has records.
    LogMovedWithRecords,
    /// INV-38: the blocks of a longer ring stay free.
    LongerRingFree,
    /// INV-39: a walk of changes does not report the keys with tombstones in a layer.
    GoneNotTold,
    /// INV-40: no room is taken for the space image before a superblock names the blocks that need it.
    MapWithoutRoom,
    /// INV-41: blocks that a superblock frees are punched before it is durable, while the one before names them.
    PunchedBeforePublish,
    /// INV-41: a hole becomes free space without its room.
    HoleWithoutRoom,
    /// INV-44: the runs of a part are freed although an object adopted them.
    AdoptedFreed,
    /// INV-44: a replayed object takes the runs of its parts, too.
    AdoptedTwice,
    /// INV-45: a batch on a shared device is acknowledged before the look at the superblocks.
    AlarmAfterAck,
    /// INV-45: a server reads the log of a shared device before it claims the device.
    ReadBeforeClaim,
    /// INV-46: the log's tail passes records that the archive has not read.
    FloorIgnored,
    /// INV-47: blocks that records above the floor name are reused although the archive has not read them.
    UnreadReused,
    /// INV-47: an opening hands out blocks that applied records above the floor name.
    UnreadForgotten,
}

/// Returns true if this bug is active.
#[cfg(not(shoal_bugs))]
#[inline(always)]
pub const fn injected(_bug: Bug) -> bool {
    false
}

/// Returns true if this bug is active: `SHOAL_BUG` names it.
#[cfg(shoal_bugs)]
pub fn injected(bug: Bug) -> bool {
    static CHOSEN: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("SHOAL_BUG").unwrap_or_default());
    if CHOSEN.is_empty() {
        return false;
    }
    // Compares names byte by byte as they are written: a request allocates no memory for this.
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
