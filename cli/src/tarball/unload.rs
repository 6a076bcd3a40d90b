//! From objects to a tar: the work of `shoal export --tar`.
//!
//! Objects are read in batches, several at the same time, and written in the order of their keys.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use shoal_client::{ByteRange, Error, ListEntry, ListRequest, Object, ObjectInfo};
use tokio::task::JoinHandle;

use crate::objects::Objects;
use crate::output::{about, show_key};
use crate::tarball::writer::{Entry, Writer};
use crate::transfer::attributes::{Attributes, Kind};
use crate::transfer::extras::Extras;
use crate::transfer::filter::Filter;
use crate::transfer::report::Report;
use crate::transfer::work::{BATCH_BYTES_MAX, BATCH_ITEMS_MAX};
use crate::tree::place::LINK_BYTES_MAX;

/// An export into a tar.
pub(crate) struct Unload {
    pub(crate) objects: Objects,
    pub(crate) bucket: String,
    pub(crate) prefix: Bytes,
    pub(crate) filter: Filter,
    pub(crate) report: Arc<Report>,
}

/// Objects that are read together.
struct Batch {
    /// With their deadlines, as they were listed.
    keys: Vec<(Bytes, Option<u64>)>,
    read: JoinHandle<Vec<Result<Option<Object>, Error>>>,
}

/// The batches that are being read, in the order of their keys.
struct Ahead {
    batches: VecDeque<Batch>,
    max: usize,
}

impl Unload {
    /// Writes all objects into `out`, reading at most `jobs` batches at the same time; returns `out`.
    ///
    /// # Errors
    /// The tar is not whole: it cannot be written, or an object broke off in its middle, or the export was stopped.
    pub(crate) async fn run<W: Write>(&self, out: W, jobs: u16) -> anyhow::Result<W> {
        let mut writer = Writer::begin(out).map_err(write_error)?;
        let mut ahead = Ahead { batches: VecDeque::new(), max: usize::from(jobs.max(1)) };
        let mut request = self.all();
        loop {
            let page = self.objects.list(&request).await.context("cannot list the store")?;
            self.report.damaged(page.damaged);
            let (mut keys, mut bytes) = (Vec::new(), 0);
            for entry in page.entries {
                self.go_on()?;
                if !self.takes(&entry.key) {
                    self.report.excluded();
                    continue;
                }
                if keys.len() >= BATCH_ITEMS_MAX
                    || !keys.is_empty() && bytes + entry.info.bytes > BATCH_BYTES_MAX
                {
                    self.read(std::mem::take(&mut keys), &mut ahead, &mut writer).await?;
                    bytes = 0;
                }
                bytes += entry.info.bytes;
                keys.push(entry);
            }
            self.read(keys, &mut ahead, &mut writer).await?;
            match page.next {
                Some(next) => request.start_after = next,
                None => break,
            }
        }
        while let Some(batch) = ahead.batches.pop_front() {
            self.write(batch, &mut writer).await?;
        }
        tokio::task::block_in_place(|| writer.finish()).map_err(write_error)
    }

    /// Reports the entries that [`run`](Self::run) would write, and writes nothing.
    pub(crate) async fn run_dry(&self) -> anyhow::Result<()> {
        let mut request = self.all();
        let mut writer = Writer::begin(io::sink())?;
        loop {
            let page = self.objects.list(&request).await.context("cannot list the store")?;
            self.report.damaged(page.damaged);
            for ListEntry { key, info } in page.entries {
                self.go_on()?;
                if !self.takes(&key) {
                    self.report.excluded();
                    continue;
                }
                let (attributes, extras) = shape(&key, &info);
                // The target of a symlink is read later.
                if self.begin(&key, (attributes, &extras), b"target", 0, &mut writer)? {
                    self.report.would(attributes.kind, &key, info.bytes);
                }
            }
            match page.next {
                Some(next) => request.start_after = next,
                None => return Ok(()),
            }
        }
    }

    /// The listing of all objects of the export.
    pub(crate) fn all(&self) -> ListRequest {
        ListRequest { bucket: self.bucket.clone(), prefix: self.prefix.to_vec(), ..ListRequest::default() }
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.filter.takes(key.get(self.prefix.len()..).unwrap_or_default())
    }

    /// # Errors
    /// The export was stopped.
    fn go_on(&self) -> anyhow::Result<()> {
        if self.report.is_stopped() { bail!("stopped") } else { Ok(()) }
    }

