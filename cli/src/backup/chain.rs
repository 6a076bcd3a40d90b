//! A chain: a full backup, and increments that go on from each other. Its links are checked by their headers.

use std::path::{Path, PathBuf};

use anyhow::bail;
use shoal_backup::{Contents, Header};

/// Checks that the link in the file `path` follows on the one before; none before: it must be a full backup.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn check_link(
    before: Option<&(PathBuf, Header)>,
    path: &Path,
    header: &Header,
) -> anyhow::Result<()> {
    let name = path.display();
    let from = match (header.contents, before) {
        (Contents::Changes { .. }, _) => bail!("{name} is a stream of changes, and no backup"),
        (Contents::Full | Contents::Part, None) => return Ok(()),
        (Contents::Full | Contents::Part, Some((first, _))) => bail!(
            "{name} is a full backup, and stands behind {}: a chain has one full backup, in front, and increments behind it",
            first.display()
        ),
        (Contents::Increment { from }, None) => bail!(
            "{name} is an increment from version {from}: name the full backup and the increments that it goes on from in front of it"
        ),
        (Contents::Increment { from }, Some(_)) => from,
    };
    let Some((path_before, before)) = before else { return Ok(()) };
    if header.store != before.store {
        bail!("{name} is a backup of another store than {}", path_before.display());
    }
    if from != before.version {
        bail!(
            "{name} is an increment from version {from}, and {} in front of it is of version {}: a link between them is missing, or the \
             order is wrong",
            path_before.display(),
            before.version
        );
    }
    Ok(())
}

/// Checks that the chain that ends with this link is complete.
///
/// # Errors
/// It is a part of a backup that was broken off.
pub(crate) fn check_last(path: &Path, header: &Header) -> anyhow::Result<()> {
    if header.contents == Contents::Part {
        bail!(
            "{} is the part of a backup that was broken off: name the backup that `shoal backup --resume` made behind it",
            path.display()
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
        Header { format, store, version, taken_ns: 0, objects: 0, value_bytes: 0, contents }
    }

    #[test]
    fn each_link_follows_on_the_one_before() {
        let full = header(1, 10, Contents::Full);
        let one = header(1, 20, Contents::Increment { from: Lsn(10) });
        let check = |before: Option<&Header>, header: &Header| {
            let before = before.map(|before| ("BEFORE".into(), before.clone()));
            check_link(before.as_ref(), Path::new("THIS"), header).map_err(|error| error.to_string())
        };
        assert_eq!(check(None, &full), Ok(()));
        assert_eq!(check(Some(&full), &one), Ok(()));
        let part = header(1, 10, Contents::Part);
        assert_eq!((check(None, &part), check(Some(&part), &one)), (Ok(()), Ok(())));
        assert!(
            check_last(Path::new("THIS"), &part).is_err() && check_last(Path::new("THIS"), &full).is_ok()
        );
        // An increment at the version of the one before is empty, and a link all the same.
        assert_eq!(check(Some(&one), &header(1, 20, Contents::Increment { from: Lsn(20) })), Ok(()));
        for (before, this, words) in [
            (None, &one, "from version 10"),
            (Some(&full), &full, "one full backup"),
            (Some(&one), &one, "missing"),
            (Some(&full), &header(2, 20, Contents::Increment { from: Lsn(10) }), "another store"),
            (Some(&full), &header(1, 20, Contents::Increment { from: Lsn(9) }), "of version 10"),
            (None, &header(1, 20, Contents::Changes { from: Lsn(9) }), "no backup"),
            (Some(&full), &header(1, 20, Contents::Part), "one full backup"),
        ] {
            let error = check(before, this).unwrap_err();
            assert!(error.contains(words) && error.contains("THIS"), "{error}");
        }
    }
}
