//! A base, streamed in order: ranges of its parts are fetched ahead, and each part is checked by length and checksum.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use shoal_backup::{Damage, Decoder, Event};
use shoal_base::checksum::Crc32c;

use super::ahead::Ahead;
use super::{ArchiveReader, RestoreError, RestoreProgress};
use crate::bucket::ArchiveBucket;
use crate::format::{ArchiveName, BaseEnd, BasePart, FormatError, RecordBase};

/// Bytes of a request.
const CHUNK_BYTES: u64 = 4 << 20;
/// Requests at a time: 32 MiB of memory, besides the part that is checked.
const CHUNKS_AHEAD: usize = 8;

const ADVICE: &str =
    "use an earlier --at, and run `shoal archive verify`; a server that archives makes a new base";

/// A range of a part.
#[derive(Clone, Copy)]
struct Chunk {
    part: u32,
    first: u64,
    bytes: u64,
}

/// The events of a base, in order.
pub(super) struct BaseReader<'a> {
    reader: &'a ArchiveReader,
    base: RecordBase,
    parts: Vec<BasePart>,
    /// The next chunk to be requested.
    next: Option<Chunk>,
    ahead: Ahead<(Chunk, Result<Bytes, RestoreError>)>,
    /// Bytes of a part that is checked, and not decoded.
    checked: VecDeque<Bytes>,
    decoder: Decoder,
    is_complete: bool,
    progress: &'a RestoreProgress,
}

impl<'a> BaseReader<'a> {
    /// The base, whose list of parts is read and checked.
    pub(super) async fn open(
        reader: &'a ArchiveReader,
        base: RecordBase,
        progress: &'a RestoreProgress,
    ) -> Result<Self, RestoreError> {
        let parts = parts_of(&reader.bucket, &base).await?;
        let mut opened = Self {
            reader,
            base,
            parts,
            next: None,
            ahead: Ahead::new(),
            checked: VecDeque::new(),
            decoder: Decoder::new(),
            is_complete: false,
            progress,
        };
        opened.next = opened.chunk(0, 0);
        Ok(opened)
    }

    fn chunk(&self, part: u32, first: u64) -> Option<Chunk> {
        let rest = self.parts.get(part as usize)?.bytes - first;
        if rest > 0 {
            return Some(Chunk { part, first, bytes: rest.min(CHUNK_BYTES) });
        }
        self.chunk(part + 1, 0)
    }

    /// The next event; `None` after the end.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, RestoreError> {
        loop {
            match self.decoder.next_event() {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) if self.is_complete => return Ok(None),
                Ok(None) => self.fetch().await?,
                Err(damage) => return Err(self.damaged(&damage).into()),
            }
        }
    }

    /// Pushes the next bytes into the decoder. A part is checked before its first byte is used.
    async fn fetch(&mut self) -> Result<(), RestoreError> {
        if self.checked.is_empty() {
            self.checked = self.next_part().await?;
        }
        match self.checked.pop_front() {
            Some(bytes) => {
                RestoreProgress::add(&self.progress.base_done, bytes.len() as u64);
                self.decoder.push(&bytes);
            }
            None => {
                self.decoder.complete();
                self.is_complete = true;
            }
        }
        Ok(())
    }

    /// The bytes of the next part, checked; none at the end.
    async fn next_part(&mut self) -> Result<VecDeque<Bytes>, RestoreError> {
        self.request();
        let Some((first, bytes)) = self.ahead.next().await else { return Ok(VecDeque::new()) };
        let (part, mut taken) = (first.part, first.bytes);
        let mut all = vec![bytes];
        while taken < self.parts[part as usize].bytes {
            self.request();
            let Some((chunk, bytes)) = self.ahead.next().await else { break };
            taken += chunk.bytes;
            all.push(bytes);
        }
        match self.check(part, all) {
            // It may have been spoiled on its way: the second answer counts.
            Err(RestoreError::Format(_)) => {
                let mut again = Vec::new();
                let mut next = self.chunk(part, 0);
                while let Some(chunk) = next.filter(|chunk| chunk.part == part) {
                    again.push(self.start(chunk).await);
                    next = self.chunk(part, chunk.first + chunk.bytes);
                }
                self.check(part, again)
            }
            checked => checked,
        }
    }

    /// Requests chunks ahead.
    fn request(&mut self) {
        while self.ahead.len() < CHUNKS_AHEAD
            && let Some(chunk) = self.next
        {
            let work = self.start(chunk);
            self.ahead.push(async move { (chunk, work.await) });
            self.next = self.chunk(chunk.part, chunk.first + chunk.bytes);
        }
    }

    fn start(&self, chunk: Chunk) -> impl Future<Output = Result<Bytes, RestoreError>> + Send + 'static {
        let (bucket, base) = (Arc::clone(&self.reader.bucket), self.base.id);
        let expected = self.parts[chunk.part as usize].bytes;
        async move { fetch_chunk(&bucket, base, chunk, expected).await }
    }

    fn check(
        &self,
        part: u32,
        chunks: Vec<Result<Bytes, RestoreError>>,
    ) -> Result<VecDeque<Bytes>, RestoreError> {
        let chunks = chunks.into_iter().collect::<Result<VecDeque<_>, _>>()?;
        let mut crc = Crc32c::new();
        chunks.iter().for_each(|chunk| crc.update(chunk));
        if crc.finish() == self.parts[part as usize].crc {
            return Ok(chunks);
        }
        let why = "its checksum is not that of the base's list of parts";
        let object = ArchiveName::Part { base: self.base.id, part }.to_string();
        Err(FormatError::Damaged { object, offset: 0, why }.into())
    }

    /// The damage, with the part in which it is.
    fn damaged(&self, damage: &Damage) -> FormatError {
        let (mut part, mut offset) = (0, damage.offset);
        while let Some(its) = self.parts.get(part).filter(|its| offset >= its.bytes)
            && part + 1 < self.parts.len()
        {
            offset -= its.bytes;
            part += 1;
        }
        let object = ArchiveName::Part { base: self.base.id, part: part as u32 }.to_string();
        FormatError::Damaged { object, offset, why: damage.why }
    }
}

/// The list of the parts of `base`.
pub(super) async fn parts_of(
    bucket: &ArchiveBucket,
    base: &RecordBase,
) -> Result<Vec<BasePart>, RestoreError> {
    let name = ArchiveName::BaseEnd { base: base.id }.to_string();
    let Some(found) = bucket.get(&name).await? else {
        return Err(RestoreError::Missing { object: name, advice: ADVICE });
    };
    let end = BaseEnd::decode(&found.bytes, base.id, base.end_crc)?;
    if end.parts.len() != base.parts as usize {
        let why = "the record names another number of parts";
        return Err(FormatError::Damaged { object: name, offset: 12, why }.into());
    }
    Ok(end.parts)
}

async fn fetch_chunk(
    bucket: &ArchiveBucket,
    base: u64,
    chunk: Chunk,
    expected: u64,
) -> Result<Bytes, RestoreError> {
    let name = ArchiveName::Part { base, part: chunk.part }.to_string();
    let found = bucket.get_range(&name, chunk.first..chunk.first + chunk.bytes).await?;
    let Some(found) = found else { return Err(RestoreError::Missing { object: name, advice: ADVICE }) };
    if found.object_bytes != expected || found.bytes.len() as u64 != chunk.bytes {
        let offset = expected.min(found.object_bytes);
        let why = "its length is not that of the base's list of parts";
        return Err(FormatError::Damaged { object: name, offset, why }.into());
    }
    Ok(found.bytes)
}
