//! Figures and operations, as a page asks for them.

use serde_json::{Value, json};
use shoal_storekit::{eventually, in_time, put};

use crate::support::{Page, Running};

/// A page that gets figures.
struct Live(Page);

impl Live {
    async fn open(page: &Page) -> Self {
        let mut page = page.again().await;
        let cookie = page.cookie.clone();
        page.send_head("GET", "/api/live", &[("cookie", &cookie)], 0).await;
        let reply = page.receive_head().await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
        Self(page)
    }

    /// The next sample; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        let event = in_time("an event", self.0.receive_chunk()).await.filter(|event| !event.is_empty())?;
        let event = String::from_utf8(event).unwrap();
        let data = event.strip_prefix("event: live\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        Some(serde_json::from_str(data).unwrap())
    }

    async fn ends(&mut self, why: &str) {
        let ended = async { while self.next().await.is_some() {} };
        in_time(why, ended).await;
    }
}

fn times(samples: &[Value]) -> Vec<u64> {
    samples.iter().map(|sample| sample["uptime_s"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pages_get_the_same_samples() {
    let running = Running::open();
    let mut page = running.page().await;
    let (mut first, mut second) = (Live::open(&page).await, Live::open(&page).await);
    let mut seen = [Vec::new(), Vec::new()];
    for second_of_test in 0..3 {
        // The test clock gives each sample a different time.
        running.clock.advance(1_000_000_000 * u64::from(second_of_test > 0));
        seen[0].push(first.next().await.unwrap());
        seen[1].push(second.next().await.unwrap());
    }
    let history = page.get("/api/history").await.json();
    let samples = history["samples"].as_array().unwrap();
    assert!(seen.iter().flatten().all(|sample| samples.contains(sample)), "{:?}", times(samples));
    assert!(samples.len() <= 5, "one sampler for both: {:?}", times(samples));
    assert_eq!(history["heat_edges_us"].as_array().unwrap().len(), 71);
    put(&running.store, "b", b"k", vec![1; 9]);
    let counted = async {
        loop {
            let sample = first.next().await.unwrap();
            if sample["objects"]["count"] == 1 {
                return sample;
            }
        }
    };
    let sample = in_time("the object is counted", counted).await;
    assert_eq!(sample["health"]["ready"], true);
    assert_eq!(sample["health"]["warnings"][0]["id"], "no_backup");
    assert!(sample["frontends"].as_array().unwrap().iter().any(|frontend| frontend["name"] == "console"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_their_session_and_with_the_server() {
    let running = Running::start();
    assert_eq!(running.page().await.get("/api/live").await.status, 401);
    let (mut page, other) = (running.signed_in("list *").await, running.signed_in("admin *").await);
    let (mut ends, mut stays) = (Live::open(&page).await, Live::open(&other).await);
    assert!(ends.next().await.is_some() && stays.next().await.is_some());
    assert_eq!(page.send("DELETE", "/api/session", &[], b"").await.status, 204);
    ends.ends("the stream of a session that is over").await;
    assert!(stays.next().await.is_some());
    running.stop().await;
    stays.ends("the stream of a server that stops").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_are_for_those_who_may_list_everything() {
    let running = Running::start();
    let mut lists = running.signed_in("list *").await;
    let mut narrow = running.signed_in("read,list,write,delete,bucket b").await;
    for path in ["history", "space", "space/cell?start=0&blocks=9", "census", "slow", "connections", "damage"]
    {
        let path = format!("/api/{path}");
        let reply = lists.get(&path).await;
        assert!(reply.status == 200 && reply.json().is_object(), "{path}: {reply:?}");
        assert_eq!(narrow.get(&path).await.status, 403, "{path}");
    }
    assert_eq!(narrow.get("/api/live").await.status, 403);
    for method in ["POST", "DELETE"] {
        assert_eq!(narrow.send(method, "/api/census", &[], b"").await.status, 403, "{method}");
    }
    for path in ["log", "config", "report", "backup"] {
        assert_eq!(lists.get(&format!("/api/{path}")).await.status, 403, "{path}");
    }
    for path in ["scrub", "relocation"] {
        let reply = lists.post(&format!("/api/{path}"), "{\"paused\":true}").await;
        assert_eq!(reply.status, 403, "{path}");
    }
    assert!(!running.store.stat().relocation_paused);
    let map = lists.get("/api/space?cells=64").await.json();
    assert!(map["free"].as_array().unwrap().len() <= 64);
    for wrong in ["space?cells=63", "space?cells=16385", "space?cells=x", "space/cell?start=-1"] {
        assert_eq!(lists.get(&format!("/api/{wrong}")).await.status, 400, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_takes_a_census() {
    let running = Running::start();
    let mut page = running.signed_in("list *").await;
    put(&running.store, "b", b"k", vec![1; 100_000]);
    let found = async {
        // The object is in the trees after the next apply.
        loop {
            assert_eq!(page.send("POST", "/api/census", &[], b"").await.status, 202);
            let state = page.get("/api/census?buckets=true").await.json();
            if state["taken"]["objects"] == 1 {
                return state;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let state = in_time("the object is counted", found).await;
    assert_eq!(state["taken"]["buckets"], json!([{ "name": "b", "objects": 1, "bytes": 100_000 }]));
    assert!(page.get("/api/census").await.json()["taken"]["buckets"].is_null());
    let map = page.get("/api/space?cells=64").await.json();
    assert_eq!(map["census_ms"], state["taken"]["ended_ms"]);
    let blocks = map["blocks"].as_u64().unwrap();
    let range = page.get(&format!("/api/space/cell?start=0&blocks={blocks}")).await.json();
    assert_eq!(range["kinds"]["extents"]["blocks"], 25);
    assert_eq!(page.send("DELETE", "/api/census", &[], b"").await.status, 204);
    let ends = async { while page.get("/api/census").await.json()["running"] == true {} };
    in_time("the walk ends", ends).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_operates_the_store() {
    let running = Running::start();
    let mut page = running.signed_in("admin *").await;
    assert_eq!(page.post("/api/scrub", "").await.status, 202);
    eventually("a pass of the scrub", || async { running.store.stat().scrub_passes == 1 }).await;
    for paused in [true, false] {
        let reply = page.post("/api/relocation", &json!({ "paused": paused }).to_string()).await;
        assert_eq!((reply.status, running.store.stat().relocation_paused), (204, paused));
    }
    assert_eq!(page.post("/api/relocation", "{\"pause\":1}").await.status, 400);
    assert_eq!(page.get("/api/log?lines=2").await.json(), json!({ "lines": ["two", "three"] }));
    assert_eq!(page.get("/api/config").await.json()["options"][0]["name"], "cache");
    let report = page.get("/api/report").await;
    assert_eq!((report.status, &report.body[..2]), (200, &[0x1f, 0x8b][..]));
    let name = report.header("content-disposition").unwrap();
    assert!(name.starts_with("attachment; filename=\"shoal-report-"), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_a_download_that_is_noted() {
    let running = Running::start();
    let mut page = running.signed_in("read,list *").await;
    for which in 0..9_u8 {
        put(&running.store, "b", &[which], vec![which; 100_000]);
    }
    let backup = page.get("/api/backup").await;
    assert!(backup.status == 200 && backup.is_whole && backup.body.len() > 900_000, "{}", backup.body.len());
    let name = backup.header("content-disposition").unwrap();
    assert!(name.starts_with("attachment; filename=\"shoal-backup-"), "{name}");
    assert!(running.store.stat().last_backup.is_some());
    // Two that others take are the limit.
    let first = running.backups.start(&running.store, None).await.unwrap();
    let _second = running.backups.start(&running.store, None).await.unwrap();
    assert_eq!(page.get("/api/backup").await.status, 503);
    drop(first);
    assert_eq!(page.get("/api/backup").await.body.len(), backup.body.len());
}
