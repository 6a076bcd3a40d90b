//! Reads one page: its items, searches in it, and the check of everything inside it.
//!
//! [`PageView::parse`] reads the header only, so that a lookup touches few bytes. Every access checks the offsets that it uses and returns
//! [`Damage`] if they are outside the page; no bytes make it panic. Only [`PageView::check`] checks the order of all keys; a search in an
//! unordered page finds some item or none. A cursor checks the first and the last key of each page that it enters.

use std::cmp::Ordering;
use std::ops::Range;

use shoal_base::BLOCK_BYTES;

use crate::format::{
    BASE_LOST, Bounds, Child, Damage, ENTRY_BYTES_MAX, Header, TREE_KEY_BYTES_MAX, bounds_at, item_at, slot,
};

const ITEM_WRONG: Damage = Damage("an item reaches past the end of the page");

/// An item: the key after the page's prefix, and the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item<'a> {
    pub suffix: &'a [u8],
    /// The entry in a leaf, the encoded child in an inner page. An empty payload in a leaf marked "base lost" marks the key as absent.
    pub payload: &'a [u8],
}

/// A page whose header is valid.
#[derive(Clone, Copy)]
pub(crate) struct PageView<'a> {
    bytes: &'a [u8; BLOCK_BYTES],
    header: Header,
    prefix: &'a [u8],
}

