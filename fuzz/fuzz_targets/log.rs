//! Hostile contents of the device: `shoal_engine::hostile::log` documents the use of an input.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| shoal_engine::hostile::log(input));
