//! The bucket and the key of a request: in the path, or the bucket in the host name.
//!
//! A key is the bytes of the path, percent-decoded once. Nothing is normalised: `+`, `.`, `..`, `//`, a slash at the start
//! and every form of Unicode are ordinary bytes of a key.

use std::net::IpAddr;

use shoal_base::limits::{BUCKET_BYTES_MAX, KEY_BYTES_MAX};

use super::error::{ErrorCode, S3Error, S3Result};
use crate::text::{percent_decode, percent_encode_path};

/// Longest target (path and query), in bytes: a key of escapes and a presigned query fit.
pub const TARGET_BYTES_MAX: usize = 16 << 10;

/// The bucket and the key that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketAndKey {
    /// Neither: the list of all buckets.
    Service,
    /// A bucket.
    Bucket(String),
    /// An object: the bucket, and 1 to 1,024 bytes of key.
    Object(String, Vec<u8>),
}

impl BucketAndKey {
    /// Reads the path of a request. `host` is its Host header; if it is a name below one of `domains`, the rest of the name
    /// is the bucket.
    ///
    /// # Errors
    /// `InvalidURI`, `InvalidBucketName`, `KeyTooLongError`.
    pub fn parse(path: &str, host: Option<&str>, domains: &[String]) -> S3Result<Self> {
        let rest = path.strip_prefix('/').ok_or(ErrorCode::InvalidURI)?;
        let (bucket, key) = match host.and_then(|host| bucket_of_host(host, domains)) {
            Some(bucket) => return Self::in_bucket(bucket, path),
            None if rest.is_empty() => return Ok(Self::Service),
            None => rest.split_once('/').unwrap_or((rest, "")),
        };
        let bucket = percent_decode(bucket.as_bytes()).ok_or(ErrorCode::InvalidURI)?;
        Self::checked(String::from_utf8(bucket).map_err(|_| ErrorCode::InvalidBucketName)?, key)
    }

    /// The target in the path of a request whose host name has the bucket.
    ///
    /// # Errors
    /// `InvalidURI`, `InvalidBucketName`, `KeyTooLongError`.
    pub(crate) fn in_bucket(bucket: String, path: &str) -> S3Result<Self> {
        Self::checked(bucket, path.strip_prefix('/').ok_or(ErrorCode::InvalidURI)?)
    }

    fn checked(bucket: String, escaped_key: &str) -> S3Result<Self> {
        check_bucket_name(&bucket)?;
        Self::of(bucket, percent_decode(escaped_key.as_bytes()).ok_or(ErrorCode::InvalidURI)?)
    }

    /// The target with this bucket and key; with an empty key the bucket.
    ///
    /// # Errors
    /// `KeyTooLongError`.
    pub(crate) fn of(bucket: String, key: Vec<u8>) -> S3Result<Self> {
        if key.len() > KEY_BYTES_MAX {
            let fields = S3Error::from(ErrorCode::KeyTooLongError).with("Size", key.len().to_string());
            return Err(fields.with("MaxSizeAllowed", KEY_BYTES_MAX.to_string()));
        }
        Ok(if key.is_empty() { Self::Bucket(bucket) } else { Self::Object(bucket, key) })
    }

    /// The bucket's name.
    #[must_use]
    pub fn bucket(&self) -> Option<&str> {
        match self {
            Self::Service => None,
            Self::Bucket(bucket) | Self::Object(bucket, _) => Some(bucket),
        }
    }

    /// The object's key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Object(_, key) => Some(key),
            _ => None,
        }
    }
}

/// Refuses a target that is too long.
///
/// # Errors
/// `URITooLong`.
pub fn check_target(path_and_query: &str) -> S3Result<()> {
    if path_and_query.len() > TARGET_BYTES_MAX { Err(ErrorCode::URITooLong.into()) } else { Ok(()) }
}

/// The URL of an object, as a client reaches it that sends `host`.
#[must_use]
pub fn location_of(
    (host, domains): (&str, &[String]),
    is_encrypted: bool,
    (bucket, key): (&str, &[u8]),
) -> String {
    let scheme = if is_encrypted { "https" } else { "http" };
    let mut location = format!("{scheme}://{host}/");
    if bucket_of_host(host, domains).is_none() {
        location += &format!("{bucket}/");
    }
    percent_encode_path(&mut location, key);
    location
}

/// The bucket in a host name below one of `domains`.
fn bucket_of_host(host: &str, domains: &[String]) -> Option<String> {
    if domains.is_empty() {
        return None;
    }
    // The colon of a port; those of an IPv6 address are in brackets, and no domain has one.
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
    let rest = domains
        .iter()
        .filter_map(|domain| name.strip_suffix(&domain.to_ascii_lowercase())?.strip_suffix('.'));
    rest.min_by_key(|rest| rest.len()).filter(|bucket| !bucket.is_empty()).map(ToOwned::to_owned)
}

/// The bucket whose website a host name is: one below one of `sites`, and below no longer one of `domains`.
pub(crate) fn site_of_host(host: &str, sites: &[String], domains: &[String]) -> Option<String> {
    let bucket = bucket_of_host(host, sites)?;
    let is_longer = |other: String| other.len() <= bucket.len();
    if bucket_of_host(host, domains).is_some_and(is_longer) { None } else { Some(bucket) }
}

/// Checks that a bucket of this name can exist. Other frontends create buckets whose names S3 forbids, and requests reach
/// them.
///
/// # Errors
/// `InvalidBucketName`.
pub fn check_bucket_name(bucket: &str) -> S3Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    let fits = (1..=BUCKET_BYTES_MAX).contains(&bucket.len()) && bucket.bytes().all(is_plain);
    if fits && bucket != ".shoal" { Ok(()) } else { Err(bad_bucket(bucket)) }
}

