//! The CORS configuration of a bucket.

use crate::access::cors::{CORS_METHODS, CorsRule};
use crate::answer::xml::XmlWriter;
use crate::body::xml::{XmlReader, malformed};
use crate::request::error::{ErrorCode, S3Error, S3Result};

/// Most rules of a bucket.
pub const CORS_RULES_MAX: usize = 100;

/// Reads 1 to 100 rules.
///
/// # Errors
/// `MalformedXML`, `InvalidRequest`.
pub fn parse_cors(bytes: &[u8]) -> S3Result<Vec<CorsRule>> {
    let mut rules = Vec::new();
    XmlReader::document(bytes, "CORSConfiguration", |xml| {
        xml.children(|name, xml| {
            if name == "CORSRule" {
                rules.push(rule(xml)?);
            }
            if rules.len() > CORS_RULES_MAX { Err(malformed("It has more than 100 rules.")) } else { Ok(()) }
        })
    })?;
    if rules.is_empty() { Err(malformed("It has no rule.")) } else { Ok(rules) }
}

fn rule(xml: &mut XmlReader<'_>) -> S3Result<CorsRule> {
    let mut rule = CorsRule::default();
    xml.children(|name, xml| {
        match name {
            "ID" => rule.id = Some(xml.word()?),
            "AllowedOrigin" => rule.origins.push(starred(name, xml.word()?)?),
            "AllowedMethod" => rule.methods.push(method(xml.word()?)?),
            "AllowedHeader" => rule.headers.push(starred(name, xml.word()?)?),
            "ExposeHeader" => rule.exposed.push(visible(name, xml.word()?)?),
            "MaxAgeSeconds" => rule.max_age_s = Some(xml.number()?),
            _ => return Err(malformed(&format!("{name} is not allowed there."))),
        }
        Ok(())
    })?;
    let is_whole = !rule.origins.is_empty() && !rule.methods.is_empty();
    if is_whole { Ok(rule) } else { Err(malformed("A rule needs an origin and a method.")) }
}

fn method(method: String) -> S3Result<String> {
    if CORS_METHODS.contains(&method.as_str()) {
        return Ok(method);
    }
    let why = format!("Found unsupported HTTP method in CORS config. Unsupported method is {method}");
    Err(S3Error::new(ErrorCode::InvalidRequest, why))
}

/// A pattern with one star at most.
fn starred(name: &str, pattern: String) -> S3Result<String> {
    if pattern.matches('*').count() > 1 {
        let why = format!("{name} \"{pattern}\" can not have more than one wildcard.");
        return Err(S3Error::new(ErrorCode::InvalidRequest, why));
    }
    visible(name, pattern)
}

/// Text that can be a header.
fn visible(name: &str, text: String) -> S3Result<String> {
    let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text) } else { Err(malformed(&format!("{name} has no value that a header can have."))) }
}

/// The document that answers GetBucketCors.
#[must_use]
pub fn write_cors(rules: &[CorsRule]) -> Vec<u8> {
    XmlWriter::of("CORSConfiguration", |xml| {
        for rule in rules {
            xml.element("CORSRule", |xml| write_rule(xml, rule));
        }
    })
}

fn write_rule(xml: &mut XmlWriter, rule: &CorsRule) {
    if let Some(id) = &rule.id {
        xml.leaf("ID", id);
    }
    for (name, values) in [
        ("AllowedHeader", &rule.headers),
        ("AllowedMethod", &rule.methods),
        ("AllowedOrigin", &rule.origins),
        ("ExposeHeader", &rule.exposed),
    ] {
        for value in values {
            xml.leaf(name, value);
        }
    }
    if let Some(seconds) = rule.max_age_s {
        xml.number("MaxAgeSeconds", seconds.into());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: &str = "<CORSRule><ID>i</ID><AllowedOrigin>http://*.a</AllowedOrigin><AllowedMethod>GET</AllowedMethod>\
        <AllowedMethod>PUT</AllowedMethod><AllowedHeader>*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
        <MaxAgeSeconds>30</MaxAgeSeconds></CORSRule>";

    fn parse(rules: &str) -> Result<Vec<CorsRule>, ErrorCode> {
        parse_cors(format!("<CORSConfiguration>{rules}</CORSConfiguration>").as_bytes())
            .map_err(|error| error.code)
    }

    #[test]
    fn rules_round_trip() {
        let rules = parse(&RULE.repeat(2)).unwrap();
        assert_eq!((rules.len(), rules[0].methods.len(), rules[0].max_age_s), (2, 2, Some(30)));
        assert_eq!(parse_cors(&write_cors(&rules)), Ok(rules));
        assert_eq!(parse(&RULE.repeat(100)).unwrap().len(), 100);
    }

    #[test]
    fn wrong_rules_are_refused() {
        for (rules, code) in [
            (String::new(), ErrorCode::MalformedXML),
            (RULE.repeat(101), ErrorCode::MalformedXML),
            (RULE.replace("<AllowedOrigin>http://*.a</AllowedOrigin>", ""), ErrorCode::MalformedXML),
            (RULE.replace("<ID>i</ID>", "<Color/>"), ErrorCode::MalformedXML),
            (RULE.replace("30", "-1"), ErrorCode::MalformedXML),
            (RULE.replace("ETag", "a&#10;b"), ErrorCode::MalformedXML),
            (RULE.replace("PUT", "PATCH"), ErrorCode::InvalidRequest),
            (RULE.replace("http://*.a", "*.*"), ErrorCode::InvalidRequest),
        ] {
            assert_eq!(parse(&rules), Err(code), "{rules}");
        }
    }

    proptest! {
        #[test]
        fn any_content_is_read_or_refused(content: String) {
            let _ = parse(&format!("<CORSRule>{content}</CORSRule>"));
        }
    }
}
