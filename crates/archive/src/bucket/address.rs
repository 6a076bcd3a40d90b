//! The address of an archive: a store, a bucket and a prefix in it, or a folder.

use std::path::PathBuf;

/// The kind of a remote store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteKind {
    S3,
    Gcs,
    Azure,
}

/// The address of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAddress(pub(crate) Place);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Remote {
        kind: RemoteKind,
        bucket: String,
        /// Without slashes at its ends; may be empty.
        prefix: String,
        endpoint: Option<String>,
        region: Option<String>,
    },
    Folder(PathBuf),
}

/// An address that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address:?} is no address of an archive: {why}. Use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX (each with \
    ?endpoint=URL for another server than the provider's) or file:///FOLDER"
)]
pub struct WrongAddress {
    /// The text.
    pub address: String,
    /// The reason.
    pub why: &'static str,
}

impl std::str::FromStr for BucketAddress {
    type Err = WrongAddress;

    fn from_str(address: &str) -> Result<Self, WrongAddress> {
        parse(address).map(Self).map_err(|why| WrongAddress { address: address.to_owned(), why })
    }
}

fn parse(address: &str) -> Result<Place, &'static str> {
    let (scheme, rest) = address.split_once("://").ok_or("it has no scheme")?;
    let kind = match scheme {
        "file" => return folder(rest),
        "s3" => RemoteKind::S3,
        "gs" => RemoteKind::Gcs,
        "az" => RemoteKind::Azure,
        _ => return Err("its scheme is not known"),
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    let is_name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-._".contains(&c);
    if bucket.is_empty() || !bucket.bytes().all(is_name) {
        return Err("it has no bucket, or its name has other characters than a-z, 0-9, '-', '.' and '_'");
    }
    let prefix = prefix.trim_end_matches('/');
    let is_part = |part: &str| {
        let is_char = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
        !part.is_empty() && !part.bytes().all(|c| c == b'.') && part.bytes().all(is_char)
    };
    if !prefix.is_empty() && !prefix.split('/').all(is_part) {
        return Err(
            "a part of its prefix is empty, '.' or '..', or has other characters than A-Z, a-z, 0-9, '-', '.' and '_'",
        );
    }
    let (mut endpoint, mut region) = (None, None);
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("endpoint", url)) if url.starts_with("http://") || url.starts_with("https://") => {
                endpoint = Some(url.trim_end_matches('/').to_owned());
            }
            Some(("endpoint", _)) => return Err("its endpoint does not start with http:// or https://"),
            Some(("region", name)) if !name.is_empty() => region = Some(name.to_owned()),
            _ => return Err("it has another option than endpoint=URL and region=NAME"),
        }
    }
    Ok(Place::Remote { kind, bucket: bucket.to_owned(), prefix: prefix.to_owned(), endpoint, region })
}

fn folder(path: &str) -> Result<Place, &'static str> {
    if !path.starts_with('/') || path.trim_matches('/').is_empty() {
        return Err("the path of the folder does not start with a slash, or is the root");
    }
    let path = PathBuf::from(path);
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err("the path of the folder has '..'");
    }
    Ok(Place::Folder(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let remote = |kind, bucket: &str, prefix: &str, endpoint: Option<&str>, region: Option<&str>| {
            let [endpoint, region] = [endpoint, region].map(|text| text.map(str::to_owned));
            Place::Remote { kind, bucket: bucket.into(), prefix: prefix.into(), endpoint, region }
        };
        for (address, expected) in [
            ("s3://b", remote(RemoteKind::S3, "b", "", None, None)),
            ("s3://eu-shoal/a/b.c/", remote(RemoteKind::S3, "eu-shoal", "a/b.c", None, None)),
            (
                "s3://b/p?endpoint=http://127.0.0.1:9000/&region=eu",
                remote(RemoteKind::S3, "b", "p", Some("http://127.0.0.1:9000"), Some("eu")),
            ),
            ("gs://b/p?", remote(RemoteKind::Gcs, "b", "p", None, None)),
            ("az://c/P_1", remote(RemoteKind::Azure, "c", "P_1", None, None)),
            ("file:///mnt/disk 2/a", Place::Folder("/mnt/disk 2/a".into())),
        ] {
            assert_eq!(address.parse(), Ok(BucketAddress(expected)), "{address}");
        }
        for (address, why) in [
            ("", "no scheme"),
            ("/mnt/disk", "no scheme"),
            ("ftp://b/p", "scheme is not known"),
            ("S3://b/p", "scheme is not known"),
            ("s3:///p", "no bucket"),
            ("s3://B/p", "no bucket"),
            ("s3://key:secret@b/p", "no bucket"),
            ("s3://b/a//c", "a part of its prefix"),
            ("s3://b/../c", "a part of its prefix"),
            ("s3://b/a b", "a part of its prefix"),
            ("s3://b/p?endpoint=localhost:9000", "endpoint does not start"),
            ("s3://b/p?secret=x", "another option"),
            ("s3://b/p?region=", "another option"),
            ("file://mnt/disk", "does not start with a slash"),
            ("file:///", "is the root"),
            ("file:///mnt/../etc", "'..'"),
        ] {
            let error = address.parse::<BucketAddress>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("file:///FOLDER"), "{address}: {error}");
        }
    }
}
