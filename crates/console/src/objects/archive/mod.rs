//! All objects below a prefix, as a tar or a zip that is made while it is sent.
//!
//! Objects come in the order of their keys, each as it is when its turn comes. An error of the store, or the end of the session, cuts the
//! connection: an archive that looks complete is complete.

mod names;
mod pipe;
mod tar;
mod zip;

use std::sync::Arc;

use bytes::Buf;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, Method, StatusCode};
use shoal_http::MemoryPermit;
use shoal_metrics::note_key;
use shoal_s3::{ObjectWalk, S3Error};

use self::names::{EntryName, EntryNames};
use self::pipe::{Outlet, piped};
use self::zip::{ZipDirectory, ZipEntry, entry_bytes_max};
use crate::answer::{ApiError, ApiResult, CutError, stream};
use crate::call::{Answering, ApiCall, Route};
use crate::state::ConsoleState;

/// The memory of an archive: a piece of a value, those on their way, and a page of keys.
const MEMORY_BYTES: usize = 3 << 20;

/// The most bytes of the directory of a zip, which is kept in memory up to its end.
const DIRECTORY_BYTES_MAX: usize = 64 << 20;

/// The routes of archives.
pub(crate) const ROUTES: &[Route] =
    &[Route { method: Method::GET, path: "archive", name: "Archive", answer: get }];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Tar,
    Zip,
}

impl From<S3Error> for ApiError {
    fn from(error: S3Error) -> Self {
        Self::new(error.code.status(), error.message)
    }
}

fn get<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        let (bucket, prefix) =
            (call.query("bucket").unwrap_or_default(), call.query("prefix").unwrap_or_default());
        let (format, extension, content_type) = match call.query("format").as_deref() {
            None | Some("tar") => (Format::Tar, "tar", "application/x-tar"),
            Some("zip") => (Format::Zip, "zip", "application/zip"),
            Some(other) => {
                return Err(ApiError::bad(format!("format={other} is no archive; write tar or zip")));
            }
        };
        note_key(&bucket, prefix.as_bytes());
        let party = || (call.principal().clone(), call.peer.address.ip());
        let walk = || state.objects.walk(party(), &bucket, prefix.as_bytes());
        // Errors that the first object has are an answer, and no cut archive.
        let mut look = walk().await?;
        if !starts(&mut look, &bucket).await? {
            let problem = format!("the bucket {bucket:?} has no object whose key starts with {prefix:?}");
            return Err(ApiError::new(StatusCode::NOT_FOUND, problem));
        }
        let mut memory = MEMORY_BYTES;
        if format == Format::Zip {
            memory += directory_bytes(walk().await?, &prefix).await?;
        }
        call.permit.grow(memory)?;
        let archive = Archive {
            walk: walk().await?,
            names: EntryNames::new(prefix.as_bytes()),
            bucket: bucket.clone(),
            directory_bytes_max: memory - MEMORY_BYTES,
            names_bytes_max: 0,
            permit: Arc::clone(&call.permit),
        };
        let over = call.admitted.over(state);
        let pieces = piped(move |outlet| async move {
            tokio::select! {
                written = archive.write(format, outlet) => written,
                () = over => Err("the session is over, or the server stops".into()),
            }
        });
        let mut answer = stream(content_type, pieces, call.permit);
        let name = format!("attachment; filename=\"{}.{extension}\"", file_name(&bucket, &prefix));
        if let Ok(name) = HeaderValue::try_from(name) {
            answer.headers_mut().insert(CONTENT_DISPOSITION, name);
        }
        Ok(answer)
    })
}

