//! Durable puts of etcd, as the other store that answers over gRPC when the log is flushed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use shoal_bench::cores::Cores;
use shoal_bench::grpc::wire::{Nothing, Pair};
use shoal_bench::grpc::{Call, Calls, Ended, Key, Load, Outcome, Remote, Source};

use crate::peer;

/// etcd's put: its request starts with the fields of [`Pair`].
const PUT: &str = "/etcdserverpb.KV/Put";

/// Starts etcd, a cluster of one, with its data in a new folder beside `data`.
pub(super) fn start(program: &Path, data: &Path, cores: Option<Cores>) -> Result<Remote> {
    let folder = data.with_extension("etcd");
    if folder.exists() {
        bail!("{} exists: it is left alone", folder.display());
    }
    let [address, peers] = [peer::free_address()?, peer::free_address()?];
    let url = |address: SocketAddr| format!("http://{address}");
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(&folder);
    for (name, value) in [
        ("--listen-client-urls", url(address)),
        ("--advertise-client-urls", url(address)),
        ("--listen-peer-urls", url(peers)),
        ("--initial-advertise-peer-urls", url(peers)),
        ("--initial-cluster", format!("default={}", url(peers))),
    ] {
        command.arg(name).arg(value);
    }
    command.args(["--log-level", "error", "--quota-backend-bytes", "8589934592"]);
    peer::start(&mut command, address, vec![folder], cores)
}

/// Puts of random keys of a set.
pub(super) struct EtcdPuts {
    source: Rc<Source>,
    calls: Calls,
    keys: Vec<Rc<Key>>,
    value_bytes: usize,
}

impl EtcdPuts {
    /// Puts with `count` keys, and values of this many bytes.
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
            calls.call::<_, Nothing>(PUT, Pair { key, value }).await?;
            Ok(Ended { outcome: Outcome::Done, operations: 1, work: Duration::ZERO })
        })
    }
}
