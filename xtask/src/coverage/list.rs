//! The lines that tests must reach, and the exempt ones.

/// The crates whose tests are run and whose lines are counted.
pub(super) const CRATES: [&str; 15] = [
    "shoal-base",
    "shoal-buffer",
    "shoal-device",
    "shoal-space",
    "shoal-pool",
    "shoal-common",
    "shoal-space-manager",
    "shoal-tree",
    "shoal-log",
    "shoal-value",
    "shoal-image",
    "shoal-memtable",
    "shoal-tablets",
    "shoal-engine",
    "shoal-resp",
];

/// Files that must be reached in every line, and their kinds.
pub(super) const WHOLE: &[(&str, &str)] = &[
    ("crates/base/src/checksum.rs", "format"),
    ("crates/base/src/codec.rs", "format"),
    ("crates/base/src/run.rs", "format"),
    ("crates/base/src/slot.rs", "format"),
    ("crates/engine/src/recovery/repair/check.rs", "recovery"),
    ("crates/value/src/entry.rs", "format"),
    ("crates/common/src/key.rs", "format"),
    ("crates/image/src/layout.rs", "format"),
    ("crates/log/src/format.rs", "format"),
    ("crates/log/src/read.rs", "recovery"),
    ("crates/log/src/ring/mod.rs", "format"),
    ("crates/engine/src/recovery/open.rs", "recovery"),
    ("crates/engine/src/recovery/read.rs", "recovery"),
    ("crates/engine/src/recovery/rebuild.rs", "recovery"),
    ("crates/engine/src/recovery/owners.rs", "recovery"),
    ("crates/engine/src/recovery/recount.rs", "recovery"),
    ("crates/value/src/packed/format.rs", "format"),
    ("crates/log/src/failure/fence.rs", "error arms"),
    ("crates/log/src/failure/poison.rs", "error arms"),
    ("crates/tablets/src/checkpoint/publish.rs", "recovery"),
    ("crates/engine/src/recovery/repair/log_salvage.rs", "recovery"),
    ("crates/engine/src/recovery/repair/mod.rs", "recovery"),
    ("crates/engine/src/recovery/repair/tree_salvage.rs", "recovery"),
    ("crates/engine/src/maintenance/scrub.rs", "recovery"),
    ("crates/image/src/space_image.rs", "format"),
    ("crates/image/src/superblock.rs", "format"),
    ("crates/image/src/tablet_record.rs", "format"),
    ("crates/tree/src/format.rs", "format"),
    ("crates/tree/src/page.rs", "format"),
    ("crates/tree/src/read/walk.rs", "recovery"),
    ("crates/value/src/manifest.rs", "format"),
    ("crates/resp/src/inline.rs", "format"),
    ("crates/resp/src/number.rs", "format"),
    ("crates/resp/src/reply.rs", "format"),
    ("crates/resp/src/request.rs", "format"),
    ("crates/space/src/image/delta.rs", "format"),
    ("crates/space/src/image/format.rs", "format"),
    ("crates/space/src/image/free_image.rs", "format"),
    ("crates/space/src/image/rebuild.rs", "recovery"),
    ("crates/space/src/image/snapshot_read.rs", "format"),
    ("crates/space/src/image/snapshot_write.rs", "format"),
];

/// Files that hold no code of the product, by a part of their path.
pub(super) const NOT_COUNTED: &[&str] = &[
    "crates/bench/",
    "crates/device-sim/",
    "crates/storekit/",
    "crates/testkit/",
    "/tests.rs",
    "/tests/",
    "_tests.rs",
    "engine/src/testing/fixtures.rs",
    "tree/src/testing/fixtures.rs",
    "engine/src/testing/hostile/",
    "common/src/injected_bug.rs",
    "tree/src/testing/hostile.rs",
    "tree/src/testing/memory.rs",
];

/// Lines that no test reaches: file, a part of the line (with the more deeply indented lines below it), and why that is so.
pub(super) const EXEMPT: &[(&str, &str, &str)] = &[
    (
        "crates/device/src/file.rs",
        "Err(TryLockError::Error(error)) =>",
        "no local file system refuses a lock for another reason than that somebody has it",
    ),
    (
        "crates/device/src/ring.rs",
        "Err(error) if error.raw_os_error() == Some(libc::EINVAL) =>",
        "the kernel of the machine knows these flags; those before 6.1 do not",
    ),
    (
        "crates/device/src/storage.rs",
        "if let Err(error) = file.unlock()",
        "giving a lock of an open file back does not fail",
    ),
    (
        "crates/log/src/commit/mod.rs",
        "Some((_, what)) => Err(Error::Poisoned",
        "a second protection: no batch that the program composes breaks one of these rules",
    ),
    (
        "crates/tablets/src/gc/rewrite.rs",
        "Err(Error::Full { .. }) => {}",
        "a second protection: a run is chosen only where room for its values is reserved",
    ),
];
