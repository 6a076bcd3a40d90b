//! The file NAME.unfinished, under which a new store is made: who may take it over.
//!
//! A creation that was interrupted leaves such a file, and the next one takes it over without a question. So a file of that name must
//! be recognised by what it holds: nothing at all, a layout without a superblock, a store that was never opened and so holds nothing,
//! or a store with the mark of a restore. Anything else is somebody's, and stays.

use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64};
use shoal_common::error::{Error, Result};
use shoal_common::options::Environment;
use shoal_device::blank::look;
use shoal_device::{Device, IoBuf};
use shoal_image::copies::{self, FoundCopies};
use shoal_image::layout::{AREAS_FIRST, SUPERBLOCK_COPIES};
use shoal_space::image::{SNAPSHOT_PIECE_BYTES_MAX, published_piece};

use crate::store::Store;

/// The block of the mark: one of those between the copies of the superblock, which are zero otherwise.
const MARK_BLOCK: u64 = 16;
/// The mark of a store that a restore fills (`docs/format/superblock.md`).
const MARK: &[u8; 32] = b"Shoal store, restore unfinished\n";
const _: () = assert!(MARK.len() <= BLOCK_BYTES);
const _: () = {
    let [[first, second], [third, fourth]] = SUPERBLOCK_COPIES;
    assert!(MARK_BLOCK != first && MARK_BLOCK != second && MARK_BLOCK != third && MARK_BLOCK != fourth);
    assert!(MARK_BLOCK < AREAS_FIRST, "the mark is stored in an area");
};
/// Blocks that one request reads.
const READ_BLOCKS: u64 = 256;
const PIECE_BLOCKS: u64 = (SNAPSHOT_PIECE_BYTES_MAX / BLOCK_BYTES) as u64;

impl Store {
    /// Empties the file of an interrupted creation of a store, on whose name a new one is to be made. An empty file is as good.
    ///
    /// # Errors
    /// [`Error::Unopenable`] if the file may be somebody else's: nothing was changed then. As the device.
    pub fn take_over<'a>(device: &'a Device, environment: &'a Environment) -> Boxed<'a, Result<()>> {
        Box::pin(async {
            if let Some(found) = foreign(device, environment).await? {
                let path = device.inner().path().unwrap_or_default();
                return Err(Error::Unopenable(format!(
                    "{0} is in the way: {found}. A new store is made under that name first, and only a file that an interrupted start \
                     or restore left is taken over. Move {0} elsewhere, or remove it, and try again",
                    path.display()
                )));
            }
            let emptied = device.inner().shrink(0);
            emptied
                .map_err(|error| Error::Unopenable(format!("the unfinished file cannot be emptied: {error}")))
        })
    }

    /// Marks the new store on `device` as one that is being filled ([`take_over`](Self::take_over)), or takes the mark away. The store
    /// is not open.
    ///
    /// # Errors
    /// As the device.
    pub fn mark_unfinished(device: &Device, is_unfinished: bool) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let mut block = IoBuf::new(1);
            if is_unfinished {
                block[..MARK.len()].copy_from_slice(MARK);
            }
            device.write(MARK_BLOCK, block).await.ok()?;
            device.flush().await.ok()?;
            Ok(())
        })
    }
}

/// The contents of the file, unless they are those of an unfinished creation.
async fn foreign(device: &Device, environment: &Environment) -> Result<Option<String>> {
    if !device.inner().can_grow() {
        return Ok(Some("it is a block device".into()));
    }
    let content = look(device, &*environment.entropy).await?;
    let Some(first_byte) = content.first_byte else { return Ok(None) };
    Ok(match copies::read_newest(device).await {
        Ok(FoundCopies::Newest(superblock)) if superblock.number == 1 && superblock.epoch == 0 => None,
        Ok(FoundCopies::Newest(_)) if is_marked(device).await? => None,
        Ok(FoundCopies::Newest(_)) => Some("it holds a Shoal store that was in use".into()),
        Ok(FoundCopies::Nothing) if holds_only_a_layout(device, first_byte / BLOCK_BYTES_U64).await? => None,
        Ok(FoundCopies::Nothing) | Err(Error::Unopenable(_)) => Some(content.to_string()),
        Err(error) => return Err(error),
    })
}

async fn is_marked(device: &Device) -> Result<bool> {
    let block = device.read(MARK_BLOCK, IoBuf::unfilled(1)).await.ok()?;
    Ok(block.starts_with(MARK))
}