impl<'a> PageView<'a> {
    /// Reads header and prefix.
    ///
    /// # Errors
    /// [`Damage`] if the bytes are no page of a tree.
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8; BLOCK_BYTES]) -> Result<Self, Damage> {
        let header = Header::read(bytes)?;
        let start = header.slots_end();
        let prefix = bytes
            .get(start..start + usize::from(header.prefix_bytes))
            .ok_or(Damage("the page has more slots than fit"))?;
        Ok(Self { bytes, header, prefix })
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// The number of items.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        usize::from(self.header.count)
    }

    #[inline]
    fn prefix_end(&self) -> usize {
        self.header.slots_end() + self.prefix.len()
    }

    /// The lost range of a leaf marked "base lost"; `None` for any other page.
    ///
    /// # Errors
    /// [`Damage`] if the bounds cannot be read.
    #[inline]
    pub(crate) fn lost(&self) -> Result<Option<Bounds<'a>>, Damage> {
        if self.header.flags & BASE_LOST == 0 {
            return Ok(None);
        }
        let (bounds, _) = bounds_at(self.bytes, self.prefix_end())
            .ok_or(Damage("the bounds of a lost leaf cannot be read"))?;
        Ok(Some(bounds))
    }

    /// Item `index`.
    ///
    /// # Errors
    /// [`Damage`] if there is no such item, or if it is not within the page.
    #[inline]
    pub(crate) fn item(&self, index: usize) -> Result<Item<'a>, Damage> {
        let (suffix, payload, end) = self.item_offsets(index)?;
        let suffix = self.bytes.get(suffix..payload).ok_or(ITEM_WRONG)?;
        let payload = self.bytes.get(payload..end).ok_or(ITEM_WRONG)?;
        Ok(Item { suffix, payload })
    }

    #[inline]
    fn item_offsets(&self, index: usize) -> Result<(usize, usize, usize), Damage> {
        if index >= self.count() {
            return Err(Damage("an item is missing"));
        }
        slot(self.bytes, index).and_then(|at| item_at(self.bytes, at)).ok_or(ITEM_WRONG)
    }

    /// The place of item `index`'s payload in the page.
    ///
    /// # Errors
    /// As [`item`](Self::item).
    #[inline]
    pub(crate) fn payload_range(&self, index: usize) -> Result<Range<usize>, Damage> {
        self.item_offsets(index).map(|(_, payload, end)| payload..end)
    }

    /// Returns bytes of the page; none if `range` is not within it.
    #[inline]
    pub(crate) fn bytes_at(&self, range: Range<usize>) -> &'a [u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The leading bytes that all keys of the page share, except the first child of an inner page.
    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    /// Child `index` of an inner page.
    ///
    /// # Errors
    /// [`Damage`] if there is no such child.
    #[inline]
    pub(crate) fn child(&self, index: usize) -> Result<Child, Damage> {
        Child::decode(self.item(index)?.payload)
    }

    /// Returns child `index` of an inner page, and the place of its filter in the page.
    ///
    /// # Errors
    /// As [`child`](Self::child).
    #[inline]
    pub(crate) fn child_and_filter(&self, index: usize) -> Result<(Child, Range<usize>), Damage> {
        let (_, payload, end) = self.item_offsets(index)?;
        let (child, filter) = Child::decode_with_filter(self.bytes.get(payload..end).ok_or(ITEM_WRONG)?)?;
        Ok((child, end - filter.len()..end))
    }

    /// Returns true if child `index` is marked as a plain leaf.
    #[inline]
    pub(crate) fn is_plain(&self, index: usize) -> bool {
        self.item(index).is_ok_and(|item| Child::is_marked_plain(item.payload))
    }

    /// Appends to `key` the separator before child `index`: no key under that child is below it. The first child has no separator (the
    /// bound of the page applies), so nothing is appended.
    ///
    /// # Errors
    /// [`Damage`] if there is no such child.
    #[inline]
    pub(crate) fn separator(&self, index: usize, key: &mut Vec<u8>) -> Result<(), Damage> {
        if index > 0 {
            let item = self.item(index)?;
            key.extend_from_slice(self.prefix);
            key.extend_from_slice(item.suffix);
        }
        Ok(())
    }

    /// Compares the key of item `index` to `key`. Not for the first child of an inner page.
    ///
    /// # Errors
    /// [`Damage`] if there is no such item.
    #[inline]
    pub(crate) fn compare(&self, index: usize, key: &[u8]) -> Result<Ordering, Damage> {
        match self.split(key) {
            Ok(suffix) => Ok(self.item(index)?.suffix.cmp(suffix)),
            Err(all) => Ok(all),
        }
    }

    /// Returns the rest of `key` after the page's prefix. If `key` does not start with the prefix, the error is the order of all keys of
    /// the page relative to it.
    #[inline]
    fn split<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Ordering> {
        match key.split_at_checked(self.prefix.len()) {
            Some((head, suffix)) => match self.prefix.cmp(head) {
                Ordering::Equal => Ok(suffix),
                other => Err(other),
            },
            None => Err(self.prefix.cmp(key)),
        }
    }

    /// Returns the first index in `range` whose key is not below `key`; with `or_equal`, whose key is above it.
    #[inline]
    fn partition(&self, mut range: Range<usize>, key: &[u8], or_equal: bool) -> Result<usize, Damage> {
        let suffix = match self.split(key) {
            Ok(suffix) => suffix,
            Err(Ordering::Less) => return Ok(range.end),
            Err(_) => return Ok(range.start),
        };
        let sought = Sought::new(suffix);
        while range.start < range.end {
            let middle = range.start.midpoint(range.end);
            let before = match sought.compared_to(self.item(middle)?.suffix) {
                Ordering::Less => true,
                Ordering::Equal => or_equal,
                Ordering::Greater => false,
            };
            if before {
                range.start = middle + 1;
            } else {
                range.end = middle;
            }
        }
        Ok(range.start)
    }

    /// Finds in a leaf the first item from `from` whose key is not below `key`; true if its key equals `key`.
    ///
    /// # Errors
    /// [`Damage`] if the search meets an item that is not within the page.
    #[inline]
    pub(crate) fn find(&self, from: usize, key: &[u8]) -> Result<(usize, bool), Damage> {
        let index = self.partition(from..self.count().max(from), key, false)?;
        let found = index < self.count() && self.compare(index, key)? == Ordering::Equal;
        Ok((index, found))
    }

    /// Finds in an inner page the child that covers `key`.
    ///
    /// # Errors
    /// [`Damage`] if there are no children, or if the search meets an item that is not within the page.
    #[inline]
    pub(crate) fn child_of(&self, key: &[u8]) -> Result<usize, Damage> {
        if self.count() == 0 {
            return Err(Damage("an inner page has no children"));
        }
        Ok(self.partition(1..self.count(), key, true)? - 1)
    }

    /// As [`child_of`](Self::child_of), for a key that child `from` or a later one covers. The nearest children are checked first.
    ///
    /// # Errors
    /// As [`child_of`](Self::child_of).
    #[inline]
    pub(crate) fn child_from(&self, from: usize, key: &[u8]) -> Result<usize, Damage> {
        let count = self.count();
        if from >= count {
            return Err(Damage("an inner page has no children"));
        }
        let (mut first, mut step) = (from + 1, 1);
        while first + step < count && self.compare(first + step - 1, key)? != Ordering::Greater {
            first += step;
            step *= 2;
        }
        Ok(self.partition(first..(first + step).min(count), key, true)? - 1)
    }

    /// Bytes in use, header included.
    ///
    /// # Errors
    /// [`Damage`] if the last item is not within the page.
    #[inline]
    pub(crate) fn used_bytes(&self) -> Result<usize, Damage> {
        match self.count().checked_sub(1) {
            Some(last) => self.item_offsets(last).map(|(_, _, end)| end),
            None => self.items_start(),
        }
    }

    #[inline]
    fn items_start(&self) -> Result<usize, Damage> {
        let at = self.prefix_end();
        if self.header.flags & BASE_LOST == 0 {
            return Ok(at);
        }
        bounds_at(self.bytes, at)
            .map(|(_, end)| end)
            .ok_or(Damage("the bounds of a lost leaf cannot be read"))
    }

    /// Checks everything that depends on the page alone: items are contiguous, lengths are legal, keys are ordered and from `low` to `high`
    /// (exclusive), the prefix is the longest possible, children can be decoded, the rest is zeros.
    ///
    /// # Errors
    /// The first [`Damage`] found.
    pub(crate) fn check(&self, low: &[u8], high: Option<&[u8]>) -> Result<(), Damage> {
        self.check_items()?;
        self.check_keys(low, high)?;
        let used = self.used_bytes()?;
        if self.bytes.get(used..).is_none_or(|rest| rest.iter().any(|&byte| byte != 0)) {
            return Err(Damage("the bytes after the last item are not zero"));
        }
        Ok(())
    }

    fn check_items(&self) -> Result<(), Damage> {
        let inner = self.header.level > 0;
        let lost = self.header.flags & BASE_LOST != 0;
        if inner && self.count() == 0 {
            return Err(Damage("an inner page has no children"));
        }
        if !inner && !lost && self.count() == 0 {
            return Err(Damage("a leaf has no entries"));
        }
        let mut at = self.items_start()?;
        for index in 0..self.count() {
            let (suffix, payload, end) = self.item_offsets(index)?;
            if slot(self.bytes, index) != Some(at) {
                return Err(Damage("an item does not start at the end of the one before it"));
            }
            at = end;
            let key_bytes = self.prefix.len() + (payload - suffix);
            let entry_bytes = end - payload;
            if key_bytes > TREE_KEY_BYTES_MAX || key_bytes + entry_bytes > ENTRY_BYTES_MAX {
                return Err(Damage("an item is larger than the limit"));
            }
            if inner {
                let (_, filter) = self.child_and_filter(index)?;
                if self.header.level > 1 && !filter.is_empty() {
                    return Err(Damage("a page above level 1 has the filter of a leaf"));
                }
                if filter.is_empty() && self.is_plain(index) {
                    return Err(Damage("a child without a filter is marked as a plain leaf"));
                }
                if index == 0 && payload != suffix {
                    return Err(Damage("the first child of an inner page has a separator"));
                }
            } else if entry_bytes == 0 && !lost {
                return Err(Damage("an entry is empty"));
            }
        }
        Ok(())
    }

    /// Checks that the first and the last key of the page are from `low` to `high` (exclusive): the range that the page's parent gives it.
    /// Between pages, keys are in order then.
    ///
    /// # Errors
    /// [`Damage`] if a key is outside.
    #[inline]
    pub(crate) fn check_range(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<(), Damage> {
        let inner = self.header.level > 0;
        let first = usize::from(inner);
        let Some(last) = self.count().checked_sub(1).filter(|&last| last >= first) else { return Ok(()) };
        // A separator equal to the page's own bound would leave the first child without keys.
        match low.map(|low| self.compare(first, low)).transpose()? {
            Some(Ordering::Less) => return Err(Damage("a key is below the bound of its page")),
            Some(Ordering::Equal) if inner => return Err(Damage("a separator is the bound of its page")),
            _ => {}
        }
        if let Some(high) = high
            && self.compare(last, high)? != Ordering::Less
        {
            return Err(Damage("a key is above the bound of its page"));
        }
        Ok(())
    }

    /// Checks that the keys of the page are in order.
    ///
    /// # Errors
    /// [`Damage`] if they are not.
    #[inline]
    pub(crate) fn check_order(&self) -> Result<(), Damage> {
        let mut previous = None;
        for index in usize::from(self.header.level > 0)..self.count() {
            let suffix = self.item(index)?.suffix;
            if previous.is_some_and(|previous| previous >= suffix) {
                return Err(Damage("keys are not in order"));
            }
            previous = Some(suffix);
        }
        Ok(())
    }

    /// Checks that the keys are in order and from `low` to `high` (exclusive), and that the prefix is the longest possible.
    ///
    /// # Errors
    /// The first [`Damage`] found.
    #[inline]
    fn check_keys(&self, low: &[u8], high: Option<&[u8]>) -> Result<(), Damage> {
        let first = usize::from(self.header.level > 0);
        let (low, high) = match self.lost()? {
            None => (low, high),
            Some(bounds) => {
                let below = high.is_some_and(|high| bounds.high.is_none_or(|lost| lost > high));
                if bounds.low < low || below || bounds.high.is_some_and(|high| bounds.low >= high) {
                    return Err(Damage("the bounds of a lost leaf are not within those of its parent"));
                }
                (bounds.low, bounds.high)
            }
        };
        let (Some(last), true) = (self.count().checked_sub(1), self.count() > first) else {
            return if self.prefix.is_empty() { Ok(()) } else { Err(Damage("the prefix belongs to no key")) };
        };
        self.check_range(Some(low), high)?;
        self.check_order()?;
        let (one, other) = (self.item(first)?.suffix, self.item(last)?.suffix);
        let shares_more = one.first().is_some_and(|byte| other.first() == Some(byte));
        if shares_more || (first == last && !other.is_empty()) {
            return Err(Damage("the keys share more than the prefix"));
        }
        Ok(())
    }
}

