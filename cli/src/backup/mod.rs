//! Backups in files and pipes: [`sink`] writes one, [`source`] reads one, [`progress`] shows how far that is.

pub(crate) mod progress;
pub(crate) mod sink;
pub(crate) mod source;
