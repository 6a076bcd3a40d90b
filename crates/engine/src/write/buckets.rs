//! Buckets with a record: create, change, delete (`bucket/mod.rs`).
//!
//! Each blocks its thread until it is durable: as a future it could be dropped between the record and the registry, which would not match
//! then. They are rare, and take a commit or two.

use std::sync::Arc;

use shoal_base::list::DamagedRange;
use shoal_base::task::Boxed;
use shoal_common::bucket::{BUCKET_RECORD_BYTES_MAX, BucketConfig};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::{check_bucket, system_key};
use shoal_common::object::{ListRequest, PutOptions, RejectRules};
use shoal_log::run_to_end;

use crate::bucket::{BucketState, KnownBuckets, record_key};
use crate::store::Store;

/// The result of [`Store::create_bucket`].
#[derive(Clone, Debug)]
pub struct CreatedBucket {
    /// The bucket.
    pub state: Arc<BucketState>,
    /// False if it had a record before: nothing was changed.
    pub is_new: bool,
}

impl Store {
    /// Reads the records of all buckets. Call it once after the opening, which reads no object itself; later calls read nothing.
    ///
    /// # Errors
    /// As [`Store::list`]. Damage is no error: [`Self::bucket`] reports it.
    pub fn load_buckets(&self) -> Result<()> {
        self.run_in_turn(async |_| Ok(()))
    }

    /// The state of a bucket; `None` if it has no record: it exists while it has objects.
    ///
    /// # Errors
    /// [`Error::Busy`] before [`Self::load_buckets`]; [`Error::Corrupt`] if damage hides whether it has a record, or the record is not
    /// valid for this program: nobody knows its settings.
    pub fn bucket(&self, name: &str) -> Result<Option<Arc<BucketState>>> {
        let known = self.0.buckets.known().ok_or(Error::Busy("its buckets are not loaded yet"))?;
        self.find_bucket(&known, name)
    }

    fn find_bucket(&self, known: &KnownBuckets, name: &str) -> Result<Option<Arc<BucketState>>> {
        let unusable = |why: &str, block| Error::Corrupt { what: format!("bucket {name:?}: {why}"), block };
        match known.states.get(name) {
            Some(Ok(state)) => return Ok(Some(state.clone())),
            Some(Err(why)) => return Err(unusable(why, 0)),
            None if known.hidden.is_empty() => return Ok(None),
            None => {}
        }
        let key = record_key(name);
        let tablet = self.0.tablets.of(&key).id;
        let hides = |range: &&DamagedRange| range.tablet == tablet && range.contains(key.encoded());
        match known.hidden.iter().find(hides) {
            Some(range) => Err(unusable("damage may hide its record", range.block)),
            None => Ok(None),
        }
    }

    /// Gives a bucket a record with these settings, unless it has one. Durable on return. Objects that are in the bucket stay.
    ///
    /// # Errors
    /// As [`Self::put`] and [`Self::bucket`]; [`Error::Invalid`] for an invalid name, too long settings, or the record after
    /// [`BUCKETS_MAX`](crate::BUCKETS_MAX); [`Error::Invalid`] also if all records together are too long.
    pub fn create_bucket(&self, name: &str, config: BucketConfig) -> Result<CreatedBucket> {
        check_bucket(name)?;
        self.run_in_turn(async |known| {
            if let Some(state) = self.find_bucket(known, name)? {
                return Ok(CreatedBucket { state, is_new: false });
            }
            let created_ns = self.0.environment.clock.wall_ns();
            let state = BucketState::new(name, BucketConfig { created_ns, ..config });
            Ok(CreatedBucket { state: self.store_bucket(known, state).await?, is_new: true })
        })
    }

    /// Changes the settings of a bucket; returns its new state. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoBucket`] if it has no record; those of `change`, [`Self::bucket`] and [`Self::put`]: nothing was changed.
    pub fn update_bucket(
        &self,
        name: &str,
        change: impl FnOnce(&mut BucketConfig) -> Result<()>,
    ) -> Result<Arc<BucketState>> {
        self.run_in_turn(async |known| {
            let before = self.find_bucket(known, name)?.ok_or_else(|| Error::NoBucket(name.to_owned()))?;
            let mut config = before.config().clone();
            change(&mut config)?;
            config.created_ns = before.config().created_ns;
            self.store_bucket(known, before.with(config)).await
        })
    }

