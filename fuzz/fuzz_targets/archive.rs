//! Hostile objects of an archive: `shoal_archive::format::hostile` has the checks.
#![no_main]

use shoal_engine as _; // Its allocator with a limit.

libfuzzer_sys::fuzz_target!(|input: &[u8]| shoal_archive::format::hostile::archive(input));
