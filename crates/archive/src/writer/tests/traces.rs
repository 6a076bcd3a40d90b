//! The planted bugs of `models/` that concern the writer, each by its shortest trace (`models/traces`).

use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::owner::{MOMENT, Owner, archive};
use super::replay::replay;
use super::scripted::{Arrival, Fate};
use super::*;
use crate::format::*;

fn of_logs(arrivals: &[Arrival]) -> Vec<&Arrival> {
    arrivals.iter().filter(|arrival| arrival.name.starts_with("log/")).collect()
}

/// P2: a log is sealed after the claim, so a claim that is not confirmed seals no log.
#[tokio::test(start_paused = true)]
async fn p2_no_seal_before_the_claim() {
    let owner = Owner::opened(archive()).await;
    let claimant = owner.scripted.other();
    claimant.rule("replace", "record", Fate::Held);
    let other = Owner::start(claimant, owner.copied_disk()).await;
    sleep(MOMENT).await;
    let arrivals = other.scripted.arrivals();
    assert!(of_logs(&arrivals).iter().all(|arrival| arrival.verb == "get"), "it only looks: {arrivals:?}");
    assert_eq!(owner.write().await, owner.archived());
    other.scripted.release();
    other.server.opened().await;
    owner.write().await;
    assert!(owner.is_fenced() && !other.is_fenced());
    owner.verify();
}

/// P3: the end of the log is looked for after the claim: records that were archived until then are below it.
#[tokio::test(start_paused = true)]
async fn p3_looks_for_the_end_after_the_claim() {
    let owner = Owner::opened(archive()).await;
    owner.write().await;
    let claimant = owner.scripted.other();
    claimant.rule("replace", "record", Fate::Late);
    let other = Owner::start(claimant, owner.copied_disk()).await;
    // The claim is on its way.
    sleep(MOMENT).await;
    for _ in 0..12 {
        owner.write().await;
    }
    let last = owner.archived();
    other.scripted.release();
    other.server.opened().await;
    let arrivals = other.scripted.arrivals();
    let claim = arrivals.iter().position(|it| it.verb == "replace" && it.name == "record" && it.is_answered);
    // Before it, the claimant only looks how far the archive is.
    let look = arrivals.iter().position(|it| it.verb == "create" && it.name.starts_with("log/"));
    assert!(claim < look, "{claim:?} {look:?}");
    owner.write().await;
    assert!(owner.is_fenced());
    assert!(owner.archived() >= last);
    owner.verify();
}

/// P6: a slot behind a gap is not archived.
#[tokio::test(start_paused = true)]
async fn p6_nothing_behind_a_gap_is_archived() {
    let owner = Owner::opened(archive()).await;
    let before = owner.archived();
    owner.scripted.rule("create", owner.slot(1), Fate::Away);
    owner.write().await;
    let last = owner.write().await;
    assert!(owner.scripted.contents().contains_key(&owner.slot(2)), "slot 2 is there");
    assert_eq!((owner.archived(), owner.disk.lock().floor), (before, before));
    assert_eq!(owner.server.archiver.position().unwrap().seq, 1);
    owner.scripted.forget_rules();
    sleep(Duration::from_secs(60)).await;
    assert_eq!((owner.archived(), owner.disk.lock().floor), (last, last));
    owner.verify();
}

/// At most W slots are in flight (R-a).
#[tokio::test(start_paused = true)]
async fn at_most_w_slots_are_in_flight() {
    let owner = Owner::opened(archive()).await;
    owner.scripted.rule("create", owner.slot(1), Fate::Away);
    for _ in 0..20 {
        owner.write().await;
    }
    let contents = owner.scripted.contents();
    assert!(contents.contains_key(&owner.slot(8)) && !contents.contains_key(&owner.slot(9)));
    owner.scripted.forget_rules();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(owner.archived(), owner.server.store_last());
    owner.verify();
}

