//! A request under way on a file: its next system call, and the meaning of the result.
//!
//! Short transfers are continued, interrupted ones repeated, and a durable write falls back to a write and a flush if the file system does
//! not know `RWF_DSYNC`. The same steps serve plain system calls and both kinds of ring.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use shoal_base::BLOCK_BYTES_U64;

use crate::iovecs::Iovecs;
use crate::{IoRequest, Op, Submission};

/// A request is repeated this often, because the kernel was interrupted or short of a resource, before it fails.
const REPEATS_MAX: u32 = 10_000;

/// The next system call of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read into the window.
    Read,
    /// Write the window, with `RWF_DSYNC` if `durable`.
    Write {
        /// Durable when it returns.
        durable: bool,
    },
    /// `fdatasync`.
    Sync,
}

/// A request with its remaining work: a ticket, which may move between threads, or a borrowed request.
pub(crate) struct Transfer<R = Submission> {
    /// Keeps the memory that the list names.
    request: R,
    op: Op,
    iovecs: Iovecs,
    offset: u64,
    left: usize,
    /// A flush is still to be done after the bytes.
    sync_left: bool,
    repeats: u32,
}

impl<'r, R: Deref<Target = IoRequest<'r>>> Transfer<R> {
    /// The start of `request`, which must be in range and no discard.
    pub(crate) fn new(request: R) -> Self {
        debug_assert!(!matches!(request.op(), Op::Discard { .. }), "discards are not transfers");
        assert!(request.op() != Op::Flush || request.bytes() == 0, "a flush has no memory");
        Self {
            op: request.op(),
            iovecs: Iovecs::of(&request),
            offset: request.block() * BLOCK_BYTES_U64,
            left: request.bytes(),
            sync_left: request.op() == Op::Flush,
            repeats: 0,
            request,
        }
    }
}

impl<R> Transfer<R> {
    /// The next action; none when the request is complete. `dsync` is true if the file system takes `RWF_DSYNC`.
    pub(crate) fn action(&mut self, dsync: bool) -> Option<Action> {
        if self.left > 0 {
            return Some(match self.op {
                Op::Read => Action::Read,
                Op::WriteDurable if dsync => Action::Write { durable: true },
                Op::WriteDurable => {
                    self.sync_left = true;
                    Action::Write { durable: false }
                }
                Op::Write | Op::Flush | Op::Discard { .. } => Action::Write { durable: false },
            });
        }
        self.sync_left.then_some(Action::Sync)
    }

