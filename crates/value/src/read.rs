//! Reads values: units of 64 KiB, verified as they enter memory, referred to and never copied.

use std::ops::Range;

use bytes::Bytes;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64, Lsn, Run, blocks_for};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::units::identity;
use shoal_device::{Device, IoBuf};
use shoal_pool::{Check, Hint, Pinned, Pool, PoolError, Unit, UnitId};
use smallvec::{SmallVec, smallvec};

use crate::entry::{Entry, Home};
use crate::joined::JoinedManifest;
use crate::manifest::Manifest;

/// The place of the stored bytes of one version of an object.
pub struct Located {
    version: Lsn,
    stored: u64,
    offset: u16,
    runs: SmallVec<[Run; 4]>,
    checksums: SmallVec<[u32; 4]>,
    /// The parts of a joined value that have bytes. Empty: all bytes are one piece.
    pieces: Vec<Piece>,
}

/// Stored bytes that are in the same runs, and whose units are counted together.
#[derive(Clone, Copy)]
struct Piece {
    /// The first stored byte.
    start: u64,
    bytes: u64,
    /// The number of its first unit, and of its first run.
    unit: u64,
    run: usize,
    /// Byte of the first run at which they start.
    offset: u16,
}

/// The pieces of a joined value.
fn pieces_of(manifest: &JoinedManifest) -> Vec<Piece> {
    let mut next = Piece { start: 0, bytes: 0, unit: 0, run: 0, offset: 0 };
    let mut pieces = Vec::with_capacity(manifest.segments().len());
    for segment in manifest.segments() {
        let piece = Piece { bytes: segment.bytes, offset: segment.offset, ..next };
        next.start += piece.bytes;
        next.unit += piece.bytes.div_ceil(VALUE_UNIT_BYTES as u64);
        next.run += segment.runs;
        if piece.bytes > 0 {
            pieces.push(piece);
        }
    }
    pieces
}

impl Located {
    /// Finds the runs of an entry whose bytes are not inline; reads its manifest if it has one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the manifest is damaged; as the device.
    pub async fn find(device: &Device, pool: &Pool, entry: &Entry, version: Lsn) -> Result<Self> {
        let stored = entry.stored_bytes();
        let located = match &entry.home {
            Home::Inline => unreachable!("inline bytes are not located"),
            Home::Extents { offset, runs, checksums } => Self {
                version,
                stored,
                offset: *offset,
                runs: SmallVec::from_slice(runs),
                checksums: checksums.clone(),
                pieces: Vec::new(),
            },
            Home::Packed { at, checksum, .. } => Self {
                version,
                stored,
                offset: (u64::from(*at) % BLOCK_BYTES_U64) as u16,
                runs: entry.packed_blocks().into_iter().collect(),
                checksums: SmallVec::from_slice(&[*checksum]),
                pieces: Vec::new(),
            },
            Home::Manifest { runs, bytes, checksum } => {
                match read_manifest(device, pool, runs, (*bytes, *checksum), version).await? {
                    AnyManifest::Plain(manifest) => Self {
                        version,
                        stored,
                        offset: 0,
                        runs: SmallVec::from_vec(manifest.runs),
                        checksums: SmallVec::from_vec(manifest.checksums),
                        pieces: Vec::new(),
                    },
                    AnyManifest::Joined(manifest) => return Self::joined(&manifest, stored, version),
                }
            }
        };
        let blocks: u64 = located.runs.iter().map(|run| u64::from(run.blocks)).sum();
        let units = stored.div_ceil(VALUE_UNIT_BYTES as u64);
        if blocks < blocks_for(u64::from(located.offset) + stored) || located.checksums.len() as u64 != units
        {
            let block = located.runs.first().map_or(0, |run| run.block);
            return Err(Error::Corrupt { what: "the runs of a value do not fit its length".into(), block });
        }
        Ok(located)
    }

    /// The place of the bytes that a joined manifest names.
    fn joined(manifest: &JoinedManifest, stored: u64, version: Lsn) -> Result<Self> {
        // The manifest was checked: each part fits in its runs.
        if manifest.bytes() != stored {
            let block = manifest.runs().first().map_or(0, |run| run.block);
            return Err(Error::Corrupt { what: "the parts of a value do not fit its length".into(), block });
        }
        let (runs, checksums) =
            (SmallVec::from_slice(manifest.runs()), SmallVec::from_slice(manifest.checksums()));
        Ok(Self { version, stored, offset: 0, runs, checksums, pieces: pieces_of(manifest) })
    }

