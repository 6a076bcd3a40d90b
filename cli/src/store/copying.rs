//! Copies and moves of objects within a store: of one object, or of all keys with a prefix.
//!
//! A move is a copy, and then a delete of exactly the copied version, so no write is lost: the newest value is always under the old key
//! or under the new one. An interrupted move leaves both.

use anyhow::{Context, anyhow};
use bytes::Bytes;
use shoal_client::{Error, Lsn, RejectRules};
use shoal_transfer::copying::{self, Copied, Location, is_absent};
use shoal_transfer::objects::{Objects, is_lasting};
use shoal_transfer::report::DamagedRanges;
use shoal_transfer::text::{about, counted, show_key};
use tokio::task::JoinSet;

use crate::failure::{Failures, NotFound, Usage};
use crate::store::buckets::no_such_object;

/// Attempts to move an object that others keep writing.
const ATTEMPTS_MAX: u32 = 10;

/// Maximum copies in flight: each may have a piece of its value in memory.
const JOBS: usize = 16;

/// Copies one version of the object at `from`, with its metadata and times, to `to`, unless `rules` reject.
pub(crate) async fn copy(
    objects: &Objects,
    from: &Location,
    to: &Location,
    rules: RejectRules,
) -> anyhow::Result<Copied> {
    match copying::copy(objects, from, Lsn(0), to, rules).await {
        Err(error) if is_absent(&error) => {
            let error = no_such_object(objects, &from.bucket, &from.key).await;
            Err(error.context(about("cannot read", &from.bucket, &from.key)))
        }
        copied => copied,
    }
}

/// Moves the object at `from` to `to`, unless `rules` reject the copy. A value that others write meanwhile is moved, too.
pub(crate) async fn rename(
    objects: &Objects,
    from: &Location,
    to: &Location,
    rules: RejectRules,
) -> anyhow::Result<Copied> {
    let is_new = rules.if_exists;
    let mut copied = copy(objects, from, to, rules).await.map_err(|error| match error.downcast_ref() {
        Some(Error::ConditionFailed { .. }) => {
            error.context(format!("{:?} exists already; --overwrite replaces it", show_key(&to.key)))
        }
        _ => error,
    })?;
    for _ in 0..ATTEMPTS_MAX {
        let just_this = RejectRules { if_version_not: Some(copied.source), ..RejectRules::default() };
        match delete(objects, from, just_this).await {
            Ok(()) => return Ok(copied),
            // Another client deleted the source after it was copied.
            Err(Error::ConditionFailed { current: None, .. }) => return Ok(copied),
            Err(Error::ConditionFailed { .. }) => {}
            Err(error) => {
                let both = format!(
                    "the copy {:?} is complete, but the source {:?} is still there, too",
                    show_key(&to.key),
                    show_key(&from.key)
                );
                return Err(anyhow::Error::new(error).context(both));
            }
        }
        let own_copy = RejectRules { if_version_not: Some(copied.version), ..RejectRules::default() };
        match copy(objects, from, to, own_copy).await {
            Ok(again) => copied = again,
            // Written and then deleted after the copy.
            Err(error) if error.is::<NotFound>() => return Ok(copied),
            Err(error) => return Err(error),
        }
    }
    let what = about("cannot move", &from.bucket, &from.key);
    if is_new {
        let own_copy = RejectRules { if_version_not: Some(copied.version), ..RejectRules::default() };
        delete(objects, to, own_copy)
            .await
            .context("cannot take back the copy of an object that keeps changing")?;
        return Err(anyhow!("{what}: the object keeps changing; nothing was moved"));
    }
    Err(anyhow!("{what}: the object keeps changing; {:?} is a copy of an older version", show_key(&to.key)))
}

async fn delete(objects: &Objects, place: &Location, rules: RejectRules) -> Result<(), Error> {
    let results = objects.delete_many(&place.bucket, vec![place.key.clone()], rules).await;
    results.into_iter().next().unwrap_or(Err(Error::NotFound)).map(drop)
}

/// A copy or move of all keys with a prefix, which is replaced by another one.
#[derive(Clone, Debug)]
pub(crate) struct Prefixes {
    /// The bucket and the prefix of the sources.
    pub(crate) from: Location,
    /// The bucket of the copies, and their prefix.
    pub(crate) to: Location,
    /// The conditions of each copy.
    pub(crate) rules: RejectRules,
    /// Deletes the sources.
    pub(crate) moves: bool,
}

/// The result of a copy or move by prefix.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) failures: Failures,
    /// Ranges of keys that could not be listed.
    pub(crate) damage: DamagedRanges,
}

