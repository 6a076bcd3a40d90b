//! The keys all together: walks over the bucket's listing. All of them see what is durable when they come to it, not one
//! moment; what this connection was told before is durable when they begin. After every page the others of the thread have
//! their turn. Damaged ranges are gone past: `SHOAL.DAMAGE` names them.

use shoal_base::limits::LIST_PAGE_MAX;
use shoal_engine::{Change, DamagedRange, ListPage, ListRequest, Look, Object};

use super::{Call, KEYS_A_TURN, SYNTAX, give_way, integer, is};
use crate::answer::{Answer, Failed, Finished, Outcome};
use crate::glob;

/// Keys that SCAN looks at where nothing else is said.
const COUNT_DEFAULT: usize = 10;
/// Bytes of all keys in one answer to KEYS.
const KEYS_BYTES_MAX: usize = 64 << 20;

/// Waits for what must be durable before a walk.
async fn begin(call: &Call) -> Result<(), Failed> {
    if let Some(before) = &call.before {
        before.clone().durable().await?;
    }
    Ok(())
}

/// The next page of a walk that looks at all pages.
async fn next_page(call: &Call, prefix: &[u8], start_after: Vec<u8>) -> Result<ListPage, Failed> {
    if start_after.is_empty() {
        begin(call).await?;
    } else {
        give_way().await;
    }
    page(call, prefix, start_after, KEYS_A_TURN).await
}

/// One page of keys.
async fn page(call: &Call, prefix: &[u8], start_after: Vec<u8>, limit: usize) -> Result<ListPage, Failed> {
    let request = ListRequest {
        bucket: call.face.options.bucket.clone(),
        prefix: prefix.to_vec(),
        delimiter: Vec::new(),
        start_after,
        limit: limit.clamp(1, LIST_PAGE_MAX),
    };
    Ok(call.face.store.list(&request).await?)
}

pub(super) async fn keys(call: Call) -> Outcome {
    let pattern = call.word(1);
    let prefix = glob::literal_prefix(pattern);
    let (mut answers, mut bytes, mut after) = (Vec::new(), 0, Vec::new());
    loop {
        let page = next_page(&call, &prefix, after).await?;
        for (key, _) in page.entries {
            if glob::matches(pattern, &key) {
                bytes += key.len() + size_of::<Answer>();
                answers.push(Answer::Bulk(key.into()));
            }
        }
        if bytes > KEYS_BYTES_MAX {
            return Err("ERR too many keys match: use SCAN".into());
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(Answer::Array(answers).into()),
        }
    }
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
        cursor => call.face.cursors.key(cursor).ok_or(INVALID)?,
    };
    let prefix = pattern.map(|pattern| glob::literal_prefix(pattern)).unwrap_or_default();
    begin(&call).await?;
    let page = page(&call, &prefix, after, count).await?;
    let next = page.next.map_or(0, |key| call.face.cursors.add(key, &*call.face.entropy));
    let found = page.entries.into_iter().map(|(key, _)| key);
    let found = found.filter(|key| strings && pattern.is_none_or(|pattern| glob::matches(pattern, key)));
    let found = found.map(|key| Answer::Bulk(key.into())).collect();
    Ok(Answer::Array(vec![Answer::string(next.to_string()), Answer::Array(found)]).into())
}

pub(super) async fn dbsize(call: Call) -> Outcome {
    let (mut count, mut after) = (0, Vec::new());
    loop {
        let page = next_page(&call, &[], after).await?;
        count += page.entries.len() as i64;
        match page.next {
            Some(next) => after = next,
            None => return Ok(Answer::Integer(count).into()),
        }
    }
}

/// What a walk over the first keys found.
pub(super) struct Counted {
    pub keys: u64,
    /// Those of them that have a time to live, and the sum of these times in milliseconds.
    pub expiring: u64,
    pub ttl_ms: u64,
    /// Whether there are no more keys.
    pub all: bool,
}

/// Counts keys, until there are `most` of them or no more.
pub(super) async fn count(call: &Call, most: u64) -> Result<Counted, Failed> {
    let mut counted = Counted { keys: 0, expiring: 0, ttl_ms: 0, all: false };
    let mut after = Vec::new();
    loop {
        let page = next_page(call, &[], after).await?;
        counted.keys += page.entries.len() as u64;
        for deadline in page.entries.iter().filter_map(|(_, info)| info.expiry) {
            counted.expiring += 1;
            counted.ttl_ms = counted.ttl_ms.saturating_add(deadline.left_ns() / 1_000_000);
        }
        match page.next {
            Some(next) if counted.keys < most => after = next,
            next => return Ok(Counted { all: next.is_none(), ..counted }),
        }
    }
}

/// Some key behind a random place, and where there is none, some of the first ones: cheap, and not evenly distributed.
pub(super) async fn randomkey(call: Call) -> Outcome {
    let entropy = &call.face.entropy;
    begin(&call).await?;
    for after in [entropy.next_u64().to_be_bytes().to_vec(), Vec::new()] {
        let found = page(&call, &[], after, LIST_PAGE_MAX).await?.entries;
        if !found.is_empty() {
            let which = (entropy.next_u64() % found.len() as u64) as usize;
            let key = found.into_iter().nth(which).map(|(key, _)| key).unwrap_or_default();
            return Ok(Answer::Bulk(key.into()).into());
        }
    }
    Ok(Answer::Null.into())
}

/// The damaged ranges that a walk over all keys goes past, as maps: tablet, from, to (null: no end), block, why.
pub(super) async fn damage(call: Call) -> Outcome {
    let (mut ranges, mut after) = (Vec::<DamagedRange>::new(), Vec::new());
    loop {
        let page = next_page(&call, &[], after).await?;
        for range in page.damaged {
            // Pages name those that reach from one into the next twice.
            if !ranges.iter_mut().rev().any(|known| known.join(&range)) {
                ranges.push(range);
            }
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    let maps = ranges.into_iter().map(|DamagedRange { tablet, from, to, block, why }| {
        Answer::Map(vec![
            (Answer::text("tablet"), Answer::Integer(tablet.0.into())),
            (Answer::text("from"), Answer::Bulk(from.into())),
            (Answer::text("to"), to.map_or(Answer::Null, |to| Answer::Bulk(to.into()))),
            (Answer::text("block"), Answer::Integer(block as i64)),
            (Answer::text("why"), Answer::string(why)),
        ])
    });
    Ok(Answer::Array(maps.collect()).into())
}

/// Deletes all keys that were there when it began; each is gone when the answer leaves.
pub(super) async fn flush(call: Call) -> Outcome {
    match call.rest(1) {
        [] => {}
        [word] if is(word, "async") || is(word, "sync") => {}
        _ => return Err(SYNTAX.into()),
    }
    let (mut after, mut last) = (Vec::new(), None);
    loop {
        let page = next_page(&call, &[], after).await?;
        for (key, _) in page.entries {
            let key = call.face.key(&key)?;
            let delete = |object: Option<&Object>| match object {
                Some(_) => (Change::Delete, ()),
                None => (Change::Keep, ()),
            };
            let updated =
                call.face.store.update(&key, Look::Existence, delete).await.map_err(Failed::from)?;
            // The log is in order: what was queued last is durable last.
            last = updated.pending.or(last);
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(Finished::after(Answer::Ok, last)),
        }
    }
}