/// Checks the name of a bucket that S3 creates: 3 to 63 characters of a-z, 0-9, `-` and `.`, a letter or digit as
/// the first and the last one, and no IP address.
///
/// # Errors
/// `InvalidBucketName`.
pub fn check_new_bucket_name(bucket: &str) -> S3Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let fits = (3..=BUCKET_BYTES_MAX).contains(&bucket.len())
        && bucket.bytes().all(is_plain)
        && is_alphanumeric(bucket.bytes().next())
        && is_alphanumeric(bucket.bytes().last());
    let is_reserved = bucket.starts_with("xn--")
        || ["..", ".-", "-."].iter().any(|pair| bucket.contains(pair))
        || bucket.parse::<IpAddr>().is_ok();
    if fits && !is_reserved { Ok(()) } else { Err(bad_bucket(bucket)) }
}

fn bad_bucket(bucket: &str) -> S3Error {
    S3Error::from(ErrorCode::InvalidBucketName).with("BucketName", bucket)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(path: &str, host: &str) -> Result<BucketAndKey, ErrorCode> {
        let domains = ["s3.example.org".to_owned(), "example.org".to_owned()];
        BucketAndKey::parse(path, Some(host), &domains).map_err(|error| error.code)
    }

    fn object(bucket: &str, key: &[u8]) -> Result<BucketAndKey, ErrorCode> {
        Ok(BucketAndKey::Object(bucket.to_owned(), key.to_vec()))
    }

    #[test]
    fn path_style_splits_at_the_first_slash_only() {
        assert_eq!(parse("/", "h"), Ok(BucketAndKey::Service));
        for path in ["/b", "/b/"] {
            assert_eq!(parse(path, "h:7413"), Ok(BucketAndKey::Bucket("b".to_owned())));
        }
        assert_eq!(parse("/b/a/.././/x", "h"), object("b", b"a/.././/x"));
        assert_eq!(parse("/b//x", "[::1]:7413"), object("b", b"/x"));
        assert_eq!(parse("/b/a+b%2525%00%ff", "h"), object("b", b"a+b%25\0\xff"));
        // The two Unicode forms of one letter are two keys.
        assert_ne!(parse("/b/%C3%A9", "h"), parse("/b/e%CC%81", "h"));
    }

    #[test]
    fn host_style_takes_the_bucket_from_the_name() {
        for host in ["b.s3.example.org", "B.S3.EXAMPLE.ORG:80"] {
            assert_eq!(parse("/k/l", host), object("b", b"k/l"));
            assert_eq!(parse("/", host), Ok(BucketAndKey::Bucket("b".to_owned())));
            assert_eq!(parse("//k", host), object("b", b"/k"));
        }
        assert_eq!(parse("/k", "a.b.example.org"), object("a.b", b"k"));
        // The domain itself, and names that only end alike, are path style.
        for host in ["s3.example.org.", "evil-s3example.org"] {
            assert_eq!(parse("/b/k", host), object("b", b"k"), "{host}");
        }
        assert_eq!(parse("/b/k", "example.org"), object("b", b"k"));
    }

    #[test]
    fn the_longest_domain_decides_between_a_website_and_a_bucket() {
        let sites = ["web.example.org".to_owned(), "pages.test".to_owned()];
        let domains = ["example.org".to_owned(), "s3.pages.test".to_owned()];
        let site = |host| site_of_host(host, &sites, &domains);
        assert_eq!(site("b.web.example.org:80").as_deref(), Some("b"));
        assert_eq!(site("b.c.Pages.test").as_deref(), Some("b.c"));
        for host in ["b.example.org", "web.example.org", "b.s3.pages.test", "pages.test", "other"] {
            assert_eq!(site(host), None, "{host}");
        }
        assert_eq!(site_of_host("b.same", &["same".to_owned()], &["same".to_owned()]), None);
    }

    #[test]
    fn bad_names_and_targets_are_refused() {
        for (path, code) in [
            ("b/k", ErrorCode::InvalidURI),
            ("/b/%4", ErrorCode::InvalidURI),
            ("//k", ErrorCode::InvalidBucketName),
            ("/.shoal/k", ErrorCode::InvalidBucketName),
            ("/b%2Fc/k", ErrorCode::InvalidBucketName),
            ("/B/k", ErrorCode::InvalidBucketName),
        ] {
            assert_eq!(parse(path, "h"), Err(code), "{path}");
        }
        assert!(parse(&format!("/b/{}", "k".repeat(1024)), "h").is_ok());
        assert_eq!(parse(&format!("/b/{}", "k".repeat(1025)), "h"), Err(ErrorCode::KeyTooLongError));
        assert!(check_target(&"a".repeat(16 << 10)).is_ok());
        assert_eq!(check_target(&"a".repeat((16 << 10) + 1)).unwrap_err().code, ErrorCode::URITooLong);
    }

    #[test]
    fn new_buckets_have_names_of_s3() {
        for name in ["abc", "a.b-c9", &"a".repeat(63)] {
            assert!(check_new_bucket_name(name).is_ok(), "{name}");
        }
        for name in [
            "ab",
            "a_b",
            "-ab",
            "ab.",
            "a..b",
            "a.-b",
            "a-.b",
            "192.168.5.4",
            "xn--abc",
            "Abc",
            &"a".repeat(64),
        ] {
            assert!(check_new_bucket_name(name).is_err(), "{name}");
        }
        assert!(check_bucket_name("a_").is_ok());
    }

    proptest! {
        #[test]
        fn any_path_is_read_or_refused(path: String, host: String) {
            if let Ok(BucketAndKey::Object(_, key)) = parse(&path, &host) {
                prop_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
            }
        }
    }
}
