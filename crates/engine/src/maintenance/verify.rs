//! The words of a check and a scrub about things that they cannot read.

use shoal_base::Lsn;
use shoal_common::error::Error;
use shoal_common::key::name;
use shoal_common::problem::CheckProblem;
use shoal_device::Device;
use shoal_pool::Pool;
use shoal_tree::{PageRef, Problem};
use shoal_value::{Entry, verify_all};

/// Reads values past the cache, many at a time; returns their problems in their order, each with its key.
pub(crate) async fn value_problems<'a>(
    device: &Device,
    pool: &Pool,
    device_blocks: u64,
    values: &'a [(Vec<u8>, Lsn, Entry)],
) -> Vec<(&'a [u8], CheckProblem)> {
    let entries: Vec<_> = values.iter().map(|(_, version, entry)| (*version, entry)).collect();
    let verified = verify_all(device, pool, device_blocks, &entries).await;
    assert_eq!(verified.len(), values.len(), "each value has a result");
    let problems = values.iter().zip(verified).filter_map(|((key, ..), result)| {
        let (what, block) = match result {
            Ok(()) => return None,
            Err(Error::Corrupt { what, block }) => (what, block),
            Err(error) => (error.to_string(), 0),
        };
        Some((&key[..], CheckProblem { what: format!("object {}: {what}", name(key)), block }))
    });
    problems.collect()
}

/// The problem of a leaf whose entry of `key` cannot be decoded.
pub(crate) fn entry_problem(key: &[u8], leaf: PageRef) -> CheckProblem {
    CheckProblem { what: format!("the entry of {} cannot be read", name(key)), block: leaf.block }
}

/// The problem that a walk found in a page.
pub(crate) fn page_problem(problem: &Problem) -> CheckProblem {
    let Problem { page, level, what, low } = problem;
    let what = format!("page of level {level} (keys from {} on): {what}", name(low));
    CheckProblem { what, block: page.block }
}