    /// Starts to read `entries`; before that, writes finished batches until there is room.
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
        let (objects, bucket) = (self.objects.clone(), self.bucket.clone());
        // A large one is alone in its batch, and is read when it is written, piece by piece.
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
            self.go_on()?;
            match results.next() {
                Some(Ok(Some(object))) => self.write_small(&key, &object, writer)?,
                Some(Ok(None)) => self.report.gone(&show_key(&key), expires_ns),
                // It is large, or became so meanwhile.
                None | Some(Err(Error::Invalid(_))) => self.write_large(&key, expires_ns, writer).await?,
                Some(Err(error @ (Error::Corrupt(_) | Error::Busy(_)))) => {
                    self.report.failed(&show_key(&key), &error.to_string());
                }
                Some(Err(error)) => {
                    return Err(error).with_context(|| about("cannot read", &self.bucket, &key));
                }
            }
        }
        Ok(())
    }

    /// Starts the entry of `key`; false: the tar cannot hold it.
    fn begin(
        &self,
        key: &[u8],
        (attributes, extras): (Attributes, &Extras),
        target: &[u8],
        bytes: u64,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<bool> {
        let name = key.get(self.prefix.len()..).unwrap_or_default();
        if name.is_empty() && attributes.kind == Kind::Folder {
            // The marker of the folder itself, which a folder does not hold either.
            return Ok(false);
        }
        let target = if attributes.kind == Kind::Symlink { target } else { b"" };
        match writer.entry(&Entry { name, attributes, target, extras, bytes }) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.report.refused(&show_key(key), &error.to_string());
                self.go_on()?;
                Ok(false)
            }
            Err(error) => Err(write_error(error)),
        }
    }

    fn write_small(
        &self,
        key: &[u8],
        object: &Object,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<()> {
        let (attributes, extras) = shape(key, &object.info);
        let value: &[u8] = if attributes.kind == Kind::File { &object.value } else { b"" };
        let bytes = value.len() as u64;
        tokio::task::block_in_place(|| {
            if !self.begin(key, (attributes, &extras), &object.value, bytes, writer)? {
                return Ok(());
            }
            writer.write(value).and_then(|()| writer.pad()).map_err(write_error)?;
            self.report.done(attributes.kind, object.value.len() as u64);
            Ok(())
        })
    }

    async fn write_large(
        &self,
        key: &[u8],
        expires_ns: Option<u64>,
        writer: &mut Writer<impl Write>,
    ) -> anyhow::Result<()> {
        let reading = || about("cannot read", &self.bucket, key);
        let opened = self.objects.get_stream(&self.bucket, key, ByteRange::ALL).await;
        let Some(mut stream) = opened.with_context(reading)? else {
            self.report.gone(&show_key(key), expires_ns);
            return Ok(());
        };
        let (mut attributes, extras) = shape(key, stream.info());
        attributes.kind = Kind::File;
        let bytes = stream.info().bytes;
        if !self.begin(key, (attributes, &extras), b"", bytes, writer)? {
            return Ok(());
        }
        let mut written = 0;
        while let Some(piece) = stream.next().await.with_context(reading)? {
            self.go_on()?;
            tokio::task::block_in_place(|| writer.write(&piece)).map_err(write_error)?;
            self.report.add_bytes(piece.len() as u64);
            written += piece.len() as u64;
        }
        if written != bytes {
            bail!("{}: it ended after {written} of {bytes} bytes", reading());
        }
        writer.pad().map_err(write_error)?;
        self.report.done(Kind::File, 0);
        Ok(())
    }
}

/// The entry of the object. A tar holds as a file everything that is neither file nor folder nor symlink, a folder with a
/// value and a symlink whose target is too long.
fn shape(key: &[u8], info: &ObjectInfo) -> (Attributes, Extras) {
    let as_file = Attributes { kind: Kind::File, permissions: None, mtime_ns: i128::from(info.modified_ns) };
    let attributes = match Attributes::of_object(key, info) {
        Ok(attributes) if attributes.kind == Kind::Folder && info.bytes > 0 => as_file,
        Ok(attributes) if attributes.kind == Kind::Symlink && info.bytes > LINK_BYTES_MAX as u64 => as_file,
        Ok(attributes) => attributes,
        Err(_) => as_file,
    };
    (attributes, Extras::of_object(info, &attributes))
}

fn write_error(error: io::Error) -> anyhow::Error {
    anyhow!(error).context("the tar cannot be written")
}
