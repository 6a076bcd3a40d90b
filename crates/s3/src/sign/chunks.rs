//! Signatures of the chunks of a body: each covers the one before it, and the first one covers that of the request.

use ring::hmac;

use super::key::{is_signature, sha256};
use crate::text::hex;

/// Verifies the chunks of one body, in their order.
pub struct ChunkSigner {
    key: hmac::Key,
    /// The moment and the scope, as they are signed.
    moment_and_scope: String,
    previous: String,
}

impl ChunkSigner {
    pub(super) fn new(key: hmac::Key, moment: &str, scope: &str, seed: &[u8; 32]) -> Self {
        Self { key, moment_and_scope: format!("{moment}\n{scope}"), previous: hex(seed) }
    }

    /// Returns true if `given` is the signature of the next chunk, whose bytes have the SHA-256 `hash`.
    #[must_use]
    pub fn is_next_chunk(&mut self, hash: &[u8; 32], given: &[u8; 32]) -> bool {
        let hashes = format!("{}\n{}", hex(&sha256(b"")), hex(hash));
        self.is_next("PAYLOAD", &hashes, given)
    }

    /// Returns true if `given` is the signature of the trailers, each as `name:value` and a line feed.
    #[must_use]
    pub fn is_trailer(&mut self, trailers: &[u8], given: &[u8; 32]) -> bool {
        self.is_next("TRAILER", &hex(&sha256(trailers)), given)
    }

    fn is_next(&mut self, kind: &str, hashes: &str, given: &[u8; 32]) -> bool {
        let Self { moment_and_scope, previous, .. } = self;
        let text = format!("AWS4-HMAC-SHA256-{kind}\n{moment_and_scope}\n{previous}\n{hashes}");
        let is_right = is_signature(&self.key, text.as_bytes(), given);
        // The next signature covers this one; if it is wrong, the body is refused.
        self.previous = hex(given);
        is_right
    }
}

impl std::fmt::Debug for ChunkSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkSigner").field("previous", &self.previous).finish_non_exhaustive()
    }
}
