//! The service as a whole: server and clients over gRPC, a file that survives, clients that die.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use shoal_base::{ManualClock, Run, SeededEntropy, SystemClock};
use shoal_space_service::{
    ClientError, ClientOptions, JournalError, Owner, OwnerOptions, Refusal, SpaceClient, SpaceCommand,
    SpaceReply, SpaceServer,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const MIB: u64 = 1 << 20;

struct Service {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Service {
    async fn start(path: &Path, sync: bool) -> Self {
        let options = OwnerOptions { size: Some(64 * MIB), sync };
        let owner =
            Owner::open(path, &options, Arc::new(SystemClock::new()), &SeededEntropy::new(1)).unwrap();
        let server = SpaceServer::bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), &[], false).unwrap();
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(owner, async { drop(stopped.await) }));
        Self { address, stop, running }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap();
    }

    fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::new(format!("http://{}", self.address));
        options.timeout = Duration::from_secs(5);
        options
    }

    async fn client(&self) -> SpaceClient {
        SpaceClient::connect(&self.options()).await.unwrap()
    }
}

#[tokio::test]
async fn a_client_allocates_frees_and_leases() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder.path().join("space"), true).await;
    let client = service.client().await;
    assert_eq!((client.blocks(), client.group_blocks()), (64 * 256, 256));
    let first = client.allocate(10).await.unwrap();
    let values = client.allocate_batch(&[5, 7], 1).await.unwrap();
    assert_eq!((first, values), (Run::new(0, 10), vec![vec![Run::new(10, 5)], vec![Run::new(15, 7)]]));
    client.free(&[Run::new(2, 3)]).await.unwrap();
    assert!(matches!(client.free(&[Run::new(2, 3)]).await, Err(ClientError::Refused(_))), "twice");
    assert!(matches!(client.allocate(20_000).await, Err(ClientError::NoSpace(_))));

    let mut pool = client.pool();
    assert_eq!(pool.allocate(1), None);
    pool.lease(4).await.unwrap();
    let runs: Vec<Run> = (0..8).map(|_| pool.allocate(100).unwrap()).collect();
    assert!(pool.free(Run::new(0, 10)).is_err(), "it is not of the pool");
    assert!(matches!(client.free(&[runs[0]]).await, Err(ClientError::Refused(_))), "it is leased");
    pool.free(runs[1]).unwrap();
    pool.commit().await.unwrap();
    let status = client.status().await.unwrap();
    assert_eq!((status.leased_blocks, status.committed_blocks, status.leases), (1024, 700, 1));
    // Some committed runs are freed, a new one is allocated; the new one is not committed.
    pool.free_batch(&runs[2..4]).unwrap();
    pool.commit().await.unwrap();
    assert!(pool.allocate(150).is_some());
    drop(pool);
    let status = client.status().await.unwrap();
    assert_eq!((status.leased_blocks, status.committed_blocks), (1024, 500), "a dropped pool is a crash");
    client.close().await.unwrap();
    let other = service.client().await;
    let status = other.status().await.unwrap();
    assert_eq!((status.leases, status.free_blocks), (0, 64 * 256 - 19 - 500));
    // The present owner frees a run that was committed.
    other.free(&[runs[0]]).await.unwrap();
    let mut pool = other.pool();
    pool.lease(1).await.unwrap();
    assert!(pool.allocate(256).is_some());
    pool.give_back().await.unwrap();
    assert_eq!(other.status().await.unwrap().free_blocks, 64 * 256 - 19 - 400 - 256);
    service.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_everything_and_a_lost_answer_is_given_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("space");
    let service = Service::start(&path, true).await;
    let client = service.client().await;
    let run = client.allocate(33).await.unwrap();
    let mut pool = client.pool();
    pool.lease(2).await.unwrap();
    let kept = pool.allocate(50).unwrap();
    pool.commit().await.unwrap();
    let before = client.status().await.unwrap();
    let session = client.session();
    service.stop().await;

    // The file alone is enough; the client's session continues.
    let options = OwnerOptions { size: None, sync: false };
    let clock = Arc::new(ManualClock::new(5_000_000));
    let entropy = SeededEntropy::new(2);
    let owner = Owner::open(&path, &options, clock.clone(), &entropy).unwrap();
    assert_eq!(owner.status(), before);
    let again = SpaceCommand::Commit { lease: 1, kept: vec![kept], freed: vec![] };
    assert_eq!(owner.act(session, 3, again.clone()).await, Ok(SpaceReply::Done), "the third call, repeated");
    let other = SpaceCommand::Commit { lease: 1, kept: vec![Run::new(kept.end(), 1)], freed: vec![] };
    assert!(
        matches!(owner.act(session, 3, other).await, Err(Refusal::Invalid(_))),
        "another call than the third"
    );
    assert!(matches!(owner.act(session, 4, again).await, Err(Refusal::Wrong { .. })), "it was done once");
    assert!(matches!(Owner::open(&path, &options, clock.clone(), &entropy), Err(JournalError::InUse(_))));
    // A client that never came back is fenced after a whole time to live, and its lease taken back.
    let wait = |seconds: u64| {
        let looks = (0..seconds).map(|_| {
            clock.advance(1_000_000_000);
            owner.fence_late().unwrap()
        });
        looks.flatten().collect::<Vec<u64>>()
    };
    assert_eq!(wait(29), vec![]);
    // The owner is stopped for an hour: that is not its clients' silence.
    clock.advance(3_600_000_000_000);
    assert_eq!(owner.fence_late(), Ok(vec![]));
    assert_eq!(wait(29), vec![]);
    assert_eq!(wait(2), vec![session]);
    let late = SpaceCommand::Commit { lease: 1, kept: vec![Run::new(kept.end(), 1)], freed: vec![] };
    assert_eq!(owner.act(session, 4, late).await, Err(Refusal::Fenced { session }));
    let status = owner.status();
    let used = u64::from(run.blocks + kept.blocks);
    assert_eq!((status.leases, status.free_blocks), (0, status.blocks - used));
    owner.close();
    let owner = Owner::open(&path, &options, clock, &entropy).unwrap();
    assert_eq!(owner.status(), status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_client_is_fenced_and_its_late_commit_refused() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder.path().join("space"), false).await;
    let mut options = service.options();
    options.time_to_live = Duration::from_secs(1);
    // The task that renews the session runs on a separate runtime, which stops like a machine that hangs.
    let (client, mut pool) = std::thread::scope(|scope| {
        let hung = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let made = runtime.block_on(async {
                let client = SpaceClient::connect(&options).await.unwrap();
                let mut pool = client.pool();
                pool.lease(3).await.unwrap();
                (client, pool)
            });
            runtime.shutdown_background();
            made
        });
        hung.join().unwrap()
    });
    assert!(pool.allocate(9).is_some(), "it does not know yet");
    let other = service.client().await;
    assert_eq!(other.status().await.unwrap().leases, 1);
    let mut waited = 0;
    while other.status().await.unwrap().leases == 1 {
        waited += 1;
        assert!(waited < 1_000, "the lease is never taken back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let session = client.session();
    drop(client);
    let owner_side = other.status().await.unwrap();
    assert_eq!(owner_side.free_blocks, owner_side.blocks);
    assert!(session < other.session(), "numbers are never given twice");
    // Its connection is gone with its runtime; any call of it is refused or does not arrive.
    assert!(pool.commit().await.is_err());
    service.stop().await;
}

#[tokio::test]
async fn torn_tail_recovers_and_earlier_damage_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("space");
    let options = OwnerOptions { size: Some(16 * MIB), sync: true };
    let (clock, entropy) = (Arc::new(ManualClock::new(0)), SeededEntropy::new(3));
    let open = |path: &Path| Owner::open(path, &options, clock.clone(), &entropy);
    let owner = open(&path).unwrap();
    let session = owner.begin(60_000).await.unwrap();
    let mut states = vec![owner.status()];
    let snapshot_end = 64 + 3 * 40;
    for sequence in 1..=20 {
        let action = if sequence % 5 == 0 {
            SpaceCommand::Grant { groups: 1 }
        } else {
            SpaceCommand::Allocate { sizes: vec![sequence as u32], runs_max: 1 }
        };
        owner.act(session, sequence, action).await.unwrap();
        states.push(owner.status());
    }
    owner.close();
    let bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let copy = folder.path().join("copy");
    let mut seen = std::collections::BTreeSet::new();
    for cut in (snapshot_end..end).rev().step_by(7) {
        std::fs::write(&copy, &bytes[..cut]).unwrap();
        match open(&copy) {
            Ok(owner) => {
                let at = states.iter().position(|&state| state == owner.status());
                seen.insert(at);
            }
            Err(error) => assert!(matches!(error, JournalError::Damaged { .. }), "{cut}: {error}"),
        }
    }
    assert!(seen.len() > 15, "{seen:?}");
    // A changed byte in the middle is not an end: the records after it promised that it was there.
    let mut damaged = bytes.clone();
    damaged[end / 2] ^= 1;
    std::fs::write(&copy, &damaged).unwrap();
    assert!(matches!(open(&copy), Err(JournalError::Damaged { .. })));
    std::fs::write(&copy, b"something else").unwrap();
    assert!(matches!(open(&copy), Err(JournalError::Damaged { .. })));
    let other = OwnerOptions { size: Some(32 * MIB), sync: true };
    assert!(matches!(Owner::open(&path, &other, clock.clone(), &entropy), Err(JournalError::Size(_))));
    let missing = folder.path().join("missing");
    let no_size = OwnerOptions { size: None, sync: true };
    assert!(matches!(Owner::open(&missing, &no_size, clock.clone(), &entropy), Err(JournalError::Size(_))));
}

