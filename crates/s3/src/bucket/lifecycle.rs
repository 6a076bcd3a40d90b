//! The lifecycle rules of a bucket: the end that they give an object or an upload, and their stored form. `sweep/` deletes by them.

use http::{HeaderMap, HeaderName, HeaderValue};
use shoal_base::codec::{Reader, Truncated, put_prefixed};
use shoal_engine::Metadata;

use super::FoundBucket;
use super::fields::{FieldWriter, array_of, read_fields, text_of};
use crate::object::metadata::S3Metadata;
use crate::object::tags::TagSet;
use crate::text::percent_encode;
use crate::time::{DAY_S, SECOND_NS, http_date_of};

/// The header with the end of an object.
const EXPIRATION: HeaderName = HeaderName::from_static("x-amz-expiration");

/// The headers with the end of an open upload, and the name of its rule.
const ABORT_DATE: HeaderName = HeaderName::from_static("x-amz-abort-date");
const ABORT_RULE: HeaderName = HeaderName::from_static("x-amz-abort-rule-id");

/// The objects that a rule is about: they have all of these properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleFilter {
    /// The start of the key.
    pub prefix: String,
    /// Tags.
    pub tags: TagSet,
    /// Only values of more bytes.
    pub bytes_above: Option<u64>,
    /// Only values of fewer bytes.
    pub bytes_below: Option<u64>,
}

impl LifecycleFilter {
    /// Returns true for an object that has all properties.
    #[must_use]
    pub fn has(&self, key: &[u8], tags: &TagSet, bytes: u64) -> bool {
        key.starts_with(self.prefix.as_bytes())
            && self.tags.pairs().iter().all(|pair| tags.pairs().contains(pair))
            && self.bytes_above.is_none_or(|bound| bytes > bound)
            && self.bytes_below.is_none_or(|bound| bytes < bound)
    }
}

/// The moment at which objects expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleEnd {
    /// Days after their date, at the next midnight UTC.
    Days(u32),
    /// A midnight UTC, in seconds since the Unix epoch.
    Date(u64),
}

impl LifecycleEnd {
    /// The second from which an object of this date is expired.
    #[must_use]
    pub fn second(self, modified_s: u64) -> u64 {
        match self {
            Self::Days(days) => (modified_s + u64::from(days) * DAY_S).next_multiple_of(DAY_S),
            Self::Date(second) => second,
        }
    }
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleRule {
    /// Its name.
    pub id: String,
    /// The sweeper obeys it.
    pub is_enabled: bool,
    /// The objects that it is about.
    pub filter: LifecycleFilter,
    /// The rule was written in the old form, with a prefix instead of a filter, and is answered in it.
    pub has_plain_prefix: bool,
    /// The end of objects.
    pub expiration: Option<LifecycleEnd>,
    /// Days after which an open upload is aborted.
    pub abort_days: Option<u32>,
}

/// An object as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct RuledObject<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its metadata, which has the tags.
    pub metadata: &'a Metadata,
    /// Bytes of the value.
    pub bytes: u64,
    /// The date in nanoseconds.
    pub modified_ns: u64,
}

/// The earliest end that the rules give an object, in seconds since the Unix epoch, with the name of its rule.
#[must_use]
pub fn expiration_of<'r>(rules: &'r [LifecycleRule], object: &RuledObject<'_>) -> Option<(u64, &'r str)> {
    let has_tags = rules.iter().any(|rule| !rule.filter.tags.pairs().is_empty());
    let tags = if has_tags { object.metadata.tags() } else { TagSet::default() };
    let end = |rule: &'r LifecycleRule| {
        let end = rule.expiration.filter(|_| rule.is_enabled)?;
        let fits = rule.filter.has(object.key, &tags, object.bytes);
        fits.then(|| (end.second(object.modified_ns / SECOND_NS), rule.id.as_str()))
    };
    rules.iter().filter_map(end).min_by_key(|(second, _)| *second)
}

/// The earliest end that the rules give an upload that was started at `created_s`, with the name of its rule; `None` if no rule is about
/// it.
#[must_use]
pub fn abort_of<'r>(rules: &'r [LifecycleRule], key: &[u8], created_s: u64) -> Option<(u64, &'r str)> {
    let end = |rule: &'r LifecycleRule| {
        let days = rule.abort_days.filter(|_| rule.is_enabled)?;
        let fits = key.starts_with(rule.filter.prefix.as_bytes());
        fits.then(|| (LifecycleEnd::Days(days).second(created_s), rule.id.as_str()))
    };
    rules.iter().filter_map(end).min_by_key(|(second, _)| *second)
}

