//! Runs as sets of blocks: the intersection of two lists.

use shoal_base::Run;

/// Removes the blocks that are in both lists from both, and returns them.
pub(crate) fn take_common(taken: &mut Vec<Run>, freed: &mut Vec<Run>) -> Vec<Run> {
    taken.sort_unstable();
    freed.sort_unstable();
    let mut common: Vec<Run> = Vec::new();
    let (mut a, mut b) = (0, 0);
    while let (Some(x), Some(y)) = (taken.get(a), freed.get(b)) {
        let (start, end) = (x.block.max(y.block), x.end().min(y.end()));
        if start < end {
            common.push(Run::new(start, (end - start) as u32));
        }
        if x.end() <= y.end() { a += 1 } else { b += 1 }
    }
    if !common.is_empty() {
        *taken = without(taken, &common);
        *freed = without(freed, &common);
    }
    common
}

/// The parts of `runs` that are not in `holes`; each list is in order and without overlaps.
fn without(runs: &[Run], holes: &[Run]) -> Vec<Run> {
    let mut rest = Vec::with_capacity(runs.len());
    let mut holes = holes.iter().copied().peekable();
    for run in runs {
        let mut at = run.block;
        while let Some(hole) = holes.next_if(|hole| hole.block < run.end()) {
            if at < hole.block {
                rest.push(Run::new(at, (hole.block - at) as u32));
            }
            at = hole.end();
        }
        if at < run.end() {
            rest.push(Run::new(at, (run.end() - at) as u32));
        }
    }
    rest
}
