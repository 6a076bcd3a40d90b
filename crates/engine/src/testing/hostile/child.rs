//! An inner page with valid checksums that names a child at a block where no page can be.

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;

use super::*;
use crate::Error;

const COUNT: u64 = 150;

fn object(which: u64) -> ObjectKey {
    ObjectKey::new("default", format!("object-{which:03}").as_bytes()).unwrap()
}

/// A closed store with one tablet whose root is an inner page.
fn subject() -> (Image, Superblock) {
    let sim = SimDevice::with_options(Image::new(BLOCKS), quiet());
    let device = Device::new(sim.clone());
    let format = FormatOptions { tablets: 1, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS) };
    let newest = block_on(async {
        Store::format(&device, &format, &environment()).await?;
        let store = Store::open(device.clone(), options(false), environment()).await?;
        for which in 0..COUNT {
            store.put(&object(which), vec![which as u8; 80].into(), PutOptions::default()).await?;
        }
        store.0.checkpointer.apply_all().await?;
        store.close().await?;
        read_newest(&device).await
    });
    let FoundCopies::Newest(superblock) = newest.unwrap() else { panic!("there is a store") };
    (sim.image(), *superblock)
}

/// Returns the image with the last child of the root at block `wrong`, and every checksum above it corrected.
fn with_child_at(image: &Image, superblock: &Superblock, wrong: u64) -> Image {
    let (mut image, mut superblock) = (image.clone(), superblock.clone());
    let root = superblock.tablets[0].root.page.as_mut().expect("there are objects");
    let mut page: [u8; BLOCK_BYTES] = *image.block(root.block);
    assert_eq!(page[7], 1, "the root is an inner page");
    // Block (six bytes) and checksum, as in docs/format/page.md.
    let place = (superblock.layout.data_first()..image.blocks())
        .filter_map(|block| {
            let child = [&block.to_le_bytes()[..6], &image.block(block)[..4]].concat();
            page.windows(child.len()).position(|bytes| bytes == child)
        })
        .max()
        .expect("its children are there");
    page[place..place + 6].copy_from_slice(&wrong.to_le_bytes()[..6]);
    root.crc = crc32c(&page[4..]);
    let crc = root.crc.to_le_bytes();
    page[..4].copy_from_slice(&crc);
    image.write(root.block, &page);
    layout::write_superblock(&mut image, &superblock);
    image
}

#[test]
fn child_outside_page_area_is_rejected() {
    let (image, superblock) = subject();
    let layout = superblock.layout;
    let places = [0, 1, layout.log_first(), layout.data_first() - 1, BLOCKS, BLOCKS + 7, (1 << 47) - 1];
    for wrong in places {
        let image = with_child_at(&image, &superblock, wrong);
        let device = Device::new(SimDevice::with_options(image, quiet()));
        let check = |repair| {
            let options = CheckOptions { repair, cache_bytes: 256 << 10, ..CheckOptions::default() };
            block_on(crate::check(device.clone(), &options)).unwrap()
        };
        let found = check(false);
        let is_named = |report: &crate::CheckReport| report.problems.iter().any(|it| it.block == wrong);
        assert!(is_named(&found), "{wrong}: {found:?}");
        let store = block_on(Store::open(device.clone(), options(false), environment())).unwrap();
        let get = |store: &Store, which| block_on(store.get(&object(which), ByteRange::ALL));
        let mut lost = 0;
        for which in 0..COUNT {
            match get(&store, which) {
                Ok(Some(object)) => assert_eq!(object.value.to_vec(), vec![which as u8; 80]),
                Err(Error::Corrupt { block, .. }) if block == wrong => lost += 1,
                other => panic!("{wrong}: {which}: {other:?}"),
            }
        }
        assert!(lost > 0 && lost < COUNT, "{wrong}: {lost} are lost");
        // The apply replaces the lost leaf; its block is not freed. Twice: freed blocks are allocated again.
        for turn in 1..3_u8 {
            for which in 0..COUNT {
                let value = vec![which as u8 ^ turn; 80];
                block_on(store.put(&object(which), value.into(), PutOptions::default())).unwrap();
            }
            block_on(store.0.checkpointer.apply_all()).unwrap();
        }
        block_on(store.close()).unwrap();
        drop(store);
        check(true);
        let left = check(false);
        let is_expected =
            |what: &str| what.contains("were lost with a damaged page") || what.contains("not trusted");
        assert!(left.problems.iter().all(|it| is_expected(&it.what)), "{wrong}: {left:?}");
        let store = block_on(Store::open(device.clone(), options(false), environment())).unwrap();
        for which in 0..COUNT {
            assert_eq!(
                get(&store, which).unwrap().unwrap().value.to_vec(),
                vec![which as u8 ^ 2; 80],
                "{wrong}"
            );
        }
        block_on(store.close()).unwrap();
    }
}