/// The prefixes of all keys that the rules may expire; none is the start of another.
#[must_use]
pub fn prefixes_of(rules: &[LifecycleRule]) -> Vec<&str> {
    let expiring = rules.iter().filter(|rule| rule.is_enabled && rule.expiration.is_some());
    let mut prefixes: Vec<&str> = expiring.map(|rule| rule.filter.prefix.as_str()).collect();
    prefixes.sort_unstable();
    prefixes.dedup_by(|later, earlier| later.starts_with(*earlier));
    prefixes
}

impl FoundBucket {
    /// Adds the header with the end that the rules give an object.
    pub(crate) fn add_expiration(&self, headers: &mut HeaderMap, object: &RuledObject<'_>) {
        let Some(rules) = &self.lifecycle else { return };
        let Some((second, id)) = expiration_of(rules, object) else { return };
        let mut value = format!("expiry-date=\"{}\", rule-id=\"", http_date_of(second));
        percent_encode(&mut value, id.as_bytes());
        value.push('"');
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(EXPIRATION, value);
        }
    }

    /// Adds the headers with the end that the rules give an upload of `key` that was started at `created_ns`.
    pub(crate) fn add_abort(&self, headers: &mut HeaderMap, key: &[u8], created_ns: u64) {
        let Some(rules) = &self.lifecycle else { return };
        let Some((second, id)) = abort_of(rules, key, created_ns / SECOND_NS) else { return };
        // AWS does not encode the name here. Clients read only ASCII alike, so other names are encoded.
        let plain = Some(id).filter(|id| id.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        let name = match plain {
            Some(id) => HeaderValue::from_str(id),
            None => {
                let mut encoded = String::new();
                percent_encode(&mut encoded, id.as_bytes());
                HeaderValue::try_from(encoded)
            }
        };
        if let (Ok(date), Ok(name)) = (HeaderValue::try_from(http_date_of(second)), name) {
            headers.insert(ABORT_DATE, date);
            headers.insert(ABORT_RULE, name);
        }
    }
}

/// The tags of the fields of a stored rule.
mod field {
    pub(super) const ID: u8 = 1;
    pub(super) const FLAGS: u8 = 2;
    pub(super) const PREFIX: u8 = 3;
    pub(super) const TAGS: u8 = 4;
    pub(super) const ABOVE: u8 = 5;
    pub(super) const BELOW: u8 = 6;
    pub(super) const DAYS: u8 = 7;
    pub(super) const DATE: u8 = 8;
    pub(super) const ABORT_DAYS: u8 = 9;

    /// Bits of the flags.
    pub(super) const IS_ENABLED: u8 = 1;
    pub(super) const HAS_PLAIN_PREFIX: u8 = 2;
}

/// The item of a bucket's record that stores rules: each with its length, and in it the fields.
#[must_use]
pub fn encode_lifecycle(rules: &[LifecycleRule]) -> Vec<u8> {
    let mut out = Vec::new();
    for rule in rules {
        let (filter, mut fields) = (&rule.filter, FieldWriter::default());
        let enabled = if rule.is_enabled { field::IS_ENABLED } else { 0 };
        let plain = if rule.has_plain_prefix { field::HAS_PLAIN_PREFIX } else { 0 };
        fields.put(field::ID, &rule.id);
        fields.put(field::FLAGS, [enabled | plain]);
        fields.put_some(field::PREFIX, Some(&filter.prefix).filter(|prefix| !prefix.is_empty()));
        fields.put_some(field::TAGS, Some(filter.tags.attribute()).filter(|tags| !tags.is_empty()));
        fields.put_some(field::ABOVE, filter.bytes_above.map(u64::to_le_bytes));
        fields.put_some(field::BELOW, filter.bytes_below.map(u64::to_le_bytes));
        match rule.expiration {
            Some(LifecycleEnd::Days(days)) => fields.put(field::DAYS, days.to_le_bytes()),
            Some(LifecycleEnd::Date(second)) => fields.put(field::DATE, second.to_le_bytes()),
            None => {}
        }
        fields.put_some(field::ABORT_DAYS, rule.abort_days.map(u32::to_le_bytes));
        put_prefixed(&mut out, &fields.finish());
    }
    out
}

