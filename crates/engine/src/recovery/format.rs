//! Lays a new store out on a blank device.

use shoal_base::Lsn;
use shoal_base::slot::SLOT_COUNT;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::options::{Environment, FormatOptions, TABLETS_MAX};
use shoal_device::Device;
use shoal_device::blank::{DENSE_BLOCKS, look};
use shoal_image::copies::FoundCopies;
use shoal_image::features::Features;
use shoal_image::layout::Layout;
use shoal_image::losses::Losses;
use shoal_image::superblock::{self, ArchiveMark, FORMAT_VERSION, Superblock};
use shoal_image::tablet_record::TabletRecord;
use shoal_image::{copies, space_image};
use shoal_log::{LogPlace, first_record};
use shoal_tablets::growth::grow::zero;
use shoal_tablets::growth::longer_log::PREPARED_FIRST;
use shoal_tree::Root;
use shoal_value::packed::Totals;

use crate::store::Store;

/// Blocks for objects in a new file, besides the minimum: 8 MiB.
const INITIAL_BLOCKS: u64 = 1_984;
/// The largest number that the first write of a store may have: counters on the device end at 2^60.
const VERSION_FIRST_MAX: u64 = 1 << 59;

impl Store {
    /// Returns true if `device` holds a store, false if it holds only zeros.
    ///
    /// # Errors
    /// [`Error::Unopenable`] where it holds something foreign or of another version; as the device.
    pub fn probe(device: &Device) -> Boxed<'_, Result<bool>> {
        Box::pin(async { Ok(matches!(copies::read_newest(device).await?, FoundCopies::Newest(_))) })
    }

    /// Lays a new, empty store out on `device`, which must be blank. The store is durable on return.
    ///
    /// A file or a raw device is read in many places first ([`shoal_device::blank`]), a device in memory only in the
    /// places of superblocks. [`FormatOptions::overwrite`] also formats a device that is not blank.
    ///
    /// # Errors
    /// [`Error::NotBlank`] where the device holds something: the message names it; [`Error::Invalid`] for a layout that cannot be;
    /// [`Error::Unopenable`] where a file cannot get its size; as the device.
    pub fn format<'a>(
        device: &'a Device,
        options: &'a FormatOptions,
        environment: &'a Environment,
    ) -> Boxed<'a, Result<()>> {
        Box::pin(Self::lay_out(device, options, environment))
    }

    async fn lay_out(device: &Device, options: &FormatOptions, environment: &Environment) -> Result<()> {
        if !(1..=TABLETS_MAX).contains(&options.tablets) {
            return Err(Error::Invalid(format!("a store has 1 to {TABLETS_MAX} tablets")));
        }
        if !(1..=VERSION_FIRST_MAX).contains(&options.first_version) {
            return Err(Error::Invalid(format!(
                "the first version is a number from 1 to {VERSION_FIRST_MAX}"
            )));
        }
        if !options.overwrite {
            refuse_what_is_there(device, environment).await?;
        }
        let layout = Layout::new(options)?;
        let device_blocks = take_blocks(device, options, &layout)?;
        let prepared = match options.log_prepared {
            _ if !device.inner().can_grow() => layout.log_blocks,
            wanted => wanted.unwrap_or(PREPARED_FIRST).clamp(8, layout.log_blocks),
        };
        wipe(device, &layout, (prepared, device_blocks), options.overwrite).await?;
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&environment.entropy.next_u64().to_le_bytes());
        identity[8..].copy_from_slice(&environment.entropy.next_u64().to_le_bytes());
        let mut superblock = Superblock {
            version: FORMAT_VERSION,
            features: Features::default(),
            identity,
            log_seed: environment.entropy.next_u64(),
            layout,
            number: 1,
            epoch: 0,
            epoch_position: 0,
            durable_lsn: Lsn(options.first_version - 1),
            lsn_ceiling: Lsn(options.first_version - 1),
            device_blocks,
            log_prepared: prepared,
            log_tail: LogPlace { position: 0, chain: 0, first_lsn: Lsn(options.first_version) },
            space: superblock::SpacePlace::default(),
            wall_high_ns: 0,
            clock: first_record(&*environment.clock),
            losses: Losses::default(),
            archive: ArchiveMark::default(),
            tablets: even_tablets(options.tablets),
        };
        superblock.space = space_image::write_first(device, &superblock).await?;
        assert!(prepared <= layout.log_blocks, "more of the ring is prepared than there is");
        assert!(
            layout.is_sensible(device_blocks, superblock.features.incompatible),
            "areas of a new store overlap: {layout:?}"
        );
        assert!(
            superblock.tablets.iter().all(|tablet| tablet.root == Root::EMPTY),
            "a new store holds something"
        );
        let flushes = device.counters().flushes;
        device.flush().await.ok()?;
        assert!(device.counters().flushes > flushes, "an image is named before a flush");
        copies::write(device, &superblock).await
    }
}

