//! Reads the free runs of the store's space, for maps and dumps.

use shoal_api::v1;
pub use shoal_base::Run;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::retry::Failed;
use crate::transport::Parts;
use crate::wire;

/// The free runs of one moment, on their way from the server. A broken connection terminates them with an error.
pub struct FreeSpace {
    client: Client,
    parts: Parts<v1::FreeSpace>,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks that are in use or usable now.
    pub blocks: u64,
    /// Blocks of a group of the allocator.
    pub group_blocks: u32,
    /// The runs of the first message.
    first: Vec<u64>,
    /// The end of the previous run.
    end: u64,
}

impl Client {
    /// The current free runs. The server serves one such call at a time.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Busy`](crate::Error::Busy) while another caller reads them,
    /// [`Error::Denied`](crate::Error::Denied).
    pub fn free_space(&self) -> Boxed<'_, Result<FreeSpace>> {
        Box::pin(async move {
            let open = || async {
                let mut parts = self.transport.receive::<v1::FreeSpace>(v1::FreeSpaceRequest {}).await?;
                let first = parts.next(&self.transport).await?;
                Ok((parts, first.ok_or_else(|| wire::protocol("the stream is empty"))?))
            };
            let (parts, first) = self.retry.read(open).await?;
            let v1::FreeSpaceResponse { block_bytes, blocks, group_blocks, gaps_and_blocks } = first;
            if block_bytes == 0 || group_blocks == 0 {
                return Err(wire::protocol("it has groups or blocks of no size").error);
            }
            Ok(FreeSpace {
                client: self.clone(),
                parts,
                block_bytes,
                blocks,
                group_blocks,
                first: gaps_and_blocks,
                end: 0,
            })
        })
    }
}

impl FreeSpace {
    /// The next free runs, in ascending order; `None` at the end.
    ///
    /// # Errors
    /// As [`Client::free_space`], and [`Error::Protocol`](crate::Error::Protocol).
    pub async fn next(&mut self) -> Result<Option<Vec<Run>>> {
        let mut numbers = std::mem::take(&mut self.first);
        while numbers.is_empty() {
            match self.parts.next(&self.client.transport).await.map_err(|failed| failed.error)? {
                Some(message) => numbers = message.gaps_and_blocks,
                None => return Ok(None),
            }
        }
        let runs = decode(&numbers, &mut self.end).map_err(|failed| failed.error)?;
        Ok(Some(runs))
    }
}

/// The runs encoded in `numbers`, after `end`.
fn decode(numbers: &[u64], end: &mut u64) -> Result<Vec<Run>, Failed> {
    let wrong = || wire::protocol("its free runs make no sense");
    let (pairs, rest) = numbers.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong());
    }
    let run = |[gap, blocks]: &[u64; 2]| {
        let block = end.checked_add(*gap).ok_or_else(wrong)?;
        let blocks = u32::try_from(*blocks).ok().filter(|blocks| *blocks > 0).ok_or_else(wrong)?;
        *end = block.checked_add(blocks.into()).ok_or_else(wrong)?;
        Ok(Run { block, blocks })
    };
    pairs.iter().map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_runs_are_rejected() {
        let mut end = 5;
        let runs = decode(&[0, 3, 10, 1], &mut end).unwrap();
        assert_eq!(runs, [Run { block: 5, blocks: 3 }, Run { block: 18, blocks: 1 }]);
        assert_eq!(end, 19);
        for wrong in [&[1][..], &[1, 0], &[u64::MAX, 1], &[u64::MAX - 19, 1], &[0, 1 << 32]] {
            assert!(decode(wrong, &mut 19).is_err(), "{wrong:?}");
        }
    }
}
