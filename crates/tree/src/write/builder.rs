//! The pages of one level that an apply makes: items wait here, in order, until the builder knows how to cut them into pages.
//!
//! Items fill a first page greedily, then a second. The first page is written only when an item fits in neither. So a full leaf that takes
//! one more entry becomes two half-full leaves when the level is closed, and a long run of items becomes full pages. A page's size counts
//! its prefix once and only grows with each item, so the greedy cut is the longest that fits. The builder does no I/O.

use std::ops::Range;

use crate::format::PageRef;
use crate::format::{
    BOUNDS_BYTES_MAX, Bounds, CAPACITY, Child, Draft, ENTRIES_MAX, SLOT_BYTES, Stamp, length_bytes,
};

/// A page is worth writing if this share of it is in use; a page with less is merged with the next page of its level.
const DECENT_BYTES: usize = CAPACITY * 2 / 5;

/// Maximum number of waiting parts: two, and a third with a single item while the first is being written.
const PARTS_MAX: usize = 3;

struct Pending {
    /// The offset of the key in the arena; the payload follows it.
    at: usize,
    key_bytes: usize,
    payload_bytes: usize,
    /// Number of entries under the item.
    entries: u64,
}

/// Consecutive items that fit in one page.
#[derive(Clone, Debug)]
struct Part {
    items: Range<usize>,
    /// Number of items with a stored key: all of a leaf's, all but the first of an inner page's.
    keys: usize,
    /// Bytes without a shared prefix.
    raw_bytes: usize,
    prefix_bytes: usize,
}

impl Part {
    fn empty(at: usize) -> Self {
        Self { items: at..at, keys: 0, raw_bytes: 0, prefix_bytes: 0 }
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.raw_bytes - self.prefix_bytes * self.keys.saturating_sub(1)
    }
}

/// An old page that exactly matches the waiting items: it need not be written again.
struct Clean {
    page: PageRef,
    count: usize,
}

/// See the top of the file.
pub(crate) struct Builder {
    level: u8,
    arena: Vec<u8>,
    items: Vec<Pending>,
    parts: Vec<Part>,
    /// Lower bound of the first waiting page, for leaves; an inner page uses the key of its first item.
    low: Vec<u8>,
    /// Set while leaves marked "base lost" are made: the upper bound of the lost range.
    lost: Option<Option<Vec<u8>>>,
    /// Old pages, each with the index of its first waiting item.
    origins: Vec<(usize, PageRef)>,
    clean: Option<Clean>,
}

/// A complete page, as its parent knows it.
pub(crate) struct Sealed {
    /// Its lower bound.
    pub low: Vec<u8>,
    pub entries: u64,
    pub replaces: Option<PageRef>,
}

impl Builder {
    pub(crate) fn new(level: u8) -> Self {
        Self {
            level,
            arena: Vec::new(),
            items: Vec::new(),
            parts: Vec::with_capacity(PARTS_MAX),
            low: Vec::new(),
            lost: None,
            origins: Vec::new(),
            clean: None,
        }
    }

