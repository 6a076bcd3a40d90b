//! The `iovec` list of a request, shortened as its bytes are transferred.

#![allow(unsafe_code)]

use smallvec::SmallVec;

use crate::IoRequest;

/// Segments that one system call takes (`IOV_MAX` of Linux); longer lists are transferred in several calls.
pub(crate) const IOVECS_PER_CALL_MAX: usize = 1024;

/// The part of a request's memory that is still to be transferred. Empty segments are left out.
pub(crate) struct Iovecs {
    list: SmallVec<[libc::iovec; 4]>,
    first: usize,
}

// SAFETY: a list of addresses; a thread that uses them holds the request they come from: on another thread a submission, which is
// `Send`.
unsafe impl Send for Iovecs {}

impl Iovecs {
    /// The whole memory of `request`.
    pub(crate) fn of(request: &IoRequest<'_>) -> Self {
        let filled = request.segments().iter().filter(|segment| segment.bytes > 0);
        let list = filled
            .map(|segment| libc::iovec { iov_base: segment.start.cast(), iov_len: segment.bytes })
            .collect();
        Self { list, first: 0 }
    }

    /// The part of the list that the next call takes.
    pub(crate) fn window(&self) -> &[libc::iovec] {
        let rest = self.list.get(self.first..).unwrap_or_default();
        &rest[..rest.len().min(IOVECS_PER_CALL_MAX)]
    }

    /// Leaves out the first `bytes` bytes, which were transferred.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let Some(iovec) = self.list.get_mut(self.first) else {
                panic!("the kernel transferred {bytes} bytes more than were asked for")
            };
            let step = bytes.min(iovec.iov_len);
            iovec.iov_base = iovec.iov_base.wrapping_byte_add(step);
            iovec.iov_len -= step;
            bytes -= step;
            if iovec.iov_len == 0 {
                self.first += 1;
            }
        }
        assert!(self.first <= self.list.len(), "no segment is transferred twice");
    }
}
