//! Backups in files and pipes: [`sink`] writes one, [`source`] reads one, [`last`] is the one that an increment goes on from, [`part`]
//! is what one that was broken off left, [`chain`] checks that several belong together, [`progress`] shows how far that is.

pub(crate) mod chain;
pub(crate) mod last;
pub(crate) mod part;
pub(crate) mod progress;
pub(crate) mod sink;
pub(crate) mod source;
