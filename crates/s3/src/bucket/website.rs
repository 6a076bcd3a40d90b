//! The website of a bucket: the key that answers a request, the redirects that its rules decide, and its stored form.

use shoal_base::codec::Truncated;

use super::FoundBucket;
use super::fields::{FieldWriter, array_of, read_fields, text_of};
use super::item;
use crate::request::error::S3Result;
use crate::text::percent_encode_path;

/// The website of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Website {
    /// The end of the key that answers a folder, like `index.html`.
    pub index: Option<String>,
    /// The key that answers an error.
    pub error: Option<String>,
    /// All requests go there; then there is nothing else.
    pub redirect_all: Option<Redirect>,
    /// Rules, of which the first one that fits counts.
    pub rules: Vec<RoutingRule>,
}

/// A place for another request. A part that is absent stays as in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// `http` or `https`.
    pub protocol: Option<String>,
    /// The host.
    pub host: Option<String>,
    /// The whole key.
    pub key: Option<String>,
    /// Replaces the prefix that the rule asks for.
    pub prefix: Option<String>,
    /// The status of the answer, 301 to 308.
    pub status: Option<u16>,
}

/// A rule: its conditions, and the redirect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingRule {
    /// The start of the key.
    pub prefix: Option<String>,
    /// The status that the request would have.
    pub error: Option<u16>,
    /// The place.
    pub redirect: Redirect,
}

impl Website {
    /// The key that answers a request for `key`: in a folder, its index document.
    #[must_use]
    pub fn key_for(&self, key: &[u8]) -> Vec<u8> {
        let is_folder = key.is_empty() || key.ends_with(b"/");
        let index = self.index.as_deref().filter(|_| is_folder).unwrap_or("");
        [key, index.as_bytes()].concat()
    }

    /// The redirect of a request for `key` that came to `origin`, its scheme and host, before it is answered (`error` is `None`) or after
    /// it failed with a status: the status and the URL.
    #[must_use]
    pub fn redirect(&self, key: &str, error: Option<u16>, origin: (&str, &str)) -> Option<(u16, String)> {
        if let Some(all) = &self.redirect_all {
            return Some((301, all.location(key, "", origin)));
        }
        let fits = |rule: &&RoutingRule| {
            rule.error == error && rule.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix.as_str()))
        };
        let rule = self.rules.iter().find(fits)?;
        let prefix = rule.prefix.as_deref().unwrap_or("");
        Some((rule.redirect.status.unwrap_or(301), rule.redirect.location(key, prefix, origin)))
    }
}

impl Redirect {
    fn location(&self, key: &str, prefix: &str, (scheme, host): (&str, &str)) -> String {
        let key = match (&self.key, &self.prefix) {
            (Some(key), _) => key.clone(),
            (None, Some(start)) => format!("{start}{}", key.strip_prefix(prefix).unwrap_or(key)),
            (None, None) => key.to_owned(),
        };
        let (scheme, host) =
            (self.protocol.as_deref().unwrap_or(scheme), self.host.as_deref().unwrap_or(host));
        let mut location = format!("{scheme}://{host}/");
        percent_encode_path(&mut location, key.as_bytes());
        location
    }
}

impl FoundBucket {
    /// The website.
    ///
    /// # Errors
    /// `InternalError` if this program cannot read it.
    pub(crate) fn website(&self) -> S3Result<Option<Website>> {
        self.setting(item::WEBSITE, decode_website)
    }
}

/// The tags of the fields of a stored website, of which rules may occur several times, and of the fields of a redirect.
mod field {
    pub(super) const INDEX: u8 = 1;
    pub(super) const ERROR: u8 = 2;
    pub(super) const REDIRECT_ALL: u8 = 3;
    pub(super) const RULE: u8 = 4;

    pub(super) const PROTOCOL: u8 = 1;
    pub(super) const HOST: u8 = 2;
    pub(super) const KEY: u8 = 3;
    pub(super) const NEW_PREFIX: u8 = 4;
    pub(super) const STATUS: u8 = 5;
    /// The conditions of a rule.
    pub(super) const OF_PREFIX: u8 = 6;
    pub(super) const OF_ERROR: u8 = 7;
}

/// The item of a bucket's record that stores a website.
#[must_use]
pub fn encode_website(website: &Website) -> Vec<u8> {
    let mut fields = FieldWriter::default();
    fields.put_some(field::INDEX, website.index.as_ref());
    fields.put_some(field::ERROR, website.error.as_ref());
    let all = website.redirect_all.clone().map(|redirect| RoutingRule { redirect, ..RoutingRule::default() });
    fields.put_some(field::REDIRECT_ALL, all.as_ref().map(encode_rule));
    website.rules.iter().for_each(|rule| fields.put(field::RULE, encode_rule(rule)));
    fields.finish()
}

