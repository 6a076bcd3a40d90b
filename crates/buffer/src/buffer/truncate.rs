//! Dropping bytes at either end, and taking chunks out at the front. A chunk is released with its last byte.

use std::slice;

use bytes::Bytes;

use super::Buffer;
use super::chunk::{Chunk, Owner};

impl Buffer {
    /// Drops the first `count` bytes, or all if there are no more. A chunk is released with its last byte.
    #[inline]
    pub fn truncate_front(&mut self, count: usize) {
        if count >= self.len() {
            return self.clear();
        }
        let mut rest = count;
        while let Some(chunk) = self.chunks.first_mut() {
            if rest < chunk.len {
                chunk.cut_front(rest);
                if let Owner::BuiltIn = chunk.owner {
                    let head = chunk.at.addr();
                    self.set_head(head);
                }
                self.closed_len -= rest;
                return;
            }
            rest -= chunk.len;
            self.closed_len -= chunk.len;
            self.pop_front();
        }
        self.is_compound = true;
        self.tail_len -= rest;
        if self.is_tail_built_in() {
            self.put_tail_at(self.tail_at.addr() + rest);
            self.set_head(self.tail_at.addr());
        } else {
            self.tail_at = self.tail_at.wrapping_add(rest);
            self.limit -= rest;
        }
    }

    /// Releases the first closed chunk, whose bytes are not counted any more.
    fn pop_front(&mut self) {
        if let Some(Chunk { at, len, owner: Owner::BuiltIn }) = self.chunks.pop_front() {
            self.set_head(at.addr() + len);
        }
    }

    /// Drops the last `count` bytes, or all if there are no more.
    pub fn truncate_back(&mut self, count: usize) {
        if count >= self.len() {
            return self.clear();
        }
        let mut rest = count;
        loop {
            if rest < self.tail_len || rest == 0 {
                self.tail_len -= rest;
                return;
            }
            rest -= self.tail_len;
            self.tail_len = 0;
            let is_tail_built_in = self.is_tail_built_in();
            let Some(chunk) = self.chunks.last_mut() else {
                unreachable!("more than `count` bytes are there")
            };
            match chunk.owner {
                // The last built-in chunk can become the tail again, so that the bytes after it are free.
                Owner::BuiltIn if is_tail_built_in => {
                    let (at, len) = (chunk.at.addr(), chunk.len);
                    self.chunks.pop();
                    self.closed_len -= len;
                    self.tail_len = len;
                    self.put_tail_at(at);
                }
                _ if rest < chunk.len => {
                    chunk.cut_back(rest);
                    self.closed_len -= rest;
                    return;
                }
                _ => {
                    rest -= chunk.len;
                    self.closed_len -= chunk.len;
                    self.chunks.pop();
                }
            }
        }
    }

    /// Takes the first `count` bytes, which the first chunk must have, out of the buffer: copies them if they are built in, shares or moves
    /// them otherwise.
    pub(crate) fn split_first(&mut self, count: usize) -> Bytes {
        assert!(count <= self.first_chunk().len(), "the first chunk has fewer than {count} bytes");
        if let Some(chunk) = self.take_shared(count) {
            return chunk;
        }
        if self.chunks.is_empty() && !self.is_tail_built_in() {
            self.close_tail();
        }
        let out = match self.chunks.first_mut() {
            Some(Chunk { at, len, owner: Owner::Owned(owner) }) => {
                let out = owner.split_to(count).freeze();
                (*at, *len) = (owner.as_ptr(), *len - count);
                self.took_first(count);
                return out;
            }
            Some(Chunk { at, owner: Owner::Static, .. }) => {
                // SAFETY: the bytes are static.
                Bytes::from_static(unsafe { slice::from_raw_parts(*at, count) })
            }
            Some(Chunk { owner: Owner::Shared(owner), .. }) => owner.slice(..count),
            _ => Bytes::copy_from_slice(&self.first_chunk()[..count]),
        };
        self.truncate_front(count);
        out
    }

    /// Accounts for `count` bytes that were taken out of the first chunk, and releases it if it is empty then.
    fn took_first(&mut self, count: usize) {
        self.closed_len -= count;
        if self.chunks.first_mut().is_some_and(|chunk| chunk.len == 0) {
            self.pop_front();
        }
        if self.is_empty() {
            self.rewind();
        }
    }

    /// The first chunk, if it is external and has exactly `count` bytes: it changes hands, and no reference is counted.
    #[inline]
    fn take_shared(&mut self, count: usize) -> Option<Bytes> {
        let is_whole = matches!(
            self.chunks.first_mut(),
            Some(Chunk { len, owner: Owner::Shared(_), .. }) if *len == count
        );
        if !is_whole {
            return None;
        }
        let Some(Chunk { owner: Owner::Shared(owner), .. }) = self.chunks.pop_front() else {
            unreachable!("the chunk was looked at");
        };
        self.closed_len -= count;
        if self.is_empty() {
            self.rewind();
        }
        Some(owner)
    }
}