impl Prefixes {
    /// Copies or moves all, and passes each source and destination to `show`. With `dry` it only shows. Continues after a failure, unless
    /// all others would fail the same way.
    pub(crate) async fn run(
        &self,
        objects: &Objects,
        dry: bool,
        mut show: impl FnMut(&Bytes, &Bytes) -> anyhow::Result<()>,
    ) -> anyhow::Result<Totals> {
        self.check()?;
        let mut totals = Totals::default();
        let (bucket, prefix) = (&self.from.bucket, &self.from.key);
        let mut running = JoinSet::new();
        let mut pages = objects.pages(bucket, prefix);
        let listing = || about("cannot list the keys with the prefix", bucket, prefix);
        while let Some(page) = pages.next().await.with_context(listing)? {
            totals.damage.add(page.damaged);
            for entry in page.entries {
                let to_key = match self.key_of_copy(&entry.key) {
                    Ok(to_key) => to_key,
                    Err(error) => {
                        totals.failures.add(&error);
                        continue;
                    }
                };
                if dry {
                    show(&entry.key, &to_key)?;
                    totals.objects += 1;
                    totals.bytes += entry.info.bytes;
                    continue;
                }
                if running.len() >= JOBS {
                    settle(&mut running, &mut totals, &mut show).await?;
                }
                let own = self.clone();
                let objects = objects.clone();
                running.spawn(async move {
                    let from = Location { key: entry.key, ..own.from };
                    let to = Location { key: to_key, ..own.to };
                    let done = match own.moves {
                        true => rename(&objects, &from, &to, own.rules).await,
                        false => copy(&objects, &from, &to, own.rules).await,
                    };
                    (from.key, to.key, done)
                });
            }
        }
        while !running.is_empty() {
            settle(&mut running, &mut totals, &mut show).await?;
        }
        if totals.objects == 0 && totals.failures.count() == 0 && totals.damage.ranges().is_empty() {
            return Err(NotFound(about("no key has the prefix", bucket, prefix)).into());
        }
        Ok(totals)
    }

    /// A copy must not be listed as a source.
    fn check(&self) -> Result<(), Usage> {
        if self.from.bucket != self.to.bucket || !self.to.key.starts_with(&self.from.key) {
            return Ok(());
        }
        let (from, to) = (show_key(&self.from.key), show_key(&self.to.key));
        Err(Usage(format!(
            "the new prefix {to:?} starts with the old one, {from:?}: the copies would be copied again; use another prefix or \
             bucket in between"
        )))
    }

    /// The key of the copy of the object at `key`.
    fn key_of_copy(&self, key: &[u8]) -> anyhow::Result<Bytes> {
        let rest = key.get(self.from.key.len()..).unwrap_or_default();
        let new = Bytes::from([&self.to.key[..], rest].concat());
        // With a shorter new prefix, a copy may replace a source that is not copied yet.
        if self.from.bucket == self.to.bucket && new.starts_with(&self.from.key) {
            let what = about("left alone:", &self.from.bucket, key);
            return Err(anyhow!("{what}: its new key {:?} starts with the old prefix, too", show_key(&new)));
        }
        Ok(new)
    }
}

/// Waits for one copy of `running`.
async fn settle(
    running: &mut JoinSet<(Bytes, Bytes, anyhow::Result<Copied>)>,
    totals: &mut Totals,
    show: &mut impl FnMut(&Bytes, &Bytes) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some(joined) = running.join_next().await else { return Ok(()) };
    let (from, to, done) = joined.context("a copy ended by an error of the program")?;
    match done {
        Ok(copied) => {
            totals.objects += 1;
            totals.bytes += copied.bytes;
            show(&from, &to)
        }
        // Deleted by others after the listing.
        Err(error) if error.is::<NotFound>() => Ok(()),
        Err(error) if error.downcast_ref().is_some_and(is_lasting) => {
            Err(error.context(format!("{} done, then", counted(totals.objects, "object"))))
        }
        Err(error) => {
            totals.failures.add(&error);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(from: &str, to: &str, to_bucket: &str) -> Prefixes {
        let place = |bucket: &str, key: &str| Location {
            bucket: bucket.into(),
            key: Bytes::copy_from_slice(key.as_bytes()),
        };
        Prefixes {
            from: place("a", from),
            to: place(to_bucket, to),
            rules: RejectRules::default(),
            moves: true,
        }
    }

    #[test]
    fn copies_are_not_copied_again() {
        for (from, to, bucket, is_allowed) in [
            ("p/", "q/", "a", true),
            ("p/", "p/", "a", false),
            ("p/", "p/q/", "a", false),
            ("", "q/", "a", false),
            ("p/", "", "a", true),
            ("p/", "p/", "b", true),
            ("", "q/", "b", true),
        ] {
            let prefixes = prefixes(from, to, bucket);
            assert_eq!(prefixes.check().is_ok(), is_allowed, "{from:?} to {to:?} in {bucket}");
            if is_allowed {
                assert_eq!(prefixes.key_of_copy(format!("{from}x").as_bytes()).unwrap(), format!("{to}x"));
            }
        }
        assert!(prefixes("p/", "", "a").key_of_copy(b"p/p/x").is_err(), "it may be a source");
        assert_eq!(prefixes("p/", "", "b").key_of_copy(b"p/p/x").unwrap(), "p/x");
    }
}
