//! CORS: the rules of a bucket, and the headers that they put on answers to browsers.

use http::{HeaderMap, HeaderName, HeaderValue};

use shoal_base::codec::{Reader, Truncated, put_prefixed};

use crate::bucket::fields::{FieldWriter, array_of, read_fields, text_of};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::header;
use crate::text::star_match;

/// Methods that a rule may allow.
pub const CORS_METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

/// A rule: origins and headers may have one star.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsRule {
    /// A name for people.
    pub id: Option<String>,
    /// Origins of pages, like `https://*.example.org`.
    pub origins: Vec<String>,
    /// Methods.
    pub methods: Vec<String>,
    /// Headers that a page may send.
    pub headers: Vec<String>,
    /// Headers of the answer that a page may read.
    pub exposed: Vec<String>,
    /// How long a browser may keep the answer to a preflight, in seconds.
    pub max_age_s: Option<u32>,
}

impl CorsRule {
    /// The allowed origin to answer: a star for a rule that allows every origin, else the page's.
    fn origin<'a>(&self, origin: &'a str) -> Option<&'a str> {
        let pattern =
            self.origins.iter().find(|pattern| star_match(pattern.as_bytes(), origin.as_bytes(), false))?;
        Some(if pattern == "*" { "*" } else { origin })
    }

    fn allows_header(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.headers
            .iter()
            .any(|pattern| star_match(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes(), false))
    }

    /// The headers of both kinds of answer.
    fn answer(&self, allowed: &str) -> HeaderMap {
        let mut out = HeaderMap::new();
        set(&mut out, "access-control-allow-origin", allowed);
        set(&mut out, "access-control-allow-methods", &self.methods.join(", "));
        if !self.exposed.is_empty() {
            set(&mut out, "access-control-expose-headers", &self.exposed.join(", "));
        }
        if let Some(seconds) = self.max_age_s {
            set(&mut out, "access-control-max-age", &seconds.to_string());
        }
        if allowed != "*" {
            set(&mut out, "access-control-allow-credentials", "true");
        }
        set(&mut out, "vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
        out
    }
}

/// The tags of the fields of a stored rule. Origins, methods, headers and exposed headers may occur several times.
mod field {
    pub(super) const ID: u8 = 1;
    pub(super) const ORIGIN: u8 = 2;
    pub(super) const METHOD: u8 = 3;
    pub(super) const HEADER: u8 = 4;
    pub(super) const EXPOSED: u8 = 5;
    pub(super) const MAX_AGE: u8 = 6;
}

/// The item of a bucket's record that stores rules: each with its length, and in it the fields.
#[must_use]
pub fn encode_cors(rules: &[CorsRule]) -> Vec<u8> {
    let mut out = Vec::new();
    for rule in rules {
        let mut fields = FieldWriter::default();
        fields.put_some(field::ID, rule.id.as_ref());
        for (tag, values) in [
            (field::ORIGIN, &rule.origins),
            (field::METHOD, &rule.methods),
            (field::HEADER, &rule.headers),
            (field::EXPOSED, &rule.exposed),
        ] {
            values.iter().for_each(|value| fields.put(tag, value));
        }
        fields.put_some(field::MAX_AGE, rule.max_age_s.map(u32::to_le_bytes));
        put_prefixed(&mut out, &fields.finish());
    }
    out
}