/// P10: "exists" is no success: a slot with a tombstone, or with another segment, stops archiving.
#[tokio::test(start_paused = true)]
async fn p10_exists_is_no_success() {
    for is_tombstone in [true, false] {
        let owner = Owner::opened(archive()).await;
        let slot = LogSlot { log: owner.log(), seq: 1 };
        let start = SegmentStart {
            volume: VOLUME,
            slot,
            epoch: 1,
            chain: 2,
            nonce: 3,
            flags: SegmentFlags::default(),
            end: LogEnd::default(),
        };
        let bytes = match is_tombstone {
            true => Tombstone { volume: VOLUME, slot, sealer_epoch: 9, sealer_log: 9 }.encode(),
            false => start.heartbeat(4),
        };
        owner.scripted.put(&slot.to_string(), bytes.into());
        let before = owner.archived();
        let last = owner.write().await;
        // It asks for the owner's name.
        sleep(Duration::from_secs(60)).await;
        assert!(owner.is_fenced(), "{:?}", owner.server.state());
        assert_eq!(owner.archived(), before);
        assert_eq!(owner.disk.lock().floor, last, "the store does not wait for an archive of another server");
        let count = owner.scripted.arrivals().len();
        owner.write().await;
        assert_eq!(owner.scripted.arrivals().len(), count, "nothing is sent any more");
    }
}

/// P11: "exists" after a lost answer is a success if the bytes are ours.
#[tokio::test(start_paused = true)]
async fn p11_exists_may_be_ours() {
    let owner = Owner::opened(archive()).await;
    owner.scripted.rule("create", owner.slot(1), Fate::AnswerLost);
    let last = owner.write().await;
    assert!(!owner.is_fenced());
    assert_eq!(owner.archived(), last);
    owner.verify();
}

/// P12: after a time-out, or a conflict about a slot that does not exist, the same bytes are sent again.
#[tokio::test(start_paused = true)]
async fn p12_bytes_of_a_slot_never_change() {
    let owner = Owner::opened(archive()).await;
    for fate in [Fate::Late, Fate::Conflict, Fate::Late] {
        owner.scripted.rule("create", owner.slot(1), fate);
    }
    owner.write().await;
    owner.write().await;
    owner.scripted.release();
    sleep(Duration::from_secs(60)).await;
    let arrivals = owner.scripted.arrivals();
    let mut bytes: Vec<&Bytes> = arrivals
        .iter()
        .filter(|it| it.verb == "create" && it.name == owner.slot(1))
        .map(|it| &it.bytes)
        .collect();
    assert!(bytes.len() >= 4, "{}", bytes.len());
    bytes.dedup();
    assert_eq!(bytes.len(), 1);
    assert_eq!(owner.archived(), owner.server.store_last());
    owner.verify();
}

/// P22: a claim of a dead process that takes effect late is not that of its successor.
#[tokio::test(start_paused = true)]
async fn p22_claim_of_a_dead_process_is_not_ours() {
    let scripted = archive();
    scripted.rule("replace", "record", Fate::Late);
    scripted.rule("replace", "record", Fate::Away);
    let dead = Owner::start(scripted, disk(1 << 20)).await;
    sleep(MOMENT).await;
    let first = dead.scripted.clone();
    let scripted = first.other();
    scripted.rule("replace", "record", Fate::Held);
    let owner = dead.restart_over(scripted).await;
    sleep(Duration::from_secs(1)).await;
    first.release();
    sleep(Duration::from_secs(1)).await;
    owner.scripted.release();
    owner.server.opened().await;
    let (record, logs) = replay(&owner.scripted.contents(), &VOLUME);
    assert_eq!(record.owner, Some(owner.server.archiver.incarnation()));
    assert_eq!((record.epoch, logs.len(), record.logs[0].end), (2, 2, Some(0)));
}

