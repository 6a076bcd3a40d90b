//! The text of a file of keys, which `shoal key` and an editor change, and the server reads.
//!
//! The caller reads and writes the file; this module knows only its text.

use std::collections::HashSet;
use std::time::{Duration, UNIX_EPOCH};

use rustls::crypto::ring;
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::keys::Key;
use super::{BadGrant, Grant, GrantSet, Keys};

/// Maximum bytes of a file of keys.
pub const KEY_FILE_BYTES_MAX: usize = 8 << 20;
/// Maximum number of keys.
const KEYS_MAX: usize = 4_096;
/// Maximum number of grants of one key.
const GRANTS_OF_KEY_MAX: usize = 64;
/// Bounds of the length of an id. A signature of S3 carries it: its clients take 16 to 128 word characters.
const ID_BYTES: std::ops::RangeInclusive<usize> = 16..=128;
/// Bounds of the length of a secret: a shorter one can be guessed.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=128;
/// Maximum bytes of the name of a key, and of its certificate.
const NAME_BYTES_MAX: usize = 256;

/// The time for which the old secret of a rotated key is accepted, unless its operator sets another.
pub const ROTATION_OVERLAP: Duration = Duration::from_hours(24);

/// The start of a new id, and the characters after it: 85 random bits.
const ID_START: &str = "SHK";
const ID_CHARACTERS: usize = 17;
const ID_ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// The characters of a new secret: 240 random bits.
const SECRET_CHARACTERS: usize = 40;
const SECRET_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const HEADER: &str = "# The keys of a Shoal server, with secrets in clear text. `shoal key` writes this file, and drops other comments.\n\n";

/// The reason why a file of keys cannot be used. No secret is part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadKeys(String);

/// One key of a file.
#[derive(Clone, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// Public: it names the key.
    pub id: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Absent if only a certificate shows the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The name in the client certificate whose holder has the grants of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The time of its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Datetime>,
    /// The time from which it is not accepted any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Datetime>,
    /// The secret before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_secret: Option<String>,
    /// The time from which that is not accepted any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_until: Option<Datetime>,
    /// Its grants ([`Grant::parse`]).
    pub allow: Vec<String>,
}

/// The content of a file of keys.
#[derive(Clone, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The keys, in the order of the file.
    #[serde(default, rename = "key", skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<KeyEntry>,
}

impl KeyFile {
    /// Parses the text of a file. Its keys are not checked yet: [`Self::keys`] does that.
    ///
    /// # Errors
    /// [`BadKeys`] if it is too long, or no TOML of this form.
    pub fn parse(text: &[u8]) -> Result<Self, BadKeys> {
        if text.len() > KEY_FILE_BYTES_MAX {
            return Err(BadKeys(format!("it has more than {KEY_FILE_BYTES_MAX} bytes")));
        }
        let text = str::from_utf8(text).map_err(|_| BadKeys("it is not UTF-8".into()))?;
        toml::from_str(text).map_err(|error| {
            // The whole error shows the line, which may be that of a secret.
            let start = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(start).filter(|&byte| byte == b'\n').count() + 1;
            BadKeys(format!(
                "line {line} is not as it must be: a [[key]] has id, secret and allow, and may have name, \
                             certificate, created, expires, old_secret and old_until"
            ))
        })
    }

    /// The text of the file.
    ///
    /// # Errors
    /// [`BadKeys`] if TOML cannot express it.
    pub fn to_text(&self) -> Result<String, BadKeys> {
        let keys = toml::to_string(self).map_err(|error| BadKeys(error.to_string()))?;
        Ok(format!("{HEADER}{keys}"))
    }

    /// Checks the keys, for a server.
    ///
    /// # Errors
    /// [`BadKeys`] with the first key that is wrong.
    pub fn keys(&self) -> Result<Keys, BadKeys> {
        if self.entries.len() > KEYS_MAX {
            return Err(BadKeys(format!("there are more than {KEYS_MAX} keys")));
        }
        let (mut ids, mut certificates) = (HashSet::new(), HashSet::new());
        let mut keys = Vec::with_capacity(self.entries.len());
        for (entry, number) in self.entries.iter().zip(1..) {
            let wrong = |why: String| BadKeys(format!("key {number} {why}"));
            let key = entry.key().map_err(wrong)?;
            if !ids.insert(&entry.id) {
                return Err(wrong(format!("repeats the id {}", entry.id)));
            }
            if entry.certificate.as_ref().is_some_and(|name| !certificates.insert(name)) {
                return Err(wrong("repeats the certificate of another key".into()));
            }
            keys.push(key);
        }
        Ok(Keys::new(keys))
    }

