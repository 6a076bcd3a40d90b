//! Content type, user metadata and deadline of an object: the parts that content, kind, mode and time of a file do not represent.
//!
//! Outside of a store each is a named attribute: an extended attribute of a file, or a record `SCHILY.xattr.NAME` of a tar.
//! `docs/operate/transfer.md` lists the names and encodings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use shoal_client::{Expiry, Metadata, ObjectAttributes, PutOptions};

use crate::attributes::FileAttributes;

/// The prefix of all attribute names.
pub(crate) const NAMESPACE: &str = "user.shoal.";

const CONTENT_TYPE: &str = "content-type";
const EXPIRES: &str = "expires";
/// With the value [`NONE`] the object has no metadata `mode`, and an import does not add it.
const MODE: &str = "mode";
const META: &str = "meta.";
const NONE: &[u8] = b"none";

/// Deadlines closer than this are equal: each read converts the remaining time to live to a time of the wall clock again.
const SAME_MOMENT_NS: u64 = 1_000_000_000;

/// The content type, user metadata and deadline of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    content_type: String,
    /// Excludes the metadata that [`FileAttributes`] makes.
    user: Vec<(String, Bytes)>,
    /// Nanoseconds since the Unix epoch.
    expires_ns: Option<u64>,
    has_no_mode: bool,
}

impl Extras {
    /// The extras of an object that becomes a file with `attributes`.
    pub(crate) fn of_object(info: &ObjectAttributes, attributes: &FileAttributes) -> Self {
        let (derived, _) = attributes.for_object();
        let is_extra = |pair: &&(String, Bytes)| !derived.user.contains(pair);
        Self {
            content_type: info.metadata.content_type.clone(),
            user: info.metadata.user.iter().filter(is_extra).cloned().collect(),
            expires_ns: info.expire_time_ns,
            has_no_mode: attributes.permissions.is_none(),
        }
    }

    /// Returns true if dropping them loses nothing, except that an import then adds a mode.
    pub(crate) fn is_plain(&self) -> bool {
        self.content_type.is_empty() && self.user.is_empty() && self.expires_ns.is_none()
    }

    /// Returns true if there is no attribute.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_plain() && !self.has_no_mode
    }

    /// The full names and values of the attributes.
    ///
    /// # Errors
    /// Two metadata have the same name.
    pub(crate) fn pairs(&self) -> Result<Vec<(String, Vec<u8>)>, String> {
        let mut pairs = Vec::new();
        let mut push = |name: &str, value: &[u8]| pairs.push((format!("{NAMESPACE}{name}"), value.to_vec()));
        if !self.content_type.is_empty() {
            push(CONTENT_TYPE, self.content_type.as_bytes());
        }
        if let Some(at_ns) = self.expires_ns {
            let at = UNIX_EPOCH + Duration::from_nanos(at_ns);
            push(EXPIRES, humantime::format_rfc3339_nanos(at).to_string().as_bytes());
        }
        if self.has_no_mode {
            push(MODE, NONE);
        }
        for (index, (name, value)) in self.user.iter().enumerate() {
            if self.user.iter().skip(index + 1).any(|(other, _)| other == name) {
                return Err(format!("two of its metadata have the name {name:?}"));
            }
            push(&format!("{META}{}", escape(name)), value);
        }
        Ok(pairs)
    }

    /// Adds the attribute with the full name `name`. FileAttributes of other programs are ignored.
    ///
    /// # Errors
    /// The attribute is in Shoal's namespace and invalid.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let Some(own) = name.strip_prefix(NAMESPACE.as_bytes()) else { return Ok(()) };
        let shown = || String::from_utf8_lossy(name).into_owned();
        let text = || std::str::from_utf8(value).map_err(|_| format!("its attribute {} is no text", shown()));
        match std::str::from_utf8(own) {
            Ok(CONTENT_TYPE) => self.content_type = text()?.to_owned(),
            Ok(EXPIRES) => {
                let wrong = || format!("its attribute {} is no time such as 2026-12-31T23:59:59Z", shown());
                self.expires_ns = Some(moment(text()?).ok_or_else(wrong)?);
            }
            Ok(MODE) if value == NONE => self.has_no_mode = true,
            Ok(own) if own.starts_with(META) => {
                let own = unescape(own.strip_prefix(META).unwrap_or_default());
                let own =
                    own.ok_or_else(|| format!("the name of its attribute {} has a wrong ~", shown()))?;
                self.user.retain(|(other, _)| *other != own);
                self.user.push((own, Bytes::copy_from_slice(value)));
            }
            _ => return Err(format!("its attribute {} is unknown; a newer shoal may know it", shown())),
        }
        Ok(())
    }

    /// Returns true if the deadline has passed at `now_ns`.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.expires_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// The put options for a file with `attributes`.
    pub(crate) fn put_options(&self, attributes: &FileAttributes) -> PutOptions {
        let attributes = FileAttributes {
            permissions: attributes.permissions.filter(|_| !self.has_no_mode),
            ..*attributes
        };
        let (derived, modified_ns) = attributes.for_object();
        let mut user = self.user.clone();
        user.extend(
            derived.user.into_iter().filter(|(name, _)| self.user.iter().all(|(own, _)| own != name)),
        );
        PutOptions {
            metadata: Metadata { content_type: self.content_type.clone(), user, ..Metadata::default() },
            modified_ns,
            expiry: self.expires_ns.map_or(Expiry::Never, Expiry::At),
            ..PutOptions::default()
        }
    }

    /// Returns true if importing a file with these extras and `attributes` makes this object, apart from the value.
    pub(crate) fn is_of(&self, attributes: &FileAttributes, info: &ObjectAttributes) -> bool {
        let put = self.put_options(attributes);
        put.modified_ns == Some(info.modified_ns)
            && put.metadata.content_type == info.metadata.content_type
            && sorted(&put.metadata.user) == sorted(&info.metadata.user)
            && is_same_moment(self.expires_ns, info.expire_time_ns)
    }

    /// Returns true if a file with the extras `other` need not be written again.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.content_type == other.content_type
            && sorted(&self.user) == sorted(&other.user)
            && is_same_moment(self.expires_ns, other.expires_ns)
    }
}

