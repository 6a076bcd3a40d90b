//! The newest states of keys, in flight or not, which a transaction reads before it decides.
//!
//! So writers of a hot key share a flush instead of waiting for each other's. An answer that was derived from a state
//! in flight may leave only when that state is durable.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_common::object::{Metadata, Object};
use shoal_log::format::RecordKind;
use shoal_pool::Hint;
use shoal_tablets::tablet::view::Tablet;
use shoal_value::{Entry, Home, Meta};
use smallvec::SmallVec;

use crate::read::get::{FoundEntry, check_single, entry_of_record, is_unreadable};
use crate::store::Inner;
use crate::write::append::Seen;
use crate::write::change::ReadLevel;

/// Returns an error if a value of this many bytes may not be read.
pub type Admit<'a> = dyn Fn(u64) -> Result<()> + Sync + 'a;

/// Keys that a transaction reads at a time.
const LOOKS_AT_A_TIME: usize = 16;

/// The entry of an object whose existence is unknown.
fn unknown() -> FoundEntry {
    let (meta, home) = (Meta::Inline(SmallVec::new()), Home::Inline);
    let entry = Entry { modified_ns: 0, end: None, value_bytes: 0, meta, home };
    FoundEntry { version: Lsn::NONE, entry, inline: Bytes::new() }
}

/// The states of the read keys, and the objects to show.
#[derive(Default)]
pub(crate) struct Looked {
    pub seen: SmallVec<[Option<Seen>; 1]>,
    pub objects: SmallVec<[Option<Object>; 1]>,
}

impl Inner {
    /// Reads the newest states of the keys, each as far as its level goes.
    pub(crate) async fn look_at_all(
        &self,
        keys: &[(ObjectKey, ReadLevel)],
        admit: Option<&Admit<'_>>,
        looked: &mut Looked,
    ) -> Result<()> {
        let bytes = AtomicU64::new(0);
        if let [(key, level)] = keys {
            let (place, object) = self.look_at_one(key, *level, (&bytes, admit)).await?;
            looked.seen.push(place);
            looked.objects.push(object);
            return Ok(());
        }
        for some in keys.chunks(LOOKS_AT_A_TIME) {
            let looks = some.iter().map(|(key, level)| self.look_at_one(key, *level, (&bytes, admit)));
            for (place, object) in all_of(looks).await? {
                looked.seen.push(place);
                looked.objects.push(object);
            }
        }
        Ok(())
    }

    /// Reads one key. `bytes` counts the bytes of all values so far; `admit` is asked before a value is read.
    async fn look_at_one(
        &self,
        key: &ObjectKey,
        level: ReadLevel,
        (bytes, admit): (&AtomicU64, Option<&Admit<'_>>),
    ) -> Result<(Option<Seen>, Option<Object>)> {
        if level == ReadLevel::Nothing {
            return Ok((None, None));
        }
        let (seen, found) = self.look(self.tablets.of(key), key, level).await?;
        let object = match &found {
            Some(found) => {
                let value_bytes = if level.wants_value() { found.entry.value_bytes } else { 0 };
                let all = bytes.fetch_add(value_bytes, Ordering::Relaxed) + value_bytes;
                let most = self.tuning.looks_bytes_max;
                if all > most {
                    return Err(Error::Invalid(format!(
                        "the values that one write batch looks at have more than {most} bytes together"
                    )));
                }
                if let Some(admit) = admit.filter(|_| value_bytes > 0) {
                    admit(value_bytes)?;
                }
                Some(self.object_for(found, level).await?)
            }
            None => None,
        };
        Ok((Some(seen), object))
    }

    /// The newest state of a key; an expired object does not exist.
    pub(crate) async fn look(
        &self,
        tablet: &Tablet,
        key: &ObjectKey,
        level: ReadLevel,
    ) -> Result<(Seen, Option<FoundEntry>)> {
        let (mut seen, found) = self.look_stored(tablet, key, level).await?;
        let found = found.filter(|found| !self.is_over(found.entry.end, found.version));
        seen.expires = found.as_ref().and_then(|found| Some((found.entry.end?, found.version)));
        Ok((seen, found))
    }

    /// The newest state of a key. Waits if it is in flight and `level` needs its number or bytes on the device.
    pub(crate) async fn look_stored(
        &self,
        tablet: &Tablet,
        key: &ObjectKey,
        level: ReadLevel,
    ) -> Result<(Seen, Option<FoundEntry>)> {
        loop {
            let view = tablet.view();
            let newest = |memtable: &shoal_memtable::Memtable| memtable.newest(key.encoded());
            let record = newest(&view.active).or_else(|| newest(view.frozen.as_ref()?));
            let found = match &record {
                Some(record) if record.kind() == RecordKind::Delete => None,
                Some(record) => Some(entry_of_record(record)?),
                None => match self.find_in_tree(&view, key.encoded()).await {
                    Err(error) if level == ReadLevel::Existence && is_unreadable(&error) => Some(unknown()),
                    found => found?,
                },
            };
            if let (Some(record), Some(found)) = (&record, &found)
                && !record.is_durable(self.log.committer.durable())
                && level != ReadLevel::Existence
                && (level.wants_version() || !found.is_inline())
            {
                match self.log.committer.drive_until(record).await {
                    // The log had no room for it: the key is in the state before.
                    Err(Error::NoRoom(_)) => {}
                    driven => drop(driven?),
                }
                continue;
            }
            return Ok((Seen { view, record, expires: None }, found));
        }
    }

    pub(crate) async fn object_for(&self, found: &FoundEntry, level: ReadLevel) -> Result<Object> {
        if level == ReadLevel::Existence {
            return Ok(Object { info: self.info_of(found, Metadata::default()), value: Buffer::new() });
        }
        if level.wants_value() {
            check_single(found.entry.value_bytes)?;
            return self.read_object(found, 0, found.entry.value_bytes, Hint::Lookup).await;
        }
        Ok(Object { info: self.info(found).await?, value: Buffer::new() })
    }
}

/// The results of all futures, or the first error.
async fn all_of<T>(futures: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let mut running: Vec<_> = futures.map(|future| (Some(Box::pin(future)), None)).collect();
    poll_fn(|context| {
        let mut left = false;
        for (future, result) in &mut running {
            let Some(polled) = future else { continue };
            match polled.as_mut().poll(context) {
                Poll::Ready(Ok(value)) => (*future, *result) = (None, Some(value)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => left = true,
            }
        }
        if left { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    Ok(running.into_iter().filter_map(|(_, result)| result).collect())
}
