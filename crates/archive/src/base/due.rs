//! The moments at which a base is due.

use std::time::Duration;

use crate::format::ArchiveRecord;

/// A base is at most this old, if the store changed since.
pub(super) const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// A base is due only after this number of bytes of log.
const LOG_BYTES_MIN: u64 = 1 << 30;

/// The reason for a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseReason {
    /// There is none.
    First,
    /// Numbers before the log are in no log.
    Gap,
    /// The log since the last base is long, compared with the base: a restore would take long.
    LongLog,
    /// The last base is old.
    Old,
}

impl std::fmt::Display for BaseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::First => "the archive has no base yet",
            Self::Gap => "writes before the newest log are in no log",
            Self::LongLog => "the log since the last base is long",
            Self::Old => "the last base is seven days old",
        })
    }
}

/// The facts of the moment.
#[derive(Clone, Copy, Debug)]
pub struct BaseFacts {
    /// The newest log starts behind a gap, and no base has a version from there on.
    pub has_gap: bool,
    /// Bytes of the log since the newest base.
    pub log_bytes: u64,
    /// The wall clock, nanoseconds.
    pub now_ns: u64,
}

/// The reason why a base is due; `None` if none is.
#[must_use]
pub fn base_due(record: &ArchiveRecord, facts: BaseFacts) -> Option<BaseReason> {
    let Some(newest) = record.bases.last() else { return Some(BaseReason::First) };
    let age_ns = facts.now_ns.saturating_sub(newest.taken_ns);
    match facts {
        BaseFacts { has_gap: true, .. } => Some(BaseReason::Gap),
        BaseFacts { log_bytes, .. } if log_bytes >= LOG_BYTES_MIN.max(newest.bytes / 2) => {
            Some(BaseReason::LongLog)
        }
        BaseFacts { log_bytes, .. } if log_bytes > 0 && u128::from(age_ns) >= AGE_MAX.as_nanos() => {
            Some(BaseReason::Old)
        }
        BaseFacts { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{base, record};

    const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

    #[test]
    fn a_base_is_due_for_one_of_four_reasons() {
        let facts = |has_gap, log_bytes, now_ns| BaseFacts { has_gap, log_bytes, now_ns };
        assert_eq!(base_due(&record(), facts(false, 0, 0)), Some(BaseReason::First));
        let mut record = record();
        record.bases.push(base(5, 100));
        record.bases[0].bytes = 4 << 30;
        let taken = record.bases[0].taken_ns;
        for (gap, log_bytes, age_ns, due) in [
            (false, 0, 30 * DAY_NS, None),
            (false, 1, 7 * DAY_NS - 1, None),
            (false, 1, 7 * DAY_NS, Some(BaseReason::Old)),
            (false, (2 << 30) - 1, 0, None),
            (false, 2 << 30, 0, Some(BaseReason::LongLog)),
            (true, 0, 0, Some(BaseReason::Gap)),
        ] {
            assert_eq!(base_due(&record, facts(gap, log_bytes, taken + age_ns)), due, "{log_bytes} {age_ns}");
        }
        record.bases[0].bytes = 1 << 20;
        assert_eq!(base_due(&record, facts(false, (1 << 30) - 1, taken)), None, "a small store");
    }
}