    /// Returns true if the value was joined from parts.
    #[inline]
    pub fn is_joined(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The checksums of the units.
    #[inline]
    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    /// The piece of unit `index`.
    fn piece_of_unit(&self, index: u64) -> Piece {
        let before = self.pieces.partition_point(|piece| piece.unit <= index);
        before.checked_sub(1).map_or(self.only_piece(), |last| self.pieces[last])
    }

    /// The unit of stored byte `at`.
    fn unit_of_byte(&self, at: u64) -> u64 {
        let before = self.pieces.partition_point(|piece| piece.start <= at);
        let piece = before.checked_sub(1).map_or(self.only_piece(), |last| self.pieces[last]);
        piece.unit + (at - piece.start) / VALUE_UNIT_BYTES as u64
    }

    /// The first stored byte of unit `index`, and the number of its bytes.
    fn bytes_of_unit(&self, index: u64) -> (u64, u64) {
        let piece = self.piece_of_unit(index);
        let within = (index - piece.unit) * VALUE_UNIT_BYTES as u64;
        (piece.start + within, piece.bytes.saturating_sub(within).min(VALUE_UNIT_BYTES as u64))
    }

    fn only_piece(&self) -> Piece {
        Piece { start: 0, bytes: self.stored, unit: 0, run: 0, offset: self.offset }
    }

    /// The runs of the stored bytes.
    #[inline]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The offset of the stored bytes in the first run.
    #[inline]
    pub fn offset(&self) -> usize {
        usize::from(self.offset)
    }

    /// Returns true if `stored`, all of the stored bytes, matches the checksums.
    pub fn matches(&self, stored: &[u8]) -> bool {
        stored.len() as u64 == self.stored
            && (0..).zip(&self.checksums).all(|(index, &checksum)| {
                let (start, bytes) = self.bytes_of_unit(index);
                let unit = stored.get(start as usize..(start + bytes) as usize);
                unit.is_some_and(|unit| shoal_base::checksum::crc32c(unit) == checksum)
            })
    }

    /// The memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.pieces.capacity() * size_of::<Piece>()
            + self.runs.capacity() * size_of::<Run>()
            + self.checksums.capacity() * size_of::<u32>()
    }

    /// The number of the value's units.
    #[inline]
    pub(super) fn units(&self) -> u64 {
        self.checksums.len() as u64
    }

    /// The place of unit `index`.
    pub(super) fn unit(&self, index: u64) -> Result<UnitPlace> {
        let lost = || Error::Corrupt {
            what: "a value's unit is outside its runs".into(),
            block: self.runs.first().map_or(0, |run| run.block),
        };
        let crc =
            *usize::try_from(index).ok().and_then(|index| self.checksums.get(index)).ok_or_else(lost)?;
        let piece = self.piece_of_unit(index);
        let start = (index - piece.unit) * VALUE_UNIT_BYTES as u64;
        let bytes = (piece.bytes - start).min(VALUE_UNIT_BYTES as u64) as u32;
        let mut at = u64::from(piece.offset) + start;
        for (place, run) in self.runs.iter().enumerate().skip(piece.run) {
            let run_bytes = u64::from(run.blocks) * BLOCK_BYTES_U64;
            if at >= run_bytes {
                at -= run_bytes;
                continue;
            }
            if at + u64::from(bytes) <= run_bytes {
                let id = UnitId { block: run.block + at / BLOCK_BYTES_U64, identity: identity(self.version) };
                let offset = (at % BLOCK_BYTES_U64) as u16;
                return Ok(UnitPlace::Whole(Unit { id, check: Check::Bytes { offset, bytes, crc } }));
            }
            return Ok(UnitPlace::Split { run: place, at, bytes, crc });
        }
        Err(lost())
    }

    /// Reads a unit that is in several runs. It is verified, but not kept in the pool.
    pub(super) async fn read_split(
        &self,
        device: &Device,
        run: usize,
        at: u64,
        bytes: u32,
        crc: u32,
    ) -> Result<Bytes> {
        let mut out = Vec::with_capacity(bytes as usize);
        let mut at = at;
        for run in self.runs.get(run..).unwrap_or(&[]) {
            let rest = bytes as usize - out.len();
            let (skip, first) = ((at % BLOCK_BYTES_U64) as usize, at / BLOCK_BYTES_U64);
            let blocks = blocks_for((skip + rest) as u64).min(u64::from(run.blocks) - first);
            let part = device.read(run.block + first, IoBuf::unfilled(blocks as usize)).await.ok()?;
            let part = part.get(skip..).unwrap_or(&[]);
            out.extend_from_slice(part.get(..rest.min(part.len())).unwrap_or(&[]));
            if out.len() == bytes as usize {
                break;
            }
            at = 0;
        }
        if shoal_base::checksum::crc32c(&out) != crc {
            let block = self.runs.get(run).map_or(0, |run| run.block);
            return Err(Error::Corrupt { what: "a value's checksum does not match".into(), block });
        }
        Ok(out.into())
    }
}