#[tokio::test]
async fn a_file_that_became_long_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("space");
    let options = OwnerOptions { size: Some(1 << 30), sync: false };
    let (clock, entropy) = (Arc::new(ManualClock::new(0)), SeededEntropy::new(4));
    let owner = Owner::open(&path, &options, clock.clone(), &entropy).unwrap();
    let session = owner.begin(60_000).await.unwrap();
    let mut sequence = 0;
    for _ in 0..60 {
        sequence += 1;
        let action = SpaceCommand::Allocate { sizes: vec![1; 60_000], runs_max: 1 };
        let Ok(SpaceReply::Values(values)) = owner.act(session, sequence, action).await else { panic!() };
        sequence += 1;
        let runs = values.into_iter().flatten().collect();
        owner.act(session, sequence, SpaceCommand::Free { runs }).await.unwrap();
    }
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length < 18 << 20, "{length}: 120 calls of 400 KB each");
    let status = owner.status();
    owner.close();
    let owner = Owner::open(&path, &options, clock, &entropy).unwrap();
    assert_eq!(owner.status(), status);
    assert_eq!(status.free_blocks, status.blocks);
}

#[tokio::test]
async fn several_clients_own_no_block_together() {
    let folder = tempfile::tempdir().unwrap();
    let service = Arc::new(Service::start(&folder.path().join("space"), false).await);
    let work = |number: u32| {
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let client = service.client().await;
            let mut mine = Vec::new();
            for round in 0..5 {
                let mut pool = client.pool();
                if pool.lease(2).await.is_err() {
                    break;
                }
                let mut taken: Vec<Run> = (0..20).filter_map(|_| pool.allocate(number % 7 + 5)).collect();
                taken.drain(..5).for_each(|run| pool.free(run).unwrap());
                if round % 2 == 0 {
                    pool.commit().await.unwrap();
                    // Like a crash: a run that is allocated now is not committed.
                    assert!(pool.allocate(3).is_some());
                } else {
                    pool.give_back().await.unwrap();
                }
                mine.extend(taken);
                mine.push(client.allocate(4).await.unwrap());
            }
            client.close().await.unwrap();
            mine
        })
    };
    let running: Vec<_> = (0..4).map(work).collect();
    let mut all = Vec::new();
    for one in running {
        all.extend(one.await.unwrap());
    }
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| !pair[0].overlaps(pair[1])));
    let status = service.client().await.status().await.unwrap();
    let used: u64 = all.iter().map(|run| u64::from(run.blocks)).sum();
    assert_eq!(status.free_blocks + used, status.blocks);
}

