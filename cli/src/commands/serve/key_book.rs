//! The file of keys of a running server, for the console: a change is in force at once.

use std::path::PathBuf;
use std::sync::Arc;

use shoal_console::{KeyBook, KeyBookError, KeyChange};
use shoal_server::{KeyFile, Security};

use crate::arguments::credentials::{CredentialFiles, read_key_file};
use crate::arguments::key_file::change;

/// A file of keys, and the credentials that are made of it.
pub(super) struct ServedKeys {
    path: PathBuf,
    in_force: Vec<(CredentialFiles, Security)>,
}

impl ServedKeys {
    /// The file of keys that these credentials have; `None` if they have none.
    pub(super) fn of(watched: &[(CredentialFiles, Security)]) -> Option<Arc<dyn KeyBook>> {
        let path = watched.iter().find_map(|(files, _)| files.keys.clone())?;
        let uses = |(files, _): &&(CredentialFiles, Security)| files.keys.as_ref() == Some(&path);
        let in_force = watched.iter().filter(uses).cloned().collect();
        Some(Arc::new(Self { path, in_force }))
    }
}

fn failed(error: &anyhow::Error) -> KeyBookError {
    KeyBookError::Failed(format!("{error:#}"))
}

impl KeyBook for ServedKeys {
    fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self) -> Result<KeyFile, KeyBookError> {
        read_key_file(&self.path).map_err(|error| failed(&error))
    }

    fn change(&self, by: KeyChange<'_>) -> Result<(), KeyBookError> {
        let mut refused = None;
        let changed = change(&self.path, false, |file| {
            by(file).map_err(|error| {
                refused = Some(error);
                anyhow::anyhow!("the change was refused")
            })
        });
        if let Some(error) = refused {
            return Err(error);
        }
        changed.map_err(|error| failed(&error))?;
        // The server also reads the file within a second of its change; until then a revoked key would do.
        for (files, security) in &self.in_force {
            security.replace(files.read().map_err(|error| failed(&error))?);
        }
        tracing::info!("the console changed {}; its keys are in force", self.path.display());
        Ok(())
    }
}
