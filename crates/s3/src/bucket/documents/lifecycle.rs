//! The document of a lifecycle configuration: expiration of objects, and the abort of uploads. Everything else is refused by its name.

use shoal_base::limits::KEY_BYTES_MAX;

use crate::answer::xml::XmlWriter;
use crate::body::xml::{XmlReader, malformed};
use crate::bucket::lifecycle::{LifecycleEnd, LifecycleFilter, LifecycleRule};
use crate::object::documents::tagging::{tag, write_tag};
use crate::object::tags::TagSet;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::time::{DAY_S, SECOND_NS, iso_of, parse_iso};

/// Most rules of a bucket.
pub const LIFECYCLE_RULES_MAX: usize = 1_000;

/// Most tags of a rule's filter.
const FILTER_TAGS_MAX: usize = 10;

/// Reads 1 to 1,000 rules.
///
/// # Errors
/// `MalformedXML`, `InvalidArgument`, `InvalidRequest`; `NotImplemented` for transitions and versions.
pub fn parse_lifecycle(bytes: &[u8]) -> S3Result<Vec<LifecycleRule>> {
    let mut rules: Vec<LifecycleRule> = Vec::new();
    XmlReader::document(bytes, "LifecycleConfiguration", |xml| {
        xml.children(|name, xml| {
            if name == "Rule" {
                if rules.len() == LIFECYCLE_RULES_MAX {
                    return Err(malformed("It has more than 1,000 rules."));
                }
                rules.push(rule(xml, rules.len())?);
            }
            Ok(())
        })
    })?;
    let mut ids: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(argument("Rule ID must be unique."));
    }
    if rules.is_empty() { Err(malformed("It has no rule.")) } else { Ok(rules) }
}

fn rule(xml: &mut XmlReader<'_>, number: usize) -> S3Result<LifecycleRule> {
    let (mut id, mut status, mut filter, mut prefix) = (String::new(), None, None, None);
    let (mut expiration, mut abort_days) = (None, None);
    xml.children(|name, xml| {
        match name {
            "ID" => id = xml.word()?,
            "Status" => status = Some(xml.word()?),
            "Prefix" => prefix = Some(xml.text()?),
            "Filter" => filter = Some(read_filter(xml)?),
            "Expiration" => expiration = Some(read_expiration(xml)?),
            "AbortIncompleteMultipartUpload" => xml.children(|name, xml| {
                if name == "DaysAfterInitiation" {
                    abort_days = Some(days(xml)?);
                }
                Ok(())
            })?,
            name => return Err(S3Error::not_implemented(&format!("{name} in a lifecycle rule"))),
        }
        Ok(())
    })?;
    if id.chars().count() > 255 {
        return Err(argument("ID length should not exceed allowed limit of 255"));
    }
    let is_enabled = match status.as_deref() {
        Some("Enabled") => true,
        Some("Disabled") => false,
        _ => return Err(malformed("The status of a rule is Enabled or Disabled.")),
    };
    if id.is_empty() {
        id = format!("rule-{number}");
    }
    let has_plain_prefix = prefix.is_some();
    let filter = match (filter, prefix) {
        (Some(filter), None) => filter,
        (None, Some(prefix)) => LifecycleFilter { prefix, ..LifecycleFilter::default() },
        _ => return Err(malformed("A rule has a filter or a prefix.")),
    };
    if filter.prefix.len() > KEY_BYTES_MAX {
        let why = format!("The maximum size of a prefix is {KEY_BYTES_MAX}.");
        return Err(S3Error::new(ErrorCode::InvalidRequest, why));
    }
    if expiration.is_none() && abort_days.is_none() {
        return Err(S3Error::new(
            ErrorCode::InvalidRequest,
            "At least one action needs to be specified in a rule.",
        ));
    }
    let has_properties =
        !filter.tags.pairs().is_empty() || filter.bytes_above.is_some() || filter.bytes_below.is_some();
    if abort_days.is_some() && has_properties {
        let why = "AbortIncompleteMultipartUpload cannot be specified with tags or sizes.";
        return Err(S3Error::new(ErrorCode::InvalidRequest, why));
    }
    Ok(LifecycleRule { id, is_enabled, filter, has_plain_prefix, expiration, abort_days })
}

