//! Backups in files and pipes: [`sink`] writes one, [`source`] reads one, [`last`] is the base of an increment, [`part`] is the
//! remainder of an interrupted backup, [`chain`] checks that several belong together, [`progress`] shows the progress.

pub(crate) mod buckets;
pub(crate) mod chain;
pub(crate) mod last;
pub(crate) mod part;
pub(crate) mod progress;
pub(crate) mod sink;
pub(crate) mod source;
