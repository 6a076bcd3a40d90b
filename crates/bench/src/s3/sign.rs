//! Signed requests of a client.

use anyhow::{Context, Result, bail};
use ring::hmac;
use shoal_base::{Clock, SystemClock};
use shoal_s3::sign::key::{SigningKeys, sha256};
use shoal_s3::text::hex;
use shoal_s3::time::{SECOND_NS, basic_of};

/// The value of `x-amz-content-sha256` for a body whose hash is not signed.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The server, and the key of the client.
#[derive(Clone)]
pub struct S3Endpoint {
    /// The host and its port.
    pub(super) host: String,
    region: String,
    id: String,
    secret: String,
}

impl std::fmt::Debug for S3Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Endpoint").field("host", &self.host).finish_non_exhaustive()
    }
}

impl S3Endpoint {
    /// The endpoint with this URL, `http://HOST[:PORT]`, for a key of this id and secret.
    ///
    /// # Errors
    /// The URL is another one, as a text for the user.
    pub fn new(url: &str, region: &str, id: &str, secret: &str) -> Result<Self, String> {
        let host = url.strip_prefix("http://").map(|host| host.trim_end_matches('/'));
        let host = host.filter(|host| !host.is_empty() && !host.contains('/'));
        let Some(host) = host else {
            return Err(format!(
                "{url} is no endpoint of this benchmark: it takes http://HOST:PORT, without TLS and path"
            ));
        };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:80") };
        Ok(Self { host, region: region.to_owned(), id: id.to_owned(), secret: secret.to_owned() })
    }
}

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub struct S3Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, encoded.
    pub path: &'a str,
    /// The query, encoded and sorted.
    pub query: &'a str,
    /// More headers and their values; the names ascend, between `host` and `x-amz-content-sha256`.
    pub headers: &'a [(&'a str, &'a str)],
    /// The hash of the body in hex, or `UNSIGNED-PAYLOAD`.
    pub payload: &'a str,
}

/// Signs requests.
pub struct S3Signer {
    endpoint: S3Endpoint,
    keys: SigningKeys,
    clock: SystemClock,
    /// The key of a day: it is derived once.
    of_day: Option<(String, hmac::Key)>,
}

impl S3Signer {
    /// For requests to this server.
    #[must_use]
    pub fn new(endpoint: &S3Endpoint) -> Self {
        let (endpoint, keys) = (endpoint.clone(), SigningKeys::new(&endpoint.region));
        Self { endpoint, keys, clock: SystemClock::default(), of_day: None }
    }

    /// Writes a request with this body into `out`.
    ///
    /// # Errors
    /// The clock is before 1970.
    pub(super) fn write(&mut self, request: &S3Request<'_>, body: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let head = self.head(request, body.len())?;
        out.clear();
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body);
        Ok(())
    }

    /// The head of a request with a body of `length` bytes, signed now.
    ///
    /// # Errors
    /// The clock is before 1970.
    pub fn head(&mut self, request: &S3Request<'_>, length: usize) -> Result<String> {
        let moment = basic_of(self.clock.wall_ns() / SECOND_NS);
        let Some(day) = moment.get(..8) else { bail!("the time {moment} has no day") };
        let S3Request { method, path, query, headers, payload } = *request;
        let host = &self.endpoint.host;
        // The names ascend.
        let (mut names, mut lines) = ("host".to_owned(), format!("host:{host}\n"));
        for (name, value) in headers
            .iter()
            .copied()
            .chain([("x-amz-content-sha256", payload), ("x-amz-date", moment.as_str())])
        {
            names.extend([";", name]);
            lines.extend([name, ":", value, "\n"]);
        }
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
        let scope = format!("{day}/{}/s3/aws4_request", self.endpoint.region);
        let hash = hex(&sha256(canonical.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hash}");
        if self.of_day.as_ref().is_none_or(|(of, _)| of != day) {
            self.of_day = Some((day.to_owned(), self.keys.derive(day, &self.endpoint.secret)));
        }
        let (_, key) = self.of_day.as_ref().context("a key was derived")?;
        let signature = hex(hmac::sign(key, text.as_bytes()).as_ref());
        let id = &self.endpoint.id;
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        Ok(format!(
            "{method} {target} HTTP/1.1\r\n{}content-length:{length}\r\nauthorization:AWS4-HMAC-SHA256 \
             Credential={id}/{scope},SignedHeaders={names},Signature={signature}\r\n\r\n",
            lines.replace('\n', "\r\n")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        let host = |url: &str| S3Endpoint::new(url, "r", "id", "secret").map(|endpoint| endpoint.host);
        assert_eq!(host("http://127.0.0.1:7413/").as_deref(), Ok("127.0.0.1:7413"));
        assert_eq!(host("http://s3.test").as_deref(), Ok("s3.test:80"));
        for bad in ["https://s3.test", "s3.test:80", "http://", "http://s3.test/path"] {
            assert!(host(bad).unwrap_err().contains("http://HOST:PORT"), "{bad}");
        }
        let endpoint = S3Endpoint::new("http://h:1", "r", "id", "secret").unwrap();
        assert!(!format!("{endpoint:?}").contains("secret"));
    }
}
