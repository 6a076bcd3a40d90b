//! Files with credentials: those of `shoal serve`, which are read again when they change, and those that a command shows to a server.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use shoal_engine::check_bucket;
use shoal_server::{Credentials, KeyFile, Keys, Security, TlsPem, Tokens};
use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::failure::Usage;

/// The period in which the files are checked.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Permissions of all users but the owner.
const NOT_THE_OWNER: u32 = 0o077;
/// The permission of the group to read.
const GROUP_READS: u32 = 0o040;

/// The name of a token file's content in messages.
const TOKENS: &str = "tokens";

/// The paths of a server's credentials.
#[derive(Clone, Debug, Default)]
pub(crate) struct CredentialFiles {
    pub(crate) certificates: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) client_roots: Option<PathBuf>,
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) allow_tls12: bool,
}

/// Detects a change of a file without reading it: modification time, change time, length, inode.
type Stamp = Option<(SystemTime, (i64, i64), u64, u64)>;

impl CredentialFiles {
    /// Reads them all.
    pub(crate) fn read(&self) -> anyhow::Result<Credentials> {
        let tls = match (&self.certificates, &self.key) {
            (Some(certificates), Some(key)) => Some(TlsPem {
                certificates: read(certificates)?,
                key: read_key(key)?,
                client_roots: self.client_roots.as_deref().map(read).transpose()?,
                allow_tls12: self.allow_tls12,
            }),
            (None, None) if self.client_roots.is_some() => {
                return Err(Usage("--tls-client-ca needs --tls-cert and --tls-key".into()).into());
            }
            (None, None) => None,
            _ => return Err(Usage("--tls-cert and --tls-key belong together".into()).into()),
        };
        let tokens = self.tokens.as_deref().map(read_tokens).transpose()?.unwrap_or_default();
        let keys = self.keys.as_deref().map(read_keys).transpose()?;
        Credentials::with_keys(tls.as_ref(), tokens, keys)
            .map_err(|error| Usage(format!("credentials: {error}")).into())
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.certificates, &self.key, &self.client_roots, &self.tokens, &self.keys].into_iter().flatten()
    }

    fn stamps(&self) -> Vec<Stamp> {
        let stamp = |path: &PathBuf| {
            let metadata = path.metadata().ok()?;
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            Some((metadata.modified().ok()?, changed, metadata.len(), metadata.ino()))
        };
        self.all().map(stamp).collect()
    }
}

