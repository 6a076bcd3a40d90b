//! Tests of `event.rs` on real threads; `models.rs` runs the same code under every schedule.

use super::event::Token;
use shoal_base::task::block_on;
use std::sync::Arc;

#[test]
fn one_at_a_time() {
    let token = Arc::new(Token::new(0_u64));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let token = token.clone();
            std::thread::spawn(move || {
                for _ in 0..1000 {
                    let mut guard = block_on(token.take());
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
    assert_eq!(*block_on(token.take()), 4000);
    let held = token.try_take();
    assert!(token.try_take().is_none());
    drop(held);
}