/// Reads a filter: one property, or several in `And`.
fn read_filter(xml: &mut XmlReader<'_>) -> S3Result<LifecycleFilter> {
    let (mut filter, mut tags, mut properties) = (LifecycleFilter::default(), Vec::new(), 0);
    let mut property = |name: &str, xml: &mut XmlReader<'_>| -> S3Result<()> {
        match name {
            "Prefix" => filter.prefix = xml.text()?,
            "Tag" => tags.push(tag(xml)?),
            "ObjectSizeGreaterThan" => filter.bytes_above = Some(xml.number()?),
            "ObjectSizeLessThan" => filter.bytes_below = Some(xml.number()?),
            name => {
                return Err(S3Error::not_implemented(&format!("{name} in the filter of a lifecycle rule")));
            }
        }
        Ok(())
    };
    xml.children(|name, xml| {
        properties += 1;
        if name == "And" { xml.children(&mut property) } else { property(name, xml) }
    })?;
    if properties > 1 {
        return Err(malformed("Several properties of a filter belong into And."));
    }
    filter.tags = TagSet::new(tags, FILTER_TAGS_MAX)?;
    Ok(filter)
}

fn read_expiration(xml: &mut XmlReader<'_>) -> S3Result<LifecycleEnd> {
    let mut end = None;
    xml.children(|name, xml| {
        let found = match name {
            "Days" => LifecycleEnd::Days(days(xml)?),
            "Date" => {
                let second =
                    parse_iso(&xml.word()?).ok_or_else(|| malformed("The date of a rule cannot be read."))?;
                if second % DAY_S != 0 {
                    return Err(argument("'Date' must be at midnight GMT"));
                }
                LifecycleEnd::Date(second)
            }
            name => return Err(S3Error::not_implemented(&format!("{name} in a lifecycle rule"))),
        };
        if end.replace(found).is_some() {
            Err(malformed("An expiration has days or a date."))
        } else {
            Ok(())
        }
    })?;
    end.ok_or_else(|| malformed("An expiration has days or a date."))
}

fn days(xml: &mut XmlReader<'_>) -> S3Result<u32> {
    let days: i64 = xml.number()?;
    let days = u32::try_from(days).ok().filter(|days| (1..=i32::MAX.unsigned_abs()).contains(days));
    days.ok_or_else(|| argument("'Days' must be a positive integer"))
}

fn argument(why: &str) -> S3Error {
    S3Error::new(ErrorCode::InvalidArgument, why)
}

/// The document that answers GetBucketLifecycleConfiguration.
#[must_use]
pub fn write_lifecycle(rules: &[LifecycleRule]) -> Vec<u8> {
    XmlWriter::of("LifecycleConfiguration", |xml| {
        for rule in rules {
            xml.element("Rule", |xml| write_rule(xml, rule));
        }
    })
}

fn write_rule(xml: &mut XmlWriter, rule: &LifecycleRule) {
    xml.leaf("ID", &rule.id);
    if rule.has_plain_prefix {
        xml.leaf("Prefix", &rule.filter.prefix);
    } else {
        xml.element("Filter", |xml| write_filter(xml, &rule.filter));
    }
    xml.leaf("Status", if rule.is_enabled { "Enabled" } else { "Disabled" });
    if let Some(end) = rule.expiration {
        xml.element("Expiration", |xml| match end {
            LifecycleEnd::Days(days) => xml.number("Days", days.into()),
            LifecycleEnd::Date(second) => xml.leaf("Date", iso_of(second * SECOND_NS)),
        });
    }
    if let Some(days) = rule.abort_days {
        xml.element("AbortIncompleteMultipartUpload", |xml| xml.number("DaysAfterInitiation", days.into()));
    }
}