/// Returns true if there is an object, and the caller may read the first one.
async fn starts(walk: &mut ObjectWalk, bucket: &str) -> ApiResult<bool> {
    while let Some(keys) = walk.next_keys().await? {
        for key in keys {
            if walk.open(bucket, &key).await?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The most bytes of the directory of a zip with these objects.
///
/// # Errors
/// 413 if they are too many.
async fn directory_bytes(mut walk: ObjectWalk, prefix: &str) -> ApiResult<usize> {
    let mut bytes = 0;
    while let Some(keys) = walk.next_keys().await? {
        // A part of a name may get a mark for each of its bytes at most.
        bytes += keys.iter().map(|key| entry_bytes_max("") + 3 * key.len()).sum::<usize>();
        if bytes > DIRECTORY_BYTES_MAX {
            let problem = format!(
                "there are too many objects below {prefix:?} for a zip; ask for a tar, or for a longer prefix"
            );
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, problem));
        }
    }
    Ok(bytes)
}

/// The name of the archive: that of the last folder, of characters that every system takes.
fn file_name(bucket: &str, prefix: &str) -> String {
    let folder = prefix.trim_end_matches('/').rsplit('/').next().filter(|folder| !folder.is_empty());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
    let name: String =
        folder.unwrap_or(bucket).chars().take(100).map(|c| if is_plain(c) { c } else { '_' }).collect();
    // No hidden file, and none without a name.
    match name.trim_start_matches(['.', ' ']) {
        "" => "objects".to_owned(),
        name => name.to_owned(),
    }
}

/// An archive that is being written.
struct Archive {
    walk: ObjectWalk,
    names: EntryNames,
    bucket: String,
    /// Bytes that are reserved for the directory of a zip.
    directory_bytes_max: usize,
    /// Bytes that are reserved for names with marks.
    names_bytes_max: usize,
    permit: Arc<MemoryPermit>,
}

impl Archive {
    async fn write(mut self, format: Format, mut outlet: Outlet) -> Result<(), CutError> {
        let written = self.write_all(format, &mut outlet).await;
        if let Err(error) = &written {
            tracing::warn!("an archive of objects of the bucket {:?} was cut: {error}", self.bucket);
        }
        written
    }

    async fn write_all(&mut self, format: Format, outlet: &mut Outlet) -> Result<(), CutError> {
        let mut directory = ZipDirectory::default();
        while let Some(keys) = self.walk.next_keys().await? {
            for key in keys {
                self.add(format, &key, &mut directory, outlet).await?;
            }
        }
        match format {
            Format::Tar => tar::end(outlet.buffer()),
            Format::Zip => {
                let start = outlet.written();
                for piece in directory.finish(start).chunks(pipe::PIECE_BYTES) {
                    outlet.write(piece).await?;
                }
            }
        }
        outlet.flush().await
    }

    /// Adds an object, unless it was deleted meanwhile.
    async fn add(
        &mut self,
        format: Format,
        key: &[u8],
        directory: &mut ZipDirectory,
        outlet: &mut Outlet,
    ) -> Result<(), CutError> {
        let Some(mut reader) = self.walk.open(&self.bucket, key).await? else { return Ok(()) };
        let (bytes, modified_ns) = (reader.info().bytes, reader.info().modified_ns);
        let name = self.names.name(key, bytes == 0);
        let EntryName { path, is_folder } =
            name.ok_or("too many keys are no paths; ask for longer prefixes")?;
        let more = self.names.bytes().saturating_sub(self.names_bytes_max);
        self.permit.grow(more)?;
        self.names_bytes_max += more;
        let mut piece = reader.next().await?.unwrap_or_default();
        let start = outlet.written();
        let mut entry = match format {
            Format::Tar => {
                tar::header(outlet.buffer(), &path, is_folder, bytes, modified_ns / 1_000_000_000);
                None
            }
            Format::Zip => {
                self.reserve(directory.bytes() + entry_bytes_max(&path))?;
                let whole = (piece.len() as u64 == bytes).then(|| piece.copy_to_bytes(piece.len()));
                let facts = ((&*path, is_folder), (bytes, modified_ns));
                let entry = ZipEntry::begin(outlet.buffer(), facts.0, facts.1, start, whole.as_deref());
                if let Some(whole) = whole {
                    outlet.write(&whole).await?;
                }
                Some(entry)
            }
        };
        loop {
            while piece.has_remaining() {
                let chunk = piece.chunk();
                if let Some(entry) = &mut entry {
                    entry.count(chunk);
                }
                outlet.write(chunk).await?;
                let count = chunk.len();
                piece.advance(count);
            }
            match reader.next().await? {
                Some(next) => piece = next,
                None => break,
            }
        }
        match entry {
            Some(entry) => entry.end(outlet.buffer(), directory),
            None => tar::pad(outlet.buffer(), bytes),
        }
        Ok(())
    }

    /// Takes memory for a directory of `bytes` bytes: objects may have been added since they were counted.
    fn reserve(&mut self, bytes: usize) -> Result<(), CutError> {
        if bytes > self.directory_bytes_max {
            if bytes > DIRECTORY_BYTES_MAX {
                return Err("there are too many objects for a zip".into());
            }
            self.permit.grow(MEMORY_BYTES)?;
            self.directory_bytes_max += MEMORY_BYTES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_archive_is_plain() {
        for (prefix, expected) in [
            ("", "photos"),
            ("a/b c/", "b c"),
            ("a/b", "b"),
            ("a/\"\r\nx/", "___x"),
            ("..", "objects"),
            ("é/", "_"),
        ] {
            assert_eq!(file_name("photos", prefix), expected, "{prefix}");
        }
    }
}
