//! Prepending: into the room that the built-in storage keeps before its first byte, else as an allocation.

use bytes::BytesMut;

use super::Buffer;
use super::chunk::{Chunk, Owner};

impl Buffer {
    /// Inserts a copy of `bytes` at the front; up to [`PREPEND_BYTES`](crate::PREPEND_BYTES) in all without an allocation.
    #[inline]
    pub fn prepend(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.head() && self.chunks.is_empty() && self.is_tail_built_in() {
            self.put_in_front(bytes);
            self.put_tail_at(self.head());
            self.tail_len += bytes.len();
            self.is_compound = true;
        } else {
            self.prepend_chunk(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn prepend_chunk(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.closed_len += bytes.len();
        if bytes.len() > self.head() {
            (self.is_compound, self.owes) = (true, true);
            return self.chunks.push_front(Chunk::owned(BytesMut::from(bytes)));
        }
        let end = self.head();
        self.put_in_front(bytes);
        let new = Chunk::built_in(self.head(), bytes.len());
        match self.chunks.first_mut() {
            Some(Chunk { at, len, owner: Owner::BuiltIn }) if at.addr() == end => {
                *at = new.at;
                *len += new.len;
            }
            _ => {
                (self.is_compound, self.owes) = (true, true);
                self.chunks.push_front(new);
            }
        }
    }

    /// Writes `bytes` below `head`, which must have room for them.
    #[inline(always)]
    fn put_in_front(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.head(), "no room in front");
        self.set_head(self.head() - bytes.len());
        let target = self.built_in.as_mut_ptr().cast::<u8>();
        // SAFETY: below `head` the built-in storage is free; `bytes` cannot overlap the buffer, which is borrowed mutably.
        unsafe { target.add(self.head()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}
