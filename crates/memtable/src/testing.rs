//! Records for the tests of this crate.

use std::sync::Arc;

use shoal_base::{Lsn, TabletId};
use shoal_log::Record;
use shoal_log::format::{RecordKind, encode_record};

/// The record of an empty object, as found by recovery.
pub(crate) fn record(key: &[u8], lsn: u64) -> Arc<Record> {
    let encoded = encode_record(RecordKind::Put, TabletId(0), key, &[], false);
    Arc::new(Record::recovered(encoded, Lsn(lsn)))
}
