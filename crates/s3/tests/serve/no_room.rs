//! Puts, uploads and completions that find no room: in a store that is full, and in a data file whose file system is full, as one that
//! copies on write is for each write. They are refused as such, nothing acknowledged is lost, and there is room again afterwards.

use std::time::Duration;

use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image};
use shoal_storekit::{StoreKit, eventually, in_time};
use shoal_testkit::device::quiet;

use crate::support::{Client, Reply, Running};

/// The least bytes of a part that is not the last one.
const PART: usize = 5 << 20;
/// A put that arrives in pieces.
const STREAM: usize = 40 << 20;
const FILLER: usize = 1 << 20;
/// The system's error of a full file system.
const NO_SPACE: i32 = 28;

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 4_096) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

/// A refusal for lack of room, with the way out.
fn is_refused(reply: &Reply, way_out: &str) -> bool {
    if reply.status < 300 {
        return false;
    }
    assert_eq!(reply.error(), (507, "InsufficientStorage".to_owned()), "{}", reply.text());
    assert!(reply.text().contains(way_out), "{}", reply.text());
    true
}

/// Sends the head and a part of the body of a put.
async fn start_put(client: &mut Client, target: &str, body: &[u8], sent: usize) {
    let mut headers = client.signed("PUT", target, &[], "UNSIGNED-PAYLOAD");
    headers.push(("content-length".to_owned(), body.len().to_string()));
    client.send_head("PUT", target, &headers).await;
    client.send_body(&body[..sent]).await;
}

/// Sends the rest, and receives the answer.
async fn end_put(client: &mut Client, body: &[u8], sent: usize) -> Reply {
    client.send_body(&body[sent..]).await;
    client.receive("PUT").await
}

/// An upload of `path` with one part, which is only to be completed.
async fn ready_upload(client: &mut Client, path: &str, part: &[u8]) -> (String, String) {
    let upload = client.begin_upload(path, &[]).await;
    let sent = client.send_part(path, &upload, 1, part).await;
    (upload, sent.header("etag").unwrap().to_owned())
}

async fn complete(client: &mut Client, path: &str, (upload, etag): &(String, String)) -> Reply {
    client.complete_upload(path, upload, &[(1, etag)], &[]).await
}

