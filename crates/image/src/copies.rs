//! The copies of the superblock on the device: two slots of two copies.

use shoal_base::codec::Reader;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{Device, IoBuf};
use shoal_log::format::COUNTER_MAX;

use crate::layout::SUPERBLOCK_COPIES;
use crate::superblock::{FORMAT_VERSION, MAGIC, NUMBER_OFFSET, Superblock, is_whole, needs};

/// The contents of the four copies.
pub enum FoundCopies {
    /// Only zeros in the places of superblocks.
    Nothing,
    /// The newest valid superblock.
    Newest(Box<Superblock>),
}

/// Returns true if the device can read at least one of the superblocks.
pub async fn answers(device: &Device) -> bool {
    for block in SUPERBLOCK_COPIES.into_iter().flatten() {
        if device.read(block, IoBuf::unfilled(1)).await.ok().is_ok() {
            return true;
        }
    }
    false
}

/// Reads all copies and returns the newest valid superblock. Refuses if a newer one is valid only for another program: this program cannot
/// know the changes since.
pub async fn read_newest(device: &Device) -> Result<FoundCopies> {
    let mut newest: Option<Superblock> = None;
    let mut foreign: Option<(u64, String)> = None;
    let mut blank = true;
    let mut unreadable = None;
    for block in SUPERBLOCK_COPIES.into_iter().flatten() {
        if injected(Bug::SecondCopyForgotten) && block >= 32 {
            continue;
        }
        if block >= device.blocks() {
            continue;
        }
        let bytes = match device.read(block, IoBuf::unfilled(1)).await.ok() {
            Ok(bytes) => bytes,
            Err(error) => {
                unreadable = Some(error);
                blank = false;
                continue;
            }
        };
        blank &= bytes.iter().all(|&byte| byte == 0);
        match Superblock::decode(&bytes) {
            Some(superblock)
                if newest.as_ref().is_none_or(|best| {
                    (best.number < superblock.number) != injected(Bug::OldestSuperblock)
                }) =>
            {
                newest = Some(superblock);
            }
            Some(_) => {}
            None => {
                let found = foreign_copy(&bytes);
                if found.as_ref().is_some_and(|found| foreign.as_ref().is_none_or(|best| best.0 <= found.0)) {
                    foreign = found;
                }
            }
        }
    }
    let foreign = foreign
        .filter(|(number, _)| newest.as_ref().is_none_or(|newest| *number > newest.number))
        .map(|(_, message)| message);
    match (newest, foreign, unreadable) {
        (_, Some(message), _) => Err(Error::Unopenable(message)),
        (Some(newest), ..) => Ok(FoundCopies::Newest(Box::new(newest))),
        (None, None, Some(error)) => Err(error.into()),
        (None, None, None) if blank => Ok(FoundCopies::Nothing),
        (None, None, None) => Err(Error::Unopenable(
            "this is not a Shoal store, or all copies of its superblock are damaged; nothing was changed"
                .into(),
        )),
    }
}

/// Returns true if any copy of a superblock has an older version. A program that knows no newer version would start from such a copy and
/// miss everything since, so an opening writes both slots first (R9). The version of the newest copy alone is not enough: after an
/// interrupted upgrade, one copy of a slot may be new and the other one old.
pub async fn has_older(device: &Device) -> bool {
    for block in SUPERBLOCK_COPIES.into_iter().flatten().filter(|&block| block < device.blocks()) {
        if let Ok(bytes) = device.read(block, IoBuf::unfilled(1)).await.ok()
            && Superblock::decode(&bytes).is_some_and(|superblock| superblock.version < FORMAT_VERSION)
        {
            return true;
        }
    }
    false
}

/// The number of a superblock that this program does not understand, and the reason; the number is 0 if the block is also damaged.
fn foreign_copy(block: &[u8]) -> Option<(u64, String)> {
    if block.get(..8) != Some(&MAGIC[..]) {
        return None;
    }
    let message = needs(block)?;
    let number = if is_whole(block) { Reader::new(block.get(NUMBER_OFFSET..)?).u64().ok()? } else { 0 };
    Some((number, message))
}

/// The blocks of both copies of superblock `number`.
pub fn copies(number: u64) -> [u64; 2] {
    SUPERBLOCK_COPIES[(number % 2) as usize]
}

