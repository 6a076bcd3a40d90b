//! Requests to the device: neighbours share one, several start with one submission, and each drives itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_device::{Completion, Device, IoFuture, IoMemory};

/// The purpose of a request.
pub(crate) trait Purpose<M>: Send + Sync + 'static {
    /// The request ended. Called once, on whichever thread reaps completions.
    fn ended(&self, completion: Completion<M>);
}

/// A request in flight. It is the waker of the device's future, so it completes with or without waiters.
pub(crate) struct Driven<M, P> {
    io: Mutex<Option<IoFuture<M>>>,
    pub(crate) purpose: P,
}

impl<M: IoMemory, P: Purpose<M>> Driven<M, P> {
    /// Drives `io`, which was started, from here on.
    pub(crate) fn drive(io: IoFuture<M>, purpose: P) -> Arc<Self> {
        let driven = Arc::new(Self { io: Mutex::new(Some(io)), purpose });
        driven.poll();
        driven
    }

    fn poll(self: &Arc<Self>) {
        let mut io = self.io.lock();
        let Some(future) = io.as_mut() else { return };
        let waker = Waker::from(self.clone());
        let Poll::Ready(completion) = Pin::new(future).poll(&mut Context::from_waker(&waker)) else { return };
        *io = None;
        drop(io);
        self.purpose.ended(completion);
    }
}

impl<M: IoMemory, P: Purpose<M>> Wake for Driven<M, P> {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

/// Starts requests with one submission: on this thread if it may block and they are not for the `background`.
pub(crate) fn start<M: IoMemory, P: Purpose<M>>(
    device: &Device,
    background: bool,
    requests: impl Iterator<Item = (IoFuture<M>, P)>,
) -> Vec<Arc<Driven<M, P>>> {
    let mut batch = device.batch();
    let requests: Vec<_> = requests.map(|(io, purpose)| (batch.add(io), purpose)).collect();
    if background {
        batch.start_in_background();
    } else {
        batch.start();
    }
    requests.into_iter().map(|(io, purpose)| Driven::drive(io, purpose)).collect()
}

/// Groups of neighbours on the device, with the first block of each. A group has at most `blocks_max` blocks, unless a
/// single thing is longer. `run` is the place of a thing.
pub(crate) fn neighbours<T>(
    mut things: Vec<T>,
    blocks_max: usize,
    run: impl Fn(&T) -> Run,
) -> Vec<(u64, Vec<T>)> {
    things.sort_by_key(|thing| run(thing).block);
    let mut groups: Vec<(Run, Vec<T>)> = Vec::new();
    for thing in things {
        let next = run(&thing);
        match groups.last_mut() {
            Some((all, group))
                if all.end() == next.block && (all.blocks + next.blocks) as usize <= blocks_max =>
            {
                all.blocks += next.blocks;
                group.push(thing);
            }
            _ => groups.push((next, vec![thing])),
        }
    }
    groups.into_iter().map(|(all, group)| (all.block, group)).collect()
}
