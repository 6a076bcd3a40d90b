//! The cases of `bench store`, by name.

use crate::payload::Sizes;

/// The work of a case's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Put new objects.
    Put,
    /// Get random objects that are in the cache.
    GetWarm,
    /// Get random objects from a set much larger than the cache.
    GetCold,
    /// Delete objects that exist.
    Delete,
    /// List all keys by pages of 1,000.
    List,
}

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) sizes: Sizes,
    pub(crate) clients: usize,
}

impl Case {
    /// Returns true if it is measured block by block with the device's own latency.
    pub(crate) fn is_beside_device(&self) -> bool {
        self.clients == 1 && matches!(self.kind, Kind::Put | Kind::GetCold)
    }
}

const SIZE_4K: (&str, Sizes) = ("4k", Sizes::Fixed(4 << 10));
const SIZE_64K: (&str, Sizes) = ("64k", Sizes::Fixed(64 << 10));
const SIZE_LOGN: (&str, Sizes) = ("logn", Sizes::LOG_NORMAL);

/// The callers of the store.
pub(crate) const VARIANTS: [&str; 2] = ["embedded", "server"];

/// All cases, in the order of the table.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |word: &str, kind, (size, sizes): (&str, Sizes), clients: &[usize]| {
        for &clients in clients {
            cases.push(Case { name: format!("{word}-{size}-c{clients}"), kind, sizes, clients });
        }
    };
    for size in [SIZE_4K, SIZE_64K, SIZE_LOGN] {
        add("put", Kind::Put, size, &[1, 16, 64]);
    }
    add("get-warm", Kind::GetWarm, SIZE_4K, &[1, 16, 64]);
    add("get-warm", Kind::GetWarm, SIZE_64K, &[16]);
    add("get-cold", Kind::GetCold, SIZE_4K, &[1]);
    add("get-cold", Kind::GetCold, SIZE_64K, &[1]);
    add("get-cold", Kind::GetCold, SIZE_4K, &[16]);
    add("delete", Kind::Delete, SIZE_4K, &[16, 64]);
    let list = Case { name: "list-c1".into(), kind: Kind::List, sizes: SIZE_4K.1, clients: 1 };
    cases.push(list);
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: HashSet<String> = all().into_iter().map(|case| case.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(names.contains("put-logn-c64") && names.contains("get-cold-64k-c1"));
    }
}
