//! Hostile contents of the device: `shoal_engine::hostile::space_image` documents the use of an input.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| shoal_engine::hostile::space_image(input));