/// Returns true if `first` begins the space image of a new store, and nothing else is in the file: the superblock was about to be
/// written.
async fn holds_only_a_layout(device: &Device, first: u64) -> Result<bool> {
    let last_copy = SUPERBLOCK_COPIES.into_iter().flatten().max().unwrap_or(0);
    if first <= last_copy || first >= device.blocks() {
        return Ok(false);
    }
    let blocks = PIECE_BLOCKS.min(device.blocks() - first);
    let bytes = device.read(first, IoBuf::unfilled(blocks as usize)).await.ok()?;
    let Some((1, pieces)) = published_piece(&bytes) else { return Ok(false) };
    let image = first..first.saturating_add(u64::from(pieces) * PIECE_BLOCKS);
    let mut at = 0;
    while at < device.blocks() {
        let data = device.inner().data_after(at).unwrap_or(Ok(at..device.blocks()));
        let data =
            data.map_err(|error| Error::Unopenable(format!("the unfinished file cannot be read: {error}")))?;
        if data.is_empty() {
            break;
        }
        let blocks = READ_BLOCKS.min(data.end - data.start);
        let bytes = device.read(data.start, IoBuf::unfilled(blocks as usize)).await.ok()?;
        let used = |(_, block): &(u64, &[u8])| block.iter().any(|&byte| byte != 0);
        if (data.start..)
            .zip(bytes.chunks(BLOCK_BYTES))
            .filter(used)
            .any(|(block, _)| !image.contains(&block))
        {
            return Ok(false);
        }
        at = data.start + blocks;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};

    use shoal_device::FileOptions;
    use shoal_device::file::open;

    use super::*;
    use crate::testing::fixtures::{environment, open_in, options};
    use crate::{FormatOptions, block_on};

    fn opened(path: &Path) -> Device {
        open(path, &FileOptions { create: true, ..FileOptions::default() }).unwrap()
    }

    fn taken_over(path: &Path) -> Result<()> {
        block_on(Store::take_over(&opened(path), &environment()))
    }

    fn formatted(folder: &Path) -> PathBuf {
        let path = folder.join("new");
        let _ = fs::remove_file(&path);
        block_on(Store::format(&opened(&path), &FormatOptions::for_blocks(1 << 14), &environment())).unwrap();
        path
    }

    fn write(path: &Path, at: u64, bytes: &[u8]) {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
    }

    /// A creation may end anywhere.
    #[test]
    fn the_file_of_an_interrupted_creation_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let without_superblock = |path: &Path| write(path, 0, &vec![0; 34 * BLOCK_BYTES]);
        let one_copy =
            |path: &Path| [0, 32].iter().for_each(|block| write(path, block * BLOCK_BYTES_U64, &[0; 8]));
        let cases: [&dyn Fn(&Path); 5] = [
            &|path| drop(File::create(path).unwrap()),
            &|path| File::create(path).unwrap().set_len(200_011).unwrap(),
            &without_superblock,
            &one_copy,
            &|_| {},
        ];
        for (number, leave) in cases.iter().enumerate() {
            let path = formatted(folder.path());
            leave(&path);
            if number == 3 {
                // Superblock 1 has its copies at 1 and 33.
                assert!(fs::read(&path).unwrap()[BLOCK_BYTES..].starts_with(b"SHOALSB"));
            }
            taken_over(&path).unwrap();
            assert!(fs::metadata(&path).unwrap().len() < 300_000, "case {number} is empty now");
        }
        // A restore that was filling its store.
        let path = formatted(folder.path());
        block_on(Store::mark_unfinished(&opened(&path), true)).unwrap();
        block_on(open_in(&opened(&path), options(), environment()).close()).unwrap();
        taken_over(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn other_files_are_kept_and_named() {
        let folder = tempfile::tempdir().unwrap();
        type Make<'a> = &'a dyn Fn(&Path);
        let cases: [(Make<'_>, &str); 6] = [
            (&|path| fs::write(path, "Dear Ann,").unwrap(), "it holds data (the first at byte 0)"),
            (&|path| fs::write(path, [vec![0; 200_000], b"word".to_vec()].concat()).unwrap(), "byte 200000"),
            // A store that was opened, and one whose restore is over.
            (
                &|path| block_on(open_in(&opened(path), options(), environment()).close()).unwrap(),
                "a Shoal store that was in use",
            ),
            (
                &|path| {
                    block_on(Store::mark_unfinished(&opened(path), true)).unwrap();
                    block_on(open_in(&opened(path), options(), environment()).close()).unwrap();
                    block_on(Store::mark_unfinished(&opened(path), false)).unwrap();
                },
                "a Shoal store that was in use",
            ),
            // A layout without a superblock, and something besides.
            (
                &|path| {
                    write(path, 0, &vec![0; 34 * BLOCK_BYTES]);
                    let length = fs::metadata(path).unwrap().len();
                    write(path, length - 1, &[1]);
                },
                "it is not blank",
            ),
            // A store that was in use, and lost its superblocks.
            (
                &|path| {
                    block_on(open_in(&opened(path), options(), environment()).close()).unwrap();
                    write(path, 0, &vec![0; 34 * BLOCK_BYTES]);
                },
                "it is not blank",
            ),
        ];
        for (leave, words) in cases {
            let path = formatted(folder.path());
            leave(&path);
            let before = fs::read(&path).unwrap();
            let refused = taken_over(&path).unwrap_err().to_string();
            assert!(refused.contains(words) && refused.contains(path.to_str().unwrap()), "{refused}");
            assert!(refused.contains("Move") && fs::read(&path).unwrap() == before, "{words}");
        }
    }
}
