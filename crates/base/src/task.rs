//! A minimal executor: runs one future on the calling thread, which may block.
//!
//! The engine's code is written once, as futures. On a runtime's thread a future that needs the device submits its
//! request and is woken when it completed. Under [`block_on`] the thread may block, so the device layer runs the
//! request on the spot ([`may_block`]): a hand-off to another thread costs more than a read from a fast device.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

#[cfg(not(shoal_shuttle))]
use self::parked::{pass_on_wakes, run};
use crate::plug::unplugged;
use crate::sync::thread_local;
#[cfg(shoal_shuttle)]
use shuttle::future::block_on as run;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the calling thread runs under [`block_on`], so that I/O may block it.
#[must_use]
pub fn may_block() -> bool {
    MAY_BLOCK.with(Cell::get)
}

/// A future of a plain function: the crate of that function compiles it, once.
///
/// The code of an `async fn` is compiled by each crate that awaits it, with all that it awaits. Work off the hot paths is returned in such
/// a box instead.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Lets the other tasks of the thread run before this one continues.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_BLOCK.with(|may_block| may_block.set(self.0));
    }
}

/// Runs `future` to completion on this thread; device requests inside run on this thread too. It may be called while another future is
/// polled under it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut output = None;
    drive(&mut poll_fn(|context| future.as_mut().poll(context).map(|it| output = Some(it))));
    match output {
        Some(output) => output,
        None => unreachable!("the future has ended"),
    }
}

/// The future is passed by reference: this function and its callees are compiled once, and not again for each future.
fn drive(future: &mut Polled<'_>) {
    let restore = Restore(MAY_BLOCK.with(|may_block| may_block.replace(true)));
    unplugged(|| run(future));
    if restore.0 {
        pass_on_wakes();
    }
}

/// A future that keeps its output.
type Polled<'a> = dyn Future<Output = ()> + Unpin + 'a;

/// Under shuttle no two futures of a thread wait at the same time.
#[cfg(shoal_shuttle)]
fn pass_on_wakes() {}

/// A thread that sleeps until its future is woken.
#[cfg(not(shoal_shuttle))]
mod parked {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};
    use std::thread::{self, Thread};

    use super::Polled;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    /// A run under another one may have slept through wakes that were meant for that: it polls its future once more.
    pub(super) fn pass_on_wakes() {
        thread::current().unpark();
    }

    pub(super) fn run(future: &mut Polled<'_>) {
        thread_local! {
            static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
        }
        WAKER.with(|waker| {
            let mut context = Context::from_waker(waker);
            while Pin::new(&mut *future).poll(&mut context).is_pending() {
                thread::park();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::task::Poll;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A future that is woken while it is polled, and another one completes in the same poll, on the same thread.
    #[test]
    fn nested_block_on_keeps_wakeup() {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut polls = 0;
            block_on(poll_fn(|context| {
                polls += 1;
                if polls == 2 {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                let mut inner_polls = 0;
                block_on(poll_fn(|context| {
                    inner_polls += 1;
                    if inner_polls == 3 {
                        return Poll::Ready(());
                    }
                    if inner_polls == 2 {
                        context.waker().wake_by_ref();
                    }
                    Poll::Pending
                }));
                Poll::Pending
            }));
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(Duration::from_secs(60)).expect("the thread sleeps for ever");
    }

    #[test]
    fn may_block_only_under_block_on() {
        assert!(!may_block());
        block_on(async {
            assert!(may_block());
            block_on(async { assert!(may_block()) });
            assert!(may_block());
        });
        assert!(!may_block());
    }
}
