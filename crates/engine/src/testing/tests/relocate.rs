//! Rounds of relocation.

use shoal_tablets::gc::relocate::Round;

use crate::testing::fixtures::Fixture;
use crate::{Error, block_on};

/// A failed step finishes its round: the groups to be emptied are open again.
#[test]
fn a_round_that_fails_opens_its_groups() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let store = made.open().unwrap();
    let inner = &store.0;
    let space = inner.space.allocator();
    let free = space.largest_run();
    assert!(inner.space.closed.close(space, &[], |_| true));
    assert!(!inner.space.closed.groups().is_empty() && space.largest_run() < free);
    *block_on(inner.relocator.round.take()) = Some(Round::Walk { tablet: 0, position: Vec::new() });
    inner.log.poison.set("a test".into());
    let stepped = block_on(inner.relocator.step()).map(|_| ());
    assert!(matches!(stepped, Err(Error::Poisoned(_))), "{stepped:?}");
    assert!(block_on(inner.relocator.round.take()).is_none(), "the next one begins anew");
    assert!(inner.space.closed.groups().is_empty());
    assert_eq!(space.largest_run(), free);
}