    /// Returns true if a page is waiting: items, or a lost range without items.
    pub(crate) fn has_page(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns true if closing the level now leaves no page that should have been merged.
    pub(crate) fn is_decent(&self) -> bool {
        self.unchanged().is_some()
            || self.parts.len() > 1
            || self.parts.iter().any(|part| part.bytes() >= DECENT_BYTES)
    }

    /// Returns the only waiting item as a child; `None` if there are several or none.
    pub(crate) fn only_child(&self) -> Option<Child> {
        assert!(self.level > 0, "entries are not children");
        match &self.items[..] {
            [item] => Child::decode(self.payload(item)).ok(),
            _ => None,
        }
    }

    // ---- input

    /// Announces the items of the old page `page`, which covers keys from `low`. Returns old pages that are certainly not in the new tree.
    #[must_use]
    pub(crate) fn open(&mut self, page: PageRef, count: usize, low: &[u8]) -> [Option<PageRef>; 2] {
        if self.has_page() {
            // The page is mixed with others, so both are released.
            self.origins.push((self.items.len(), page));
            return [self.touch(), Some(page)];
        }
        self.set_low(low);
        self.origins.clear();
        self.origins.push((0, page));
        [self.clean.replace(Clean { page, count }).map(|clean| clean.page), None]
    }

    /// Sets the lower bound of the next leaf if none is waiting.
    pub(crate) fn set_low(&mut self, low: &[u8]) {
        if !self.has_page() {
            self.low.clear();
            self.low.extend_from_slice(low);
        }
    }

    /// Records a difference from the old page, which is going to be replaced. Returns the page if it was kept so far.
    #[must_use]
    pub(crate) fn touch(&mut self) -> Option<PageRef> {
        self.clean.take().map(|clean| clean.page)
    }

    /// Marks all leaves as "base lost" until the level is closed: the keys from `low` to `high` are unknown.
    pub(crate) fn begin_lost(&mut self, low: &[u8], high: Option<&[u8]>) {
        assert!(
            self.level == 0 && !self.has_page() && self.lost.is_none(),
            "a lost leaf has no neighbours (R19)"
        );
        self.set_low(low);
        self.lost = Some(high.map(<[u8]>::to_vec));
        self.parts.push(Part::empty(0));
    }

    /// Returns true if the waiting leaves are not marked "base lost".
    pub(crate) fn is_whole(&self) -> bool {
        self.lost.is_none()
    }

    /// Appends an item with the key `prefix` + `suffix`. Returns true if the first page must be written now.
    #[must_use]
    #[inline]
    pub(crate) fn push(&mut self, prefix: &[u8], suffix: &[u8], payload: &[u8], entries: u64) -> bool {
        assert!(self.parts.len() < PARTS_MAX, "a page that must be written was not");
        let at = self.arena.len();
        self.arena.extend_from_slice(prefix);
        self.arena.extend_from_slice(suffix);
        self.arena.extend_from_slice(payload);
        let item =
            Pending { at, key_bytes: prefix.len() + suffix.len(), payload_bytes: payload.len(), entries };
        self.items.push(item);
        let index = self.items.len() - 1;
        if let Some(last) = self.parts.last() {
            let grown = self.grown(last.clone(), index);
            if grown.bytes() <= self.capacity() {
                if let Some(last) = self.parts.last_mut() {
                    *last = grown;
                }
                return false;
            }
        }
        let single = self.grown(Part::empty(index), index);
        assert!(
            single.bytes() <= self.capacity(),
            "an item of {} bytes does not fit in a page",
            single.bytes()
        );
        self.parts.push(single);
        self.parts.len() == PARTS_MAX
    }

    // ---- sizes

    fn capacity(&self) -> usize {
        if self.lost.is_some() { CAPACITY - BOUNDS_BYTES_MAX } else { CAPACITY }
    }

    fn key(&self, index: usize) -> &[u8] {
        let item = &self.items[index];
        &self.arena[item.at..item.at + item.key_bytes]
    }

    /// The keys of the first page.
    pub(crate) fn first_keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts[0].items.clone().map(|index| self.key(index))
    }

