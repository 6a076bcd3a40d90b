//! The way to a moment: the base from which it is reached, and the logs after it.

use shoal_base::Lsn;

use super::{RestoreError, RestoreMoment};
use crate::format::{ArchiveRecord, RecordBase, RecordLog};

/// The way to the state at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePlan {
    /// The moment.
    pub moment: RestoreMoment,
    /// The base.
    pub base: RecordBase,
    /// The logs after it, each with the first slot to read. None if the log after the base is gone: the base is the moment.
    pub logs: Vec<(RecordLog, u64)>,
    /// The bases after this one, oldest first: after a gap, one of them is the next moment.
    pub later: Vec<RecordBase>,
}

/// A moment that can be had, in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearMoment {
    /// Its version.
    pub version: Lsn,
    /// The wall clock then, nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

impl NearMoment {
    pub(super) fn of(base: &RecordBase) -> Self {
        Self { version: base.version, wall_ns: base.taken_ns }
    }
}

impl std::fmt::Display for NearMoment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(self.wall_ns);
        let seconds = humantime::format_rfc3339_millis(time);
        write!(f, "--version {} ({seconds})", self.version)
    }
}

/// The logs after `base` with their first slots; `None` if slots after it are gone.
pub(super) fn logs_after(record: &ArchiveRecord, base: &RecordBase) -> Option<Vec<(RecordLog, u64)>> {
    let at = record.logs.iter().position(|log| log.id == base.log);
    let Some(at) = at else {
        // The log of the base was dropped: the base has all of it, unless it is older than the oldest moment.
        let logs = record.logs.iter().map(|log| (*log, log.first)).collect();
        return (base.version >= record.oldest_lsn).then_some(logs);
    };
    let (first, rest) = record.logs[at..].split_first()?;
    if base.seq < first.first {
        return None;
    }
    let rest = rest.iter().map(|log| (*log, log.first));
    Some(std::iter::once((*first, base.seq)).chain(rest).collect())
}

pub(super) fn plan(record: &ArchiveRecord, moment: RestoreMoment) -> Result<RestorePlan, RestoreError> {
    let refused = |why: String| Err(RestoreError::NoSuchMoment(why));
    let Some(oldest) = record.bases.first() else {
        return refused(
            "nothing is restorable yet: the archive has no base. The server makes the first one after its start".into(),
        );
    };
    let is_before = |base: &RecordBase| match moment {
        RestoreMoment::Newest => true,
        RestoreMoment::Time(ns) => base.taken_ns <= ns,
        RestoreMoment::Version(version) => base.version <= version,
    };
    let Some(at) = record.bases.iter().rposition(is_before) else {
        let first = NearMoment::of(oldest);
        return refused(format!("the archive does not go back that far: its oldest moment is {first}"));
    };
    let (base, later) = (record.bases[at], record.bases[at + 1..].to_vec());
    if let Some(logs) = logs_after(record, &base) {
        return Ok(RestorePlan { moment, base, logs, later });
    }
    if moment == RestoreMoment::Version(base.version) {
        return Ok(RestorePlan { moment, base, logs: Vec::new(), later });
    }
    let before = NearMoment::of(&base);
    let after = later.first().map(NearMoment::of);
    let after = after.map_or("none".to_owned(), |after| after.to_string());
    refused(format!(
        "the log of that time was removed, because it is older than the retention. The moments that can be had are before it {before}, \
         which is pinned, and after it {after}"
    ))
}