    /// Takes the result of `action`. Returns an error if the request failed. Clears `dsync` if the file system refuses it.
    pub(crate) fn took(
        &mut self,
        action: Action,
        result: io::Result<usize>,
        dsync: &AtomicBool,
    ) -> io::Result<()> {
        match (action, result) {
            (Action::Sync, Ok(_)) => {
                assert!(self.left == 0 && self.sync_left, "a flush follows all bytes of its write");
                self.sync_left = false;
            }
            (Action::Read, Ok(0)) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file is shorter than when it was opened",
                ));
            }
            (Action::Write { .. }, Ok(0)) => {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "the system wrote nothing"));
            }
            (_, Ok(bytes)) => {
                assert!(bytes <= self.left, "the kernel transferred more than was asked for");
                self.iovecs.advance(bytes);
                self.left -= bytes;
                self.offset += bytes as u64;
                assert_eq!(self.left == 0, self.window().is_empty(), "the memory of the rest");
            }
            (action, Err(error)) => return self.failed(action, error, dsync),
        }
        Ok(())
    }

    fn failed(&mut self, action: Action, error: io::Error, dsync: &AtomicBool) -> io::Result<()> {
        match error.raw_os_error() {
            // The kernel may cancel a request that did not start, for instance because the thread that submitted it exited. Linux 6.18
            // spares files and block devices that, but promises nothing.
            Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED) if self.repeats < REPEATS_MAX => {
                self.repeats += 1;
                Ok(())
            }
            Some(libc::EOPNOTSUPP | libc::ENOSYS) if action == (Action::Write { durable: true }) => {
                if dsync.swap(false, Ordering::Relaxed) {
                    tracing::info!(
                        "writes with RWF_DSYNC are not supported here; using a write and fdatasync"
                    );
                }
                Ok(())
            }
            // The bytes of the write have room. A file system that runs out of room in a flush has failed the flush.
            _ if action == Action::Sync && self.op != Op::Flush => {
                Err(io::Error::other(format!("making it durable: {error}")))
            }
            _ => Err(error),
        }
    }

    /// The memory of the next call.
    pub(crate) fn window(&self) -> &[libc::iovec] {
        self.iovecs.window()
    }

    /// The position of the next call in the file, in bytes.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Finishes the transfer: nobody uses the memory any more.
    pub(crate) fn into_request(self) -> R {
        self.request
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::BLOCK_BYTES;

    use super::*;
    use crate::IoBuf;
    use crate::request::request_for_test;

    fn transfer(op: Op, bufs: Vec<IoBuf>) -> Transfer {
        Transfer::new(request_for_test(op, 3, bufs).1)
    }

    fn bytes_left(transfer: &Transfer) -> usize {
        transfer.window().iter().map(|iovec| iovec.iov_len).sum()
    }

    #[test]
    fn short_reads_continue_across_segments() {
        let dsync = AtomicBool::new(true);
        let mut read = transfer(Op::Read, vec![IoBuf::new(1), IoBuf::new(0), IoBuf::new(2)]);
        assert_eq!(read.action(true), Some(Action::Read));
        assert_eq!((bytes_left(&read), read.offset()), (3 * BLOCK_BYTES, 3 * BLOCK_BYTES_U64));
        read.took(Action::Read, Ok(5000), &dsync).unwrap();
        assert_eq!((bytes_left(&read), read.offset()), (3 * BLOCK_BYTES - 5000, 3 * BLOCK_BYTES_U64 + 5000));
        assert_eq!(read.window().len(), 1);
        read.took(Action::Read, Err(io::Error::from_raw_os_error(libc::EINTR)), &dsync).unwrap();
        read.took(Action::Read, Ok(3 * BLOCK_BYTES - 5000), &dsync).unwrap();
        assert_eq!(read.action(true), None);
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        let dsync = AtomicBool::new(true);
        let mut read = transfer(Op::Read, vec![IoBuf::new(1)]);
        assert_eq!(read.took(Action::Read, Ok(0), &dsync).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut write = transfer(Op::Write, vec![IoBuf::new(1)]);
        let nothing = write.took(Action::Write { durable: false }, Ok(0), &dsync).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WriteZero, "a write that goes on for ever hangs");
    }

    #[test]
    fn a_durable_write_falls_back_to_write_and_sync() {
        let dsync = AtomicBool::new(true);
        let mut write = transfer(Op::WriteDurable, vec![IoBuf::new(2)]);
        let durable = Action::Write { durable: true };
        assert_eq!(write.action(true), Some(durable));
        write.took(durable, Ok(BLOCK_BYTES), &dsync).unwrap();
        write.took(durable, Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)), &dsync).unwrap();
        assert!(!dsync.load(Ordering::Relaxed));
        let plain = Action::Write { durable: false };
        assert_eq!(write.action(false), Some(plain));
        write.took(plain, Ok(BLOCK_BYTES), &dsync).unwrap();
        assert_eq!(write.action(false), Some(Action::Sync));
        write.took(Action::Sync, Ok(0), &dsync).unwrap();
        assert_eq!(write.action(false), None);
    }

    #[test]
    fn other_errors_and_endless_interrupts_end_transfer() {
        let dsync = AtomicBool::new(true);
        let mut write = transfer(Op::Write, vec![IoBuf::new(1)]);
        let plain = Action::Write { durable: false };
        let error = write.took(plain, Err(io::Error::from_raw_os_error(libc::EIO)), &dsync).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let interrupted = || Err(io::Error::from_raw_os_error(libc::EINTR));
        let repeats =
            (0..=2 * REPEATS_MAX).take_while(|_| write.took(plain, interrupted(), &dsync).is_ok()).count();
        assert_eq!(repeats, REPEATS_MAX as usize);
    }

    #[test]
    fn long_lists_are_cut_at_the_systems_limit() {
        let mut write = transfer(Op::Write, (0..1500).map(|_| IoBuf::new(1)).collect());
        let dsync = AtomicBool::new(true);
        assert_eq!(write.window().len(), crate::iovecs::IOVECS_PER_CALL_MAX);
        write.took(Action::Write { durable: false }, Ok(1024 * BLOCK_BYTES), &dsync).unwrap();
        assert_eq!(write.window().len(), 476);
    }
}
