//! Helpers of the unit tests.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers with these names and values.
pub(crate) fn headers_of(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("the value of a header");
        headers.append(HeaderName::try_from(*name).expect("the name of a header"), value);
    }
    headers
}