/// Reads the stored rules.
///
/// # Errors
/// [`Truncated`] for bytes that [`encode_lifecycle`] does not make.
pub fn decode_lifecycle(bytes: &[u8]) -> Result<Vec<LifecycleRule>, Truncated> {
    let mut reader = Reader::new(bytes);
    let mut rules = Vec::new();
    while !reader.is_empty() {
        rules.push(decode_rule(reader.prefixed()?)?);
    }
    Ok(rules)
}

fn decode_rule(bytes: &[u8]) -> Result<LifecycleRule, Truncated> {
    let mut rule = LifecycleRule::default();
    read_fields(bytes, |tag, value| {
        let filter = &mut rule.filter;
        match tag {
            field::ID => rule.id = text_of(value)?,
            field::FLAGS => {
                let [flags] = array_of(value)?;
                rule.is_enabled = flags & field::IS_ENABLED != 0;
                rule.has_plain_prefix = flags & field::HAS_PLAIN_PREFIX != 0;
            }
            field::PREFIX => filter.prefix = text_of(value)?,
            field::TAGS => filter.tags = TagSet::of_attribute(value)?,
            field::ABOVE => filter.bytes_above = Some(u64::from_le_bytes(array_of(value)?)),
            field::BELOW => filter.bytes_below = Some(u64::from_le_bytes(array_of(value)?)),
            field::DAYS => rule.expiration = Some(LifecycleEnd::Days(u32::from_le_bytes(array_of(value)?))),
            field::DATE => rule.expiration = Some(LifecycleEnd::Date(u64::from_le_bytes(array_of(value)?))),
            field::ABORT_DAYS => rule.abort_days = Some(u32::from_le_bytes(array_of(value)?)),
            _ => return Err(Truncated),
        }
        Ok(())
    })?;
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(id: &str, prefix: &str, expiration: Option<LifecycleEnd>) -> LifecycleRule {
        let filter = LifecycleFilter { prefix: prefix.to_owned(), ..LifecycleFilter::default() };
        LifecycleRule { id: id.to_owned(), is_enabled: true, filter, expiration, ..LifecycleRule::default() }
    }

    fn filtered() -> LifecycleRule {
        LifecycleRule {
            filter: LifecycleFilter {
                prefix: "a".to_owned(),
                tags: TagSet::parse_header("k=v").unwrap(),
                bytes_above: Some(5),
                bytes_below: Some(9),
            },
            abort_days: Some(2),
            has_plain_prefix: true,
            is_enabled: false,
            ..rule("r", "", Some(LifecycleEnd::Date(DAY_S)))
        }
    }

    #[test]
    fn filters_and_ends() {
        let LifecycleFilter { tags, .. } = &filtered().filter;
        let (filter, more) = (filtered().filter, TagSet::parse_header("k=v&l=w").unwrap());
        assert!(filter.has(b"ab", &more, 8) && filter.has(b"a", tags, 6));
        for (key, tags, bytes) in
            [(&b"b"[..], &more, 8), (b"ab", &TagSet::default(), 8), (b"ab", &more, 9), (b"ab", &more, 5)]
        {
            assert!(!filter.has(key, tags, bytes));
        }
        // Three days after any moment of a day is the midnight after the third day.
        assert_eq!(LifecycleEnd::Days(3).second(DAY_S + 1), 5 * DAY_S);
        assert_eq!(LifecycleEnd::Days(3).second(DAY_S), 4 * DAY_S);
        assert_eq!(LifecycleEnd::Date(DAY_S).second(7), DAY_S);
    }

    #[test]
    fn the_earliest_end_counts() {
        let days = |days| Some(LifecycleEnd::Days(days));
        let off = LifecycleRule { is_enabled: false, ..rule("off", "", days(1)) };
        let tagged = LifecycleRule { is_enabled: true, ..filtered() };
        let rules = [rule("long", "", days(9)), rule("short", "a/", days(2)), off, tagged];
        let mut metadata = Metadata::default();
        let end = |key: &'static [u8], metadata: &Metadata, bytes| {
            let object = RuledObject { key, metadata, bytes, modified_ns: 3 * DAY_S * SECOND_NS + 1 };
            expiration_of(&rules, &object).map(|(second, id)| (second / DAY_S, id.to_owned()))
        };
        let found = |day, id: &str| Some((day, id.to_owned()));
        assert_eq!(end(b"k", &metadata, 7), found(12, "long"));
        assert_eq!(end(b"a/k", &metadata, 7), found(5, "short"));
        metadata.set_tags(&TagSet::parse_header("k=v").unwrap());
        assert_eq!(end(b"a/k", &metadata, 7), found(1, "r"));
        assert_eq!(end(b"a/k", &metadata, 9), found(5, "short"));
        assert_eq!(
            expiration_of(
                &rules[1..2],
                &RuledObject { key: b"k", metadata: &metadata, bytes: 0, modified_ns: 0 }
            ),
            None
        );
    }

    #[test]
    fn uploads_end_by_the_rule_for_their_key() {
        let abort = |prefix, days, is_enabled| LifecycleRule {
            abort_days: Some(days),
            is_enabled,
            ..rule("r", prefix, None)
        };
        let rules = [abort("", 9, true), abort("a/", 2, true), abort("a/", 1, false), rule("e", "", None)];
        assert_eq!(abort_of(&rules, b"a/k", 1), Some((3 * DAY_S, "r")));
        assert_eq!(abort_of(&rules, b"k", 0), Some((9 * DAY_S, "r")));
        assert_eq!(abort_of(&rules[1..], b"k", 0), None);
    }

    #[test]
    fn no_prefix_is_examined_twice() {
        let end = Some(LifecycleEnd::Days(1));
        let off = LifecycleRule { is_enabled: false, ..rule("off", "", end) };
        let rules: Vec<_> =
            ["b/", "a/", "a/b", "a/c/", "c", "c"].into_iter().map(|prefix| rule("r", prefix, end)).collect();
        assert_eq!(prefixes_of(&rules), ["a/", "b/", "c"]);
        assert!(prefixes_of(&[off, rule("abort", "", None)]).is_empty());
        assert_eq!(prefixes_of(&[&rules[..], &[rule("all", "", end)]].concat()), [""]);
    }

    /// The example of `docs/format/s3.md`.
    #[test]
    fn golden_bytes_of_rules() {
        let stored = encode_lifecycle(&[rule("tmp", "tmp/", Some(LifecycleEnd::Days(7)))]);
        let hex: Vec<String> = stored.iter().map(|byte| format!("{byte:02x}")).collect();
        let document = include_str!("../../../../docs/format/s3.md");
        assert!(document.contains(&format!("```\n{}\n```", hex.join(" "))), "{}", hex.join(" "));
    }

    #[test]
    fn stored_rules_are_read_back() {
        let rules = [rule("all", "", Some(LifecycleEnd::Days(1))), filtered()];
        assert_eq!(decode_lifecycle(&encode_lifecycle(&rules)).as_deref(), Ok(&rules[..]));
        for wrong in [&[3, 10, 1, b'a'][..], &[3, 7, 1, 1], &[3, 2, 2, 1], &[2, 4]] {
            assert_eq!(decode_lifecycle(wrong), Err(Truncated), "{wrong:?}");
        }
    }

    #[test]
    fn the_header_names_the_moment_and_the_rule() {
        let rules = vec![rule("a b/\"", "", Some(LifecycleEnd::Days(1)))];
        let found = FoundBucket { lifecycle: Some(rules.into()), ..FoundBucket::default() };
        let mut headers = HeaderMap::new();
        let metadata = Metadata::default();
        let object = RuledObject { key: b"k", metadata: &metadata, bytes: 0, modified_ns: SECOND_NS };
        found.add_expiration(&mut headers, &object);
        let expected = "expiry-date=\"Sat, 03 Jan 1970 00:00:00 GMT\", rule-id=\"a%20b%2F%22\"";
        assert_eq!(headers["x-amz-expiration"], expected);
        let none = FoundBucket::default();
        headers.clear();
        none.add_expiration(&mut headers, &object);
        assert!(headers.is_empty());
    }

    proptest! {
        #[test]
        fn any_stored_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(rules) = decode_lifecycle(&bytes) {
                prop_assert_eq!(decode_lifecycle(&encode_lifecycle(&rules)), Ok(rules));
            }
        }
    }
}
