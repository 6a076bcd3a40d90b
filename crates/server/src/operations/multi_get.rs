//! Several objects of one bucket in one request, each with a separate outcome.
//!
//! Cached objects are looked up by the items in the request's memory, and written straight into the answer: a key of a batch costs no extra
//! memory. The rest is read in waves, until the answer is full.

use bytes::Bytes;
use futures_util::future::{join, join_all};
use shoal_api::{CHUNK_BYTES_MAX, v1};
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{Error, Lookup, ObjectInfo, Store, TryGet};

use super::batch::{Batch, Item, RESULTS, VALUE, Wanted};
use crate::answer::assembly::{Assembly, Value, part_len};
use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// Reads of one request at the same time: enough to keep a device busy, few enough that useless reads (once the answer
/// is full) stay few.
const WAVE_KEYS: usize = 16;

/// The most bytes of one answer, with all of its results.
const ANSWER_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize;

/// Expected bytes of a result: this memory is allocated at once.
const RESULT_BYTES_GUESS: usize = 160;

pub(crate) async fn multi_get(request: Authenticated<Bytes>) -> Result<Box<Buffer>, Failure> {
    let (message, admitted) = request.take();
    let batch = Batch::of(message)?;
    let store = admitted.to_each::<v1::MultiGet>(batch.bucket_name()?, batch.key_bytes())?;
    let mut answer = Answer::new(batch.items.len());
    let mut rest = &batch.items[..];
    loop {
        let lookup;
        (rest, lookup) = answer.add_cached(&admitted, &batch, rest);
        let Some((item, behind)) = rest.split_first() else { break };
        // It waits for the device, so the next ones may as well.
        let wave;
        (wave, rest) = behind.split_at(behind.len().min(WAVE_KEYS - 1));
        let first = get_one(store, &batch, item, lookup);
        let others = join_all(wave.iter().map(|item| get_one(store, &batch, item, Lookup::default())));
        let (first, others) = join(first, others).await;
        for got in std::iter::once(first).chain(others) {
            answer.add_got(got);
        }
    }
    Ok(answer.whole.finish())
}

/// The unfinished answer.
struct Answer {
    whole: Assembly,
    /// Bytes that were read for it: values that did not fit were read in vain, and count too.
    read_bytes: usize,
}

/// A result without its value, and the value.
type Got = Result<(v1::MultiGetResult, Buffer), Failure>;

impl Answer {
    fn new(items: usize) -> Self {
        Self { whole: Assembly::new(items * RESULT_BYTES_GUESS), read_bytes: 0 }
    }

    fn is_full(&self) -> bool {
        self.read_bytes >= ANSWER_BYTES_MAX
    }

    /// Adds the results of items that memory answers, up to the first that must wait; returns the items from that one
    /// on, and its search so far.
    fn add_cached<'a>(
        &mut self,
        admitted: &Authenticated<()>,
        batch: &Batch<Wanted>,
        items: &'a [Item<Wanted>],
    ) -> (&'a [Item<Wanted>], Lookup) {
        for (at, item) in items.iter().enumerate() {
            if let TryGet::MustWait(lookup) = self.try_add(admitted, batch, item) {
                return (items.get(at..).unwrap_or_default(), lookup);
            }
        }
        (&[], Lookup::default())
    }

    /// Adds the result of an item, if it is known without waiting.
    fn try_add(
        &mut self,
        admitted: &Authenticated<()>,
        batch: &Batch<Wanted>,
        item: &Item<Wanted>,
    ) -> TryGet<()> {
        if self.is_full() {
            self.add(omitted(), Value::None);
            return TryGet::Shown(());
        }
        let key = match batch.key(item) {
            Ok(key) => key,
            Err(failure) => {
                self.add(failed(failure), Value::None);
                return TryGet::Shown(());
            }
        };
        admitted.try_get(&key, |object| match object.map(|object| (object.info(), object.value())) {
            None => self.add(failed(Failure::not_found(&key)), Value::None),
            Some((Err(error), _)) => self.add(failed(Failure::of(&error)), Value::None),
            Some((Ok(info), value)) => {
                let (first, bytes) = item.extra.range().within(info.bytes);
                let value = value.get(first as usize..(first + bytes) as usize).unwrap_or_default();
                self.add(found(&info), Value::Short(value));
            }
        })
    }

    fn add_got(&mut self, got: Got) {
        match got {
            Ok((result, mut value)) => self.add(result, Value::Chunks(&mut value)),
            Err(failure) => self.add(failed(failure), Value::None),
        }
    }

    /// Adds a result if there is room for it, else a refusal.
    fn add(&mut self, result: v1::MultiGetResult, value: Value<'_>) {
        let bytes = part_len(&result, VALUE, value.len());
        self.read_bytes += bytes;
        if self.whole.len() + bytes > ANSWER_BYTES_MAX {
            self.whole.add(RESULTS, &omitted(), VALUE, Value::None);
        } else {
            self.whole.add(RESULTS, &result, VALUE, value);
        }
    }
}

/// Reads one object; its search continues from `lookup`.
async fn get_one(store: &Store, batch: &Batch<Wanted>, item: &Item<Wanted>, lookup: Lookup) -> Got {
    let (key, range) = (batch.key(item)?, item.extra.range());
    let capped = convert::capped(range, CHUNK_BYTES_MAX as u64);
    let object = store.get_from(lookup, &key, capped, |_| Ok::<_, Error>(())).await;
    let object = object.map_err(|error| Failure::of(&error))?.ok_or_else(|| Failure::not_found(&key))?;
    if range.within(object.info.bytes).1 > object.value.len() as u64 {
        return Ok((omitted(), Buffer::new()));
    }
    Ok((found(&object.info), object.value))
}

fn found(info: &ObjectInfo) -> v1::MultiGetResult {
    v1::MultiGetResult {
        status: Some(v1::KeyStatus::default()),
        info: Some(convert::info(info)),
        ..v1::MultiGetResult::default()
    }
}

fn omitted() -> v1::MultiGetResult {
    v1::MultiGetResult {
        status: Some(v1::KeyStatus::default()),
        value_omitted: true,
        ..v1::MultiGetResult::default()
    }
}

fn failed(failure: Failure) -> v1::MultiGetResult {
    v1::MultiGetResult { status: Some(failure.into_key_status()), ..v1::MultiGetResult::default() }
}
