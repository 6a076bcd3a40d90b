//! The features that a program must know to open a store, beyond the version of its formats: flags in three classes.
//!
//! The classes are those of ext4. A program that does not know a *compatible* flag may read and write the store and keeps the flag;
//! one that does not know a *read-only compatible* flag may read it but not write; one that does not know an *incompatible*
//! flag leaves it alone. `docs/format/superblock.md` has their meanings.

use shoal_common::error::{Error, Result};

/// Names of the incompatible flags from bit 0 on, reserved ones included, so that a refusal names the feature and not only a bit.
const INCOMPATIBLE_NAMES: [&str; 6] =
    ["layers", "moved areas", "moved log", "unsettled entries", "attributes", "uploads"];
/// Tablets may have layers, and pages of level 1 filters.
pub const LAYERS: u32 = 1 << 0;
/// The store grew: areas of the space image may be among the data.
pub const MOVED_AREAS: u32 = 1 << 1;
/// The log got a longer ring, which may be among the data.
pub const MOVED_LOG: u32 = 1 << 2;

/// Layers may have unsettled entries, and pages of level 1 marks of plain leaves.
pub const UNSETTLED: u32 = 1 << 3;
/// Metadata may have attributes, and entries summaries of metadata.
pub const ATTRIBUTES: u32 = 1 << 4;
/// There may be uploads and their parts, records that adopt runs, and joined manifests.
pub const UPLOADS: u32 = 1 << 5;

/// Flags of read-only compatible features that this program can write.
const READ_ONLY_KNOWN: u32 = 0;
/// Flags of incompatible features that this program can read.
const INCOMPATIBLE_KNOWN: u32 = LAYERS | MOVED_AREAS | MOVED_LOG | UNSETTLED | ATTRIBUTES | UPLOADS;

/// The feature flags of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// A program that does not know such a flag may read and write, and keeps the flag.
    pub compatible: u32,
    /// A program that does not know such a flag may read, but not write.
    pub read_only: u32,
    /// A program that does not know such a flag may not use the store.
    pub incompatible: u32,
}

impl Features {
    /// The reason why this program cannot read the store; `None` if it can.
    pub(crate) fn unreadable(self) -> Option<String> {
        self.unreadable_with(INCOMPATIBLE_KNOWN)
    }

    /// The same for a program that knows the incompatible features `known`.
    fn unreadable_with(self, known: u32) -> Option<String> {
        let unknown = self.incompatible & !known;
        (unknown != 0).then(|| {
            format!(
                "this store needs features that this program does not have ({}): use the version of shoal that wrote it, or a \
                 newer one",
                names(unknown, &INCOMPATIBLE_NAMES)
            )
        })
    }

    /// Checks that this program may write to the store.
    ///
    /// # Errors
    /// [`Error::Unopenable`], with the features.
    pub fn check_writable(self) -> Result<()> {
        let unknown = self.read_only & !READ_ONLY_KNOWN;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::Unopenable(format!(
            "this store has features that this program can read but not write ({}): read it (`shoal get`, `ls`, `export`, \
             `check` with --read-only), or use the version of shoal that wrote it, or a newer one",
            names(unknown, &[])
        )))
    }
}

/// The features of `flags`: by name if it is known, else by bit.
fn names(flags: u32, known: &[&str]) -> String {
    let bits = (0..u32::BITS).filter(|bit| flags >> bit & 1 != 0);
    let name = |bit: u32| known.get(bit as usize).map_or_else(|| format!("bit {bit}"), ToString::to_string);
    bits.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_named() {
        assert!(Features::default().unreadable().is_none() && Features::default().check_writable().is_ok());
        let all = Features { compatible: u32::MAX, ..Features::default() };
        assert!(all.unreadable().is_none() && all.check_writable().is_ok());
        let odd = Features { incompatible: INCOMPATIBLE_KNOWN | 1 << 6 | 1 << 31, ..Features::default() };
        assert!(odd.unreadable().unwrap().contains("(bit 6, bit 31)"));
        // A program from before stores could grow has the name, not the feature.
        let grown = Features { incompatible: LAYERS | MOVED_AREAS | MOVED_LOG, ..Features::default() };
        assert!(grown.unreadable().is_none());
        let refusal = grown.unreadable_with(LAYERS).unwrap();
        assert!(
            refusal.contains("features that this program does not have (moved areas, moved log): use"),
            "{refusal}"
        );
        let with_attributes = Features { incompatible: LAYERS | ATTRIBUTES, ..Features::default() };
        let refusal = with_attributes.unreadable_with(INCOMPATIBLE_KNOWN & !ATTRIBUTES).unwrap();
        assert!(refusal.contains("does not have (attributes)"), "{refusal}");
        let odd = Features { read_only: 0b110, ..Features::default() };
        assert!(odd.unreadable().is_none());
        assert!(odd.check_writable().unwrap_err().to_string().contains("(bit 1, bit 2)"));
    }
}
