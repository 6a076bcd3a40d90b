//! The website configuration of a bucket, and the redirects that its rules decide.

use crate::answer::xml::XmlWriter;
use crate::body::xml::{XmlReader, malformed};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// Most routing rules of a website.
pub const ROUTING_RULES_MAX: usize = 50;

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
    /// Reads the document.
    ///
    /// # Errors
    /// `MalformedXML`, `InvalidArgument`, `InvalidRequest`.
    pub fn parse(bytes: &[u8]) -> S3Result<Self> {
        let mut website = Self::default();
        XmlReader::document(bytes, "WebsiteConfiguration", |xml| {
            xml.children(|name, xml| {
                match name {
                    "IndexDocument" => website.index = Some(one_text(xml, "Suffix")?),
                    "ErrorDocument" => website.error = Some(one_text(xml, "Key")?),
                    "RedirectAllRequestsTo" => website.redirect_all = Some(redirect(xml)?),
                    "RoutingRules" => xml.children(|_, xml| {
                        if website.rules.len() == ROUTING_RULES_MAX {
                            let why = format!("A website has at most {ROUTING_RULES_MAX} routing rules.");
                            return Err(S3Error::new(ErrorCode::InvalidRequest, why));
                        }
                        website.rules.push(rule(xml)?);
                        Ok(())
                    })?,
                    _ => return Err(malformed(&format!("{name} is not allowed there."))),
                }
                Ok(())
            })
        })?;
        website.check()?;
        Ok(website)
    }

    fn check(&self) -> S3Result<()> {
        let has_more = self.index.is_some() || self.error.is_some() || !self.rules.is_empty();
        match (&self.redirect_all, &self.index) {
            (Some(_), _) if has_more => Err(malformed("RedirectAllRequestsTo excludes everything else.")),
            (Some(all), _) if all.host.is_none() => Err(malformed("RedirectAllRequestsTo has no host.")),
            (None, None) => Err(S3Error::argument("IndexDocument", "", "A website needs an index document.")),
            (None, Some(index)) if index.is_empty() || index.contains('/') => {
                Err(S3Error::argument("IndexDocument", index, "The IndexDocument Suffix is not well formed"))
            }
            _ => Ok(()),
        }
    }

    /// The key that answers a request for `key`: in a folder, its index document.
    #[must_use]
    pub fn key_for(&self, key: &[u8]) -> Vec<u8> {
        let is_folder = key.is_empty() || key.ends_with(b"/");
        let index = self.index.as_deref().filter(|_| is_folder).unwrap_or("");
        [key, index.as_bytes()].concat()
    }

    /// The redirect of a request for `key`, before it is answered (`error` is `None`) or after it failed with a status: the
    /// status and the location, which starts with `/` if the host stays.
    #[must_use]
    pub fn redirect(&self, key: &str, error: Option<u16>) -> Option<(u16, String)> {
        if let Some(all) = &self.redirect_all {
            return Some((301, all.location(key, "")));
        }
        let fits = |rule: &&RoutingRule| {
            rule.error == error && rule.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix.as_str()))
        };
        let rule = self.rules.iter().find(fits)?;
        let prefix = rule.prefix.as_deref().unwrap_or("");
        Some((rule.redirect.status.unwrap_or(301), rule.redirect.location(key, prefix)))
    }

    /// The document that answers GetBucketWebsite.
    #[must_use]
    pub fn document(&self) -> Vec<u8> {
        XmlWriter::of("WebsiteConfiguration", |xml| {
            if let Some(all) = &self.redirect_all {
                xml.element("RedirectAllRequestsTo", |xml| all.write(xml));
            }
            if let Some(index) = &self.index {
                xml.element("IndexDocument", |xml| xml.leaf("Suffix", index));
            }
            if let Some(error) = &self.error {
                xml.element("ErrorDocument", |xml| xml.leaf("Key", error));
            }
            if !self.rules.is_empty() {
                xml.element("RoutingRules", |xml| self.rules.iter().for_each(|rule| rule.write(xml)));
            }
        })
    }
}