/// P4: a claimant whose claim is not the newest one any more opens no log.
#[tokio::test(start_paused = true)]
async fn p4_opens_only_after_the_confirmation() {
    let owner = Owner::opened(archive()).await;
    let claimant = owner.scripted.other();
    // The attempt, and the one beside it: the seal takes 5 s.
    for _ in 0..2 {
        claimant.rule("create", LogSlot { log: owner.log(), seq: 1 }.to_string(), Fate::Held);
    }
    let copy = || owner.copied_disk();
    let second = Owner::start(claimant, copy()).await;
    sleep(MOMENT).await;
    let third = Owner::start(owner.scripted.other(), copy()).await;
    third.server.opened().await;
    second.scripted.release();
    sleep(Duration::from_secs(60)).await;
    let states = (second.server.state(), third.server.state());
    assert!(second.is_fenced() && !third.is_fenced(), "{states:?}");
    let arrivals = second.scripted.arrivals();
    let own: Vec<_> = of_logs(&arrivals).into_iter().filter(|it| it.bytes.len() > 128).collect();
    assert!(own.is_empty(), "{own:?}");
}

/// P5: the first tombstone is the end. (P24, a seal above the newest slot only, fails in the simulation.)
#[tokio::test(start_paused = true)]
async fn p5_first_tombstone_is_the_end() {
    let owner = Owner::opened(archive()).await;
    owner.scripted.rule("create", owner.slot(3), Fate::Away);
    for _ in 0..6 {
        owner.write().await;
    }
    let log = owner.log();
    assert!(owner.scripted.contents().contains_key(&owner.slot(6)), "slots behind a gap");
    let owner = owner.restart().await;
    owner.server.opened().await;
    let (record, _) = replay(&owner.scripted.contents(), &VOLUME);
    let sealed = record.logs.iter().find(|it| it.id == log).unwrap();
    assert_eq!(sealed.end, Some(3));
    owner.server.catch_up().await;
    owner.verify();
}

/// Q5: a restart sends its tail again only if no other log was opened in between.
#[tokio::test(start_paused = true)]
async fn q5_no_tail_after_another_log() {
    let owner = Owner::opened(archive()).await;
    let before = owner.archived();
    owner.scripted.rule("create", owner.slot(1), Fate::Away);
    let tail = owner.write().await;
    let copy = owner.disk.lock().copied();
    drop(owner.server.archiver);
    owner.server.store.close();
    let other = Owner::start(owner.scripted.other(), Arc::new(Mutex::new(copy))).await;
    other.server.opened().await;
    let dead = Owner {
        server: other.server,
        scripted: other.scripted.clone(),
        disk: owner.disk,
        folder: owner.folder,
    };
    let owner = dead.restart().await;
    owner.server.opened().await;
    let status = owner.server.archiver.status();
    assert_eq!((status.gaps, owner.archived()), (1, tail));
    assert!(matches!(status.state, ArchiverState::NeedsBase { .. }), "{:?}", status.state);
    let (_, logs) = replay(&owner.scripted.contents(), &VOLUME);
    let own = logs.last().unwrap();
    assert_eq!((own.opening, own.records.len()), (Some((tail, true)), 0));
    assert!(before < tail);
}

/// Q8: the log is remembered durably before its slot 0 is sent.
#[tokio::test(start_paused = true)]
async fn q8_log_is_remembered_before_slot_0() {
    let scripted = archive();
    scripted.rule("replace", "record", Fate::Held);
    let owner = Owner::start(scripted, disk(1 << 20)).await;
    owner.server.store.blocks_remember.send_replace(true);
    owner.scripted.release();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(of_logs(&owner.scripted.arrivals()), Vec::<&Arrival>::new());
    owner.server.store.blocks_remember.send_replace(false);
    owner.server.opened().await;
    assert_eq!(owner.disk.lock().logs, [owner.log()]);
}

/// The archive of another store is refused, with both volumes and the remedy, and never written to.
#[tokio::test(start_paused = true)]
async fn archive_of_another_store_is_refused() {
    let disk = Arc::new(Mutex::new(Disk::new([9; 16], 1 << 20)));
    let owner = Owner::start(archive(), disk).await;
    sleep(MOMENT).await;
    let ArchiverState::Refused { why } = owner.server.state() else { panic!("{:?}", owner.server.state()) };
    for part in ["07070707", "09090909", "another prefix", "restore"] {
        assert!(why.contains(part), "{why}");
    }
    let last = owner.write().await;
    assert_eq!(owner.disk.lock().floor, last, "nothing waits for it");
    assert!(owner.scripted.arrivals().iter().all(|arrival| arrival.verb == "get"));
}