fn encode_rule(rule: &RoutingRule) -> Vec<u8> {
    let RoutingRule { prefix, error, redirect } = rule;
    let mut fields = FieldWriter::default();
    fields.put_some(field::PROTOCOL, redirect.protocol.as_ref());
    fields.put_some(field::HOST, redirect.host.as_ref());
    fields.put_some(field::KEY, redirect.key.as_ref());
    fields.put_some(field::NEW_PREFIX, redirect.prefix.as_ref());
    fields.put_some(field::STATUS, redirect.status.map(u16::to_le_bytes));
    fields.put_some(field::OF_PREFIX, prefix.as_ref());
    fields.put_some(field::OF_ERROR, error.map(u16::to_le_bytes));
    fields.finish()
}

/// Reads a stored website.
///
/// # Errors
/// [`Truncated`] for bytes that [`encode_website`] does not make.
pub fn decode_website(bytes: &[u8]) -> Result<Website, Truncated> {
    let mut website = Website::default();
    read_fields(bytes, |tag, value| {
        match tag {
            field::INDEX => website.index = Some(text_of(value)?),
            field::ERROR => website.error = Some(text_of(value)?),
            field::REDIRECT_ALL => website.redirect_all = Some(decode_rule(value)?.redirect),
            field::RULE => website.rules.push(decode_rule(value)?),
            _ => return Err(Truncated),
        }
        Ok(())
    })?;
    Ok(website)
}

fn decode_rule(bytes: &[u8]) -> Result<RoutingRule, Truncated> {
    let mut rule = RoutingRule::default();
    read_fields(bytes, |tag, value| {
        let redirect = &mut rule.redirect;
        match tag {
            field::PROTOCOL => redirect.protocol = Some(text_of(value)?),
            field::HOST => redirect.host = Some(text_of(value)?),
            field::KEY => redirect.key = Some(text_of(value)?),
            field::NEW_PREFIX => redirect.prefix = Some(text_of(value)?),
            field::STATUS => redirect.status = Some(u16::from_le_bytes(array_of(value)?)),
            field::OF_PREFIX => rule.prefix = Some(text_of(value)?),
            field::OF_ERROR => rule.error = Some(u16::from_le_bytes(array_of(value)?)),
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

    const ORIGIN: (&str, &str) = ("https", "site");

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn to(host: &str) -> Redirect {
        Redirect { host: text(host), ..Redirect::default() }
    }

    fn with(rules: Vec<RoutingRule>) -> Website {
        Website { index: text("index.html"), rules, ..Website::default() }
    }

    #[test]
    fn requests_are_answered_by_index_and_rules() {
        let website = with(vec![RoutingRule {
            prefix: text("a/"),
            redirect: Redirect { prefix: text("b c/"), ..Redirect::default() },
            ..RoutingRule::default()
        }]);
        assert_eq!(website.key_for(b""), b"index.html");
        assert_eq!(website.key_for(b"x/"), b"x/index.html");
        assert_eq!(website.key_for(b"x"), b"x");
        assert_eq!(website.redirect("a/k", None, ORIGIN), Some((301, "https://site/b%20c/k".to_owned())));
        assert_eq!(website.redirect("x", None, ORIGIN), None);
        assert_eq!(website.redirect("a/k", Some(404), ORIGIN), None);
        let all = Website { redirect_all: Some(to("h")), ..Website::default() };
        assert_eq!(all.redirect("k", None, ORIGIN), Some((301, "https://h/k".to_owned())));
        let lost = with(vec![RoutingRule {
            error: Some(404),
            redirect: Redirect { protocol: text("http"), key: text("e"), status: Some(307), ..to("h") },
            ..RoutingRule::default()
        }]);
        assert_eq!(lost.redirect("k", None, ORIGIN), None);
        assert_eq!(lost.redirect("k", Some(404), ORIGIN), Some((307, "http://h/e".to_owned())));
    }

    fn all_fields() -> Website {
        let redirect = Redirect {
            protocol: text("http"),
            key: text("k"),
            prefix: text("p"),
            status: Some(302),
            ..to("h")
        };
        let rule = RoutingRule { prefix: text("a/"), error: Some(404), redirect: redirect.clone() };
        Website {
            error: text("error.html"),
            redirect_all: Some(redirect),
            ..with(vec![rule, RoutingRule::default()])
        }
    }

    /// The example of `docs/format/s3.md`.
    #[test]
    fn golden_bytes_of_a_website() {
        let rule = RoutingRule { prefix: text("a/"), redirect: to("h"), ..RoutingRule::default() };
        let stored = encode_website(&with(vec![rule]));
        let hex: Vec<String> = stored.iter().map(|byte| format!("{byte:02x}")).collect();
        let document = include_str!("../../../../docs/format/s3.md");
        assert!(document.contains(&format!("```\n{}\n```", hex.join(" "))), "{}", hex.join(" "));
    }

    #[test]
    fn a_stored_website_is_read_back() {
        let website = all_fields();
        assert_eq!(decode_website(&encode_website(&website)), Ok(website));
        for wrong in [&[9, 1, 1][..], &[4, 3, 8, 1, 1], &[4, 3, 5, 1, 1], &[1, 2, 1]] {
            assert_eq!(decode_website(wrong), Err(Truncated), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_stored_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(website) = decode_website(&bytes) {
                prop_assert_eq!(decode_website(&encode_website(&website)), Ok(website));
            }
        }
    }
}