/// The place of a unit.
pub(super) enum UnitPlace {
    /// In one run, as the pool loads and keeps it.
    Whole(Unit),
    /// From byte `at` of a run on, and in the following runs: only if the device's free space is in splinters.
    Split { run: usize, at: u64, bytes: u32, crc: u32 },
}

/// Reads the stored bytes `first .. first + bytes`.
///
/// # Errors
/// [`Error::Corrupt`] if a checksum does not match; as the device.
pub async fn read(
    device: &Device,
    pool: &Pool,
    located: &Located,
    first: u64,
    bytes: u64,
    hint: Hint,
) -> Result<Buffer> {
    let mut out = Buffer::new();
    if bytes == 0 {
        return Ok(out);
    }
    let indices = located.unit_of_byte(first)..=located.unit_of_byte(first + bytes - 1);
    let places = indices.clone().map(|index| located.unit(index)).collect::<Result<SmallVec<[_; 4]>>>()?;
    let whole: SmallVec<[Unit; 4]> = places
        .iter()
        .filter_map(|place| if let UnitPlace::Whole(unit) = place { Some(*unit) } else { None })
        .collect();
    // Units within one run are loaded with one submission. Units that bypass the pool are taken from it if it has all of them.
    let passes = hint == Hint::Scan || bytes > pool.pass_through_bytes();
    let loaded = match whole[..] {
        _ if passes => whole.iter().map(|unit| pool.get_hinted(unit, hint).map(Loaded::Pinned)).collect(),
        [only] => match pool.fetch(only, hint).await {
            Ok(pinned) => Some(smallvec![Loaded::Pinned(pinned)]),
            // No frame is free: the value is read without one.
            Err(PoolError::Exhausted { .. }) => None,
            Err(PoolError::Corrupt { .. }) if injected(Bug::ValueNotChecked) => None,
            Err(error) => return Err(pool_error(error)),
        },
        _ => {
            let pinned = pool.fetch_all(&whole, hint).await.into_iter();
            match pinned.map(|unit| unit.map(Loaded::Pinned)).collect::<std::result::Result<_, _>>() {
                Ok(pinned) => Some(pinned),
                Err(PoolError::Exhausted { .. }) => None,
                Err(error) => return Err(pool_error(error)),
            }
        }
    };
    let loaded: SmallVec<[Loaded; 1]> = match loaded {
        Some(loaded) => loaded,
        None => read_past(device, &whole).await?.into(),
    };
    let mut loaded = loaded.into_iter();
    for (index, place) in indices.zip(places) {
        let (start, unit_bytes) = located.bytes_of_unit(index);
        let from = first.max(start) - start;
        let to = (first + bytes).min(start + unit_bytes) - start;
        match place {
            UnitPlace::Whole(_) => match loaded.next() {
                Some(Loaded::Pinned(unit)) => append(&mut out, unit, from, to - from),
                Some(Loaded::Past(unit)) => out.append_external(unit.slice(from as usize..to as usize)),
                None => unreachable!("every unit of a value was loaded"),
            },
            UnitPlace::Split { run, at, bytes, crc } => {
                let unit = located.read_split(device, run, at, bytes, crc).await?;
                out.append_external(unit.slice(from as usize..to as usize));
            }
        }
    }
    assert_eq!(out.len() as u64, bytes, "a read returns the bytes of its range");
    Ok(out)
}

/// A verified unit in memory.
enum Loaded {
    /// In frames of the pool.
    Pinned(Pinned),
    /// Read past the pool: a large or scanned value does not displace values that are read often.
    Past(Bytes),
}

/// Reads units past the pool; neighbours on the device with one request, all with one submission.
fn read_past<'a>(device: &'a Device, units: &'a [Unit]) -> Boxed<'a, Result<Vec<Loaded>>> {
    Box::pin(read_neighbours(device, units))
}

async fn read_neighbours(device: &Device, units: &[Unit]) -> Result<Vec<Loaded>> {
    let mut batch = device.batch();
    let mut reads = Vec::new();
    let mut rest = units;
    while let Some(first) = rest.first() {
        let mut end = first.run().end();
        let mut count = 1;
        while let Some(next) = rest.get(count).filter(|next| next.id.block == end || next.id.block + 1 == end)
        {
            end = next.run().end();
            count += 1;
        }
        let (together, later) = rest.split_at(count);
        let start = first.id.block;
        reads.push((start, together, batch.add(device.read(start, IoBuf::unfilled((end - start) as usize)))));
        rest = later;
    }
    batch.start();
    let mut loaded = Vec::with_capacity(units.len());
    for (start, together, read) in reads {
        let bytes = Bytes::from_owner(read.await.ok()?);
        for unit in together {
            loaded.push(Loaded::Past(bytes.slice(unit_range(unit, start, &bytes)?)));
        }
    }
    Ok(loaded)
}

