//! Exports objects into a tar.
//!
//! Objects are read in batches, several at the same time, and written in the order of their keys.

use std::collections::VecDeque;
use std::io::{self, Write};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use shoal_client::{ByteRange, Error, GetResult, ListEntry, ObjectAttributes};
use tokio::task::JoinHandle;

use crate::attributes::extras::Extras;
use crate::attributes::{FileAttributes, FileKind};
use crate::export::Export;
use crate::tarball::writer::{Entry, Writer};
use crate::text::{about, show_key};
use crate::tree::place::LINK_BYTES_MAX;
use crate::work::{BATCH_BYTES_MAX, BATCH_ITEMS_MAX};

/// An export into a tar.
pub struct TarExport {
    /// The objects.
    pub export: Export,
}

/// Objects that are read together.
struct Batch {
    /// With the deadlines in the listing.
    keys: Vec<(Bytes, Option<u64>)>,
    read: JoinHandle<Vec<Result<Option<GetResult>, Error>>>,
}

/// The batches in flight, in the order of their keys.
struct Ahead {
    batches: VecDeque<Batch>,
    max: usize,
}

impl TarExport {
    /// Writes all objects into `out`, reading at most `jobs` batches at the same time; returns `out`.
    ///
    /// # Errors
    /// The tar is not complete: it cannot be written, an object cannot be read to its end, or the export was stopped.
    pub async fn run<W: Write>(&self, out: W, jobs: u16) -> anyhow::Result<W> {
        let mut writer = Writer::start(out).map_err(write_error)?;
        let mut ahead = Ahead { batches: VecDeque::new(), max: usize::from(jobs.max(1)) };
        let mut pages = self.export.pages();
        while let Some(entries) = self.export.next(&mut pages).await.context("cannot list the store")? {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for entry in entries {
                self.check_stop()?;
                if batch.len() >= BATCH_ITEMS_MAX
                    || !batch.is_empty() && bytes + entry.info.bytes > BATCH_BYTES_MAX
                {
                    self.read(std::mem::take(&mut batch), &mut ahead, &mut writer).await?;
                    bytes = 0;
                }
                bytes += entry.info.bytes;
                batch.push(entry);
            }
            self.read(batch, &mut ahead, &mut writer).await?;
        }
        while let Some(batch) = ahead.batches.pop_front() {
            self.write(batch, &mut writer).await?;
        }
        tokio::task::block_in_place(|| writer.finish()).map_err(write_error)
    }

    /// Reports the entries that [`run`](Self::run) would write.
    ///
    /// # Errors
    /// The store cannot be listed, or the export was stopped.
    pub async fn run_dry(&self) -> anyhow::Result<()> {
        let mut writer = Writer::start(io::sink())?;
        let mut pages = self.export.pages();
        while let Some(entries) = self.export.next(&mut pages).await.context("cannot list the store")? {
            for ListEntry { key, info } in entries {
                self.check_stop()?;
                let (attributes, extras) = shape(&key, &info);
                // A dry run does not read the targets of symlinks.
                if self.start(&key, (attributes, &extras), b"target", 0, &mut writer)? {
                    self.export.report.would(attributes.kind, &key, info.bytes);
                }
            }
        }
        Ok(())
    }

    /// # Errors
    /// The export was stopped.
    fn check_stop(&self) -> anyhow::Result<()> {
        if self.export.report.is_stopped() { bail!("stopped") } else { Ok(()) }
    }

    /// Starts to read `entries`, after writing batches until fewer than the maximum are in flight.
    async fn read(
        &self,
        entries: Vec<ListEntry>,
        ahead: &mut Ahead,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        while ahead.batches.len() >= ahead.max
            && let Some(batch) = ahead.batches.pop_front()
        {
            self.write(batch, writer).await?;
        }
        let is_large = entries.iter().any(|entry| entry.info.bytes > BATCH_BYTES_MAX);
        let keys: Vec<_> = entries.into_iter().map(|entry| (entry.key, entry.info.expire_time_ns)).collect();
        let (objects, bucket) = (self.export.objects.clone(), self.export.bucket.clone());
        // A large object is alone in its batch: it is read in pieces as it is written.
        let wanted = match is_large {
            true => Vec::new(),
            false => keys.iter().map(|(key, _)| key.clone()).collect(),
        };
        let read = tokio::spawn(async move { objects.get_many(&bucket, wanted).await });
        ahead.batches.push_back(Batch { keys, read });
        Ok(())
    }