/// The wall clock, in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn sorted(user: &[(String, Bytes)]) -> Vec<&(String, Bytes)> {
    let mut sorted: Vec<_> = user.iter().collect();
    sorted.sort();
    sorted
}

fn is_same_moment(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) < SAME_MOMENT_NS,
        _ => one == other,
    }
}

fn moment(text: &str) -> Option<u64> {
    let at = humantime::parse_rfc3339(text).ok()?;
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

/// Each byte that is not printable ASCII, and each `=`, `%` and `~`, becomes `~` and two hexadecimal digits.
fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_graphic() && !b"=%~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("~{byte:02X}"));
        }
    }
    escaped
}

fn unescape(escaped: &str) -> Option<String> {
    let mut parts = escaped.split('~');
    let mut name = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        name.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        name.extend_from_slice(part.get(2..)?.as_bytes());
    }
    String::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::FileKind;

    fn info(content_type: &str, user: &[(&str, &str)], expire_time_ns: Option<u64>) -> ObjectAttributes {
        let pair =
            |&(name, value): &(&str, &str)| (name.to_owned(), Bytes::copy_from_slice(value.as_bytes()));
        ObjectAttributes {
            modified_ns: 7,
            metadata: Metadata {
                content_type: content_type.into(),
                user: user.iter().map(pair).collect(),
                ..Metadata::default()
            },
            expire_time_ns,
            ..ObjectAttributes::default()
        }
    }

    fn back(extras: &Extras) -> Extras {
        let mut back = Extras::default();
        for (name, value) in extras.pairs().unwrap() {
            back.add(name.as_bytes(), &value).unwrap();
        }
        back
    }

    #[test]
    fn content_type_metadata_and_deadline_survive_a_round_trip() {
        for info in [
            info("", &[], None),
            info("image/png", &[("mode", "100644"), ("a=b %~", "\0")], Some(1_800_000_000_123_456_789)),
            info("", &[("mode", "rw-r--r--"), ("mtime", "2020-01-01T00:00:00Z")], None),
            info("", &[("mode", "644")], None),
            info("", &[("mtime", "-5")], Some(0)),
        ] {
            let attributes = FileAttributes::of_object(b"a", &info).unwrap();
            let extras = back(&Extras::of_object(&info, &attributes));
            let put = extras.put_options(&attributes);
            assert_eq!(sorted(&put.metadata.user), sorted(&info.metadata.user));
            assert_eq!(put.metadata.content_type, info.metadata.content_type);
            assert_eq!(put.expiry, info.expire_time_ns.map_or(Expiry::Never, Expiry::At));
            let is_before_1970 = attributes.mtime_ns < 0;
            assert!(is_before_1970 || extras.is_of(&attributes, &info));
        }
    }

    #[test]
    fn only_the_mark_for_no_mode_may_be_lost() {
        let attributes = FileAttributes { kind: FileKind::File, permissions: None, mtime_ns: 0 };
        let plain = Extras::of_object(&info("", &[], None), &attributes);
        assert!(plain.is_plain() && !plain.is_empty() && plain.is_same(&Extras::default()));
        assert!(!Extras::of_object(&info("a/b", &[], None), &attributes).is_plain());
        assert!(!Extras::of_object(&info("", &[("n", "")], None), &attributes).is_plain());
        assert!(!Extras::of_object(&info("", &[], Some(5)), &attributes).is_plain());
        let twice = Extras::of_object(&info("", &[("n", "1"), ("n", "2")], None), &attributes);
        assert!(twice.pairs().is_err());
    }

    #[test]
    fn invalid_attributes_are_refused_and_foreign_ones_ignored() {
        let mut extras = Extras::default();
        extras.add(b"user.mime_type", b"\xff").unwrap();
        extras.add(b"security.selinux", b"x").unwrap();
        assert!(extras.is_empty());
        for (name, value) in [
            ("expires", &b"tomorrow"[..]),
            ("expires", b"1960-01-01T00:00:00Z"),
            ("expires", b"\xff"),
            ("content-type", b"\xff"),
            ("meta.a~4", b""),
            ("meta.a~zz", b""),
            ("meta.~FF", b""),
            ("mode", b"644"),
            ("later", b""),
        ] {
            assert!(extras.add(format!("user.shoal.{name}").as_bytes(), value).is_err(), "{name}");
        }
        extras.add(b"user.shoal.expires", b"2026-12-31T23:59:59Z").unwrap();
        assert!(extras.is_over(1_798_761_599_000_000_000) && !extras.is_over(1_798_761_598_999_999_999));
    }

    proptest! {
        #[test]
        fn any_name_survives_a_round_trip(name in "\\PC{0,20}|[ -~\n\0]{0,20}") {
            let escaped = escape(&name);
            prop_assert!(escaped.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'=' && byte != b'%'));
            prop_assert_eq!(unescape(&escaped), Some(name));
        }
    }
}
