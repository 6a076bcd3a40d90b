//! The canonical form of a request, whose hash is signed.

use http::HeaderMap;

use super::key::{Scope, sha256};
use crate::request::query::QueryParameters;
use crate::text::{hex, percent_decode, percent_encode, percent_encode_path};

/// The name of the algorithm, the only one that is accepted.
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The head of a request, as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a str,
    /// The path of the target, not decoded.
    pub path: &'a str,
    /// The part of the target after the question mark, not decoded.
    pub query: Option<&'a str>,
    /// The headers; HTTP/2's authority as `host`.
    pub headers: &'a HeaderMap,
}

/// The texts that a client may have signed, at most four: path and query decoded and encoded by S3's rule, and both as they
/// were sent, if that differs.
pub(super) fn strings_to_sign(
    head: &RequestHead<'_>,
    query: &QueryParameters,
    signed_headers: &str,
    payload: &str,
    moment: &str,
    scope: &Scope<'_>,
) -> Vec<String> {
    let raw = (head.path.to_owned(), raw_query(head.query));
    let encoded = (canonical_path(head.path).unwrap_or_default(), canonical_query(query));
    let mut texts = Vec::new();
    for headers in canonical_headers(head.headers, signed_headers) {
        let mut add = |(path, query): &(String, String)| {
            let request = format!("{}\n{path}\n{query}\n{headers}\n{signed_headers}\n{payload}", head.method);
            let hash = hex(&sha256(request.as_bytes()));
            texts.push(format!("{ALGORITHM}\n{moment}\n{}\n{hash}", scope.signed()));
        };
        add(&encoded);
        if raw != encoded {
            add(&raw);
        }
    }
    texts
}

fn canonical_path(path: &str) -> Option<String> {
    let mut out = String::new();
    percent_encode_path(&mut out, &percent_decode(path.as_bytes())?);
    Some(out)
}

fn canonical_query(query: &QueryParameters) -> String {
    let encoded = query.iter().filter(|(name, _)| !is_signature(name)).map(|(name, value)| {
        let (mut key, mut text) = (String::new(), String::new());
        percent_encode(&mut key, name.as_bytes());
        percent_encode(&mut text, value);
        (key, text)
    });
    sorted(encoded.collect())
}

fn raw_query(query: Option<&str>) -> String {
    let pairs = query.unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    let pairs =
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).filter(|(name, _)| !is_signature(name));
    sorted(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn is_signature(name: &str) -> bool {
    name.eq_ignore_ascii_case("X-Amz-Signature")
}

fn sorted(mut pairs: Vec<(String, String)>) -> String {
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// Each signed header with its values, which lose spaces around them and runs of spaces in them. A header that is missing
/// has no value. `Expect` may have been taken away by a proxy, so there is a second form with its usual value.
fn canonical_headers(headers: &HeaderMap, signed: &str) -> Vec<String> {
    let form = |expect: &str| {
        let mut out = String::new();
        for name in signed.split(';') {
            let values: Vec<String> =
                headers.get_all(name).iter().map(|value| squeezed(value.as_bytes())).collect();
            let is_expect = values.is_empty() && name == "expect";
            let value = if is_expect { expect.to_owned() } else { values.join(",") };
            out.extend([name, ":", &value, "\n"]);
        }
        out
    };
    let is_unsure = signed.split(';').any(|name| name == "expect") && !headers.contains_key("expect");
    if is_unsure { vec![form("100-continue"), form("")] } else { vec![form("")] }
}

fn squeezed(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.split([' ', '\t']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::headers_of;

    #[test]
    fn paths_are_encoded_once_and_not_normalised() {
        for (path, expected) in [
            ("/b/a b", "/b/a%20b"),
            ("/b/%61+%2B", "/b/a%2B%2B"),
            ("/b//../.%2F", "/b//.././"),
            ("/b/%25", "/b/%25"),
        ] {
            assert_eq!(canonical_path(path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn queries_are_sorted_by_their_encoded_form() {
        let query = QueryParameters::parse(Some("b=2&a=%2f&acl&b=1&X-Amz-Signature=x&a-=é")).unwrap();
        assert_eq!(canonical_query(&query), "a=%2F&a-=%C3%A9&acl=&b=1&b=2");
        assert_eq!(raw_query(Some("b=%7e&a&X-Amz-Signature=x")), "a=&b=%7e");
    }

    #[test]
    fn header_values_are_trimmed_joined_and_expect_is_assumed() {
        let headers = headers_of(&[("a", "  x \t  y "), ("a", "z"), ("host", "h")]);
        let forms = ["100-continue", ""].map(|expect| format!("a:x y,z\nexpect:{expect}\nhost:h\nn:\n"));
        assert_eq!(canonical_headers(&headers, "a;expect;host;n"), forms);
        assert_eq!(canonical_headers(&headers, "host"), ["host:h\n"]);
    }
}