    async fn write(&self, batch: Batch, writer: &mut Writer<impl Write>) -> anyhow::Result<()> {
        let mut results = batch.read.await.context("a read of the export broke off")?.into_iter();
        for (key, expires_ns) in batch.keys {
            self.check_stop()?;
            match results.next() {
                Some(Ok(Some(object))) => self.write_small(&key, &object, writer)?,
                Some(Ok(None)) => self.export.report.gone(&show_key(&key), expires_ns),
                // The object is large, or has become so.
                None | Some(Err(Error::Invalid(_))) => self.write_large(&key, expires_ns, writer).await?,
                Some(Err(error @ (Error::Corrupt(_) | Error::Busy(_)))) => {
                    self.export.report.failed(&show_key(&key), &error.to_string());
                }
                Some(Err(error)) => {
                    return Err(error).with_context(|| about("cannot read", &self.export.bucket, &key));
                }
            }
        }
        Ok(())
    }

    /// Writes the headers of the entry of `key`. Returns false if a tar cannot represent it.
    fn start(
        &self,
        key: &[u8],
        (attributes, extras): (FileAttributes, &Extras),
        target: &[u8],
        bytes: u64,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<bool> {
        let name = self.export.relative(key);
        if name.is_empty() && attributes.kind == FileKind::Folder {
            // The object of the root folder, which an export into a folder leaves out, too.
            return Ok(false);
        }
        let target = if attributes.kind == FileKind::Symlink { target } else { b"" };
        match writer.entry(&Entry { name, attributes, target, extras, bytes }) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.export.report.refused(&show_key(key), &error.to_string());
                self.check_stop()?;
                Ok(false)
            }
            Err(error) => Err(write_error(error)),
        }
    }

    fn write_small(
        &self,
        key: &[u8],
        object: &GetResult,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<()> {
        let (attributes, extras) = shape(key, &object.info);
        let value: &[u8] = if attributes.kind == FileKind::File { &object.value } else { b"" };
        let bytes = value.len() as u64;
        tokio::task::block_in_place(|| {
            if !self.start(key, (attributes, &extras), &object.value, bytes, writer)? {
                return Ok(());
            }
            writer.write(value).and_then(|()| writer.pad()).map_err(write_error)?;
            self.export.report.done(attributes.kind, object.value.len() as u64);
            Ok(())
        })
    }

    async fn write_large(
        &self,
        key: &[u8],
        expires_ns: Option<u64>,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<()> {
        let reading = || about("cannot read", &self.export.bucket, key);
        let opened = self.export.objects.get_stream(&self.export.bucket, key, ByteRange::ALL).await;
        let Some(mut stream) = opened.with_context(reading)? else {
            self.export.report.gone(&show_key(key), expires_ns);
            return Ok(());
        };
        let (mut attributes, extras) = shape(key, stream.info());
        attributes.kind = FileKind::File;
        let bytes = stream.info().bytes;
        if !self.start(key, (attributes, &extras), b"", bytes, writer)? {
            return Ok(());
        }
        let mut written = 0;
        while let Some(piece) = stream.next().await.with_context(reading)? {
            self.check_stop()?;
            tokio::task::block_in_place(|| writer.write(&piece)).map_err(write_error)?;
            self.export.report.add_bytes(piece.len() as u64);
            written += piece.len() as u64;
        }
        if written != bytes {
            bail!("{}: it ended after {written} of {bytes} bytes", reading());
        }
        writer.pad().map_err(write_error)?;
        self.export.report.done(FileKind::File, 0);
        Ok(())
    }
}

/// FileAttributes and extras of the entry of an object. A folder with a value, a symlink with a too long target and other kinds of files
/// become files.
fn shape(key: &[u8], info: &ObjectAttributes) -> (FileAttributes, Extras) {
    let as_file =
        FileAttributes { kind: FileKind::File, permissions: None, mtime_ns: i128::from(info.modified_ns) };
    let attributes = match FileAttributes::of_object(key, info) {
        Ok(attributes) if attributes.kind == FileKind::Folder && info.bytes > 0 => as_file,
        Ok(attributes) if attributes.kind == FileKind::Symlink && info.bytes > LINK_BYTES_MAX as u64 => {
            as_file
        }
        Ok(attributes) => attributes,
        Err(_) => as_file,
    };
    (attributes, Extras::of_object(info, &attributes))
}

fn write_error(error: io::Error) -> anyhow::Error {
    anyhow!(error).context("the tar cannot be written")
}
