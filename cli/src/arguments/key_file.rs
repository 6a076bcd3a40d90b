//! Changes of a file of keys: by `shoal key`, by the first start of a server, and by the console.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, fchown, flock};
use rustix::process::{Gid, Uid};
use shoal_base::{Clock, SystemClock};
use shoal_server::KeyFile;

use crate::arguments::credentials::{check_keys, read_key_file};
use crate::failure::Usage;

/// Makes a file of keys with one key that may do everything. Returns false if there is a file already.
pub(crate) fn make_first(path: &Path) -> anyhow::Result<bool> {
    let now_s = SystemClock::default().wall_ns() / 1_000_000_000;
    change(path, true, |file| {
        // Another server may have made it meanwhile.
        let is_new = file.entries.is_empty();
        if is_new {
            file.create(Some("made at the first start".to_owned()), vec!["all *".to_owned()], now_s, None)?;
        }
        Ok(is_new)
    })
}

/// Changes the file of keys at `path`: it is replaced as a whole, by one process at a time. `may_create`: it need not exist.
pub(crate) fn change<T>(
    path: &Path,
    may_create: bool,
    change: impl FnOnce(&mut KeyFile) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let cannot = |error: std::io::Error| Usage(format!("cannot write {}: {error}", path.display()));
    // A symlink stays: its target is replaced.
    let path = &if path.exists() { path.canonicalize().map_err(cannot)? } else { path.to_owned() };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).map_err(cannot)?;
    flock(&folder, FlockOperation::LockExclusive).map_err(|error| cannot(error.into()))?;
    let (mut file, owner) = match path.metadata() {
        Err(error) if may_create && error.kind() == std::io::ErrorKind::NotFound => {
            (KeyFile::default(), None)
        }
        Err(error) => return Err(cannot(error).into()),
        Ok(metadata) => (read_key_file(path)?, Some(metadata)),
    };
    let changed = change(&mut file)?;
    check_keys(&file).map_err(|error| Usage(error.to_string()))?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let written = write_whole(Path::new(&temporary), &file.to_text()?, owner.as_ref());
    let renamed = written.and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = renamed {
        // The failure itself is reported.
        let _ = std::fs::remove_file(&temporary);
        return Err(cannot(error).into());
    }
    folder.sync_all().map_err(cannot)?;
    Ok(changed)
}

/// Writes a new file, with the owner and mode of the one that it replaces.
fn write_whole(path: &Path, text: &str, replaced: Option<&std::fs::Metadata>) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if let Some(replaced) = replaced {
        let (user, group) = (Uid::from_raw(replaced.uid()), Gid::from_raw(replaced.gid()));
        fchown(&file, Some(user), Some(group))?;
        file.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
