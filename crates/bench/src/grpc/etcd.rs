//! Durable puts of etcd, as the other store that answers over gRPC when the log is flushed.

use std::rc::Rc;
use std::time::Duration;

use super::calls::Calls;
use super::keys::{Key, Source};
use super::load::{Call, Ended, Load, Outcome};

/// Puts of random keys of a set.
pub(super) struct EtcdPuts {
    source: Rc<Source>,
    calls: Calls,
    keys: Vec<Rc<Key>>,
    value_bytes: usize,
}

impl EtcdPuts {
    /// Puts with `count` keys, and values of so many bytes.
    pub(super) fn new(
        source: &Rc<Source>,
        calls: Calls,
        count: usize,
        [key_bytes, value_bytes]: [usize; 2],
    ) -> Self {
        let keys = (0..count).map(|_| source.key(key_bytes)).collect();
        Self { source: Rc::clone(source), calls, keys, value_bytes }
    }
}

impl Load for EtcdPuts {
    fn next(&self) -> Call {
        let key = self.keys[self.source.below(self.keys.len())].name.clone();
        let value = self.source.bytes(self.source.value(self.value_bytes));
        let calls = self.calls.clone();
        Box::pin(async move {
            calls.etcd_put(key, value).await?;
            Ok(Ended { outcome: Outcome::Done, operations: 1, work: Duration::ZERO })
        })
    }
}
