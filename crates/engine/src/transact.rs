//! Transactions: what is read is of one moment, what is written is one step, and nobody came between.
//!
//! A transaction is a step of several keys (`together.rs`) that also holds its reads to one moment where it writes nothing, and does
//! nothing where a watched key changed (`watch.rs`). What it saw is compared under the locks of all overlays of its keys, the same
//! record or the same root, so states in flight count, too; its answer leaves when those are durable.

use bytes::Bytes;
use shoal_base::Lsn;

use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::object::{Deadline, Expiry, Object};
use crate::retry::Identity;
use crate::store::Store;
use crate::together::{Asked, Together};
use crate::update::{Change, Look};
use crate::watch::Watch;

/// What a transaction decides.
#[derive(Debug)]
pub enum Decision<T> {
    /// These changes, one for each key in their order, and this answer.
    Do(Vec<Change>, T),
    /// Nothing: the answer is given at once, and says nothing of one moment.
    Leave(T),
}

/// What became of a transaction.
#[derive(Debug)]
pub enum Transacted<T> {
    /// It was done.
    Done(Together<T>),
    /// The decision left it.
    Left(T),
    /// A watched key changed: nothing was done.
    Changed,
    /// A transaction of this identity had been done before, and is durable.
    Before {
        /// The version of the last object that it wrote, or of its result where it wrote none.
        version: Lsn,
        /// What was kept of its answer; none where that was too long.
        answer: Option<Bytes>,
    },
}

impl Store {
    /// Shows `decide` the states of all keys at one moment, each as far as its [`Look`] goes, and does what it says as one step:
    /// no other write comes between, and after a crash all of it is there or nothing. `decide` is asked again where a key changed
    /// meanwhile; a transaction to which that happens again and again queues for its keys. Nothing is done where one of the
    /// `watches` changed. Each key is named once. Where it writes nothing, what was seen is still of one moment.
    ///
    /// The answer may leave when all of [`Together::pending`] is durable. The versions of what was written follow each other in
    /// the order of the keys, and end with that of the last pending write.
    ///
    /// # Errors
    /// As [`Store::update_together`]; nothing happened then. [`Error::Invalid`], too, where the values that are looked at have more
    /// than 64 MiB together, or one of them more than 4 MiB.
    pub async fn transact<T>(
        &self,
        keys: &[(ObjectKey, Look)],
        watches: &[Watch],
        decide: impl FnMut(&[Option<Object>]) -> Decision<T>,
    ) -> Result<Transacted<T>> {
        self.check_watches(watches)?;
        self.step(&Asked { keys, watches, once: None, one_moment: true }, decide).await
    }

    /// As [`Store::transact`], done once, as [`Store::update_once`] has it. What was done before is told also where a watched key
    /// changed since: it changed it.
    ///
    /// # Errors
    /// As [`Store::transact`] and [`Store::update_once`].
    pub async fn transact_once<T>(
        &self,
        identity: Identity,
        keys: &[(ObjectKey, Look)],
        watches: &[Watch],
        decide: impl FnMut(&[Option<Object>]) -> Decision<T>,
        keep: impl Fn(&T) -> Vec<u8> + Sync,
    ) -> Result<Transacted<T>> {
        if keys.is_empty() {
            return Err(Error::Invalid("a transaction with an identity names at least one key".into()));
        }
        self.check_watches(watches)?;
        self.step(&Asked { keys, watches, once: Some((identity, &keep)), one_moment: true }, decide).await
    }

    /// When the time of an object would be over that is written now.
    #[must_use]
    pub fn deadline_of(&self, expiry: Expiry) -> Option<Deadline> {
        let inner = &*self.0;
        let end = inner.expiry.end_of(expiry, &inner.committer)?;
        Some(inner.expiry.deadline(end, &inner.committer))
    }

    fn check_watches(&self, watches: &[Watch]) -> Result<()> {
        if watches.iter().all(|watch| watch.is_of(&self.0)) {
            return Ok(());
        }
        Err(Error::Invalid("a key of another store is watched".into()))
    }
}
