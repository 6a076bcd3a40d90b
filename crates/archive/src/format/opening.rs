//! The opening of a log, in its slot 0: the server that writes it, and the log before it.

use shoal_base::Lsn;
use shoal_base::codec::put_prefixed;

use super::{Fields, FormatError, OwnerName};

/// The body of an opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The machine: with the boot id and the lock of the data file it shows that an old process is dead.
    pub host_id: String,
    /// The start of the machine.
    pub boot_id: String,
    /// The server and its addresses.
    pub owner: OwnerName,
    /// The version of the program.
    pub program: String,
    /// The log before; 0 if there was none.
    pub previous_log: u64,
    /// The slot of its tombstone.
    pub previous_end: u64,
    /// The last number in it.
    pub previous_last_lsn: Lsn,
}

impl Opening {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        let OwnerName { node, resp, grpc } = &self.owner;
        for text in [&self.host_id, &self.boot_id, node, resp, grpc, &self.program] {
            assert!(text.len() <= crate::limits::NAME_BYTES_MAX, "a name fits: {text}");
            put_prefixed(&mut out, text.as_bytes());
        }
        for number in [self.previous_log, self.previous_end, self.previous_last_lsn.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        let [host_id, boot_id] = [fields.text()?, fields.text()?];
        let owner = OwnerName { node: fields.text()?, resp: fields.text()?, grpc: fields.text()? };
        let program = fields.text()?;
        let [previous_log, previous_end] = [fields.u64()?, fields.u64()?];
        let previous_last_lsn = Lsn(fields.u64()?);
        fields.end()?;
        Ok(Self { host_id, boot_id, owner, program, previous_log, previous_end, previous_last_lsn })
    }
}
