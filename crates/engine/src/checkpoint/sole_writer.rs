//! Detects that the data file does not belong to this store alone any more: another program writes to it, or it was cut, replaced or
//! restored.
//!
//! Locks exclude a second program that asks for them. Nothing excludes one on another machine, or on a path to the same bytes that this
//! system does not know. But a store that is opened for writing publishes a superblock before anything else, and only the holder of the
//! publisher's token writes superblocks here. So a superblock on the device that is newer than the newest of this store, or has its number
//! and other contents, was written by another program. If both copies of the newest are gone, the file is not the one that was written. A
//! copy that is damaged or cannot be read proves nothing: the scrub reports it.

use shoal_base::sync::atomic::Ordering;
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{Device, IoBuf};
use shoal_image::copies::copies;
use shoal_image::layout::SUPERBLOCK_COPIES;
use shoal_image::superblock::Superblock;

use crate::checkpoint::checkpointer::Checkpointer;

impl Checkpointer {
    /// Checks before a publish after `newest` that the data file was not cut and that no other program published. The copies are read once
    /// per period, and always if `now` is set.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned).
    pub(crate) async fn check_sole_writer(&self, newest: &Superblock, now: bool) -> Result<()> {
        if let Some(what) = self.device.inner().shortened(newest.device_blocks) {
            self.log.lose_file(what);
        }
        let now_ns = self.now_ns();
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        let is_due = now || now_ns.saturating_sub(looked_ns) >= self.tuning.file_look_ns;
        // Until the superblock of this opening finds room, the device has the previous one under the same number.
        if is_due && !self.log.committer.room.awaits_opening() {
            self.looked_ns.store(now_ns, Ordering::Relaxed);
            if let Some(what) = other_writer(&self.device, newest).await {
                self.log.lose_file(what);
            }
        }
        self.log.poison.check()
    }

    /// The reason why the data file is not at its place or not as this store wrote it: its name, length or superblock differs. Queries the
    /// file system, so it may block. Also `None` while a superblock is being published; the publish checks the length.
    pub(crate) async fn lost_file(&self) -> Option<String> {
        let device = self.device.inner();
        if let Some(what) = device.displaced() {
            return Some(what);
        }
        let newest = self.publisher.try_take()?;
        if let Some(what) = device.shortened(newest.device_blocks) {
            return Some(what);
        }
        if self.log.committer.room.awaits_opening() {
            return None;
        }
        self.looked_ns.store(self.now_ns(), Ordering::Relaxed);
        other_writer(&self.device, &newest).await
    }
}