impl Redirect {
    fn location(&self, key: &str, prefix: &str) -> String {
        let key = match (&self.key, &self.prefix) {
            (Some(key), _) => key.clone(),
            (None, Some(start)) => format!("{start}{}", key.strip_prefix(prefix).unwrap_or(key)),
            (None, None) => key.to_owned(),
        };
        let mut path = String::from("/");
        crate::text::percent_encode_path(&mut path, key.as_bytes());
        match (&self.protocol, &self.host) {
            (Some(protocol), Some(host)) => format!("{protocol}://{host}{path}"),
            (None, Some(host)) => format!("//{host}{path}"),
            (_, None) => path,
        }
    }

    fn write(&self, xml: &mut XmlWriter) {
        let status = self.status.map(|status| status.to_string());
        for (name, value) in [
            ("HostName", &self.host),
            ("Protocol", &self.protocol),
            ("ReplaceKeyPrefixWith", &self.prefix),
            ("ReplaceKeyWith", &self.key),
            ("HttpRedirectCode", &status),
        ] {
            if let Some(value) = value {
                xml.leaf(name, value);
            }
        }
    }
}

impl RoutingRule {
    fn write(&self, xml: &mut XmlWriter) {
        xml.element("RoutingRule", |xml| {
            if self.prefix.is_some() || self.error.is_some() {
                xml.element("Condition", |xml| {
                    if let Some(prefix) = &self.prefix {
                        xml.leaf("KeyPrefixEquals", prefix);
                    }
                    if let Some(error) = self.error {
                        xml.number("HttpErrorCodeReturnedEquals", error.into());
                    }
                });
            }
            xml.element("Redirect", |xml| self.redirect.write(xml));
        });
    }
}

fn one_text(xml: &mut XmlReader<'_>, wanted: &str) -> S3Result<String> {
    let mut found = String::new();
    xml.children(|name, xml| {
        if name == wanted {
            found = xml.text()?;
        }
        Ok(())
    })?;
    Ok(found)
}

fn redirect(xml: &mut XmlReader<'_>) -> S3Result<Redirect> {
    let mut redirect = Redirect::default();
    xml.children(|name, xml| {
        match name {
            "HostName" => redirect.host = Some(visible(xml.word()?)?),
            "Protocol" => redirect.protocol = Some(protocol(xml.word()?)?),
            "ReplaceKeyWith" => redirect.key = Some(xml.text()?),
            "ReplaceKeyPrefixWith" => redirect.prefix = Some(xml.text()?),
            "HttpRedirectCode" => redirect.status = Some(xml.number()?),
            _ => return Err(malformed(&format!("{name} is not allowed there."))),
        }
        Ok(())
    })?;
    if redirect.key.is_some() && redirect.prefix.is_some() {
        return Err(S3Error::new(ErrorCode::InvalidRequest, "A redirect replaces the key or its prefix."));
    }
    if redirect.status.is_some_and(|status| !matches!(status, 301 | 302 | 303 | 307 | 308)) {
        return Err(S3Error::new(
            ErrorCode::InvalidRequest,
            "The HttpRedirectCode is not one of a redirect.",
        ));
    }
    Ok(redirect)
}

fn rule(xml: &mut XmlReader<'_>) -> S3Result<RoutingRule> {
    let mut rule = RoutingRule::default();
    let mut found = None;
    xml.children(|name, xml| match name {
        "Condition" => xml.children(|name, xml| {
            match name {
                "KeyPrefixEquals" => rule.prefix = Some(xml.text()?),
                "HttpErrorCodeReturnedEquals" => rule.error = Some(xml.number()?),
                _ => {}
            }
            Ok(())
        }),
        "Redirect" => {
            found = Some(redirect(xml)?);
            Ok(())
        }
        _ => Ok(()),
    })?;
    rule.redirect = found.ok_or_else(|| malformed("A routing rule has no redirect."))?;
    Ok(rule)
}

fn protocol(text: String) -> S3Result<String> {
    if text == "http" || text == "https" {
        return Ok(text);
    }
    Err(S3Error::new(ErrorCode::InvalidRequest, "Invalid protocol, protocol can be http or https."))
}

