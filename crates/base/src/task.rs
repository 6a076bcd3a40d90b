//! A minimal executor: runs one future on the calling thread, which may block.
//!
//! The engine's code is written once, as futures. On a runtime's thread a future that needs the device submits its
//! request and is woken when it completed. Under [`block_on`] the thread may block, so the device layer runs the
//! request on the spot ([`may_block`]): a hand-off to another thread costs more than a read from a fast device
//! (`shared/bufferpool.md`, section 1).

use std::cell::Cell;
use std::future::Future;

#[cfg(not(shoal_shuttle))]
use self::parked::run;
use crate::sync::thread_local;
#[cfg(shoal_shuttle)]
use shuttle::future::block_on as run;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs under [`block_on`], so that I/O may block it.
#[must_use]
pub fn may_block() -> bool {
    MAY_BLOCK.with(Cell::get)
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_BLOCK.with(|may_block| may_block.set(self.0));
    }
}

/// Runs `future` to its end on this thread; device requests inside run on this thread too.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let _restore = Restore(MAY_BLOCK.with(|may_block| may_block.replace(true)));
    run(future)
}

/// A thread that sleeps until its future is woken.
#[cfg(not(shoal_shuttle))]
mod parked {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, Thread};

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    pub(super) fn run<F: Future>(future: F) -> F::Output {
        thread_local! {
            static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
        }
        let mut future = pin!(future);
        WAKER.with(|waker| {
            let mut context = Context::from_waker(waker);
            loop {
                match future.as_mut().poll(&mut context) {
                    Poll::Ready(output) => return output,
                    Poll::Pending => thread::park(),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_when_blocking_is_allowed() {
        assert!(!may_block());
        block_on(async {
            assert!(may_block());
            block_on(async { assert!(may_block()) });
            assert!(may_block());
        });
        assert!(!may_block());
    }
}