/// The place of a unit's bytes in `bytes`, which were read from block `start` on and contain the unit.
///
/// # Errors
/// [`Error::Corrupt`] if they are not the written bytes.
pub(super) fn unit_range(unit: &Unit, start: u64, bytes: &[u8]) -> Result<Range<usize>> {
    let Check::Bytes { offset, bytes: length, crc } = unit.check else {
        unreachable!("a value's unit has bytes")
    };
    let from = (unit.id.block - start) as usize * BLOCK_BYTES + usize::from(offset);
    let range = from..from + length as usize;
    if shoal_base::checksum::crc32c(&bytes[range.clone()]) != crc && !injected(Bug::ValueNotChecked) {
        let what = "a value's checksum does not match".into();
        return Err(Error::Corrupt { what, block: unit.id.block });
    }
    Ok(range)
}

fn append(out: &mut Buffer, pinned: Pinned, mut skip: u64, mut bytes: u64) {
    for chunk in pinned.into_bytes() {
        let length = chunk.len() as u64;
        let from = skip.min(length);
        let to = (from + bytes).min(length);
        skip -= from;
        bytes -= to - from;
        if to - from == length {
            out.append_external(chunk);
        } else if to > from {
            out.append_external(chunk.slice(from as usize..to as usize));
        }
        if bytes == 0 {
            break;
        }
    }
}

/// The joined manifest of an entry; `None` if its value is no joined one.
///
/// # Errors
/// As [`Located::find`].
pub async fn read_joined(
    device: &Device,
    pool: &Pool,
    entry: &Entry,
    version: Lsn,
) -> Result<Option<JoinedManifest>> {
    let Home::Manifest { runs, bytes, checksum } = &entry.home else { return Ok(None) };
    match read_manifest(device, pool, runs, (*bytes, *checksum), version).await? {
        AnyManifest::Joined(manifest) if manifest.bytes() == entry.stored_bytes() => Ok(Some(manifest)),
        AnyManifest::Joined(_) => Err(Error::Corrupt {
            what: "the parts of a value do not fit its length".into(),
            block: runs.first().map_or(0, |run| run.block),
        }),
        AnyManifest::Plain(_) => Ok(None),
    }
}

/// A manifest of either form.
enum AnyManifest {
    Plain(Manifest),
    Joined(JoinedManifest),
}

async fn read_manifest(
    device: &Device,
    pool: &Pool,
    runs: &[Run],
    (bytes, checksum): (u32, u32),
    version: Lsn,
) -> Result<AnyManifest> {
    let block = runs.first().map_or(0, |run| run.block);
    let damaged = || Error::Corrupt { what: "the manifest of a value is damaged".into(), block };
    let whole: Bytes = if bytes as usize <= VALUE_UNIT_BYTES && runs.len() == 1 {
        let unit = Unit {
            id: UnitId { block, identity: identity(version) },
            check: Check::Bytes { offset: 0, bytes, crc: checksum },
        };
        let pinned = pool.fetch(unit, Hint::Index).await.map_err(pool_error)?;
        let mut chunks = pinned.into_bytes();
        match (chunks.next(), chunks.next()) {
            (Some(only), None) => only,
            (first, second) => {
                let mut joined = Vec::with_capacity(bytes as usize);
                for chunk in first.into_iter().chain(second).chain(chunks) {
                    joined.extend_from_slice(&chunk);
                }
                joined.into()
            }
        }
    } else {
        let mut joined = Vec::with_capacity(bytes as usize);
        for run in runs {
            // Takes memory for the bytes of the manifest, not for the length that a run claims.
            let rest = blocks_for(u64::from(bytes).saturating_sub(joined.len() as u64));
            let blocks = rest.min(u64::from(run.blocks)) as usize;
            if blocks == 0 {
                break;
            }
            joined.extend_from_slice(&device.read(run.block, IoBuf::unfilled(blocks)).await.ok()?);
        }
        joined.truncate(bytes as usize);
        if shoal_base::checksum::crc32c(&joined) != checksum {
            return Err(damaged());
        }
        joined.into()
    };
    let decoded = if JoinedManifest::is_start_of(&whole) {
        JoinedManifest::decode(&whole).map(AnyManifest::Joined)
    } else {
        Manifest::decode(&whole).map(AnyManifest::Plain)
    };
    decoded.map_err(|_| damaged())
}

/// Turns the pool's failure into the engine's error.
pub fn pool_error(error: PoolError) -> Error {
    match error {
        PoolError::Device(error) => error.into(),
        PoolError::Corrupt { block, .. } => {
            Error::Corrupt { what: "a checksum does not match".into(), block }
        }
        PoolError::Exhausted { .. } => Error::Busy("every frame of the cache is in use"),
        PoolError::Invalid { block, .. } => {
            Error::Corrupt { what: "the place of a value cannot be".into(), block }
        }
        PoolError::Setup { message, .. } => Error::Unopenable(message),
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
