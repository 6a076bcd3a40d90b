//! Extended attributes of files: the parts of an object that a file does not represent otherwise.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result};

use crate::attributes::extras::{Extras, NAMESPACE};

/// A file or folder with extended attributes. Symlinks have none of the user's.
pub(crate) enum Holder<'a> {
    /// An open one.
    File(BorrowedFd<'a>),
    /// By its path.
    Path(&'a Path),
}

/// The extras, from Shoal's attributes; none on a file system without extended attributes.
///
/// # Errors
/// The attributes cannot be read, or are invalid.
pub(crate) fn read(holder: &Holder<'_>) -> std::result::Result<Extras, String> {
    let cannot =
        |error: Errno| format!("its extended attributes cannot be read: {}", std::io::Error::from(error));
    let mut extras = Extras::default();
    for name in holder.names().map_err(cannot)? {
        let value = match holder.value(&name) {
            // Removed meanwhile.
            Err(Errno::NODATA) => continue,
            value => value.map_err(cannot)?,
        };
        extras.add(&name, &value)?;
    }
    Ok(extras)
}

/// Makes these the only attributes of Shoal on `file`.
///
/// # Errors
/// The reason why the file cannot have them. A lost mark for "no mode" is no error.
pub(crate) fn write(file: impl AsFd, extras: &Extras) -> std::result::Result<(), String> {
    let result = extras.pairs().and_then(|pairs| {
        replace(&file, &pairs).map_err(|error| match error {
            Errno::OPNOTSUPP => "the file system has no extended attributes".into(),
            _ => format!("the file system does not take its attributes: {}", std::io::Error::from(error)),
        })
    });
    if extras.is_plain() { Ok(()) } else { result }
}

fn replace(file: impl AsFd, pairs: &[(String, Vec<u8>)]) -> Result<()> {
    for name in Holder::File(file.as_fd()).names()? {
        if pairs.iter().all(|(wanted, _)| wanted.as_bytes() != name) {
            rustix::fs::fremovexattr(&file, OsStr::from_bytes(&name))?;
        }
    }
    pairs
        .iter()
        .try_for_each(|(name, value)| rustix::fs::fsetxattr(&file, name.as_str(), value, XattrFlags::empty()))
}

impl Holder<'_> {
    /// The names of Shoal's attributes.
    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let length = match self {
            Self::File(file) => rustix::fs::flistxattr_query(file),
            Self::Path(path) => rustix::fs::llistxattr_query(*path),
        };
        let mut list = match length {
            Err(Errno::OPNOTSUPP) | Ok(0) => return Ok(Vec::new()),
            length => vec![0; length?],
        };
        let length = match self {
            Self::File(file) => rustix::fs::flistxattr(file, &mut list[..])?,
            Self::Path(path) => rustix::fs::llistxattr(*path, &mut list[..])?,
        };
        list.truncate(length);
        let names = list.split(|&byte| byte == 0).filter(|name| name.starts_with(NAMESPACE.as_bytes()));
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    fn value(&self, name: &[u8]) -> Result<Vec<u8>> {
        let name = OsStr::from_bytes(name);
        let length = match self {
            Self::File(file) => rustix::fs::fgetxattr_query(file, name)?,
            Self::Path(path) => rustix::fs::lgetxattr_query(*path, name)?,
        };
        let mut value = vec![0; length];
        let length = match self {
            Self::File(file) => rustix::fs::fgetxattr(file, name, &mut value[..])?,
            Self::Path(path) => rustix::fs::lgetxattr(*path, name, &mut value[..])?,
        };
        value.truncate(length);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_a_round_trip_and_others_are_ignored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut extras = Extras::default();
        extras.add(b"user.shoal.content-type", b"text/plain").unwrap();
        extras.add(b"user.shoal.meta.colour", b"blue").unwrap();
        if rustix::fs::fsetxattr(&file, "user.other", b"x", XattrFlags::empty()).is_err() {
            return shoal_testkit::skipped::skipped("this file system has no extended attributes");
        }
        write(&file, &extras).unwrap();
        let by_path = read(&Holder::Path(file.path())).unwrap();
        assert_eq!((read(&Holder::File(file.as_fd())).unwrap(), by_path), (extras.clone(), extras));
        write(&file, &Extras::default()).unwrap();
        assert!(read(&Holder::File(file.as_fd())).unwrap().is_empty());
    }
}