    /// Adds a key with a new id and secret.
    ///
    /// # Errors
    /// [`BadKeys`] for wrong grants or too many keys; nothing is added then.
    pub fn create(
        &mut self,
        name: Option<String>,
        allow: Vec<String>,
        now_s: u64,
        expires_s: Option<u64>,
    ) -> Result<&KeyEntry, BadKeys> {
        let entry = KeyEntry {
            id: format!("{ID_START}{}", random(ID_ALPHABET, ID_CHARACTERS)?),
            name,
            secret: Some(new_secret()?),
            certificate: None,
            created: Some(date_of(now_s)?),
            expires: expires_s.map(date_of).transpose()?,
            old_secret: None,
            old_until: None,
            allow,
        };
        let mut entries = self.entries.clone();
        entries.push(entry);
        let changed = Self { entries };
        changed.keys()?;
        *self = changed;
        self.entries.last().ok_or_else(|| BadKeys("there is no key".into()))
    }

    /// Removes the key `id`; returns it.
    ///
    /// # Errors
    /// [`BadKeys`] if there is none.
    pub fn remove(&mut self, id: &str) -> Result<KeyEntry, BadKeys> {
        let place = self.entries.iter().position(|entry| entry.id == id);
        place.map(|place| self.entries.remove(place)).ok_or_else(|| no_key(id))
    }

    /// Gives the key `id` a new secret; the present one is accepted for `overlap`.
    ///
    /// # Errors
    /// [`BadKeys`] if there is none, or only a certificate shows it.
    pub fn rotate(&mut self, id: &str, now_s: u64, overlap: Duration) -> Result<&KeyEntry, BadKeys> {
        let entry = self.entries.iter_mut().find(|entry| entry.id == id).ok_or_else(|| no_key(id))?;
        if entry.secret.is_none() {
            return Err(BadKeys(format!("the key {id} has no secret: a certificate shows it")));
        }
        let (secret, until) = (new_secret()?, date_of(now_s.saturating_add(overlap.as_secs()))?);
        entry.old_secret = entry.secret.replace(secret).filter(|_| !overlap.is_zero());
        entry.old_until = entry.old_secret.is_some().then_some(until);
        Ok(entry)
    }
}

impl KeyEntry {
    fn key(&self) -> Result<Key, String> {
        let Self { id, secret, allow, .. } = self;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !ID_BYTES.contains(&id.len()) || !id.bytes().all(is_word) {
            let (least, most) = ID_BYTES.into_inner();
            return Err(format!("has an id that is not {least} to {most} of a-z, A-Z, 0-9 and _"));
        }
        let is_good = |secret: &String| {
            SECRET_BYTES.contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !secret.iter().chain(&self.old_secret).all(is_good) {
            let (least, most) = SECRET_BYTES.into_inner();
            return Err(format!(
                "({id}) has a secret that is not {least} to {most} visible ASCII characters"
            ));
        }
        if secret.is_none() && self.certificate.is_none() {
            return Err(format!("({id}) has neither a secret nor a certificate"));
        }
        let is_short = |name: &String| name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control);
        if !self.name.iter().chain(&self.certificate).all(is_short) {
            return Err(format!(
                "({id}) has a name of more than {NAME_BYTES_MAX} bytes, or with control characters"
            ));
        }
        let old = match (&self.old_secret, &self.old_until) {
            (Some(secret), Some(until)) => {
                Some((secret.as_bytes().into(), self.seconds(until, "old_until")?))
            }
            (None, None) => None,
            _ => return Err(format!("({id}) has one of old_secret and old_until: they belong together")),
        };
        if let Some(created) = &self.created {
            self.seconds(created, "created")?;
        }
        if allow.len() > GRANTS_OF_KEY_MAX {
            return Err(format!("({id}) has more than {GRANTS_OF_KEY_MAX} grants"));
        }
        let grants = allow.iter().map(|grant| Grant::parse(grant)).collect::<Result<Vec<_>, BadGrant>>();
        Ok(Key {
            id: id.as_str().into(),
            secret: secret.as_ref().map(|secret| secret.as_bytes().into()),
            expires_s: self.expires.as_ref().map(|expires| self.seconds(expires, "expires")).transpose()?,
            old,
            certificate: self.certificate.as_deref().map(Into::into),
            grants: GrantSet::new(grants.map_err(|error| format!("({id}): {error}"))?),
        })
    }

    fn seconds(&self, date: &Datetime, field: &str) -> Result<u64, String> {
        let wrong = || format!("({}) has a wrong {field}: write it as 2027-01-31T00:00:00Z", self.id);
        seconds_of(date).ok_or_else(wrong)
    }
}

fn no_key(id: &str) -> BadKeys {
    BadKeys(format!("there is no key {id:?}"))
}

