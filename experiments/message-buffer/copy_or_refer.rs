//! From which length on a chunk is better referred to than copied: `COPY_BYTES_MAX` of the buffer.

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use shoal_buffer::Buffer;

/// Lengths of the body.
pub(super) const BYTES: [usize; 11] = [16, 64, 128, 256, 384, 512, 768, 900, 1024, 2048, 4096];

/// The treatment of the body.
pub(super) const VARIANTS: [&str; 3] = ["copied", "referred", "referred-sent"];

/// Nanoseconds of a reply of a header and a body of `count` bytes whose memory is shared, for each of [`VARIANTS`]: the last
/// is written as the socket does it, by copying all its bytes once.
pub(super) fn measure(slices: usize, count: usize) -> [f64; 3] {
    let body = Bytes::from(vec![7; count]);
    // A second owner: the bytes that are referred to live elsewhere, as a frame of the pool does.
    let _owner = body.clone();
    let mut sink = vec![0; count + 16];
    let copied = median(slices, || {
        let mut buffer = Buffer::new();
        buffer.append_copy(&[1; 16]);
        buffer.append_copy(black_box(&body));
        black_box(&mut buffer);
    });
    let referred = median(slices, || {
        let mut buffer = Buffer::new();
        buffer.append_copy(&[1; 16]);
        buffer.append_external(black_box(&body).clone());
        black_box(&mut buffer);
    });
    let sent = median(slices, || {
        let mut buffer = Buffer::new();
        buffer.append_copy(&[1; 16]);
        buffer.append_external(black_box(&body).clone());
        let done = black_box(&mut buffer).copy_out(0, &mut sink);
        black_box((done.is_ok(), &mut sink));
    });
    [copied, referred, sent]
}

fn median(slices: usize, mut operation: impl FnMut()) -> f64 {
    const ITERATIONS: usize = 10_000;
    let mut samples: Vec<f64> = (0..slices)
        .map(|_| {
            let start = Instant::now();
            (0..ITERATIONS).for_each(|_| operation());
            start.elapsed().as_nanos() as f64 / ITERATIONS as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[slices / 2]
}
