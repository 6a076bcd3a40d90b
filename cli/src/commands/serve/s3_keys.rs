//! The keys of S3 clients if no --key-file names them: a file beside the data file, which the first start makes with one key that may
//! do everything. Its owner may open the data file as well.
//!
//! Only S3 uses this file: its requests are signed, so it needs a key, while gRPC and the Redis protocol let in every caller on
//! this machine without a --key-file. It exists only if no other machine reaches the address of S3.

use std::path::{Path, PathBuf};

use shoal_s3::{DEFAULT_REGION, S3Server};
use shoal_server::Security;

use super::settings::{DEFAULT_S3, Settings};
use crate::arguments::credentials::CredentialFiles;
use crate::arguments::key_file::make_first;
use crate::commands::key::DEFAULT_KEY_FILE;

/// The name of the file.
const NAME: &str = "shoal.keys";

/// The file of keys beside the data file; `None` if the data is no file of a folder.
fn path_of(settings: &Settings) -> Option<PathBuf> {
    let is_file = settings.data.metadata().is_ok_and(|metadata| metadata.is_file());
    is_file.then(|| settings.data.with_file_name(NAME))
}

/// The credentials of S3: those of the other frontends if a file of keys is named.
pub(super) fn security(settings: &Settings, others: &Security) -> anyhow::Result<Security> {
    match settings.credentials.keys {
        Some(_) => Ok(others.clone()),
        None => Ok(Security::new(settings.credentials.read()?)),
    }
}

/// Logs the command for the environment of clients. If no file of keys is named, it lets the holders of keys in the file beside the data file
/// in, which it makes if there is none, and returns the files to be watched. A file that cannot be made or read is logged, and S3
/// refuses every request until it can.
pub(super) fn start(
    settings: &Settings,
    server: &S3Server,
    security: Security,
) -> Option<(CredentialFiles, Security)> {
    if let Some(keys) = &settings.credentials.keys {
        say_command(settings, server, keys);
        return None;
    }
    let is_local = server.addresses().iter().all(|address| address.ip().to_canonical().is_loopback());
    let Some(path) = path_of(settings).filter(|_| is_local) else {
        tracing::warn!(
            "S3 refuses every request, because there is no --key-file; `shoal key create --allow 'all *'` makes one with a key"
        );
        return None;
    };
    let files = CredentialFiles { keys: Some(path.clone()), ..settings.credentials.clone() };
    match make(&path).and_then(|()| files.read()) {
        Ok(credentials) => {
            security.replace(credentials);
            say_command(settings, server, &path);
        }
        Err(error) => tracing::warn!("S3 refuses every request: {error:#}"),
    }
    Some((files, security))
}

fn make(path: &Path) -> anyhow::Result<()> {
    if path.try_exists()? || !make_first(path)? {
        return Ok(());
    }
    tracing::info!("{} has a new key for S3, which may do everything", path.display());
    Ok(())
}

fn say_command(settings: &Settings, server: &S3Server, keys: &Path) {
    tracing::info!("for programs that speak S3: {}", command(settings, server, keys));
}

/// The command that sets the environment of programs that speak S3.
fn command(settings: &Settings, server: &S3Server, keys: &Path) -> String {
    let mut command = String::from("shoal key env");
    if keys != Path::new(DEFAULT_KEY_FILE) {
        command += &format!(" --key-file {}", keys.display());
    }
    let scheme = if server.is_encrypted() { "https" } else { "http" };
    let address = server.addresses().first().map(ToString::to_string).unwrap_or_default();
    if scheme == "https" || address != DEFAULT_S3 {
        command += &format!(" --endpoint {scheme}://{address}");
    }
    if settings.objects.region != DEFAULT_REGION {
        command += &format!(" --region {}", settings.objects.region);
    }
    format!("eval \"$({command})\"")
}
