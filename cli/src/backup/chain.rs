//! A chain: a full backup, and increments that each continue the one before. Its links are checked by their headers.

use std::path::PathBuf;

use anyhow::bail;
use shoal_backup::{Contents, Header};

/// A backup of a chain.
pub(crate) struct Link {
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    /// Its random number.
    pub(crate) number: u64,
}

/// Checks that `link` follows the one before; without one before, it must be a full backup, or a part of one.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn check_link(before: Option<&Link>, link: &Link) -> anyhow::Result<()> {
    let name = link.path.display();
    let (from, before) = match (link.header.contents, before) {
        (Contents::Changes { .. }, _) => bail!("{name} is a stream of changes, and no backup"),
        (Contents::Full | Contents::Base | Contents::Part, None) => return Ok(()),
        (Contents::Full | Contents::Base | Contents::Part, Some(first)) => bail!(
            "{name} is a full backup, but follows {}: a chain is one full backup, followed by its increments",
            first.path.display()
        ),
        (Contents::Increment { from }, None) => bail!(
            "{name} is an increment from version {from}: name the full backup and the increments up to that version before it"
        ),
        (Contents::Increment { from }, Some(before)) => (from, before),
    };
    let name_before = before.path.display();
    if link.header.store != before.header.store {
        bail!("{name} is a backup of another store than {name_before}");
    }
    if from != before.header.version {
        bail!(
            "{name} is an increment from version {from}, but {name_before} before it is of version {}: a link between them is \
             missing, or the order is wrong",
            before.header.version
        );
    }
    // Another increment from the same version lacks the content of this part.
    let part = if before.header.contents == Contents::Part { before.number } else { 0 };
    if link.header.part != part {
        bail!(
            "{name} does not continue {name_before}: one of them belongs to an interrupted backup, the other does not"
        );
    }
    Ok(())
}

/// Checks that the chain is complete with this link as its last.
///
/// # Errors
/// It is a part of a backup that was broken off.
pub(crate) fn check_last(link: &Link) -> anyhow::Result<()> {
    if link.header.contents == Contents::Part {
        bail!(
            "{} is the part of an interrupted backup: name the backup made by `shoal backup --resume` after it",
            link.path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shoal_engine::Lsn;

    use super::*;

    fn header(store: u8, version: u64, contents: Contents) -> Header {
        let (format, store, version) = (2, [store; 16], Lsn(version));
        Header { format, store, version, taken_ns: 0, objects: 0, value_bytes: 0, contents, part: 0 }
    }

    #[test]
    fn each_link_follows_on_the_one_before() {
        let full = header(1, 10, Contents::Full);
        let one = header(1, 20, Contents::Increment { from: Lsn(10) });
        let link =
            |path: &str, header: &Header| Link { path: path.into(), header: header.clone(), number: 77 };
        let check = |before: Option<&Header>, header: &Header| {
            let before = before.map(|before| link("BEFORE", before));
            check_link(before.as_ref(), &link("THIS", header)).map_err(|error| error.to_string())
        };
        assert_eq!(check(None, &full), Ok(()));
        assert_eq!(check(Some(&full), &one), Ok(()));
        let part = header(1, 10, Contents::Part);
        let behind = |part| Header { part, ..one.clone() };
        assert_eq!((check(None, &part), check(Some(&part), &behind(77))), (Ok(()), Ok(())));
        assert!(check_last(&link("THIS", &part)).is_err() && check_last(&link("THIS", &full)).is_ok());
        // An increment at the version of the one before is empty, but a valid link.
        assert_eq!(check(Some(&one), &header(1, 20, Contents::Increment { from: Lsn(20) })), Ok(()));
        for (before, this, words) in [
            (None, &one, "from version 10"),
            (Some(&full), &full, "one full backup"),
            (Some(&one), &one, "missing"),
            (Some(&full), &header(2, 20, Contents::Increment { from: Lsn(10) }), "another store"),
            (Some(&full), &header(1, 20, Contents::Increment { from: Lsn(9) }), "of version 10"),
            (None, &header(1, 20, Contents::Changes { from: Lsn(9) }), "no backup"),
            (Some(&full), &header(1, 20, Contents::Part), "one full backup"),
            (Some(&part), &one, "does not continue"),
            (Some(&part), &behind(78), "does not continue"),
            (Some(&full), &behind(77), "does not continue"),
        ] {
            let error = check(before, this).unwrap_err();
            assert!(error.contains(words) && error.contains("THIS"), "{error}");
        }
    }
}
