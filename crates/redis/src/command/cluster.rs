//! Redis Cluster's discovery, if the server is run as a cluster: one node that has all slots.

use shoal_base::slot::{SLOT_COUNT, hash_slot};

use super::access::Needs;
use super::call::{Call, ConnectionState, Part};
use crate::answer::{Answer, Failed};
use crate::options::{Announced, ClusterMode};

/// The last slot.
const SLOT_LAST: i64 = SLOT_COUNT as i64 - 1;

pub(super) const PARTS: &[Part] = &[
    Part::HELP,
    Part::new("info", 0..=0, "", "How the cluster is.", Needs::Nothing),
    Part::new("keyslot", 1..=1, "<key>", "The hash slot of a key.", Needs::Nothing),
    Part::new("myid", 0..=0, "", "The name of this node.", Needs::Nothing),
    Part::new("nodes", 0..=0, "", "The nodes, one a line.", Needs::Nothing),
    Part::new("shards", 0..=0, "", "The slots with their nodes, as maps.", Needs::Nothing),
    Part::new("slots", 0..=0, "", "The slots with their nodes, as arrays.", Needs::Nothing),
];

/// The answer of Redis without cluster support.
const DISABLED: &str = "ERR This instance has cluster support disabled";

/// For commands that only clients of a cluster send; they change nothing here.
pub(super) fn accept(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    if is_on(call) { Ok(Answer::Ok) } else { Err(DISABLED.into()) }
}

/// Returns true if the server presents itself as a cluster.
pub(super) fn is_on(call: &Call) -> bool {
    call.frontend.options.cluster != ClusterMode::Off
}

/// The address announced to the clients of a cluster.
fn announced(session: &ConnectionState, call: &Call) -> Option<Announced> {
    match &call.frontend.options.cluster {
        ClusterMode::Off => None,
        ClusterMode::On { announce: Some(announced) } => Some(announced.clone()),
        ClusterMode::On { announce: None } => {
            let local = session.client.addresses.local;
            Some(Announced { host: local.ip().to_canonical().to_string(), port: local.port() })
        }
    }
}

pub(super) fn cluster(session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    let run_id = &call.frontend.run_id;
    let id = || Answer::string(run_id.clone());
    let address = announced(session, call).ok_or(DISABLED)?;
    let (host, port) = (|| Answer::string(address.host.clone()), Answer::Integer(address.port.into()));
    Ok(match call.part()? {
        "slots" => {
            let node = Answer::Array(vec![host(), port, id(), Answer::Array(Vec::new())]);
            Answer::Array(vec![Answer::Array(vec![Answer::Integer(0), Answer::Integer(SLOT_LAST), node])])
        }
        "shards" => {
            let node = Answer::map([
                ("id", id()),
                ("port", port),
                ("ip", host()),
                ("endpoint", host()),
                ("role", Answer::text("master")),
                ("replication-offset", Answer::Integer(0)),
                ("health", Answer::text("online")),
            ]);
            let slots = Answer::Array(vec![Answer::Integer(0), Answer::Integer(SLOT_LAST)]);
            Answer::Array(vec![Answer::map([("slots", slots), ("nodes", Answer::Array(vec![node]))])])
        }
        "nodes" => {
            let Announced { host, port } = &address;
            let bus = u32::from(*port) + 10_000;
            Answer::Verbatim(format!(
                "{run_id} {host}:{port}@{bus} myself,master - 0 0 1 connected 0-{SLOT_LAST}\n"
            ))
        }
        "keyslot" => Answer::Integer(hash_slot(call.word(2)).into()),
        "myid" => id(),
        "info" => Answer::Verbatim(format!(
            "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOT_COUNT}\r\ncluster_slots_ok:{SLOT_COUNT}\r\n\
             cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\n\
             cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
        )),
        _ => call.help(),
    })
}
