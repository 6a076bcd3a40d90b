//! The document of a website configuration.

use crate::answer::xml::XmlWriter;
use crate::body::xml::{XmlReader, malformed};
use crate::bucket::website::{Redirect, RoutingRule, Website};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// Most routing rules of a website.
pub const ROUTING_RULES_MAX: usize = 50;

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

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = parse(&content);
        }
    }
}