/// Puts objects until the store is full. Returns their number.
async fn fill(client: &mut Client, from: usize) -> usize {
    for number in from.. {
        let body = bytes(number as u8, FILLER);
        if is_refused(&client.put(&format!("/bkt/fill-{number}"), &body).await, "shoal grow") {
            return number;
        }
        assert!(number < 1_000, "it is never full");
    }
    unreachable!("a loop without an end")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_bytes_and_takes_them_after_an_abort() {
    // 96 MiB.
    let running = Running::over(StoreKit::new(24 << 10).in_memory()).await;
    let mut client = running.with_bucket().await;
    let kept = bytes(1, PART);
    assert_eq!(client.put("/bkt/kept", &kept).await.status, 200);
    let ready = ready_upload(&mut client, "/bkt/ready", &bytes(2, PART)).await;
    let upload = client.begin_upload("/bkt/upload", &[]).await;
    let mut sent = Vec::new();
    for number in 1..=6 {
        let part = client.send_part("/bkt/upload", &upload, number, &bytes(number as u8, PART)).await;
        sent.push(part.header("etag").unwrap().to_owned());
    }
    // A put and a part are in progress when the store runs out of room; the upload is completed afterwards.
    let (stream, part) = (bytes(7, STREAM), bytes(8, PART));
    let (mut putting, mut sending) = (running.client().await, running.client().await);
    start_put(&mut putting, "/bkt/stream", &stream, STREAM / 8).await;
    start_put(&mut sending, &format!("/bkt/upload?partNumber=7&uploadId={upload}"), &part, PART / 8).await;
    let fillers = fill(&mut client, 0).await;
    let completed = complete(&mut client, "/bkt/ready", &ready).await;
    let put = end_put(&mut putting, &stream, STREAM / 8).await;
    let seventh = end_put(&mut sending, &part, PART / 8).await;
    assert!(is_refused(&put, "shoal grow"), "{} MiB were put into a full store", STREAM >> 20);
    if !is_refused(&seventh, "shoal grow") {
        sent.push(seventh.header("etag").unwrap().to_owned());
    }

    // All acknowledged bytes are there, and no others.
    assert!(client.get("/bkt/kept").await.body == kept);
    assert_eq!(client.get("/bkt/stream").await.status, 404);
    assert_eq!(
        client.get(&format!("/bkt/upload?uploadId={upload}")).await.all("PartNumber").len(),
        sent.len()
    );
    for number in [0, fillers / 2, fillers - 1] {
        let found = client.get(&format!("/bkt/fill-{number}")).await;
        assert!(found.body == bytes(number as u8, FILLER), "{number} of {fillers}");
    }
    if is_refused(&completed, "shoal grow") {
        assert_eq!(client.get(&format!("/bkt/ready?uploadId={}", ready.0)).await.all("PartNumber"), ["1"]);
    }

    // Deletes and aborts work, and give the room of the parts back.
    assert_eq!(client.delete("/bkt/fill-0").await.status, 204);
    assert_eq!(client.delete(&format!("/bkt/upload?uploadId={upload}")).await.status, 204);
    assert_eq!(client.get("/bkt?uploads").await.all("UploadId").len(), usize::from(completed.status != 200));
    in_time("the room of the parts is free", async {
        while client.put("/bkt/parts-room", &bytes(9, 5 * PART)).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(complete(&mut client, "/bkt/ready", &ready).await.status, 200);
    assert!(client.get("/bkt/ready").await.body == bytes(2, PART));

    // The refused put left nothing behind: all but the kept objects fits again.
    for name in (1..fillers).map(|number| format!("fill-{number}")).chain(["parts-room".to_owned()]) {
        assert_eq!(client.delete(&format!("/bkt/{name}")).await.status, 204);
    }
    in_time("all room is free", async {
        while client.put("/bkt/stream", &stream).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(client.get("/bkt/stream").await.body == stream);
}

/// As on a copy-on-write file system, each write needs room, also those of the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_system_refuses_writes_until_there_is_room() {
    let sim = quiet(Image::new(32 << 10));
    let running = Running::over(StoreKit::new(32 << 10).create(&Device::new(sim.clone()))).await;
    let mut client = running.with_bucket().await;
    let kept = bytes(1, PART);
    assert_eq!(client.put("/bkt/kept", &kept).await.status, 200);
    let ready = ready_upload(&mut client, "/bkt/ready", &bytes(2, PART)).await;
    let upload = client.begin_upload("/bkt/upload", &[]).await;
    let first = client.send_part("/bkt/upload", &upload, 1, &bytes(3, PART)).await;
    let (stream, part) = (bytes(7, 4 * PART), bytes(8, PART));
    let (mut putting, mut sending) = (running.client().await, running.client().await);
    start_put(&mut putting, "/bkt/stream", &stream, PART).await;
    start_put(&mut sending, &format!("/bkt/upload?partNumber=2&uploadId={upload}"), &part, PART / 2).await;

    sim.inject(Fault::fail(FaultOp::Write, NO_SPACE).for_good());
    let replies = [
        complete(&mut client, "/bkt/ready", &ready).await,
        end_put(&mut putting, &stream, PART).await,
        end_put(&mut sending, &part, PART / 2).await,
        client.put("/bkt/short", b"1").await,
        client.delete("/bkt/kept").await,
        client.delete(&format!("/bkt/upload?uploadId={upload}")).await,
    ];
    for (which, reply) in replies.iter().enumerate() {
        assert!(is_refused(reply, "its file system is full: delete or move other files"), "{which}");
    }
    assert!(client.get("/bkt/kept").await.body == kept);
    assert_eq!(client.get("/bkt?list-type=2").await.all("Key"), ["kept"]);
    assert_eq!(client.get(&format!("/bkt/ready?uploadId={}", ready.0)).await.all("PartNumber"), ["1"]);
    assert_eq!(client.get(&format!("/bkt/upload?uploadId={upload}")).await.all("PartNumber"), ["1"]);
    assert_eq!(running.store.stat().poisoned, None);

    sim.clear_faults();
    in_time("writes are taken", async {
        while client.put("/bkt/short", b"1").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(complete(&mut client, "/bkt/ready", &ready).await.status, 200);
    assert!(client.get("/bkt/ready").await.body == bytes(2, PART));
    let second = client.send_part("/bkt/upload", &upload, 2, &part).await;
    let etags = [first, second].map(|reply| reply.header("etag").unwrap().to_owned());
    let done = client.complete_upload("/bkt/upload", &upload, &[(1, &etags[0]), (2, &etags[1])], &[]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(client.get("/bkt/upload").await.body == [bytes(3, PART), part].concat());
    assert_eq!(client.delete("/bkt/kept").await.status, 204);
    eventually("the store has room", || async { running.store.stat().no_room.is_none() }).await;
}