/// Reads the stored rules.
///
/// # Errors
/// [`Truncated`] for bytes that [`encode_cors`] does not make.
pub fn decode_cors(bytes: &[u8]) -> Result<Vec<CorsRule>, Truncated> {
    let mut reader = Reader::new(bytes);
    let mut rules = Vec::new();
    while !reader.is_empty() {
        let mut rule = CorsRule::default();
        read_fields(reader.prefixed()?, |tag, value| {
            match tag {
                field::ID => rule.id = Some(text_of(value)?),
                field::ORIGIN => rule.origins.push(text_of(value)?),
                field::METHOD => rule.methods.push(text_of(value)?),
                field::HEADER => rule.headers.push(text_of(value)?),
                field::EXPOSED => rule.exposed.push(text_of(value)?),
                field::MAX_AGE => rule.max_age_s = Some(u32::from_le_bytes(array_of(value)?)),
                _ => return Err(Truncated),
            }
            Ok(())
        })?;
        rules.push(rule);
    }
    Ok(rules)
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    // A rule is stored after a check, but an origin comes with the request.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// The headers of the answer to a preflight (OPTIONS). `rules` are those of the bucket, if it has some.
///
/// # Errors
/// `InvalidRequest` without an origin or a method, `AccessDenied` if no rule allows the request.
pub fn preflight(
    rules: impl FnOnce() -> S3Result<Option<Vec<CorsRule>>>,
    headers: &HeaderMap,
) -> S3Result<HeaderMap> {
    let needed = |name: &str| {
        let why = format!("Insufficient information. {name} request header needed.");
        header(headers, name)?.ok_or_else(|| S3Error::new(ErrorCode::InvalidRequest, why))
    };
    let (origin, method) = (needed("origin")?, needed("access-control-request-method")?);
    let wanted = header(headers, "access-control-request-headers")?.unwrap_or("");
    let names: Vec<&str> = wanted.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let why = "CORSResponse: CORS is not enabled for this bucket.";
    for rule in rules()?.ok_or_else(|| S3Error::new(ErrorCode::AccessDenied, why))? {
        let Some(allowed) = rule.origin(origin) else { continue };
        if rule.methods.iter().any(|found| found == method)
            && names.iter().all(|name| rule.allows_header(name))
        {
            let mut out = rule.answer(allowed);
            if !names.is_empty() {
                set(&mut out, "access-control-allow-headers", &names.join(", "));
            }
            return Ok(out);
        }
    }
    Err(S3Error::new(ErrorCode::AccessDenied, "CORSResponse: This CORS request is not allowed."))
}

/// The headers that rules add to the answer of a request with an origin; none if no rule fits.
#[must_use]
pub fn cors_headers(rules: &[CorsRule], method: &str, origin: Option<&str>) -> HeaderMap {
    let Some(origin) = origin else { return HeaderMap::new() };
    let fits = |rule: &&CorsRule| rule.methods.iter().any(|found| found == method);
    let found = rules.iter().filter(fits).find_map(|rule| Some((rule, rule.origin(origin)?)));
    found.map(|(rule, allowed)| rule.answer(allowed)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::headers_of;

    fn rules() -> Vec<CorsRule> {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        vec![
            CorsRule {
                origins: texts(&["https://*.example.org"]),
                methods: texts(&["GET", "PUT"]),
                headers: texts(&["x-amz-*", "Content-Type"]),
                exposed: texts(&["ETag"]),
                max_age_s: Some(3_000),
                ..CorsRule::default()
            },
            CorsRule { origins: texts(&["*"]), methods: texts(&["GET"]), ..CorsRule::default() },
        ]
    }

    fn ask(origin: &str, method: &str, names: &str) -> Result<HeaderMap, ErrorCode> {
        let pairs = [
            ("origin", origin),
            ("access-control-request-method", method),
            ("access-control-request-headers", names),
        ];
        let pairs: Vec<_> = pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        preflight(|| Ok(Some(rules())), &headers_of(&pairs)).map_err(|error| error.code)
    }

    /// The example of `docs/format/s3.md`.
    #[test]
    fn stored_rules_are_read_again() {
        let rule = CorsRule {
            id: Some("a".to_owned()),
            origins: vec!["*".to_owned()],
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
            max_age_s: Some(60),
            ..CorsRule::default()
        };
        let stored = encode_cors(std::slice::from_ref(&rule));
        let document = include_str!("../../../../docs/format/s3.md");
        let example = document.split("```\n").nth(3).unwrap();
        let bytes = example.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
        assert_eq!(stored, bytes.collect::<Vec<_>>());
        assert_eq!(decode_cors(&stored), Ok(vec![rule]));
        assert_eq!(decode_cors(&encode_cors(&rules())), Ok(rules()));
        assert_eq!(decode_cors(&[]), Ok(vec![]));
        for end in 1..stored.len() {
            assert_eq!(decode_cors(&stored[..end]), Err(Truncated), "{end}");
        }
        assert_eq!(decode_cors(&[3, 7, 1, b'a']), Err(Truncated), "an unknown field");
        assert_eq!(decode_cors(&[3, 6, 1, 1]), Err(Truncated), "an age of one byte");
    }

    #[test]
    fn a_preflight_is_answered_by_the_first_rule_that_fits() {
        let answer = ask("https://a.example.org", "PUT", "X-Amz-Date, content-type").unwrap();
        assert_eq!(answer["access-control-allow-origin"], "https://a.example.org");
        assert_eq!(answer["access-control-allow-methods"], "GET, PUT");
        assert_eq!(answer["access-control-allow-headers"], "X-Amz-Date, content-type");
        assert_eq!(answer["access-control-expose-headers"], "ETag");
        assert_eq!(answer["access-control-max-age"], "3000");
        assert_eq!(answer["access-control-allow-credentials"], "true");
        let answer = ask("http://other", "GET", "").unwrap();
        assert_eq!(answer["access-control-allow-origin"], "*");
        assert!(!answer.contains_key("access-control-allow-credentials"));
        for (origin, method, names, code) in [
            ("http://other", "PUT", "", ErrorCode::AccessDenied),
            ("https://example.org.evil", "PUT", "", ErrorCode::AccessDenied),
            ("https://a.example.org", "PUT", "cookie", ErrorCode::AccessDenied),
            ("", "GET", "", ErrorCode::InvalidRequest),
            ("http://other", "", "", ErrorCode::InvalidRequest),
        ] {
            assert_eq!(ask(origin, method, names), Err(code), "{origin} {method} {names}");
        }
    }

    #[test]
    fn answers_have_headers_only_for_an_allowed_origin() {
        let rules = rules();
        let with = |method, origin| cors_headers(&rules, method, origin);
        assert_eq!(
            with("PUT", Some("https://a.example.org"))["access-control-allow-origin"],
            "https://a.example.org"
        );
        assert_eq!(with("GET", Some("http://other"))["access-control-allow-origin"], "*");
        assert!(with("DELETE", Some("http://other")).is_empty() && with("GET", None).is_empty());
    }
}
