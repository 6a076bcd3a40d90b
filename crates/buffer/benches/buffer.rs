//! What the buffer's operations cost beside those of other buffers, and from which length on a chunk is better referred
//! to than copied.
//!
//! `cargo bench -p shoal-buffer [-- FILTER]`: the table of `buffer_table` for people, and with no filter or `refer` the
//! search for `COPY_BYTES_MAX`.

#[path = "../src/bin/buffer_table/cases.rs"]
mod cases;

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use shoal_buffer::Buffer;

const SLICES: usize = 100;

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    println!("{:<26}{:<14}{:>10}{:>10}", "test", "", "median ns", "best ns");
    for row in cases::measure(SLICES, &filter) {
        println!("{:<26}{:<14}{:>10.2}{:>10.2}", row.test, row.implementation, row.median_ns, row.best_ns);
    }
    if "refer".contains(filter.as_str()) {
        refer();
    }
}

/// A reply of a header and a body whose memory is shared, written as the socket does: by copying all its bytes once.
fn refer() {
    println!("\n{:<12}{:>14}{:>14}{:>22}", "body bytes", "copied ns", "referred ns", "referred + sent ns");
    for count in [16, 64, 128, 256, 384, 512, 768, 900, 1024, 2048, 4096] {
        let body = Bytes::from(vec![7; count]);
        // A second owner: what is referred to lives elsewhere, as a frame of the pool does.
        let _owner = body.clone();
        let mut sink = vec![0; count + 16];
        let copied = median(|| {
            let mut buffer = Buffer::new();
            buffer.append_copy(&[1; 16]);
            buffer.append_copy(black_box(&body));
            black_box(&mut buffer);
        });
        let referred = median(|| {
            let mut buffer = Buffer::new();
            buffer.append_copy(&[1; 16]);
            buffer.append_external(black_box(&body).clone());
            black_box(&mut buffer);
        });
        let sent = median(|| {
            let mut buffer = Buffer::new();
            buffer.append_copy(&[1; 16]);
            buffer.append_external(black_box(&body).clone());
            let done = black_box(&mut buffer).copy_out(0, &mut sink);
            black_box((done.is_ok(), &mut sink));
        });
        println!("{count:<12}{copied:>14.1}{referred:>14.1}{sent:>22.1}");
    }
}

fn median(mut operation: impl FnMut()) -> f64 {
    const ITERATIONS: usize = 10_000;
    let mut samples: Vec<f64> = (0..SLICES)
        .map(|_| {
            let start = Instant::now();
            (0..ITERATIONS).for_each(|_| operation());
            start.elapsed().as_nanos() as f64 / ITERATIONS as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[SLICES / 2]
}
