//! Delete: a record that says that the key does not exist.

use std::sync::Arc;

use crate::error::Result;
use crate::key::ObjectKey;
use crate::log::format::{RecordKind, encode_record};
use crate::object::{DeleteResult, RejectRules};
use crate::overlay::Record;
use crate::store::{Inner, Store};
use crate::write::{Part, Prepared, Write};

impl Store {
    /// Deletes an object; deleting what does not exist succeeds, unless the rules say otherwise. Durable when it
    /// returns; works on a full device.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: &ObjectKey, rules: RejectRules) -> Result<DeleteResult> {
        let inner = &*self.0;
        inner.check_writable()?;
        inner.pass(key).await;
        inner.check_rules(key, rules).await?;
        let write = inner.delete_write(key).await?;
        let written = inner.commit(key, rules, write).await?;
        inner.count(&inner.counters.deletes);
        Ok(DeleteResult { deleted: written.before, version: written.version })
    }
}

impl Inner {
    /// The record of a delete, admitted.
    pub(crate) async fn delete_write(&self, key: &ObjectKey) -> Result<Write<'_>> {
        let prepared = self.prepare_delete(key, Part::LAST).await?;
        self.admit_write(prepared).await
    }

    /// The record of a delete.
    pub(crate) async fn prepare_delete(&self, key: &ObjectKey, part: Part) -> Result<Prepared> {
        let promise = self.claim(|| self.space.claim_delete()).await?;
        let tablet = self.tablet_of(key).id;
        let encoded = encode_record(RecordKind::Delete, tablet, key.encoded(), &[], part.continues);
        let mut record = Record::new(encoded);
        record.promise(promise.blocks());
        Ok(Prepared {
            record: Arc::new(record),
            promise,
            extents: Vec::new(),
            writes: Vec::new(),
            kept: None,
        })
    }
}