fn visible(text: String) -> S3Result<String> {
    let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if fits { Ok(text) } else { Err(malformed("A host name is not valid.")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(content: &str) -> Result<Website, ErrorCode> {
        let text = format!("<WebsiteConfiguration>{content}</WebsiteConfiguration>");
        Website::parse(text.as_bytes()).map_err(|error| error.code)
    }

    const INDEX: &str = "<IndexDocument><Suffix>index.html</Suffix></IndexDocument>";

    fn with_rule(rule: &str) -> String {
        format!("{INDEX}<RoutingRules><RoutingRule>{rule}</RoutingRule></RoutingRules>")
    }

    #[test]
    fn websites_round_trip() {
        for content in [
            format!("{INDEX}<ErrorDocument><Key>error.html</Key></ErrorDocument>"),
            "<RedirectAllRequestsTo><HostName>h</HostName><Protocol>https</Protocol></RedirectAllRequestsTo>"
                .to_owned(),
            with_rule(
                "<Condition><KeyPrefixEquals>a/</KeyPrefixEquals><HttpErrorCodeReturnedEquals>404</HttpErrorCodeReturnedEquals>\
                 </Condition><Redirect><HostName>h</HostName><ReplaceKeyPrefixWith>b/</ReplaceKeyPrefixWith>\
                 <HttpRedirectCode>302</HttpRedirectCode></Redirect>",
            ),
        ] {
            let website = parse(&content).unwrap();
            assert_eq!(Website::parse(&website.document()), Ok(website), "{content}");
        }
    }

    #[test]
    fn wrong_websites_are_refused() {
        let rules = |count: usize| {
            format!(
                "{INDEX}<RoutingRules>{}</RoutingRules>",
                "<RoutingRule><Redirect/></RoutingRule>".repeat(count)
            )
        };
        assert_eq!(parse(&rules(50)).unwrap().rules.len(), 50);
        for (content, code) in [
            (String::new(), ErrorCode::InvalidArgument),
            ("<IndexDocument/>".to_owned(), ErrorCode::InvalidArgument),
            ("<IndexDocument><Suffix>a/b</Suffix></IndexDocument>".to_owned(), ErrorCode::InvalidArgument),
            (
                format!("{INDEX}<RedirectAllRequestsTo><HostName>h</HostName></RedirectAllRequestsTo>"),
                ErrorCode::MalformedXML,
            ),
            ("<RedirectAllRequestsTo/>".to_owned(), ErrorCode::MalformedXML),
            (rules(51), ErrorCode::InvalidRequest),
            (with_rule(""), ErrorCode::MalformedXML),
            (with_rule("<Redirect><Protocol>ftp</Protocol></Redirect>"), ErrorCode::InvalidRequest),
            (
                with_rule("<Redirect><HttpRedirectCode>200</HttpRedirectCode></Redirect>"),
                ErrorCode::InvalidRequest,
            ),
            (with_rule("<Redirect><HostName>a b</HostName></Redirect>"), ErrorCode::MalformedXML),
        ] {
            assert_eq!(parse(&content), Err(code), "{content}");
        }
    }

    #[test]
    fn requests_are_answered_by_index_and_rules() {
        let website = parse(&with_rule(
            "<Condition><KeyPrefixEquals>a/</KeyPrefixEquals></Condition><Redirect><ReplaceKeyPrefixWith>b c/\
             </ReplaceKeyPrefixWith></Redirect>",
        ))
        .unwrap();
        assert_eq!(website.key_for(b""), b"index.html");
        assert_eq!(website.key_for(b"x/"), b"x/index.html");
        assert_eq!(website.key_for(b"x"), b"x");
        assert_eq!(website.redirect("a/k", None), Some((301, "/b%20c/k".to_owned())));
        assert_eq!(website.redirect("x", None), None);
        assert_eq!(website.redirect("a/k", Some(404)), None);
        let all = parse("<RedirectAllRequestsTo><HostName>h</HostName></RedirectAllRequestsTo>").unwrap();
        assert_eq!(all.redirect("k", None), Some((301, "//h/k".to_owned())));
        let lost = parse(&with_rule(
            "<Condition><HttpErrorCodeReturnedEquals>404</HttpErrorCodeReturnedEquals></Condition>\
             <Redirect><Protocol>https</Protocol><HostName>h</HostName><ReplaceKeyWith>e</ReplaceKeyWith></Redirect>",
        ))
        .unwrap();
        assert_eq!(lost.redirect("k", Some(404)), Some((301, "https://h/e".to_owned())));
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = parse(&content);
        }
    }
}