/// Keeps the credentials of frontends up to date with their files: checks them every second, and at once at SIGHUP. Unusable files are logged
/// and change nothing. Without files, nothing is checked, and SIGHUP changes nothing.
pub(crate) async fn watch(mut watched: Vec<(CredentialFiles, Security)>, mut hang_ups: Signal) {
    watched.retain(|(files, _)| files.all().next().is_some());
    let has_files = !watched.is_empty();
    let mut looks = interval(LOOK_PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Empty at first: the files may have changed while the store was opened.
    let mut seen = Vec::new();
    loop {
        let asked = tokio::select! {
            _ = hang_ups.recv() => true,
            _ = looks.tick(), if has_files => false,
        };
        let now: Vec<_> = watched.iter().map(|(files, _)| files.stamps()).collect();
        if !asked && now == seen {
            continue;
        }
        seen = now;
        if !has_files {
            tracing::info!("SIGHUP: there are no files with credentials to be read again");
            continue;
        }
        let mut failed = None;
        for (files, security) in &watched {
            match files.read() {
                Ok(credentials) => security.replace(credentials),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => tracing::info!("the credentials were read again"),
            Some(error) => tracing::warn!("the credentials stay as they are: {error:#}"),
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Usage(format!("cannot read {}: {error}", path.display())).into())
}

/// The content of a secret file; `what` is its name in messages. Only the owner may have rights to it.
pub(crate) fn read_secret(path: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    let cannot = |error| Usage(format!("cannot read {}: {error}", path.display()));
    // Check the rights of the open file: its name may refer to another file a moment later.
    let mut file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    let mode = metadata.permissions().mode();
    if !is_secret(mode, (metadata.uid(), metadata.gid()), rustix::process::geteuid().as_raw()) {
        let (path, mode) = (path.display(), mode & 0o777);
        let problem = format!(
            "{path} holds {what} and is open to its group or to other users (mode {mode:03o}); chmod 600 {path} (or 640, if \
             root owns it and a service reads it by its group)"
        );
        return Err(Usage(problem).into());
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(cannot)?;
    Ok(content)
}

/// Returns true if a file with these rights, owner and group is closed to all others. A service that is not root may read a file of root
/// by its group: packages and Kubernetes pass secrets to services that way. Root may read it too, to check a configuration; a file for
/// root's own group is for no service.
fn is_secret(mode: u32, (owner, group): (u32, u32), user: u32) -> bool {
    let is_given = owner == 0 && (user != 0 || group != 0);
    mode & NOT_THE_OWNER & !(if is_given { GROUP_READS } else { 0 }) == 0
}

fn read_tokens(path: &Path) -> anyhow::Result<Tokens> {
    let text = read_secret(path, TOKENS)?;
    let wrong = |problem: String| Usage(format!("{}: {problem}", path.display()));
    let tokens = Tokens::parse(&text).map_err(|error| wrong(error.to_string()))?;
    for bucket in tokens.buckets() {
        // An impossible bucket name would lock its user out silently.
        check_bucket(bucket).map_err(|error| wrong(format!("the rights of a token: {error}")))?;
    }
    Ok(tokens)
}

/// The keys in force by a file of keys.
fn read_keys(path: &Path) -> anyhow::Result<Keys> {
    check_keys(&read_key_file(path)?).map_err(|error| Usage(format!("{}: {error}", path.display())).into())
}

/// The content of a file of keys, unchecked.
pub(crate) fn read_key_file(path: &Path) -> anyhow::Result<KeyFile> {
    let text = read_secret(path, "keys")?;
    KeyFile::parse(&text).map_err(|error| Usage(format!("{}: {error}", path.display())).into())
}

/// The keys of a file, checked as a start of the server does.
pub(crate) fn check_keys(file: &KeyFile) -> anyhow::Result<Keys> {
    let keys = file.keys()?;
    keys.buckets().try_for_each(check_bucket)?;
    Ok(keys)
}

/// The credential that a command shows to a server: the first token of the file, without its rights.
pub(crate) fn read_token(path: &Path) -> anyhow::Result<Vec<u8>> {
    let text = read_secret(path, TOKENS)?;
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let token = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    let token = token.and_then(|line| line.split(u8::is_ascii_whitespace).next());
    token.map(<[u8]>::to_vec).ok_or_else(|| Usage(format!("{} has no token", path.display())).into())
}

/// The content of a PEM file with a private key.
pub(crate) fn read_key(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_secret(path, "a private key")
}

/// The content of a PEM file with certificates.
pub(crate) fn read_pem(path: &Path) -> anyhow::Result<Vec<u8>> {
    read(path)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    #[test]
    fn tokens_are_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        write(&path, "# mine\n\n 0123456789abcdef \nfedcba9876543210\n").unwrap();
        let files = CredentialFiles { tokens: Some(path.clone()), ..CredentialFiles::default() };
        for mode in [0o644, 0o640, 0o620, 0o601] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read_token(&path).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains("chmod 600"), "{mode:o}: {error}");
            assert!(files.read().is_err(), "{mode:o}");
        }
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_token(&path).unwrap(), b"0123456789abcdef");
        assert!(files.read().unwrap().asks());
        write(&path, "0123456789abcdef bucket=films,read-only\nfedcba9876543210\n").unwrap();
        assert_eq!(read_token(&path).unwrap(), b"0123456789abcdef");
        assert!(files.read().unwrap().asks());
        for wrong in [
            "0123456789abcdef bucket=Films\n",
            "0123456789abcdef bucket=.shoal\n",
            "0123456789abcdef reads\n",
        ] {
            write(&path, wrong).unwrap();
            let error = files.read().err().unwrap();
            assert!(error.is::<Usage>() && error.to_string().contains("rights"), "{error}");
        }
        write(&path, "# none\n").unwrap();
        assert!(read_token(&path).is_err() && files.read().is_err());
    }

    #[test]
    fn a_group_may_read_what_root_gives_a_service() {
        for (mode, owner, user, expected) in [
            (0o600, (0, 0), 0, true),
            (0o600, (7, 7), 7, true),
            (0o640, (0, 7), 7, true),
            (0o440, (0, 0), 7, true),
            // `shoal config check` as root refused a file that the service accepts.
            (0o640, (0, 7), 0, true),
            (0o640, (0, 0), 0, false),
            (0o640, (7, 7), 7, false),
            (0o640, (7, 7), 0, false),
            (0o644, (0, 7), 7, false),
            (0o660, (0, 7), 0, false),
            (0o650, (0, 7), 7, false),
            (0o604, (0, 7), 7, false),
        ] {
            assert_eq!(is_secret(0o100_000 | mode, owner, user), expected, "{mode:o} of {owner:?} by {user}");
        }
    }

    /// Only tokens were checked, and only for users outside of the file's group.
    #[test]
    fn private_keys_are_secret() {
        let folder = tempfile::tempdir().unwrap();
        let (certificates, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        write(&certificates, made.cert.pem()).unwrap();
        write(&key, made.signing_key.serialize_pem()).unwrap();
        let files = CredentialFiles {
            certificates: Some(certificates),
            key: Some(key.clone()),
            ..CredentialFiles::default()
        };
        for mode in [0o644, 0o640, 0o604] {
            set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            let error = files.read().err().unwrap();
            let text = error.to_string();
            assert!(error.is::<Usage>() && text.contains("a private key"), "{mode:o}: {text}");
            assert!(text.contains(&format!("mode {mode:o}")) && read_key(&key).is_err(), "{mode:o}: {text}");
        }
        for mode in [0o600, 0o400] {
            set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            assert!(files.read().unwrap().is_encrypted() && read_key(&key).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn files_that_belong_together() {
        let path = || Some(PathBuf::from("/none"));
        let files = CredentialFiles::default();
        assert!(!files.read().unwrap().is_encrypted());
        for wrong in [
            CredentialFiles { certificates: path(), ..files.clone() },
            CredentialFiles { key: path(), ..files.clone() },
            CredentialFiles { client_roots: path(), ..files.clone() },
            CredentialFiles { certificates: path(), key: path(), ..files },
        ] {
            assert!(wrong.read().err().unwrap().is::<Usage>(), "{wrong:?}");
        }
    }
}