/// The evidence that the newest superblock on the device is not `newest`, which this store wrote.
async fn other_writer(device: &Device, newest: &Superblock) -> Option<String> {
    if injected(Bug::FailedSuperblockForgiven) || injected(Bug::OneSlot) {
        return None;
    }
    let written = newest.encode();
    let own = copies(newest.number);
    let mut gone = 0;
    let what =
        device.inner().path().map_or_else(|| "the device".to_owned(), |path| path.display().to_string());
    for block in SUPERBLOCK_COPIES.into_iter().flatten() {
        let Ok(bytes) = device.read(block, IoBuf::unfilled(1)).await.ok() else { continue };
        if bytes[..] == written[..] {
            continue;
        }
        let found = Superblock::decode(&bytes);
        if let Some(found) = &found {
            if found.identity != newest.identity {
                return Some(format!(
                    "{what} holds another store now than the one that was opened: it was replaced in place"
                ));
            }
            if found.number >= newest.number {
                return Some(format!(
                    "another program writes to {what}: it has superblock {} of opening {}, and this program wrote {} of opening {} last. \
                     Stop one of the two, then look with `shoal check`",
                    found.number, found.epoch, newest.number, newest.epoch
                ));
            }
        }
        let is_older = found.is_some() || bytes.iter().all(|&byte| byte == 0);
        gone += u32::from(own.contains(&block) && is_older);
    }
    (gone == 2).then(|| {
        format!(
            "{what} no longer has the data of this program: superblock {} is gone from it. It was cut, or overwritten in place",
            newest.number
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_base::BLOCK_BYTES_U64;
    use shoal_device::MemDevice;

    use super::*;
    use crate::testing::fixtures::{environment, open_in, options};
    use crate::{Environment, Error, FormatOptions, ObjectKey, OpenOptions, PutOptions, Store, block_on};

    fn formatted() -> Device {
        formatted_in(&environment())
    }

    fn formatted_in(environment: &Environment) -> Device {
        let device = Device::new(Arc::new(MemDevice::new(1 << 14)));
        block_on(Store::format(&device, &FormatOptions::for_blocks(1 << 14), environment)).unwrap();
        device
    }

    fn opened(device: &Device, look_ns: u64) -> Store {
        let mut options: OpenOptions = options();
        options.tuning.file_look_ns = look_ns;
        open_in(device, options, environment())
    }

    fn put(store: &Store, name: &[u8]) -> Result<()> {
        let key = ObjectKey::new("default", name).unwrap();
        block_on(store.put(&key, vec![1; 100].into(), PutOptions::default())).map(|_| ())
    }

    fn apply(store: &Store) -> Result<()> {
        block_on(store.0.checkpointer.apply_all())
    }

    /// Two programs that opened one device overwrote each other silently.
    #[test]
    fn a_second_writer_makes_both_read_only() {
        let device = formatted();
        let first = opened(&device, 0);
        put(&first, b"one").unwrap();
        apply(&first).unwrap();
        let second = opened(&device, 0);
        put(&first, b"two").unwrap();
        assert!(
            matches!(apply(&first), Err(Error::Poisoned(why)) if why.contains("another program writes to"))
        );
        assert!(matches!(put(&first, b"three"), Err(Error::Poisoned(_))));
        assert!(first.stat().poisoned.unwrap().contains("of opening 2"));
        assert!(matches!(block_on(first.close()), Err(Error::Poisoned(_))), "a stop is no success");
        // The second one has the newest superblock, and nothing of it was overwritten.
        put(&second, b"four").unwrap();
        apply(&second).unwrap();
        block_on(second.close()).unwrap();
    }

    /// A close always checks.
    #[test]
    fn second_writer_is_detected_at_close() {
        let device = formatted();
        let first = opened(&device, u64::MAX);
        drop(opened(&device, u64::MAX));
        assert!(
            matches!(block_on(first.close()), Err(Error::Poisoned(why)) if why.contains("another program"))
        );
    }

    #[test]
    fn emptied_or_replaced_file_is_detected() {
        let write = |device: &Device, blocks: u64, source: Option<&Device>| {
            for block in 0..blocks {
                let bytes = source.map_or_else(
                    || IoBuf::new(1),
                    |source| block_on(source.read(block, IoBuf::unfilled(1))).ok().unwrap(),
                );
                block_on(device.write(block, bytes)).ok().unwrap();
            }
        };
        let cases = ["is gone from it", "another store", "is gone from it"];
        let other = formatted_in(&Environment::default());
        for (case, words) in cases.into_iter().enumerate() {
            let device = formatted();
            let older = Device::new(Arc::new(MemDevice::new(64)));
            write(&older, 64, Some(&device));
            let store = opened(&device, 0);
            put(&store, b"one").unwrap();
            apply(&store).unwrap();
            assert_eq!(block_on(store.0.checkpointer.lost_file()), None);
            write(&device, 34, [None, Some(&other), Some(&older)][case]);
            let what = block_on(store.0.checkpointer.lost_file()).unwrap();
            assert!(what.contains(words), "case {case}: {what}");
            put(&store, b"two").unwrap();
            assert!(matches!(apply(&store), Err(Error::Poisoned(_))));
        }
    }

    /// Bad sectors and bit rot are the scrub's concern: a store that can publish heals them.
    #[test]
    fn damaged_copies_do_not_prove_second_writer() {
        let device = formatted();
        let store = opened(&device, 0);
        for round in 0..4_u8 {
            for block in SUPERBLOCK_COPIES.into_iter().flatten() {
                let mut bytes = block_on(device.read(block, IoBuf::unfilled(1))).ok().unwrap();
                bytes[usize::from(round) * 40] ^= 0x55;
                block_on(device.write(block, bytes)).ok().unwrap();
            }
            assert_eq!(block_on(store.0.checkpointer.lost_file()), None);
            put(&store, &[round]).unwrap();
            apply(&store).unwrap();
        }
        block_on(store.close()).unwrap();
        assert!(device.blocks() * BLOCK_BYTES_U64 > 0);
    }
}