    /// Deletes the record of a bucket without objects, and aborts the uploads into it. Durable on return. Meanwhile a put into the bucket, a
    /// new upload and a part are refused with [`Error::Busy`]; a later put that names an earlier state of the bucket is refused with [`Error::NoBucket`].
    ///
    /// # Errors
    /// [`Error::NoBucket`] if it has no record; [`Error::BucketNotEmpty`]; those of [`Self::bucket`] and [`Self::delete`]: nothing was
    /// changed.
    pub fn delete_bucket(&self, name: &str) -> Result<()> {
        self.run_in_turn(async |known| {
            let state = self.find_bucket(known, name)?.ok_or_else(|| Error::NoBucket(name.to_owned()))?;
            // First without refusing puts: a bucket in use stays open.
            self.check_empty(name).await?;
            let closed = self.0.buckets.close(state);
            if !injected(Bug::ClosingIgnored) {
                self.pass_memtables();
                // Puts that were queued before are durable with it, so that the listing has them.
                self.delete(&system_key(b"closing"), RejectRules::default()).await?;
            }
            self.check_empty(name).await?;
            self.abort_uploads_into(name).await?;
            let deleted = self.delete(&record_key(name), RejectRules::default()).await;
            // If the outcome is not known, no put may count on the record.
            if matches!(deleted, Ok(_) | Err(Error::Unknown(_))) {
                closed.deleted();
            }
            deleted.map(|_| ())
        })
    }

