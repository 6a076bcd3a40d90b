//! Walks over all keys: over the bucket's listing. Each step sees the durable state at its time, not one moment; writes
//! acknowledged to this connection before are durable when a walk starts. After every page, the rest of the thread has its
//! turn. Damaged ranges are skipped: `SHOAL.DAMAGE` names them.

use shoal_base::glob;
use shoal_base::limits::LIST_PAGE_MAX;
use shoal_engine::{DamagedRange, ListPage, ListSink, ObjectInfo};

use super::call::{Call, Finished, KEYS_A_TURN, Outcome, SYNTAX, give_way, integer, is};
use super::write;
use crate::answer::{Answer, Failed, Strings};

/// The default number of keys that SCAN looks at.
const COUNT_DEFAULT: usize = 10;

/// Waits for writes that must be durable before a walk.
async fn begin(call: &Call) -> Result<(), Failed> {
    if let Some(before) = &call.before {
        before.clone().durable().await?;
    }
    Ok(())
}

/// Walks over all keys with `prefix`, page by page, until `see` returns false. Returns true if it came to the end.
async fn walk(
    call: &Call,
    prefix: &[u8],
    mut see: impl AsyncFnMut(ListPage) -> Result<bool, Failed>,
) -> Result<bool, Failed> {
    begin(call).await?;
    let mut after = Vec::new();
    loop {
        let mut page = call.list(prefix, after, KEYS_A_TURN).await?;
        let next = page.next.take();
        let wants_more = see(page).await?;
        match next {
            Some(next) if wants_more => after = next,
            next => return Ok(next.is_none()),
        }
        give_way().await;
    }
}

pub(super) async fn keys(call: Call) -> Outcome {
    let pattern = call.word(1);
    let (mut answers, mut bytes) = (Vec::new(), 0);
    walk(&call, &glob::literal_prefix(pattern), async |page| {
        for (key, _) in page.entries {
            if glob::matches(pattern, &key) {
                bytes += key.len() + size_of::<Answer>();
                answers.push(Answer::Bulk(key.into()));
            }
        }
        if bytes > call.frontend.options.limits.reply_bytes_max {
            Err("ERR too many keys match: use SCAN".into())
        } else {
            Ok(true)
        }
    })
    .await?;
    Ok(Answer::Array(answers).into())
}

pub(super) async fn scan(call: Call) -> Outcome {
    const INVALID: &str = "ERR invalid cursor";
    let (mut pattern, mut count, mut strings) = (None, COUNT_DEFAULT, true);
    let mut words = call.rest(2).iter();
    let cursor: u64 = std::str::from_utf8(call.word(1))
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or(INVALID)?;
    while let Some(word) = words.next() {
        let value = words.next().ok_or(SYNTAX)?;
        if is(word, "match") {
            pattern = Some(value);
        } else if is(word, "count") {
            let wanted = integer(value)?;
            count = usize::try_from(wanted).ok().filter(|&count| count > 0).ok_or(SYNTAX)?;
        } else if is(word, "type") {
            strings = is(value, "string");
        } else {
            return Err(SYNTAX.into());
        }
    }
    let after = match cursor {
        0 => Vec::new(),
        cursor => call.frontend.cursors.key(cursor).ok_or(INVALID)?,
    };
    let prefix = pattern.map(|pattern| glob::literal_prefix(pattern)).unwrap_or_default();
    begin(&call).await?;
    let mut matching =
        Matching { pattern: pattern.map(|pattern| &pattern[..]), strings, found: Strings::default() };
    let next = call.list_into(&prefix, after, count, &mut matching).await?;
    let next = next.map_or(0, |key| call.frontend.cursors.add(key, &*call.frontend.entropy));
    Ok(Answer::Array(vec![Answer::string(next.to_string()), Answer::Strings(matching.found)]).into())
}

/// The keys of a page that SCAN answers.
struct Matching<'a> {
    pattern: Option<&'a [u8]>,
    /// True if strings are wanted: all objects are strings.
    strings: bool,
    found: Strings,
}