/// Makes a file as long as the new store is at first. Returns the blocks of the store.
///
/// # Errors
/// [`Error::Unopenable`] if the file system has no room; [`Error::Invalid`] if the device is too small for `layout`.
fn take_blocks(device: &Device, options: &FormatOptions, layout: &Layout) -> Result<u64> {
    let inner = device.inner();
    let least = layout.data_first() + 64;
    let device_blocks = if inner.can_grow() {
        let wanted = options.initial_blocks.unwrap_or(least + INITIAL_BLOCKS);
        let blocks = wanted.clamp(least, layout.blocks_max);
        // The unprepared part of the log, and the unused one of the space image, take no space yet (INV-40).
        let mut taken = inner.extend(layout.data_first()).and_then(|()| inner.grow(blocks));
        for area in layout.used_areas(blocks) {
            taken = taken.and_then(|()| inner.hold_room(area).map(drop));
        }
        taken.map_err(|error| {
            Error::Unopenable(format!("the data file could not get {blocks} blocks of 4 KiB: {error}"))
        })?;
        blocks
    } else {
        layout.blocks_max.min(device.blocks())
    };
    if device_blocks < least {
        return Err(Error::Invalid(format!(
            "the device has {device_blocks} blocks of 4 KiB; this layout needs at least {least}"
        )));
    }
    assert!(device_blocks <= layout.blocks_max, "a new store is larger than its cap");
    Ok(device_blocks)
}

/// Zeroes the used parts of the areas, the `prepared` blocks of the log, and of a file its first blocks for data; flushed.
///
/// # Errors
/// As the device.
async fn wipe(
    device: &Device,
    layout: &Layout,
    (prepared, device_blocks): (u32, u64),
    overwrite: bool,
) -> Result<()> {
    let zeroed = if device.inner().can_grow() { device_blocks } else { layout.data_first() };
    zero(device, 0, layout.log_first() + u64::from(prepared)).await?;
    zero(device, layout.data_first(), zeroed).await?;
    for area in layout.used_areas(device_blocks) {
        zero(device, area.start, area.end).await?;
    }
    if overwrite {
        for area in layout.unused_areas(device_blocks) {
            // A discard promises nothing, and nothing depends on it.
            drop(device.discard(area.start, area.end - area.start).await);
        }
        // Signatures of the old contents at the start or the end must not identify the device any more.
        let blocks = device.blocks();
        zero(device, zeroed, DENSE_BLOCKS.min(blocks)).await?;
        zero(device, blocks.saturating_sub(DENSE_BLOCKS).max(zeroed), blocks).await?;
    }
    device.flush().await.ok()?;
    Ok(())
}

/// Checks that `device` is blank, as far as it is read.
///
/// # Errors
/// [`Error::NotBlank`]; as the device.
async fn refuse_what_is_there(device: &Device, environment: &Environment) -> Result<()> {
    let found = Store::probe(device).await;
    if matches!(found, Ok(true)) {
        return Err(Error::NotBlank("it holds a Shoal store already".into()));
    }
    if device.inner().may_hold_foreign() {
        let content = look(device, &*environment.entropy).await?;
        if !content.is_blank() {
            return Err(Error::NotBlank(content.to_string()));
        }
    }
    match found {
        Err(Error::Unopenable(_)) => Err(Error::NotBlank("it holds something".into())),
        found => found.map(drop),
    }
}

/// Tablets with equal shares of the hash slots.
fn even_tablets(count: u16) -> Vec<TabletRecord> {
    let border = |index: u16| u32::from(index) * u32::from(SLOT_COUNT) / u32::from(count);
    assert!((1..=TABLETS_MAX).contains(&count), "the table of the superblock has a place for each tablet");
    assert_eq!((border(0), border(count)), (0, u32::from(SLOT_COUNT)), "each slot has a tablet");
    (0..count)
        .map(|index| TabletRecord {
            slot_first: border(index) as u16,
            slot_last: (border(index + 1) - 1) as u16,
            root: Root::EMPTY,
            applied: Lsn::NONE,
            totals: Totals { expiring: Some(0), ..Totals::default() },
            layers: None,
        })
        .collect()
}
