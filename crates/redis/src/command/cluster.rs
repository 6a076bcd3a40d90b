//! Redis Cluster's discovery: one node that has all slots, so that cluster clients work today and against several nodes
//! later.

use std::fmt::Write;

use shoal_base::slot::{SLOT_COUNT, hash_slot};

use super::parts::help;
use super::session::reached_at;
use super::{Call, Session, is, unknown_part, wrong_count_of_part};
use crate::answer::{Answer, Failed};

/// The last slot.
const SLOT_LAST: i64 = SLOT_COUNT as i64 - 1;

pub(super) fn cluster(session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let part = call.word(1);
    let counted =
        |count: usize| if call.rest(2).len() == count { Ok(()) } else { Err(wrong_count_of_part(call)) };
    let id = || Answer::string(call.face.run_id.clone());
    let address = reached_at(session);
    let (host, port) = (Answer::string(address.ip().to_string()), Answer::Integer(address.port().into()));
    if is(part, "help") {
        help(call)
    } else if is(part, "slots") {
        counted(0)?;
        let node = Answer::Array(vec![host, port, id(), Answer::Array(Vec::new())]);
        Ok(Answer::Array(vec![Answer::Array(vec![Answer::Integer(0), Answer::Integer(SLOT_LAST), node])]))
    } else if is(part, "shards") {
        counted(0)?;
        let pair = |key, value| (Answer::text(key), value);
        let ip = Answer::string(address.ip().to_string());
        let node = Answer::Map(vec![
            pair("id", id()),
            pair("port", port),
            pair("ip", ip),
            pair("endpoint", host),
            pair("role", Answer::text("master")),
            pair("replication-offset", Answer::Integer(0)),
            pair("health", Answer::text("online")),
        ]);
        let slots = Answer::Array(vec![Answer::Integer(0), Answer::Integer(SLOT_LAST)]);
        let shard = Answer::Map(vec![pair("slots", slots), pair("nodes", Answer::Array(vec![node]))]);
        Ok(Answer::Array(vec![shard]))
    } else if is(part, "nodes") {
        counted(0)?;
        let (id, bus) = (&call.face.run_id, u32::from(address.port()) + 10_000);
        Ok(Answer::Verbatim(format!("{id} {address}@{bus} myself,master - 0 0 1 connected 0-{SLOT_LAST}\n")))
    } else if is(part, "keyslot") {
        counted(1)?;
        Ok(Answer::Integer(hash_slot(call.word(2)).into()))
    } else if is(part, "myid") {
        counted(0)?;
        Ok(id())
    } else if is(part, "info") {
        counted(0)?;
        let mut text = String::from("cluster_enabled:1\r\ncluster_state:ok\r\n");
        let slots = SLOT_COUNT;
        let _ = write!(
            text,
            "cluster_slots_assigned:{slots}\r\ncluster_slots_ok:{slots}\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n\
             cluster_known_nodes:1\r\ncluster_size:1\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
        );
        Ok(Answer::Verbatim(text))
    } else {
        Err(unknown_part(call))
    }
}
