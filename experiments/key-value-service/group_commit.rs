//! A log without a store: writes that wait at the same time share a write and a flush.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::log_file::{LogFile, WRITE_BYTES_MAX};

/// The way to the thread that writes.
pub(super) struct GroupCommit(Sender<Write>);

struct Write {
    key: Bytes,
    value: Bytes,
    done: oneshot::Sender<()>,
}

impl GroupCommit {
    /// Starts the thread, on a new file in `folder`.
    ///
    /// # Errors
    /// As the file and the system.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let log = LogFile::new(folder)?;
        let (sender, receiver) = channel();
        std::thread::Builder::new().name("commit".into()).spawn(move || commit(log, &receiver))?;
        Ok(Self(sender))
    }

    /// Comes back when a key and its value are in the file and flushed.
    ///
    /// # Errors
    /// The file failed, or the two are longer than one write.
    pub(super) async fn append(&self, key: Bytes, value: Bytes) -> Result<()> {
        let (done, waited) = oneshot::channel();
        self.0.send(Write { key, value, done }).ok().context("the log has failed")?;
        waited.await.context("the log has failed, or the value is too long for it")
    }
}

/// Returns after the last sender, or if the file fails: then no waiting caller gets an answer.
fn commit(mut log: LogFile, writes: &Receiver<Write>) {
    let mut next = writes.recv().ok();
    let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
    while let Some(first) = next.take() {
        let mut bytes = 0;
        let mut write = Some(first);
        while let Some(Write { key, value, done }) = write.take() {
            let end = bytes + key.len() + value.len();
            if end > WRITE_BYTES_MAX {
                // A write that is too long for an empty batch gets no answer.
                next = (bytes > 0).then_some(Write { key, value, done });
                break;
            }
            let (keys, values) = (bytes..bytes + key.len(), bytes + key.len()..end);
            log.memory()[keys].copy_from_slice(&key);
            log.memory()[values].copy_from_slice(&value);
            bytes = end;
            waiting.push(done);
            write = writes.try_recv().ok();
        }
        if log.write(bytes).is_err() {
            return;
        }
        // A caller that is gone needs no answer.
        for done in waiting.drain(..) {
            let _ = done.send(());
        }
        next = next.or_else(|| writes.recv().ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_answered_and_one_too_long_fails_alone() {
        let folder = tempfile::tempdir().unwrap();
        let log = GroupCommit::new(folder.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let value = |bytes| Bytes::from(vec![b'v'; bytes]);
        runtime.block_on(async {
            let many = (0..100).map(|_| log.append(Bytes::from_static(b"key"), value(64 << 10)));
            assert!(futures_util::future::join_all(many).await.iter().all(Result::is_ok));
            assert!(log.append(Bytes::new(), value(WRITE_BYTES_MAX + 1)).await.is_err());
            assert!(log.append(Bytes::new(), value(WRITE_BYTES_MAX)).await.is_ok());
        });
    }
}