/// Claims a shared device for an opening (R45): publishes the newest superblock again under the next number, so that a server that has the
/// device finds a superblock that it did not write, before this opening reads the log. Returns the claim.
///
/// # Errors
/// [`Error::NoRoom`]: nothing was claimed. As [`check_newest`]; as the device.
pub async fn claim(device: &Device) -> Result<Superblock> {
    let FoundCopies::Newest(newest) = read_newest(device).await? else { return Err(gone()) };
    newest.features.check_writable()?;
    let claim = Superblock { number: newest.number + 1, ..*newest };
    write(device, &claim).await?;
    check_newest(device, &claim).await?;
    Ok(claim)
}

fn gone() -> Error {
    Error::Unopenable("the superblocks are gone from the device since they were read".into())
}

/// Checks that `wanted` is still the newest superblock.
///
/// # Errors
/// [`Error::Unopenable`] if another server published one since; as the device.
pub async fn check_newest(device: &Device, wanted: &Superblock) -> Result<()> {
    let FoundCopies::Newest(found) = read_newest(device).await? else {
        return Err(Error::Unopenable(
            "the superblocks are gone from the device since they were read".into(),
        ));
    };
    // An upgrade changes the version in memory first.
    let is_same = found.version != wanted.version || found.encode()[..] == wanted.encode()[..];
    if is_same && (found.number, found.epoch) == (wanted.number, wanted.epoch) {
        return Ok(());
    }
    Err(Error::Unopenable(format!(
        "another server writes to the device: it has superblock {} of opening {}, instead of {} of opening {}. Stop that server, or let the \
         device refuse its writes, before you start this one again",
        found.number, found.epoch, wanted.number, wanted.epoch
    )))
}

/// Writes both copies of `superblock` to its slot and makes them durable.
///
/// # Errors
/// As [`write_copies`] and [`flush`].
pub async fn write(device: &Device, superblock: &Superblock) -> Result<()> {
    write_copies(device, superblock).await?;
    flush(device).await
}

/// Writes both copies of `superblock` to its slot; they are durable after a [`flush`]. One copy is enough if there is no room for the other
/// one; the slot's next superblock writes that one.
///
/// # Errors
/// [`Error::NoRoom`]: neither copy is on the device. [`Error::Corrupt`]: a total of a forged tree is larger than any store's, and an opening
/// would refuse the superblock. As the device; the number must not be used again then (R20).
pub async fn write_copies(device: &Device, superblock: &Superblock) -> Result<()> {
    let slot = if injected(Bug::OneSlot) { 0 } else { (superblock.number % 2) as usize };
    let slot = SUPERBLOCK_COPIES[slot];
    if !superblock.is_sensible(COUNTER_MAX) {
        let what = "the superblock to be written has a number that no store reaches".into();
        return Err(Error::Corrupt { what, block: slot[0] });
    }
    let mut batch = device.batch();
    let writes = slot.map(|block| batch.add(device.write(block, superblock.encode())));
    batch.start();
    let (mut is_written, mut without_room, mut failed) = (false, None, None);
    for write in writes {
        match write.await.ok() {
            Ok(_) => is_written = true,
            Err(error) if error.is_no_room() => without_room = Some(error),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    let Some(error) = without_room else { return Ok(()) };
    if is_written || is_at(device, slot, superblock).await? {
        tracing::warn!("superblock {} has one copy only: {error}", superblock.number);
        return Ok(());
    }
    Err(error.into())
}

/// Returns true if one of these blocks holds `superblock`: a write that failed for lack of room may have been written anyway.
async fn is_at(device: &Device, blocks: [u64; 2], superblock: &Superblock) -> Result<bool> {
    let wanted = superblock.encode();
    for block in blocks {
        if device.read(block, IoBuf::unfilled(1)).await.ok()?[..] == wanted[..] {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the written copies of a superblock durable.
///
/// # Errors
/// As the device; the number must not be used again then (R20).
pub async fn flush(device: &Device) -> Result<()> {
    if injected(Bug::SuperblockNotFlushed) {
        return Ok(());
    }
    device.flush().await.ok()?;
    Ok(())
}