/// A sought key. Its first bytes are one number, which nearly always decides the comparison without a call.
struct Sought<'a> {
    bytes: &'a [u8],
    head: u64,
}

impl<'a> Sought<'a> {
    #[inline]
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, head: head_of(bytes) }
    }

    /// Compares `other` to the sought key.
    #[inline]
    fn compared_to(&self, other: &[u8]) -> Ordering {
        head_of(other).cmp(&self.head).then_with(|| match (other.get(8..), self.bytes.get(8..)) {
            (Some(other), Some(bytes)) => other.cmp(bytes),
            // One of them is shorter than eight bytes, and the other has only zeros there.
            _ => other.len().cmp(&self.bytes.len()),
        })
    }
}

/// The first eight bytes as a number that compares like the bytes, padded with zeros.
#[inline]
fn head_of(bytes: &[u8]) -> u64 {
    if let Some(head) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // With four to seven bytes, the last four overlap the first four.
        let (first, last) = (u64::from(u32::from_be_bytes(*first)), u64::from(u32::from_be_bytes(*last)));
        return first << 32 | (last << (8 * (8 - bytes.len()))) & 0xFFFF_FFFF;
    }
    bytes.iter().fold((0, 64), |(head, at), &byte| (head | u64::from(byte) << (at - 8), at - 8)).0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shoal_base::{Lsn, TabletId};

    use super::*;
    use crate::Tree;
    use crate::format::PageRef;
    use crate::format::{Draft, Stamp};

    fn stamp(level: u8) -> Stamp {
        Stamp { tree: Tree { device: 1, tablet: TabletId(2) }, lsn: Lsn(3), level }
    }

    type Items<'a> = &'a [(&'a [u8], &'a [u8])];

    fn leaf(prefix: &[u8], items: Items<'_>) -> [u8; BLOCK_BYTES] {
        let mut draft = Draft::new();
        draft.begin(stamp(0), items.len(), prefix, None);
        for (suffix, payload) in items {
            draft.push(suffix, payload);
        }
        *draft.seal(5).1
    }

    proptest! {
        /// A search from an earlier child finds the same child as a search from the first.
        #[test]
        fn children_are_found_from_each_earlier_one(
            keys in proptest::collection::btree_set(proptest::collection::vec(b'a'..b'e', 1..5), 1..60),
            sought in proptest::collection::vec(b'a'..b'e', 0..6),
        ) {
            let mut draft = Draft::new();
            draft.begin(stamp(1), keys.len() + 1, b"", None);
            draft.push(b"", b"child");
            keys.iter().for_each(|key| draft.push(key, b"child"));
            let bytes = *draft.seal(5).1;
            let view = PageView::parse(&bytes).unwrap();
            let child = view.child_of(&sought).unwrap();
            for from in 0..=child {
                prop_assert_eq!(view.child_from(from, &sought).unwrap(), child);
            }
            prop_assert!(view.child_from(view.count(), &sought).is_err());
        }
    }

    #[test]
    fn finds_keys_behind_the_prefix() {
        let bytes = leaf(b"ab", &[(b"", b"0"), (b"c", b"1"), (b"e", b"2")]);
        let view = PageView::parse(&bytes).unwrap();
        view.check(b"", None).unwrap();
        view.check(b"ab", Some(b"abf")).unwrap();
        assert!(view.check(b"ab0", None).is_err(), "the first key is below the bound");
        assert!(view.check(b"", Some(b"abe")).is_err(), "the last key is not below the bound");
        let expect: [(&[u8], (usize, bool)); 8] = [
            (b"", (0, false)),
            (b"aa~", (0, false)),
            (b"ab", (0, true)),
            (b"abb", (1, false)),
            (b"abc", (1, true)),
            (b"abd", (2, false)),
            (b"abf", (3, false)),
            (b"b", (3, false)),
        ];
        for (key, found) in expect {
            assert_eq!(view.find(0, key), Ok(found), "{}", key.escape_ascii());
        }
        assert_eq!(view.find(3, b"a"), Ok((3, false)));
        assert!(view.item(3).is_err());
    }

    #[test]
    fn the_first_child_covers_everything_below_the_first_separator() {
        let mut draft = Draft::new();
        draft.begin(stamp(1), 3, b"m", None);
        for (suffix, block) in [(&b""[..], 1), (b"", 2), (b"x", 3)] {
            let mut payload = Vec::new();
            Child { page: PageRef { block, crc: 0 }, entries: 1 }.encode(&mut payload);
            draft.push(suffix, &payload);
        }
        let bytes = *draft.seal(5).1;
        let view = PageView::parse(&bytes).unwrap();
        view.check(b"", None).unwrap();
        assert!(view.check(b"m", None).is_err(), "the first child would have no keys");
        for (key, child) in [(&b""[..], 0), (b"a", 0), (b"m", 1), (b"mw", 1), (b"mx", 2), (b"n", 2)] {
            assert_eq!(view.child_of(key), Ok(child), "{}", key.escape_ascii());
        }
        assert_eq!(view.child(2).unwrap().page.block, 3);
        let mut key = Vec::new();
        view.separator(2, &mut key).unwrap();
        assert_eq!(key, b"mx");
    }

    #[test]
    fn check_detects_faults_invisible_to_search() {
        let cases: [(&[u8], Items<'_>, &str); 5] = [
            (b"", &[(b"b", b"0"), (b"a", b"1")], "keys are not in order"),
            (b"", &[(b"a", b"0"), (b"a", b"1")], "keys are not in order"),
            (b"", &[(b"ax", b"0"), (b"ay", b"1")], "the keys share more than the prefix"),
            (b"", &[(b"a", b""), (b"b", b"1")], "an entry is empty"),
            (b"", &[], "a leaf has no entries"),
        ];
        for (prefix, items, what) in cases {
            let bytes = leaf(prefix, items);
            assert_eq!(PageView::parse(&bytes).unwrap().check(b"", None), Err(Damage(what)));
        }
        let mut bytes = leaf(b"", &[(b"a", b"0")]);
        bytes[BLOCK_BYTES - 1] = 1;
        assert!(PageView::parse(&bytes).unwrap().check(b"", None).is_err(), "rubbish behind the items");
    }

    /// Calls every reader of a page on arbitrary bytes.
    fn exercise(bytes: &[u8; BLOCK_BYTES], key: &[u8]) {
        let Ok(view) = PageView::parse(bytes) else { return };
        let _ = view.check(key, None);
        let _ = view.check(b"", Some(key));
        let _ = view.find(0, key);
        let _ = view.child_of(key);
        let _ = view.lost();
        let _ = view.used_bytes();
        for index in [0, 1, view.count() / 2, view.count()] {
            let _ = view.item(index);
            let _ = view.child(index);
            let _ = view.payload_range(index).map(|range| &bytes[range]);
            let _ = view.separator(index, &mut Vec::new());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn sought_keys_compare_as_bytes_do(
            one in prop::collection::vec(0..3_u8, 0..12),
            other in prop::collection::vec(0..3_u8, 0..12),
            high in any::<bool>(),
        ) {
            // Few different bytes, including zeros, so that many pairs are equal up to the end of one.
            let raised = |bytes: Vec<u8>| bytes.iter().map(|byte| byte + if high { 0xFD } else { 0 }).collect::<Vec<_>>();
            let (one, other) = (raised(one), raised(other));
            prop_assert_eq!(Sought::new(&one).compared_to(&other), other.cmp(&one));
        }

        #[test]
        fn random_page_never_panics(
            random in prop::collection::vec(any::<u8>(), BLOCK_BYTES),
            sound_header in any::<bool>(),
            key in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut bytes: [u8; BLOCK_BYTES] = random.try_into().unwrap();
            if sound_header {
                let model = leaf(b"", &[(b"a", b"0")]);
                bytes[..12].copy_from_slice(&model[..12]);
                bytes[7] &= 1;
                bytes[8] = if bytes[7] == 0 { bytes[20] & 1 } else { 0 };
                bytes[13] &= 3;
            }
            exercise(&bytes, &key);
        }

        #[test]
        fn damaged_page_never_panics(
            changes in prop::collection::vec((0..BLOCK_BYTES, any::<u8>()), 1..8),
            near in prop::collection::vec((4..120_usize, any::<u8>()), 0..4),
            key in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let items: Vec<(Vec<u8>, Vec<u8>)> = (0..40_u8).map(|i| (vec![i, 1], vec![i; 60])).collect();
            let items: Vec<(&[u8], &[u8])> = items.iter().map(|(a, b)| (&a[..], &b[..])).collect();
            let mut bytes = leaf(b"prefix", &items);
            for (at, value) in changes.into_iter().chain(near) {
                bytes[at] = value;
            }
            exercise(&bytes, &key);
        }
    }
}
