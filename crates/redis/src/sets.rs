//! SETs of short values that lie one behind the other in what was received: they are placed with one call of the store.

use shoal_engine::{ObjectKey, Pending, SHORT_PUTS_MAX};
use shoal_resp::{Glance, RequestParser};
use smallvec::SmallVec;

use crate::command;
use crate::shared::Shared;

/// SETs that have their places.
pub(crate) struct Placed {
    /// The last of them: where it is durable, all are.
    pub last: Pending,
    pub sets: usize,
    /// What they took of what was received.
    pub bytes: usize,
}

/// Places the SET `first` and those that follow it in `behind`, `most` at most, with one hand; or only the first. None where that
/// needs a task.
pub(crate) fn place_sets(
    shared: &Shared,
    parser: &RequestParser,
    first: Glance<'_>,
    behind: &[u8],
    most: usize,
) -> Option<Placed> {
    let (store, bucket) = (&shared.face.store, &shared.face.bucket);
    let mut sets: SmallVec<[(ObjectKey, &[u8]); 16]> = SmallVec::new();
    let (mut bytes, first_bytes) = (0, first.bytes);
    let mut next = Some(first);
    while let Some(glance) = next
        && let Some(value) = glance.second.filter(|_| command::is(glance.name, "set"))
        && let Ok(key) = bucket.key(glance.argument)
        // One that the store does not take at once would hold up the others.
        && store.is_short(&key, value.len())
    {
        sets.push((key, value));
        bytes += glance.bytes;
        let is_last = sets.len() == most.min(SHORT_PUTS_MAX);
        let rest = behind.get(bytes - first_bytes..).unwrap_or_default();
        next = if is_last { None } else { parser.glance(rest) };
    }
    if let Some(placed) = store.put_all_at_once(&sets) {
        return Some(Placed { last: placed.into_last(), sets: sets.len(), bytes });
    }
    // There may be room for one.
    let (key, value) = sets.first().filter(|_| sets.len() > 1)?;
    let last = store.put_at_once(key, value)?;
    Some(Placed { last, sets: 1, bytes: first_bytes })
}
