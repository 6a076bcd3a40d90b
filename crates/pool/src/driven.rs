//! Requests to the device that drive themselves: whoever wakes one polls it, and what it brought is taken once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use shoal_base::sync::Mutex;
use shoal_device::{IoFuture, IoMemory, Outcome};

/// What `io` of `request` brought, where that ended just now; else the request is woken when it has. Nothing for who comes second.
pub(crate) fn ended<M: IoMemory, R: Wake + Send + Sync + 'static>(
    io: &Mutex<Option<IoFuture<M>>>,
    request: &Arc<R>,
) -> Option<Outcome<M>> {
    let mut io = io.lock();
    let future = io.as_mut()?;
    let waker = Waker::from(Arc::clone(request));
    let Poll::Ready(outcome) = Pin::new(future).poll(&mut Context::from_waker(&waker)) else {
        return None;
    };
    *io = None;
    Some(outcome)
}