    /// The payloads of the first page.
    pub(crate) fn first_payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.items[self.parts[0].items.clone()].iter().map(|item| self.payload(item))
    }

    fn payload(&self, item: &Pending) -> &[u8] {
        let start = item.at + item.key_bytes;
        &self.arena[start..start + item.payload_bytes]
    }

    /// Returns the index of the page's first item with a stored key.
    fn first_keyed(&self, page_start: usize) -> usize {
        page_start + usize::from(self.level > 0)
    }

    /// Bytes of an item with its whole key, or without a key for the first child of an inner page.
    fn raw_bytes(&self, index: usize, keyed: bool) -> usize {
        let item = &self.items[index];
        let key_bytes = if keyed { item.key_bytes } else { 0 };
        // A suffix may need one byte less for its length than the whole key: counting the key's length keeps the size monotone.
        SLOT_BYTES
            + length_bytes(key_bytes)
            + length_bytes(item.payload_bytes)
            + key_bytes
            + item.payload_bytes
    }

    /// `part` grown by its next item.
    fn grown(&self, mut part: Part, index: usize) -> Part {
        assert!(index == part.items.end, "a part has no holes");
        let first = self.first_keyed(part.items.start);
        let keyed = index >= first;
        part.items.end = index + 1;
        part.raw_bytes += self.raw_bytes(index, keyed);
        if keyed {
            part.prefix_bytes = if part.keys == 0 {
                self.items[index].key_bytes
            } else {
                shared_bytes(&self.key(first)[..part.prefix_bytes], self.key(index))
            };
            part.keys += 1;
        }
        part
    }

    // ---- output

    /// Cuts two waiting pages so that they are about equally full. Called once before the level is closed. With `at_end` nothing follows in
    /// the whole tree and the first page stays full: ascending keys would otherwise leave half-full pages.
    pub(crate) fn balance(&mut self, at_end: bool) {
        let [first, second] = &self.parts[..] else { return };
        if at_end {
            return;
        }
        let start = first.items.start;
        let end = second.items.end;
        let lefts = self.left_parts(start, end);
        let mut best = (usize::MAX, first.clone(), second.clone());
        // The right part grows from the end; all its keys share the prefix that its first and its last key share.
        let mut raw_bytes = 0;
        for cut in (start + 1..end).rev() {
            let first_keyed = self.first_keyed(cut);
            if first_keyed < end {
                raw_bytes += self.raw_bytes(first_keyed, true);
            }
            let keys = end - first_keyed;
            let prefix_bytes =
                if keys == 0 { 0 } else { shared_bytes(self.key(first_keyed), self.key(end - 1)) };
            let unkeyed_bytes = if first_keyed > cut { self.raw_bytes(cut, false) } else { 0 };
            let right = Part { items: cut..end, keys, raw_bytes: raw_bytes + unkeyed_bytes, prefix_bytes };
            if right.bytes() > self.capacity() {
                break;
            }
            let Some(left) = lefts.get(cut - start - 1) else { continue };
            let difference = left.bytes().abs_diff(right.bytes());
            if difference < best.0 {
                best = (difference, left.clone(), right);
            }
        }
        assert!(
            best.1.items.start == start && best.1.items.end == best.2.items.start && best.2.items.end == end,
            "each item is in one of the two pages"
        );
        self.parts = vec![best.1, best.2];
    }

    /// Returns all the parts from `start` that fit in a page, shortest first.
    fn left_parts(&self, start: usize, end: usize) -> Vec<Part> {
        let mut lefts = Vec::with_capacity(end - start);
        let mut left = Part::empty(start);
        for index in start..end {
            left = self.grown(left, index);
            if left.bytes() > self.capacity() {
                break;
            }
            lefts.push(left.clone());
        }
        lefts
    }

    /// Returns the old page that may stay, if the waiting items are exactly its items.
    pub(crate) fn unchanged(&self) -> Option<PageRef> {
        let clean = self.clean.as_ref()?;
        let whole = self.parts.len() == 1 && self.items.len() == clean.count;
        whole.then_some(clean.page)
    }

    /// Encodes the first page.
    pub(crate) fn encode(&self, draft: &mut Draft, stamp: Stamp) -> Sealed {
        assert!(stamp.level == self.level, "the stamp belongs to another level");
        let part = &self.parts[0];
        assert!(part.bytes() <= self.capacity(), "a page has room for its items");
        let first = self.first_keyed(part.items.start);
        let prefix = if part.keys == 0 { &[][..] } else { &self.key(first)[..part.prefix_bytes] };
        let next_low = self.next_low();
        let high = self.lost.as_ref().map(|high| next_low.as_deref().or(high.as_deref()));
        let bounds = high.map(|high| Bounds { low: &self.low, high });
        draft.begin(stamp, part.items.len(), prefix, bounds);
        for index in part.items.clone() {
            let suffix = if index < first { &[][..] } else { &self.key(index)[prefix.len()..] };
            draft.push(suffix, self.payload(&self.items[index]));
        }
        self.sealed()
    }

    /// Returns the first page as its parent knows it, without its block.
    pub(crate) fn sealed(&self) -> Sealed {
        let part = &self.parts[0];
        let low = if self.level > 0 { self.key(part.items.start).to_vec() } else { self.low.clone() };
        let entries =
            self.items[part.items.clone()].iter().map(|item| item.entries).sum::<u64>().min(ENTRIES_MAX);
        let middle = part.items.start.midpoint(part.items.end);
        let origin = self.origins.iter().rev().find(|(from, _)| *from <= middle);
        Sealed { low, entries, replaces: origin.map(|(_, page)| *page) }
    }

    /// The bound between the first page and the second: the shortest key above the last key of the first page and not
    /// above the first key of the second.
    fn next_low(&self) -> Option<Vec<u8>> {
        let second = self.parts.get(1)?;
        let first_key = self.key(second.items.start);
        if self.level > 0 {
            return Some(first_key.to_vec());
        }
        let Some(last) = second.items.start.checked_sub(1) else { return Some(first_key.to_vec()) };
        let shared = shared_bytes(self.key(last), first_key);
        Some(first_key[..=shared].to_vec())
    }

    /// Drops the items of the first page, which was written or stays unchanged.
    pub(crate) fn drop_first(&mut self) {
        let next_low = self.next_low();
        let part = self.parts.remove(0);
        let count = part.items.end;
        if self.parts.is_empty() {
            self.items.clear();
            self.arena.clear();
            self.origins.clear();
            self.lost = None;
            return;
        }
        self.low = next_low.unwrap_or_default();
        let cut = self.items[count].at;
        self.arena.drain(..cut);
        self.items.drain(..count);
        for item in &mut self.items {
            item.at -= cut;
        }
        for part in &mut self.parts {
            part.items = part.items.start - count..part.items.end - count;
        }
        let over = self.origins.iter().filter(|(from, _)| *from <= count).count();
        self.origins.drain(..over.saturating_sub(1));
        for (from, _) in &mut self.origins {
            *from = from.saturating_sub(count);
        }
    }
}

/// Returns the number of leading bytes that both share.
fn shared_bytes(left: &[u8], right: &[u8]) -> usize {
    // The known prefix usually matches: one comparison instead of a loop.
    if right.starts_with(left) {
        return left.len();
    }
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}
