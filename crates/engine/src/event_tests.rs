//! Tests of `event.rs` on real threads; `models.rs` runs the same code under every schedule.

use super::event::Baton;
use shoal_base::task::block_on;
use std::sync::Arc;

#[test]
fn one_at_a_time() {
    let baton = Arc::new(Baton::new(0_u64));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let baton = baton.clone();
            std::thread::spawn(move || {
                for _ in 0..1000 {
                    let mut guard = block_on(baton.take());
                    let seen = *guard;
                    std::hint::spin_loop();
                    *guard = seen + 1;
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*block_on(baton.take()), 4000);
    let held = baton.try_take();
    assert!(baton.try_take().is_none());
    drop(held);
}
