//! Hostile requests of the Redis protocol: `shoal_resp::hostile` has the checks.
#![no_main]

use shoal_engine as _; // Its allocator with a limit.

libfuzzer_sys::fuzz_target!(|input: &[u8]| shoal_resp::hostile::resp_requests(input));