impl ListSink for Matching<'_> {
    fn take(&mut self, key: &[u8], _: ObjectInfo) -> bool {
        if self.strings && self.pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            self.found.push(key);
        }
        true
    }
}

pub(super) async fn dbsize(call: Call) -> Outcome {
    Ok(Answer::Integer(count(&call, u64::MAX).await?.keys as i64).into())
}

/// The counts of a walk over the first keys.
pub(super) struct Counted {
    pub keys: u64,
    /// The number of keys with a time to live, and the sum of these times in milliseconds.
    pub expiring: u64,
    pub ttl_ms: u64,
    /// True if there are no more keys.
    pub all: bool,
}

/// Counts keys, up to `most`.
pub(super) async fn count(call: &Call, most: u64) -> Result<Counted, Failed> {
    let mut counted = Counted { keys: 0, expiring: 0, ttl_ms: 0, all: false };
    counted.all = walk(call, &[], async |page| {
        counted.keys += page.entries.len() as u64;
        for deadline in page.entries.iter().filter_map(|(_, info)| info.expiry) {
            counted.expiring += 1;
            counted.ttl_ms = counted.ttl_ms.saturating_add(deadline.left_ns / 1_000_000);
        }
        Ok(counted.keys < most)
    })
    .await?;
    Ok(counted)
}

/// A key after a random position, or one of the first ones if there is none: cheap, and not evenly distributed.
pub(super) async fn randomkey(call: Call) -> Outcome {
    let entropy = &call.frontend.entropy;
    begin(&call).await?;
    for after in [entropy.next_u64().to_be_bytes().to_vec(), Vec::new()] {
        let mut after = Some(after);
        while let Some(from) = after {
            let page = call.list(&[], from, LIST_PAGE_MAX).await?;
            let found = page.entries;
            if !found.is_empty() {
                let which = (entropy.next_u64() % found.len() as u64) as usize;
                let key = found.into_iter().nth(which).map(|(key, _)| key).unwrap_or_default();
                return Ok(Answer::Bulk(key.into()).into());
            }
            // An empty page passed only deleted and expired keys, or is the last one.
            after = page.next;
            give_way().await;
        }
    }
    Ok(Answer::Null.into())
}

/// The damaged ranges skipped by a walk over all keys, as maps: tablet, from, to (null: no end), block, why.
pub(super) async fn damage(call: Call) -> Outcome {
    let mut ranges = Vec::<DamagedRange>::new();
    walk(&call, &[], async |page| {
        for range in page.damaged {
            // A range that extends over several pages is reported by each of them.
            if !ranges.iter_mut().rev().any(|known| known.join(&range)) {
                ranges.push(range);
            }
        }
        Ok(true)
    })
    .await?;
    let maps = ranges.into_iter().map(|DamagedRange { tablet, from, to, block, why }| {
        Answer::map([
            ("tablet", Answer::Integer(tablet.0.into())),
            ("from", Answer::Bulk(from.into())),
            ("to", to.map_or(Answer::Null, |to| Answer::Bulk(to.into()))),
            ("block", Answer::Integer(block as i64)),
            ("why", Answer::string(why)),
        ])
    });
    Ok(Answer::Array(maps.collect()).into())
}

/// Deletes all keys that existed at its start; each is gone when the answer leaves.
pub(super) async fn flush(call: Call) -> Outcome {
    match call.rest(1) {
        [] => {}
        [word] if is(word, "async") || is(word, "sync") => {}
        _ => return Err(SYNTAX.into()),
    }
    let mut last = None;
    walk(&call, &[], async |page| {
        for (key, _) in page.entries {
            let (_, pending) = write::delete(&call.frontend, &call.frontend.key(&key)?).await?;
            // The log is in order: the record that was queued last is durable last.
            last = pending.or(last.take());
        }
        Ok(true)
    })
    .await?;
    Ok(Finished::after(Answer::Ok, last))
}