/// Several processes that make one file at the same moment, or find it replaced meanwhile: one of them gets it.
#[test]
fn a_file_is_made_and_opened_by_one_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("space");
    let open = || {
        let options = OwnerOptions { size: Some(64 * MIB), sync: false };
        Owner::open(&path, &options, Arc::new(SystemClock::new()), &SeededEntropy::new(1))
    };
    for _ in 0..20 {
        let all: Vec<_> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            running.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(all.iter().filter(|owner| owner.is_ok()).count(), 1);
        let refused = |owner: &Result<Owner, JournalError>| {
            owner.as_ref().err().is_none_or(|error| matches!(error, JournalError::InUse(_)))
        };
        assert!(all.iter().all(refused));
        drop(all);
        std::fs::remove_file(&path).unwrap();
    }
}

/// A call that is abandoned leaves its outcome unknown: the client is over, and the owner takes back its leases.
#[tokio::test]
async fn a_client_that_gave_a_call_up_is_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder.path().join("space"), true).await;
    let mut options = service.options();
    options.time_to_live = Duration::from_secs(1);
    let client = SpaceClient::connect(&options).await.unwrap();
    let mut pool = client.pool();
    pool.lease(2).await.unwrap();
    // Sent, and dropped before an answer can have come.
    let mut call = Box::pin(client.allocate(1));
    let begun = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
    assert!(begun, "it was answered before it was asked for");
    drop(call);
    assert!(matches!(client.allocate(1).await, Err(ClientError::Unavailable(_))));
    let other = service.client().await;
    let mut waited = 0;
    while other.status().await.unwrap().leases == 1 {
        waited += 1;
        assert!(waited < 1_000, "the lease is never taken back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(client);
    service.stop().await;
}