/// The second of the Unix epoch of a time in UTC.
#[must_use]
pub fn seconds_of(date: &Datetime) -> Option<u64> {
    let time = humantime::parse_rfc3339(&date.to_string()).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// The time of a second of the Unix epoch.
///
/// # Errors
/// [`BadKeys`] after the year 9999.
pub fn date_of(second: u64) -> Result<Datetime, BadKeys> {
    /// The last second with a year of four digits.
    const LAST_S: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(second.min(LAST_S));
    let date = humantime::format_rfc3339_seconds(time).to_string().parse();
    date.ok().filter(|_| second <= LAST_S).ok_or_else(|| BadKeys("it is a time after the year 9999".into()))
}

fn new_secret() -> Result<String, BadKeys> {
    random(SECRET_ALPHABET, SECRET_CHARACTERS)
}

/// Random characters of an alphabet whose length divides 256.
fn random(alphabet: &[u8], count: usize) -> Result<String, BadKeys> {
    debug_assert_eq!(256 % alphabet.len(), 0, "or some characters were more frequent");
    let mut bytes = vec![0; count];
    let failed = |_| BadKeys("the system has no random numbers".into());
    ring::default_provider().secure_random.fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|&byte| char::from(alphabet[usize::from(byte) % alphabet.len()])).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Action, NoKey};
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn parse(fields: &str) -> Result<Keys, BadKeys> {
        KeyFile::parse(format!("[[key]]\n{fields}\n").as_bytes())?.keys()
    }

    #[test]
    fn a_new_key_is_found_by_its_secret_up_to_its_end() {
        let mut file = KeyFile::default();
        let entry = file.create(Some("n".into()), vec!["read b".into()], NOW_S, Some(NOW_S + 10)).unwrap();
        let (id, secret) = (entry.id.clone(), entry.secret.clone().unwrap());
        assert_eq!((id.len(), secret.len()), (20, 40));
        let file = KeyFile::parse(file.to_text().unwrap().as_bytes()).unwrap();
        let keys = file.keys().unwrap();
        let find = |id: &str, secret: &str, now_s| keys.find(id.as_bytes(), secret.as_bytes(), || now_s);
        let known = find(&id, &secret, NOW_S).unwrap();
        assert_eq!(known.until_s, Some(NOW_S + 10));
        assert!(known.principal.check(super::super::Actions::of(&[Action::Read]), "b", b"k").is_ok());
        assert_eq!(find(&id, &secret, NOW_S + 10), Err(NoKey::Expired));
        for (id, secret) in [(&*id, ""), (&id, &secret[1..]), (&id, &id), ("", ""), ("x", &secret)] {
            assert_eq!(find(id, secret, NOW_S + 10), Err(NoKey::Unknown), "{id} {secret}");
        }
        let joined = |text: String| keys.find_joined(text.as_bytes(), || NOW_S).is_ok();
        assert!(joined(format!("{id}.{secret}")));
        assert!(!joined(format!("{id}{secret}")) && !joined(id.clone()) && !joined(format!("{id}.")));
    }

    #[test]
    fn a_key_signs_with_both_secrets_of_a_rotation_up_to_their_ends() {
        let mut file = KeyFile::default();
        let entry = file.create(None, vec!["read b".into()], NOW_S, Some(NOW_S + 10)).unwrap();
        let (id, old) = (entry.id.clone(), entry.secret.clone());
        let new = file.rotate(&id, NOW_S, Duration::from_secs(5)).unwrap().secret.clone();
        let keys = file.keys().unwrap();
        let secrets = |now_s| keys.secrets(&id, now_s).map(|secret| secret.map(|secret| secret.to_string()));
        assert_eq!(secrets(NOW_S), [new.clone(), old]);
        assert_eq!(secrets(NOW_S + 5), [new, None]);
        assert_eq!(secrets(NOW_S + 10), [None, None]);
        assert_eq!(keys.secrets("x", NOW_S), [None, None]);
        assert_eq!(keys.find_signer(&id, NOW_S).unwrap().until_s, Some(NOW_S + 10));
        assert_eq!(keys.find_signer(&id, NOW_S + 10), Err(NoKey::Expired));
        assert_eq!(keys.find_signer("x", NOW_S), Err(NoKey::Unknown));
    }

    #[test]
    fn the_old_secret_of_a_rotated_key_ends() {
        let mut file = KeyFile::default();
        let entry = file.create(None, vec![], NOW_S, None).unwrap();
        let (id, old) = (entry.id.clone(), entry.secret.clone().unwrap());
        let entry = file.rotate(&id, NOW_S, Duration::from_secs(5)).unwrap();
        let new = entry.secret.clone().unwrap();
        let keys = file.keys().unwrap();
        let until = |secret: &str, now_s| {
            keys.find(id.as_bytes(), secret.as_bytes(), || now_s).map(|known| known.until_s)
        };
        assert_eq!((until(&new, NOW_S + 9), until(&old, NOW_S + 4)), (Ok(None), Ok(Some(NOW_S + 5))));
        assert_eq!(until(&old, NOW_S + 5), Err(NoKey::Expired));
        file.rotate(&id, NOW_S, Duration::ZERO).unwrap();
        assert!(file.entries[0].old_secret.is_none() && file.entries[0].old_until.is_none());
        assert!(file.rotate("none", NOW_S, Duration::ZERO).is_err() && file.remove("none").is_err());
        file.remove(&id).unwrap();
        assert!(file.keys().unwrap().find(id.as_bytes(), new.as_bytes(), || NOW_S).is_err());
    }

    #[test]
    fn a_certificate_has_the_grants_of_its_key() {
        let text = "id = 'SHKAAAAAAAAAAAAAAAAA'\ncertificate = 'a.example'\nallow = ['read b']\nexpires = 2027-01-31T00:00:00Z";
        let keys = parse(text).unwrap();
        let until = |now_s| keys.find_certificate("a.example", || now_s).unwrap().map(|known| known.until_s);
        assert_eq!((until(0), until(1_801_353_600)), (Ok(Some(1_801_353_600)), Err(NoKey::Expired)));
        assert!(keys.find_certificate("b.example", || 0).is_none());
        assert_eq!(
            keys.find(b"SHKAAAAAAAAAAAAAAAAA", &[0; 40], || 0),
            Err(NoKey::Unknown),
            "it has no secret"
        );
    }

    #[test]
    fn a_wrong_file_is_rejected_without_its_secrets() {
        let good = "id = 'SHKAAAAAAAAAAAAAAAAA'\nsecret = 'very-secret-words'\n";
        let with = |fields: &str| format!("{good}{fields}");
        assert_eq!(parse(&with("allow = []")).unwrap().count(), 1);
        assert_eq!(KeyFile::parse(b"").unwrap().keys().unwrap().count(), 0);
        for wrong in [
            with(""),
            with("allow = ['reads b']"),
            with("allow = 'read b'"),
            with("allow = []\nallowed = []"),
            with("allow = []\nexpires = '2027-01-31'"),
            with("allow = []\nexpires = 2027-01-31"),
            with("allow = []\nexpires = 2027-01-31T00:00:00+02:00"),
            with("allow = []\nold_secret = 'very-secret-older'"),
            with("allow = []\nold_until = 2027-01-31T00:00:00Z"),
            with("allow = []\nname = 'a\\u0007'").replace('\'', "\""),
            with("allow = []\n[[key]]\n") + good + "allow = []",
            with(&format!("allow = [{}]", "'read b',".repeat(GRANTS_OF_KEY_MAX + 1))),
            "id = 'short'\nsecret = 'very-secret-words'\nallow = []".into(),
            "id = 'SHKAAAAAAAAAA.AAAAAA'\nsecret = 'very-secret-words'\nallow = []".into(),
            "id = 'SHKAAAAAAAAAAAAAAAAA'\nsecret = 'very-secret'\nallow = []".into(),
            "id = 'SHKAAAAAAAAAAAAAAAAA'\nsecret = 'very-secret words'\nallow = []".into(),
            "id = 'SHKAAAAAAAAAAAAAAAAA'\nallow = []".into(),
            "id = 'SHKAAAAAAAAAAAAAAAAA'\nsecret = very-secret-words\nallow = []".into(),
        ] {
            let error = parse(&wrong).err().unwrap_or_else(|| panic!("{wrong}")).to_string();
            assert!(!error.contains("very-secret"), "{error}");
        }
        let many: String = (0..=KEYS_MAX)
            .map(|at| format!("[[key]]\nid = 'SHK{at:017}'\nsecret = '{at:016}'\nallow = []\n"))
            .collect();
        assert!(KeyFile::parse(many.as_bytes()).unwrap().keys().is_err());
        assert!(KeyFile::parse(&vec![b'\n'; KEY_FILE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn dates_round_trip() {
        for second in [0, 951_868_799, NOW_S, 253_402_300_799] {
            assert_eq!(seconds_of(&date_of(second).unwrap()), Some(second));
        }
        assert!(date_of(253_402_300_800).is_err() && date_of(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "(\\[\\[key\\]\\]|id|allow|[ ='\\n\\[\\]a-z0-9T:-]){0,60}") {
            let _ = KeyFile::parse(&bytes).map(|file| file.keys().map(|keys| keys.count()));
            let _ = KeyFile::parse(text.as_bytes()).map(|file| file.keys().map(|keys| keys.count()));
        }
    }
}
