//! The first step of an opening, a check and a repair: reads the newest superblock, the space image and the log.

use std::sync::Arc;

use shoal_base::{BLOCK_BYTES, Lsn, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::OpenOptions;
use shoal_device::Device;
use shoal_image::copies::FoundCopies;
use shoal_image::superblock::Superblock;
use shoal_image::{copies, space_image};
use shoal_log::format::RecordKind;
use shoal_log::{FoundLog, read_log};
use shoal_pool::{Pool, PoolOptions};
use shoal_space::FreeImage;
use shoal_tablets::tablet::tree_io::tree_of;
use shoal_tree::Root;
use shoal_tree::layers::page as layers_page;
use shoal_tree::layers::{Layers, Trees};
use shoal_value::{Entry, verify_adopting, verify_direct};

use crate::recovery::owners::Completeness;
use crate::recovery::rebuild::rebuild_image;

/// Frames of a pool at least, however small the configured cache is: an apply and a few reads need them.
const FRAMES_MIN: usize = 64;

/// The error for a damaged log: it names the commands that help.
fn damaged_log(device: &Device, damage: &str) -> String {
    let path = device.inner().path().map_or("FILE".into(), |path| path.display().to_string());
    format!(
        "the log: {damage}. Acknowledged writes may be lost, so the store is not opened. `shoal check --data {path}` lists the \
         damage and changes nothing; `shoal check --data {path} --repair` replays the rest of the log, cuts off the damage and \
         lists the losses"
    )
}

/// The state that recovery read, before anything is written.
pub(crate) struct Recovery {
    pub device: Device,
    pub pool: Pool,
    pub superblock: Superblock,
    /// The layers of each tablet.
    pub layers: Vec<Arc<Layers>>,
    pub log: FoundLog,
    /// Free runs of the published image.
    pub image: FreeImage,
    /// Notes about states that are normal after a crash.
    pub notes: Vec<String>,
    /// Damage that recovery could bypass.
    pub damage: Vec<String>,
    /// True if the log ends before promised records: later ones are lost, and trees may hold some of them.
    pub is_cut: bool,
}

impl Recovery {
    /// The trees of tablet `id`.
    pub(crate) fn trees(&self, id: usize) -> Trees {
        let base = self.superblock.tablets.get(id).map_or(Root::EMPTY, |tablet| tablet.root);
        Trees { base, layers: self.layers.get(id).cloned().unwrap_or_default() }
    }

    /// Reads superblock, space image and log.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) async fn read(device: Device, options: &OpenOptions) -> Result<Self> {
        let superblock = match copies::read_newest(&device).await? {
            FoundCopies::Newest(superblock) => *superblock,
            FoundCopies::Nothing => {
                return Err(Error::Unopenable("the device holds no store: it is empty".into()));
            }
        };
        if device.blocks() < superblock.device_blocks {
            return Err(Error::Unopenable(format!(
                "the device has {} blocks, but its store uses {}: it was truncated",
                device.blocks(),
                superblock.device_blocks
            )));
        }
        let frames = (options.cache_bytes / BLOCK_BYTES).max(FRAMES_MIN);
        assert!(superblock.device_blocks <= device.blocks(), "blocks are read that are not there");
        let pool = Pool::new(device.clone(), PoolOptions::new(frames))
            .map_err(|error| Error::Unopenable(format!("the cache could not be made: {error}")))?;
        let (mut notes, mut damages) = (Vec::new(), Vec::new());
        let mut log = read_log(&device, &superblock.log()).await?;
        let mut is_cut = log.damage.is_some();
        if let Some(damage) = log.damage.take() {
            if !options.accept_damaged_log {
                return Err(Error::Corrupt {
                    what: damaged_log(&device, &damage),
                    block: superblock.layout.log_first(),
                });
            }
            damages.push(format!(
                "the log was damaged, and an opening does not see the records after the damage: {damage}"
            ));
        }
        let layers = read_layers(&device, &superblock, options.accept_damaged_log, &mut damages).await?;
        drop_unfinished(&device, &pool, &superblock, &mut log, &mut notes).await?;
        // An opening that cut the log may have ended before it wrote a batch: then only the trees show the cut.
        is_cut |= superblock.tablets.iter().any(|tablet| tablet.applied >= log.head.first_lsn);
        let image = match space_image::load(&device, &superblock).await {
            Ok(image) => image,
            Err(Error::Io(error)) if options.accept_damaged_log => {
                damages
                    .push(format!("the space image cannot be read ({error}) and was rebuilt from the trees"));
                rebuild_image(&device, &pool, &superblock, &layers, Completeness::AsFarAsTheyGo).await?
            }
            Err(Error::Corrupt { what, block }) => {
                damages.push(format!(
                    "the space image is damaged ({what} at block {block}) and was rebuilt from the trees"
                ));
                let demand = if options.accept_damaged_log {
                    Completeness::AsFarAsTheyGo
                } else {
                    Completeness::MustBeWhole
                };
                rebuild_image(&device, &pool, &superblock, &layers, demand).await?
            }
            Err(error) => return Err(error),
        };
        assert_eq!(layers.len(), superblock.tablets.len(), "each tablet has its layers");
        assert_eq!(
            image.blocks_max(),
            superblock.layout.blocks_max,
            "the image has the geometry of the layout"
        );
        assert!(log.damage.is_none(), "damage of the log is an error, or among the damage that is reported");
        Ok(Self { device, pool, superblock, layers, log, image, notes, damage: damages, is_cut })
    }
}

