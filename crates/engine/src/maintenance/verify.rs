//! What a check and a scrub say of what they cannot read.

use shoal_base::Lsn;
use shoal_device::Device;
use shoal_pool::Pool;

use crate::common::error::Error;
use crate::common::key::name;
use crate::common::problem::CheckProblem;
use crate::tablet::tree::{PageRef, Problem};
use crate::value::entry::Entry;
use crate::value::read::verify_direct;

/// Reads a value past the cache; what is wrong with it, where something is.
pub(crate) async fn value_problem(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    key: &[u8],
    entry: &Entry,
    version: Lsn,
) -> Option<CheckProblem> {
    let (what, block) = match verify_direct(device, pool, device_blocks, entry, version).await {
        Ok(()) => return None,
        Err(Error::Corrupt { what, block }) => (what, block),
        Err(error) => (error.to_string(), 0),
    };
    Some(CheckProblem { what: format!("object {}: {what}", name(key)), block })
}

/// The entry of `key` in this leaf is not one.
pub(crate) fn entry_problem(key: &[u8], leaf: PageRef) -> CheckProblem {
    CheckProblem { what: format!("the entry of {} cannot be read", name(key)), block: leaf.block }
}

/// What a walk found wrong with a page.
pub(crate) fn page_problem(problem: &Problem) -> CheckProblem {
    let Problem { page, level, what, low } = problem;
    let what = format!("page of level {level} (keys from {} on): {what}", name(low));
    CheckProblem { what, block: page.block }
}
