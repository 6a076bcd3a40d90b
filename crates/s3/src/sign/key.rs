//! Scopes, and the keys derived from secrets.
//!
//! A signing key is four HMACs of a secret, the date, the region and the service. It serves a whole day, so the last ones
//! are cached: a request costs one HMAC.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::hmac;
use subtle::ConstantTimeEq;

/// Most cached signing keys: two dates of every key of a full key file. Beyond that all are forgotten.
const CACHED_MAX: usize = 8_192;

/// The last words of every scope.
const SERVICE: &str = "s3/aws4_request";

/// The secrets of a key: the current one, and the one before it while a rotation lasts.
pub type SecretPair = [Option<Arc<str>>; 2];

/// The secrets of keys, by their ids. An id that is unknown or expired has none.
pub trait SecretSource {
    /// The secrets of the key `id`.
    fn secrets(&self, id: &str) -> SecretPair;
}

impl<F: Fn(&str) -> SecretPair> SecretSource for F {
    fn secrets(&self, id: &str) -> SecretPair {
        self(id)
    }
}

/// The scope of a signature: `ID/20130524/us-east-1/s3/aws4_request`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope<'a> {
    pub(super) id: &'a str,
    pub(super) date: &'a str,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

impl<'a> Scope<'a> {
    /// Reads a credential. An id may contain slashes.
    pub(super) fn parse(credential: &'a str) -> Option<Self> {
        let mut parts = credential.rsplitn(5, '/');
        let (end, service, region, date) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let id = parts.next().filter(|id| !id.is_empty())?;
        (end == "aws4_request").then_some(Self { id, date, region, service })
    }

    /// The scope without the id, as it is signed.
    pub(super) fn signed(&self) -> String {
        format!("{}/{}/{SERVICE}", self.date, self.region)
    }
}

/// Signing keys for one region.
pub struct SigningKeys {
    region: String,
    cached: Mutex<HashMap<String, Cached>>,
    /// Signs for ids that do not exist.
    dummy: Arc<str>,
}

struct Cached {
    secret: Arc<str>,
    key: hmac::Key,
}

impl SigningKeys {
    /// No keys yet, for the region that scopes must name.
    #[must_use]
    pub fn new(region: &str) -> Self {
        let dummy = Arc::from("no key has this secret, and its signature is never accepted");
        Self { region: region.to_owned(), cached: Mutex::default(), dummy }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The signing key of the first secret whose signature of `text` is `given`. `None` if there is none, after the same
    /// work.
    pub(super) fn key_for(
        &self,
        scope: &Scope<'_>,
        secrets: &SecretPair,
        texts: &[String],
        given: &[u8; 32],
    ) -> Option<hmac::Key> {
        let mut found = None;
        let is_known = secrets.iter().any(Option::is_some);
        let dummy = (!is_known).then_some(&self.dummy);
        for (slot, secret) in secrets.iter().flatten().chain(dummy).enumerate() {
            let id = if is_known { scope.id } else { "" };
            let key = self.cached(format!("{slot}/{id}/{}", scope.date), scope.date, secret);
            for text in texts {
                if is_signature(&key, text.as_bytes(), given) && is_known {
                    found = Some(key.clone());
                }
            }
        }
        found
    }

    fn cached(&self, name: String, date: &str, secret: &Arc<str>) -> hmac::Key {
        let mut cached = self.cached.lock();
        if let Some(found) = cached.get(&name) {
            // A rotation replaces the secret under the same id.
            if bool::from(found.secret.as_bytes().ct_eq(secret.as_bytes())) {
                return found.key.clone();
            }
        }
        let key = self.derive(date, secret);
        if cached.len() >= CACHED_MAX {
            cached.clear();
        }
        cached.insert(name, Cached { secret: Arc::clone(secret), key: key.clone() });
        key
    }

    /// The signing key of a secret and a date.
    #[must_use]
    pub fn derive(&self, date: &str, secret: &str) -> hmac::Key {
        let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
        [date, &self.region, "s3", "aws4_request"].iter().fold(first, |key, part| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
        })
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeys").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Returns true if `given` is the signature of `text`, in constant time.
pub(super) fn is_signature(key: &hmac::Key, text: &[u8], given: &[u8; 32]) -> bool {
    hmac::sign(key, text).as_ref().ct_eq(given).into()
}

/// SHA-256.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(current: &str, old: Option<&str>) -> SecretPair {
        [Some(Arc::from(current)), old.map(Arc::from)]
    }

    #[test]
    fn a_scope_is_read_from_its_end() {
        let scope = Scope::parse("a/b/20130524/us-east-1/s3/aws4_request").unwrap();
        assert_eq!(
            (scope.id, scope.date, scope.region, scope.service),
            ("a/b", "20130524", "us-east-1", "s3")
        );
        assert_eq!(scope.signed(), "20130524/us-east-1/s3/aws4_request");
        for bad in
            ["", "a/20130524/us-east-1/s3/aws5_request", "/20130524/us-east-1/s3/aws4_request", "a/b/s3"]
        {
            assert_eq!(Scope::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn both_secrets_of_a_rotation_sign_and_a_replaced_one_does_not() {
        let keys = SigningKeys::new("r");
        let scope = Scope { id: "id", date: "20130524", region: "r", service: "s3" };
        let texts = ["text".to_owned()];
        let signed = |secret: &str| {
            let mut out = [0; 32];
            out.copy_from_slice(hmac::sign(&keys.derive("20130524", secret), b"text").as_ref());
            out
        };
        let is_right =
            |secrets: &SecretPair, secret| keys.key_for(&scope, secrets, &texts, &signed(secret)).is_some();
        assert!(is_right(&pair("one", None), "one") && !is_right(&pair("one", None), "two"));
        assert!(is_right(&pair("two", Some("one")), "one") && is_right(&pair("two", Some("one")), "two"));
        assert!(!is_right(&pair("two", None), "one") && is_right(&pair("two", None), "two"));
        // The signature with the dummy secret opens nothing.
        let dummy = keys.dummy.to_string();
        assert!(!is_right(&[None, None], &dummy));
    }

    #[test]
    fn the_cache_is_bounded() {
        let keys = SigningKeys::new("r");
        for number in 0..CACHED_MAX + 1 {
            let id = number.to_string();
            let scope = Scope { id: &id, date: "20130524", region: "r", service: "s3" };
            let _ = keys.key_for(&scope, &pair("s", None), &[], &[0; 32]);
        }
        assert_eq!(keys.cached.lock().len(), 1);
    }
}