/// The layers of all tablets.
async fn read_layers(
    device: &Device,
    superblock: &Superblock,
    gives_up: bool,
    damages: &mut Vec<String>,
) -> Result<Vec<Arc<Layers>>> {
    let mut all = Vec::with_capacity(superblock.tablets.len());
    for (id, tablet) in (0_u16..).zip(&superblock.tablets) {
        let Some(stored) = tablet.layers else {
            all.push(Arc::default());
            continue;
        };
        let tree = tree_of(superblock.identity, TabletId(id));
        let (layers, is_readable) = layers_page::load(device, tree, stored, gives_up).await?;
        if !is_readable {
            damages.push(format!(
                "the list of the layers of tablet {id} is damaged (block {}): its objects answer with an error until they are \
                 written again, or `shoal check --repair --acknowledge` gives them up",
                stored.block
            ));
        }
        all.push(Arc::new(layers));
    }
    Ok(all)
}

/// The last batch may be on the device although a value that it names is not: its flush never returned, so nothing in it
/// was acknowledged, and all of it is dropped. Later batches cannot exist.
async fn drop_unfinished(
    device: &Device,
    pool: &Pool,
    superblock: &Superblock,
    log: &mut FoundLog,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(last) = log.batches.last() else { return Ok(()) };
    let mut complete = true;
    for (lsn, record) in (last.header.first_lsn.0..).zip(&last.records) {
        if Lsn(lsn) <= log.promised || record.kind == RecordKind::Delete {
            continue;
        }
        complete &= match Entry::decode(record.body_bytes()) {
            Ok((entry, _)) => {
                let blocks = superblock.device_blocks;
                let verified = if record.adopts {
                    verify_adopting(device, pool, blocks, &entry, Lsn(lsn)).await
                } else {
                    verify_direct(device, pool, blocks, &entry, Lsn(lsn)).await
                };
                match verified {
                    Ok(()) => true,
                    Err(Error::Corrupt { .. }) => false,
                    Err(error) => return Err(error),
                }
            }
            Err(_) => false,
        };
    }
    if !complete && !injected(Bug::UnfinishedKept) {
        notes.push(format!(
            "the last batch (from record {}) was not complete: it was never acknowledged",
            last.header.first_lsn
        ));
        log.head = last.header.place();
        log.batches.pop();
        assert!(
            log.batches.last().is_none_or(|batch| batch.header.next_lsn() <= log.head.first_lsn)
                || injected(Bug::GhostsReplayed),
            "the log continues at its last whole batch (R2)"
        );
    }
    Ok(())
}
