//! The reports of `check`.

use shoal_base::BLOCK_BYTES;
use shoal_device::Device;
use shoal_device_sim::Image;
use shoal_engine::{CheckOptions, CheckReport, Result, block_on, check};

/// Checks without repair.
pub(crate) fn checked(device: &Device) -> Result<CheckReport> {
    block_on(check(device.clone(), &CheckOptions::default()))
}

/// Checks and repairs.
pub(crate) fn repaired(device: &Device) -> Result<CheckReport> {
    block_on(check(device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }))
}

/// Gives up lost data, then acknowledges the losses. Returns the report of the first step.
pub(crate) fn acknowledged(device: &Device) -> CheckReport {
    let options = CheckOptions { acknowledge: true, ..CheckOptions::default() };
    let report = block_on(check(device.clone(), &options)).unwrap();
    if !report.losses.is_none() {
        let seen = block_on(check(device.clone(), &options)).unwrap();
        assert!(seen.losses.is_none() && seen.remembered.lost >= report.losses.lost, "{seen:?}");
    }
    report
}

/// Returns true if a check without repair completes and finds no problem.
pub(crate) fn is_clean(device: &Device) -> bool {
    checked(device).is_ok_and(|report| report.is_clean())
}

/// Returns the problems that a check without repair finds as an error.
pub(crate) fn check_clean(device: &Device) -> std::result::Result<(), String> {
    let report = checked(device).map_err(|error| format!("check: {error}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("check: {:?}", report.problems)) }
}

/// Asserts that `check` without repair finds no problem.
pub(crate) fn assert_clean(device: &Device, what: &str) {
    check_clean(device).unwrap_or_else(|found| panic!("{what}: {found}"));
}

/// Corrupts both copies of the newest superblock.
pub(crate) fn rot_newest(image: &mut Image) {
    const COPIES: [[u64; 2]; 2] = [[0, 32], [1, 33]];
    let number = |image: &Image, block| u64::from_le_bytes(image.block(block)[32..40].try_into().unwrap());
    let newest =
        |image: &Image, copy: usize| usize::from(number(image, copy as u64) < number(image, copy as u64 + 1));
    let slot = newest(image, 0);
    COPIES[slot].iter().for_each(|&block| image.write(block, &[0x5A; BLOCK_BYTES]));
}
