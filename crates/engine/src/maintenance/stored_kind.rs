//! The registry of the contents of a store's device, by kind: `docs/format/` has the bytes of each.
//!
//! Four passes deal with every kind, and each has one exhaustive `match` over [`StoredKind`]: the check (`check.rs`: `check_tablet`,
//! `check_store`), the scrub (`scrub.rs`: `scrub_tablet`, `scrub_store`), the repair (`repair/mod.rs`: `write_kind`), and
//! the owners of blocks (`rebuild.rs`: `add_owners`). A new kind does not compile until each of them decides about it. The tests below
//! fail for a page of the format, or a magic number, that no kind names.
//!
//! A kind is no trait object: one walk over the trees reads pages, values and manifests together, and a pass for each kind would read
//! them several times ([ADR](../../../../docs/adr/2026-11-28-a-registry-of-stored-kinds.md)).

/// Defines [`StoredKind`] and its table, a row each.
macro_rules! stored_kinds {
    ($($(#[$doc:meta])* $kind:ident { page: $page:literal, magic: $magic:expr })+) => {
        /// A kind of stored things.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum StoredKind {
            $($(#[$doc])* $kind,)+
        }

        impl StoredKind {
            /// All kinds. A repair writes them in this order, so that the superblock, which names the others, comes last.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The page of `docs/format` that has the bytes.
            #[cfg(test)]
            const fn page(self) -> &'static str {
                match self { $(Self::$kind => $page,)+ }
            }

            /// The names of the constants with the magic numbers that identify the bytes.
            #[cfg(test)]
            const fn magic(self) -> &'static [&'static str] {
                match self { $(Self::$kind => &$magic,)+ }
            }
        }
    };
}

stored_kinds! {
    /// Pages of the trees of a tablet: leaves and inner pages of the base and of layers.
    TreePages { page: "page.md", magic: ["tree/format.rs: MAGIC"] }
    /// Values with blocks of their own, metadata before them included.
    Extents { page: "object.md", magic: [] }
    /// Lists of the extents of long values.
    Manifests { page: "object.md", magic: ["value/manifest.rs: MAGIC", "value/joined.rs: JOINED_MAGIC"] }
    /// Runs of several values, their footers, and the liveness of each run, which is an entry of the base.
    PackedRuns { page: "packed.md", magic: ["value/packed/format.rs: FOOTER_MAGIC"] }
    /// Lists of the layers of a tablet, two copies each.
    LayerLists { page: "layers.md", magic: ["tree/layers/page.rs: MAGIC"] }
    /// The image of the free space: a snapshot in pieces, and deltas.
    SpaceImage { page: "space.md", magic: ["space/image/format.rs: PIECE_MAGIC", "space/image/format.rs: DELTA_MAGIC"] }
    /// Batches of the log's ring.
    LogBatches { page: "log.md", magic: ["log/format.rs: BATCH_MAGIC", "log/format.rs: BATCH_MAGIC_OLDER"] }
    /// Superblocks: two slots of two copies each.
    Superblocks { page: "superblock.md", magic: ["image/superblock.rs: MAGIC"] }
}

const _: () = assert!(
    matches!(StoredKind::ALL[StoredKind::ALL.len() - 1], StoredKind::Superblocks),
    "nothing is written after the superblock that names it"
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Pages of `docs/format` that describe no bytes of a data file, or only the bytes of a value or an attribute.
    const NOT_STORED: [&str; 7] =
        ["archive.md", "backup.md", "grpc.md", "own-space.md", "resp.md", "s3.md", "space-service.md"];

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn each_page_of_the_format_has_a_kind() {
        let pages: BTreeSet<String> = fs::read_dir(root().join("docs/format"))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let kinds = StoredKind::ALL.iter().map(|kind| kind.page());
        let known: BTreeSet<String> = kinds.chain(NOT_STORED).map(str::to_owned).collect();
        assert_eq!(pages, known, "a page without a kind, or a kind without a page");
    }

    /// The constants of `folder` whose names end in MAGIC, with their files.
    fn magic_of(folder: &Path, inside: &str, found: &mut BTreeSet<String>) {
        for file in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{inside}{}", file.file_name().to_str().unwrap());
            if file.file_type().unwrap().is_dir() {
                magic_of(&file.path(), &format!("{name}/"), found);
                continue;
            }
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            let names = text.lines().filter_map(|line| {
                let (before, after) = line.trim_start().split_once("const ")?;
                let constant = after.split(':').next()?;
                let is_item = before.is_empty() || before.starts_with("pub");
                (is_item && (constant.ends_with("MAGIC") || constant.contains("MAGIC_OLDER")))
                    .then_some(constant)
            });
            found.extend(names.map(|constant| format!("{name}: {constant}")));
        }
    }

    #[test]
    fn each_magic_number_belongs_to_a_kind() {
        let mut found = BTreeSet::new();
        for name in ["engine", "image", "log", "space", "tree", "value"] {
            magic_of(&root().join(format!("crates/{name}/src")), &format!("{name}/"), &mut found);
        }
        let known =
            StoredKind::ALL.iter().flat_map(|kind| kind.magic()).map(|&name| name.to_owned()).collect();
        assert_eq!(found, known, "a magic number without a kind, or a kind whose magic number is gone");
    }
}
