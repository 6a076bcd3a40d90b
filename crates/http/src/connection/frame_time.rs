//! Limits the time of one HTTP/2 frame: finds the borders of the frames that a peer sends, and parses nothing else.
//!
//! A client that sends a byte of its headers now and then would hold a connection, and the headers decoded so far: HTTP/2 itself waits for
//! the rest while the peer answers pings, or forty seconds if it does not. The body of a request has a separate minimum rate, in
//! `min_rate`.

const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
/// HEADERS, PUSH_PROMISE and CONTINUATION: a block of headers continues until one of them has the flag of its end.
const OF_HEADERS: [u8; 3] = [1, 5, 9];
const END_HEADERS: u8 = 4;

/// The frames of one connection, after its preface.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that arrived.
    head_bytes: usize,
    /// Bytes of the frame that are missing after its head.
    missing: usize,
    /// A block of headers has not ended.
    is_within_headers: bool,
    /// The first frame is complete: until then the peer has not greeted.
    has_begun: bool,
}

impl Frames {
    /// Reads arriving bytes; returns true if an awaited frame is complete.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_through = false;
        while !bytes.is_empty() {
            if self.head_bytes < HEAD_BYTES {
                let count = bytes.len().min(HEAD_BYTES - self.head_bytes);
                let (now, rest) = bytes.split_at(count);
                self.head[self.head_bytes..][..count].copy_from_slice(now);
                self.head_bytes += count;
                bytes = rest;
                if self.head_bytes < HEAD_BYTES {
                    break;
                }
                let [high, middle, low, kind, flags, ..] = self.head;
                self.missing = u32::from_be_bytes([0, high, middle, low]) as usize;
                if OF_HEADERS.contains(&kind) {
                    self.is_within_headers = flags & END_HEADERS == 0;
                }
            }
            let count = bytes.len().min(self.missing);
            self.missing -= count;
            bytes = &bytes[count..];
            if self.missing == 0 {
                self.head_bytes = 0;
                self.has_begun = true;
                is_through |= !self.is_within_headers;
            }
        }
        is_through
    }

    /// Returns true if more must come soon: the first frame, the rest of one that is no part of a body, or of headers.
    pub(crate) fn is_awaited(&self) -> bool {
        let is_of_body = self.head_bytes == HEAD_BYTES && self.head[3] == DATA;
        !self.has_begun || self.is_within_headers || (self.head_bytes > 0 && !is_of_body)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, bytes: usize) -> Vec<u8> {
        let [_, high, middle, low] = (bytes as u32).to_be_bytes();
        [&[high, middle, low, kind, flags, 0, 0, 0, 1][..], &vec![0xFF; bytes]].concat()
    }

    #[test]
    fn only_bodies_may_arrive_slowly() {
        let mut frames = Frames::default();
        assert!(frames.is_awaited(), "the first frame");
        assert!(frames.take(&frame(4, 0, 0)) && !frames.is_awaited());
        // Headers of two frames: the first one is not the last.
        assert!(!frames.take(&frame(1, 0, 10)) && frames.is_awaited());
        let last = frame(9, END_HEADERS, 3);
        assert!(!frames.take(&last[..11]) && frames.is_awaited());
        assert!(frames.take(&last[11..]) && !frames.is_awaited());
        let body = frame(DATA, 0, 5);
        assert!(!frames.take(&body[..8]) && frames.is_awaited(), "nobody knows yet what it is");
        assert!(!frames.take(&body[8..9]) && !frames.is_awaited());
        assert!(!frames.take(&body[9..12]) && !frames.is_awaited());
        // One frame is complete and the next one has started, with a new time.
        assert!(frames.take(&[&body[12..], &frame(6, 0, 8)[..12]].concat()) && frames.is_awaited());
    }

    proptest! {
        /// Any cuts of the bytes lead to the same result.
        #[test]
        fn cuts_do_not_matter(
            sent in prop::collection::vec((0..12_u8, any::<u8>(), 0..40_usize), 1..8),
            last in 0..60_usize,
            cut in 1..50_usize,
        ) {
            let mut bytes: Vec<u8> = sent.iter().flat_map(|&(kind, flags, bytes)| frame(kind, flags, bytes)).collect();
            bytes.truncate(bytes.len().saturating_sub(last));
            let (mut whole, mut cut_up) = (Frames::default(), Frames::default());
            let mut is_through = false;
            bytes.chunks(cut).for_each(|piece| is_through |= cut_up.take(piece));
            prop_assert_eq!(whole.take(&bytes), is_through);
            prop_assert_eq!(whole.is_awaited(), cut_up.is_awaited());
        }
    }
}
