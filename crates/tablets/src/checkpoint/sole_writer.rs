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
use shoal_image::superblock::{Superblock, SuperblockHead};

use crate::checkpoint::checkpointer::Checkpointer;

impl Checkpointer {
    /// Checks before a publish after `newest` that the data file was not cut and that no other program published. The copies are read once
    /// per period, and always if `now` is set or the device is shared.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned).
    pub(crate) async fn check_sole_writer(&self, newest: &Superblock, now: bool) -> Result<()> {
        if let Some(reason) = self.device.inner().shortened(newest.device_blocks) {
            self.log.lose_file(reason);
        }
        let now_ns = self.now_ns();
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        let is_due =
            now || self.watch.is_some() || now_ns.saturating_sub(looked_ns) >= self.tuning.file_look_ns;
        // Until the superblock of this opening finds room, the device has the previous one under the same number.
        if is_due && !self.log.committer.room.awaits_opening() {
            self.looked_ns.store(now_ns, Ordering::Relaxed);
            if let Some(reason) = other_writer(&self.device, newest).await {
                self.log.lose_file(reason);
            }
        }
        self.log.poison.check()
    }

    /// The reason why the data file is not at its place or not as this store wrote it: its name, length or superblock differs. Queries the
    /// file system, so it may block. Also `None` while a superblock is being published; the publish checks the length.
    pub async fn lost_file(&self) -> Option<String> {
        let device = self.device.inner();
        if let Some(reason) = device.displaced() {
            return Some(reason);
        }
        let newest = self.publisher.try_take()?;
        if let Some(reason) = device.shortened(newest.device_blocks) {
            return Some(reason);
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
    let name =
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
                    "{name} holds another store now than the one that was opened: it was replaced in place"
                ));
            }
            if found.number >= newest.number {
                return Some(format!(
                    "another program writes to {name}: it has superblock {} of opening {}, and this program wrote {} of opening {} last. \
                     Stop one of the two, then look with `shoal check`",
                    found.number, found.epoch, newest.number, newest.epoch
                ));
            }
        }
        let newer = SuperblockHead::of(&bytes).filter(|head| !head.is_known && head.number >= newest.number);
        if let Some(head) = newer {
            return Some(format!(
                "another version of shoal writes to {name}: it has superblock {}, and this program wrote {} last. Stop one of the two, then \
                 look with `shoal check` of the newer version",
                head.number, newest.number
            ));
        }
        let is_older = found.is_some() || bytes.iter().all(|&byte| byte == 0);
        gone += u32::from(own.contains(&block) && is_older);
    }
    (gone == 2).then(|| {
        format!(
            "{name} no longer has the data of this program: superblock {} is gone from it. It was cut, or overwritten in place",
            newest.number
        )
    })
}
