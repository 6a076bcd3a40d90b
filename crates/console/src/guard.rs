//! Checks that a request comes from a page of the console, before it is looked at.
//!
//! A page of another site can make a browser send requests here. It cannot read the answers, unless its host name is pointed at this
//! machine (DNS rebinding): a console that asks for no credentials answers only to the names of this machine, and to addresses.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode};

use crate::answer::{ApiError, ApiResult};

/// The header of browsers with the relation between the page and the server.
const SITE: &str = "sec-fetch-site";
/// The header of browsers with the use of an answer.
const DESTINATION: &str = "sec-fetch-dest";

/// The host that a request names. HTTP/2 has it in the target.
pub(crate) fn host_of(head: &http::request::Parts) -> Option<&str> {
    let named = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    named.or_else(|| head.uri.authority().map(http::uri::Authority::as_str))
}

/// Checks the host name of a request to a console that asks for no credentials. `is_open`: other machines are let in, so any address is
/// one of this machine.
///
/// # Errors
/// 421.
pub(crate) fn check_host(host: Option<&str>, is_open: bool) -> ApiResult<()> {
    let name = host.map(without_port).unwrap_or_default();
    let is_local = match name.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => is_open || address.to_canonical().is_loopback(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    };
    if is_local {
        return Ok(());
    }
    let names = if is_open { "localhost or the machine's IP address" } else { "localhost or 127.0.0.1" };
    let problem = format!(
        "the console asks for no credentials here, and so does not answer to the host name {name:?}, which another site may have pointed \
         at this machine; open it as {names}, or start the server with --key-file"
    );
    Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, problem))
}

/// The name of `NAME:PORT` or `[ADDRESS]:PORT`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Checks that a request of the API was not made by a page of another origin.
///
/// # Errors
/// 403.
pub(crate) fn check_origin(head: &http::request::Parts) -> ApiResult<()> {
    let refused = |problem: String| Err(ApiError::new(StatusCode::FORBIDDEN, problem));
    if head.method == Method::OPTIONS {
        return refused("pages of other origins may not use the console".to_owned());
    }
    let host = host_of(head).unwrap_or_default();
    for origin in head.headers.get_all(ORIGIN) {
        let authority = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
        if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) {
            return refused(format!(
                "the request is of a page of {origin:?}, and the console is {host:?}: only its own pages may use it; a proxy before it must \
                 pass the header Host"
            ));
        }
    }
    // Another port of this machine is the same site.
    let site = word_of(&head.headers, SITE);
    if !matches!(site, "" | "same-origin" | "none") {
        return refused(format!(
            "the request is of a page of another origin ({SITE}: {site}); open the console itself"
        ));
    }
    Ok(())
}

/// Checks that an answer with bytes of users is not used as a part of a page that acts for it.
///
/// # Errors
/// 403.
pub(crate) fn check_use(headers: &HeaderMap) -> ApiResult<()> {
    match word_of(headers, DESTINATION) {
        "" | "empty" | "document" | "image" | "audio" | "video" | "track" => Ok(()),
        other => {
            let problem = format!("an object is no {other} of a page of the console ({DESTINATION})");
            Err(ApiError::new(StatusCode::FORBIDDEN, problem))
        }
    }
}

fn word_of<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |word| word.to_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: Method, headers: &[(&str, &str)]) -> http::request::Parts {
        let mut request =
            http::Request::builder().method(method).uri("/api/x").header("host", "127.0.0.1:7414");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_names_of_this_machine_are_answered_without_credentials() {
        for (host, closed, open) in [
            ("127.0.0.1:7414", true, true),
            ("127.0.0.1", true, true),
            ("127.8.8.8:1", true, true),
            ("[::1]:7414", true, true),
            ("[::1]", true, true),
            ("LocalHost:7414", true, true),
            ("[::ffff:127.0.0.1]:80", true, true),
            ("10.0.0.1:7414", false, true),
            ("[2001:db8::1]:7414", false, true),
            ("evil.example:7414", false, false),
            ("localhost.evil.example", false, false),
            ("127.0.0.1.evil.example:7414", false, false),
            ("127.0.0.1:7414.evil.example", false, false),
            ("", false, false),
            (":7414", false, false),
        ] {
            assert_eq!(check_host(Some(host), false).is_ok(), closed, "{host}");
            assert_eq!(check_host(Some(host), true).is_ok(), open, "{host}");
        }
        assert_eq!(check_host(None, true).unwrap_err().status, 421);
    }

    #[test]
    fn only_the_pages_of_the_console_may_use_it() {
        for (headers, expected) in [
            (&[][..], true),
            (&[("origin", "http://127.0.0.1:7414")], true),
            (&[("origin", "http://127.0.0.1:7414"), ("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("origin", "http://127.0.0.1:7413")], false),
            (&[("origin", "http://localhost:7414")], false),
            (&[("origin", "http://127.0.0.1:7414.evil.example")], false),
            (&[("origin", "http://127.0.0.1:7414"), ("origin", "http://evil.example")], false),
            (&[("origin", "null")], false),
            (&[("origin", "")], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
        ] {
            assert_eq!(check_origin(&head(Method::GET, headers)).is_ok(), expected, "{headers:?}");
        }
        assert!(check_origin(&head(Method::OPTIONS, &[])).is_err());
    }

    #[test]
    fn an_object_is_no_script_of_a_page() {
        for (destination, expected) in [
            ("empty", true),
            ("video", true),
            ("document", true),
            ("script", false),
            ("style", false),
            ("serviceworker", false),
            ("iframe", false),
        ] {
            let headers = head(Method::GET, &[(DESTINATION, destination)]).headers;
            assert_eq!(check_use(&headers).is_ok(), expected, "{destination}");
        }
        assert!(check_use(&HeaderMap::new()).is_ok());
    }
}