fn write_filter(xml: &mut XmlWriter, filter: &LifecycleFilter) {
    let sizes = [("ObjectSizeGreaterThan", filter.bytes_above), ("ObjectSizeLessThan", filter.bytes_below)];
    let tags = filter.tags.pairs();
    let others = tags.len() + sizes.iter().filter(|(_, bytes)| bytes.is_some()).count();
    let has_prefix = !filter.prefix.is_empty() || others == 0;
    let write = |xml: &mut XmlWriter| {
        if has_prefix {
            xml.leaf("Prefix", &filter.prefix);
        }
        for pair in tags {
            write_tag(xml, pair);
        }
        for (name, bytes) in sizes {
            if let Some(bytes) = bytes {
                xml.number(name, bytes);
            }
        }
    };
    if others + usize::from(has_prefix) > 1 { xml.element("And", write) } else { write(xml) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(rules: &str) -> Result<Vec<LifecycleRule>, ErrorCode> {
        let text = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        parse_lifecycle(text.as_bytes()).map_err(|error| error.code)
    }

    fn with(content: &str) -> String {
        format!("<Rule><Status>Enabled</Status>{content}</Rule>")
    }

    const END: &str = "<Expiration><Days>3</Days></Expiration>";
    const TAG: &str = "<Tag><Key>k</Key><Value>v</Value></Tag>";

    #[test]
    fn rules_round_trip() {
        for content in [
            format!("<Prefix>a/</Prefix>{END}"),
            format!("<Filter/>{END}"),
            format!("<ID>i</ID><Filter><Prefix>a</Prefix></Filter>{END}"),
            format!("<Filter>{TAG}</Filter>{END}"),
            format!(
                "<Filter><And><Prefix>a</Prefix>{TAG}<ObjectSizeGreaterThan>5</ObjectSizeGreaterThan></And></Filter>{END}"
            ),
            "<Filter/><Expiration><Date>2030-01-01T00:00:00.000Z</Date></Expiration>".to_owned(),
            "<Filter/><AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation>\
             </AbortIncompleteMultipartUpload>"
                .to_owned(),
        ] {
            let rules = parse(&with(&content)).unwrap();
            assert!(rules[0].is_enabled, "{content}");
            assert_eq!(parse_lifecycle(&write_lifecycle(&rules)), Ok(rules), "{content}");
        }
    }

    #[test]
    fn wrong_and_missing_features_are_refused() {
        let filter = "<Filter/>";
        for (content, code) in [
            (format!("{filter}<Transition><Days>1</Days></Transition>"), ErrorCode::NotImplemented),
            (format!("{filter}<NoncurrentVersionExpiration/>"), ErrorCode::NotImplemented),
            (
                format!(
                    "{filter}<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"
                ),
                ErrorCode::NotImplemented,
            ),
            (format!("{filter}<Expiration><Days>0</Days></Expiration>"), ErrorCode::InvalidArgument),
            (
                format!("{filter}<Expiration><Date>2030-01-01T01:00:00Z</Date></Expiration>"),
                ErrorCode::InvalidArgument,
            ),
            (format!("{filter}<Expiration><Date>tomorrow</Date></Expiration>"), ErrorCode::MalformedXML),
            (format!("{filter}<Expiration/>"), ErrorCode::MalformedXML),
            (filter.to_owned(), ErrorCode::InvalidRequest),
            (END.to_owned(), ErrorCode::MalformedXML),
            (format!("{filter}<Prefix>a</Prefix>{END}"), ErrorCode::MalformedXML),
            (format!("<Filter>{TAG}<Prefix>a</Prefix></Filter>{END}"), ErrorCode::MalformedXML),
            (format!("<ID>{}</ID>{filter}{END}", "i".repeat(256)), ErrorCode::InvalidArgument),
            (format!("<Prefix>{}</Prefix>{END}", "p".repeat(1_025)), ErrorCode::InvalidRequest),
        ] {
            assert_eq!(parse(&with(&content)).err(), Some(code), "{content}");
        }
        assert_eq!(parse(""), Err(ErrorCode::MalformedXML));
        assert_eq!(
            parse(&with(&format!("{filter}{END}")).replace("Enabled", "On")),
            Err(ErrorCode::MalformedXML)
        );
        let twice = with(&format!("<ID>i</ID>{filter}{END}")).repeat(2);
        assert_eq!(parse(&twice), Err(ErrorCode::InvalidArgument));
        assert_eq!(parse(&with(&format!("{filter}{END}")).repeat(1_000)).unwrap().len(), 1_000);
        assert!(parse(&with(&format!("{filter}{END}")).repeat(1_001)).is_err());
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = parse(&with(&content));
        }
    }
}