    /// Writes the record of a bucket from a backup as it is, or removes it. Only for a store that is being restored: its buckets are not
    /// loaded.
    ///
    /// # Errors
    /// As [`Self::put`] and [`Self::delete`]; [`Error::Invalid`] for an invalid name, or a record that is too long.
    pub fn restore_bucket<'a>(&'a self, name: &'a str, record: Option<&'a [u8]>) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            check_bucket(name)?;
            assert!(self.0.buckets.known().is_none(), "records are restored before buckets are loaded");
            let key = record_key(name);
            let Some(record) = record else {
                return self.delete(&key, RejectRules::default()).await.map(|_| ());
            };
            if record.len() > BUCKET_RECORD_BYTES_MAX {
                return Err(Error::Invalid(format!("the record of bucket {name:?} is too long")));
            }
            self.put(&key, record.to_vec().into(), PutOptions::default()).await.map(|_| ())
        })
    }

    /// Runs a change of records in its turn and to its end; it is shown the records. It awaits only boxes: callers compile it for their changes.
    fn run_in_turn<T>(&self, change: impl AsyncFnOnce(&KnownBuckets) -> Result<T>) -> Result<T> {
        run_to_end(async {
            let buckets = &self.0.buckets;
            let _turn = buckets.turn.take().await;
            let known = match buckets.known() {
                Some(known) => known,
                None => {
                    buckets.set_known(self.read_buckets().await?);
                    buckets.known().unwrap_or_default()
                }
            };
            change(&known).await
        })
    }

    fn store_bucket<'a>(
        &'a self,
        known: &'a KnownBuckets,
        state: BucketState,
    ) -> Boxed<'a, Result<Arc<BucketState>>> {
        Box::pin(async move {
            assert!(!state.is_closed(), "a deleted bucket gets no settings");
            known.check_room(&state)?;
            let record = state.config().encode()?;
            self.put(&record_key(state.name()), record.into(), PutOptions::default()).await?;
            let state = Arc::new(state);
            self.0.buckets.replace(state.name(), Some(state.clone()));
            Ok(state)
        })
    }

    /// Takes the lock of each active memtable once: a batch that is queued later sees everything that the caller did before.
    fn pass_memtables(&self) {
        for tablet in self.0.tablets.all() {
            while tablet.view().active.lock().is_frozen() {
                std::hint::spin_loop();
            }
        }
    }

    /// # Errors
    /// [`Error::BucketNotEmpty`]; [`Error::Corrupt`] if damage hides whether it has objects.
    async fn check_empty(&self, name: &str) -> Result<()> {
        let mut request = ListRequest { bucket: name.to_owned(), limit: 1, ..ListRequest::default() };
        loop {
            let page = self.list(&request).await?;
            if !page.entries.is_empty() {
                return Err(Error::BucketNotEmpty(name.to_owned()));
            }
            if let Some(range) = page.damaged.first() {
                let what = format!("bucket {name:?}: damage hides whether it has objects");
                return Err(Error::Corrupt { what, block: range.block });
            }
            match page.next {
                Some(next) => request.start_after = next,
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::task::block_on;
    use shoal_common::options::OpenOptions;

    use super::*;
    use crate::testing::fixtures::{in_memory, open_in};
    use crate::{Environment, Metadata, NewUpload, ObjectKey, PartValue, Upload};

    #[test]
    fn a_record_of_a_later_program_is_no_absent_bucket() {
        let device = in_memory();
        let options = || OpenOptions { background: false, cache_bytes: 16 << 20, ..OpenOptions::default() };
        let store = open_in(&device, options(), Environment::default());
        let put = |name: &str, record: Vec<u8>| {
            block_on(store.put(&record_key(name), record.into(), PutOptions::default())).unwrap();
        };
        put("later", vec![2; 50]);
        put("long", vec![1; 100_000]);
        put("right", BucketConfig::default().encode().unwrap());
        store.load_buckets().unwrap();
        assert_eq!(store.bucket("right").unwrap().unwrap().config(), &BucketConfig::default());
        assert!(store.bucket("absent").unwrap().is_none());
        for name in ["later", "long"] {
            let unusable =
                |error: Error| matches!(&error, Error::Corrupt { what, .. } if what.contains(name));
            assert!(unusable(store.bucket(name).unwrap_err()));
            assert!(unusable(store.create_bucket(name, BucketConfig::default()).unwrap_err()));
            assert!(unusable(store.update_bucket(name, |_| Ok(())).unwrap_err()));
            assert!(unusable(store.delete_bucket(name).unwrap_err()));
        }
        block_on(store.close()).unwrap();
    }

    /// Symptom: the deletion of a bucket left an upload behind that was started meanwhile without the state of the bucket. Cause: only the
    /// keys of objects were compared with the name of the closing bucket. Fix: those of uploads and parts too; only an abort passes.
    #[test]
    fn uploads_into_a_closing_bucket_are_refused() {
        let options = OpenOptions { background: false, cache_bytes: 16 << 20, ..OpenOptions::default() };
        let store = open_in(&in_memory(), options, Environment::default());
        let state = store.create_bucket("photos", BucketConfig::default()).unwrap().state;
        let key = ObjectKey::new("photos", b"cat").unwrap();
        let begin = |key: &ObjectKey| block_on(store.begin_upload(key, NewUpload::default(), None));
        let part = |upload: &Upload| {
            let value = PartValue::Chunks(vec![1].into());
            block_on(store.upload_part(upload, 1, value, Metadata::default())).map(|_| ())
        };
        let (open, aborted) = (begin(&key).unwrap(), begin(&key).unwrap());
        part(&open).unwrap();
        let closed = store.0.buckets.close(state.clone());
        assert!(matches!(begin(&key), Err(Error::Busy(_))));
        assert!(matches!(part(&open), Err(Error::Busy(_))));
        begin(&ObjectKey::new("other", b"cat").unwrap()).unwrap();
        assert!(block_on(store.abort_upload(&aborted)).unwrap());
        drop(closed);
        part(&open).unwrap();
        store.delete_bucket("photos").unwrap();
        assert!(block_on(store.upload(&open)).unwrap().is_none());
        assert!(matches!(part(&open), Err(Error::NoUpload(_))));
    }

    /// A put that was queued before the bucket is closed and is not durable yet counts; no later one is queued.
    #[test]
    fn puts_in_flight_count() {
        let options = OpenOptions { background: false, cache_bytes: 16 << 20, ..OpenOptions::default() };
        let store = open_in(&in_memory(), options, Environment::default());
        let state = store.create_bucket("photos", BucketConfig::default()).unwrap().state;
        let key = ObjectKey::new("photos", b"cat").unwrap();
        let (value, put) = (vec![1].into(), PutOptions::default());
        let pending = block_on(store.write(crate::Write::put(&key, &value, &put).in_bucket(&state))).unwrap();
        assert!(matches!(store.delete_bucket("photos"), Err(Error::BucketNotEmpty(_))));
        assert!(!state.is_closed());
        block_on(pending.durable()).unwrap();
        block_on(store.delete(&key, RejectRules::default())).unwrap();
        store.delete_bucket("photos").unwrap();
        assert!(state.is_closed());
        let late = block_on(store.write(crate::Write::put(&key, &value, &put).in_bucket(&state))).map(|_| ());
        assert!(matches!(&late, Err(Error::NoBucket(name)) if name == "photos"), "{late:?}");
        // A writer that names no state makes a bucket without a record.
        block_on(store.put(&key, value, put)).unwrap();
        assert!(store.bucket("photos").unwrap().is_none());
        // Nothing is held for the refused put.
        block_on(store.0.checkpointer.apply_all()).unwrap();
        assert_eq!((store.0.tablets.admission.held(), store.0.space.reserved_blocks()), ((0, 0), 0));
    }
}
