//! Sweeps by a clock that the test moves.

use std::time::Instant;

use shoal_base::{Clock, ManualClock, SystemClock};
use shoal_engine::{Environment, Metadata, PutOptions, Store};
use shoal_metrics::{AuditLog, Metrics, Operation, RequestLogs, RequestResult};
use shoal_storekit::StoreKit;

use super::*;
use crate::bucket::item;
use crate::bucket::lifecycle::{LifecycleEnd, LifecycleFilter, encode_lifecycle};
use crate::object::metadata::S3Metadata;
use crate::object::tags::TagSet;
use crate::options::S3Options;

/// A sweeper, in whose time a hundred days have passed since the objects were put.
struct Fixture {
    store: Store,
    clock: Arc<ManualClock>,
    sweeper: Sweeper,
}

impl Fixture {
    async fn new() -> Self {
        Self::counted_by(Arc::default()).await
    }

    async fn counted_by(metrics: Arc<Metrics>) -> Self {
        let clock = Arc::new(ManualClock::new(SystemClock::default().wall_ns()));
        let store = StoreKit::new(64 << 10).in_memory();
        let environment = Environment { clock: clock.clone(), ..Environment::default() };
        let options = S3Options { environment, metrics, ..S3Options::default() };
        let state = Arc::new(S3State::new(store.clone(), options).await.unwrap());
        let mut fixture = Self { store, clock, sweeper: Sweeper::new(state, None) };
        fixture.sweeper.settled_ns();
        fixture.pass_days(100);
        fixture
    }

    fn pass_days(&mut self, days: u64) {
        for step in [days * DAY_S * SECOND_NS, 3_600 * SECOND_NS] {
            self.clock.advance(step);
            self.sweeper.settled_ns();
        }
    }

    fn set(&self, rules: &[LifecycleRule]) {
        self.store.create_bucket("bkt", Default::default()).unwrap();
        let rules = encode_lifecycle(rules);
        let change = |config: &mut shoal_engine::BucketConfig| {
            config.items.set(item::LIFECYCLE, Some(&rules));
            Ok(())
        };
        self.store.update_bucket("bkt", change).unwrap();
    }

    async fn put(&self, key: &str, modified_ns: Option<u64>) -> Lsn {
        let key = ObjectKey::new("bkt", key.as_bytes()).unwrap();
        let options = PutOptions { modified_ns, ..PutOptions::default() };
        self.store.put(&key, b"value".to_vec().into(), options).await.unwrap().version
    }

    async fn has(&self, key: &str) -> bool {
        self.store.head(&ObjectKey::new("bkt", key.as_bytes()).unwrap()).await.unwrap().is_some()
    }

    fn deletes(&self) -> Vec<(RequestResult, u64)> {
        let counted = self.sweeper.state.metrics.requests();
        let deletes = counted.iter().filter(|counts| counts.operation == Operation::Delete);
        deletes.map(|counts| (counts.result, counts.durations.count())).collect()
    }
}

fn rule(prefix: &str, days: u32) -> LifecycleRule {
    LifecycleRule {
        id: prefix.to_owned(),
        is_enabled: true,
        filter: LifecycleFilter { prefix: prefix.to_owned(), ..LifecycleFilter::default() },
        expiration: Some(LifecycleEnd::Days(days)),
        ..LifecycleRule::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_was_overwritten_meanwhile_stays() {
    let path = std::env::temp_dir().join(format!("shoal-sweep-audit-{}", std::process::id()));
    let logs = RequestLogs { access: false, audit: Some(AuditLog::open(&path).unwrap()) };
    let metrics = Arc::new(Metrics::new(true, None, logs));
    let fixture = Fixture::counted_by(metrics.clone()).await;
    let (seen, newer) = (fixture.put("k", None).await, fixture.put("k", None).await);
    assert!(matches!(fixture.sweeper.expire("bkt", b"k", seen).await, Ok(false)));
    assert!(fixture.has("k").await);
    assert!(matches!(fixture.sweeper.expire("bkt", b"k", newer).await, Ok(true)));
    assert!(!fixture.has("k").await);
    assert_eq!(fixture.deletes(), [(RequestResult::Ok, 1), (RequestResult::Rejected, 1)]);
    metrics.audit().unwrap().finish();
    let lines = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let line = r#""proto":"s3","who":"lifecycle","ip":"0.0.0.0","op":"LifecycleExpiration","bucket":"bkt","key":"k""#;
    for result in ["rejected", "ok"] {
        assert!(lines.contains(&format!("{line},\"result\":\"{result}\"")), "{lines}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_ends_what_its_rules_name() {
    let mut fixture = Fixture::new().await;
    for key in ["a/1", "a/2", "b", "c/1"] {
        fixture.put(key, None).await;
    }
    let off = LifecycleRule { is_enabled: false, ..rule("b", 1) };
    let tagged = LifecycleRule {
        filter: LifecycleFilter { tags: TagSet::parse_header("k=v").unwrap(), ..LifecycleFilter::default() },
        ..rule("", 1)
    };
    fixture.set(&[rule("a/", 99), rule("c/", 102), off, tagged]);
    assert_eq!(fixture.sweeper.sweep().await, SweepCounts { objects: 2, uploads: 0 });
    assert!(fixture.has("b").await && fixture.has("c/1").await && !fixture.has("a/1").await);
    fixture.pass_days(4);
    assert_eq!(fixture.sweeper.sweep().await.objects, 1);
    assert!(!fixture.has("c/1").await && fixture.has("b").await);
}

/// A list that needs only the summary of metadata has no tags.
#[tokio::test(flavor = "multi_thread")]
async fn tags_count_beside_long_metadata() {
    let mut fixture = Fixture::new().await;
    let mut metadata =
        Metadata { user: vec![("name".into(), vec![b'v'; 1_500].into())], ..Metadata::default() };
    metadata.set_tags(&TagSet::parse_header("k=v").unwrap());
    let key = ObjectKey::new("bkt", b"k").unwrap();
    let options = PutOptions { metadata, ..PutOptions::default() };
    fixture.store.put(&key, vec![7; 100_000].into(), options).await.unwrap();
    let mut tagged = rule("", 1);
    tagged.filter.tags = TagSet::parse_header("k=w").unwrap();
    fixture.set(std::slice::from_ref(&tagged));
    assert_eq!(fixture.sweeper.sweep().await.objects, 0);
    tagged.filter.tags = TagSet::parse_header("k=v").unwrap();
    fixture.set(&[tagged]);
    assert_eq!(fixture.sweeper.sweep().await.objects, 1);
}

/// An operator who removes a rule stops the sweep by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_settings_stops_the_sweep() {
    let mut fixture = Fixture::new().await;
    fixture.put("k", None).await;
    let rules = [rule("", 1)];
    fixture.set(&rules);
    let before = fixture.store.bucket("bkt").unwrap().unwrap();
    fixture.set(&[]);
    let mut count = 0;
    let swept = fixture.sweeper.sweep_prefix(("bkt", &before), "", &rules, &mut count).await;
    assert_eq!((swept, count), (Ok(false), 0));
    assert!(fixture.has("k").await);
}

/// A bucket is examined once a day, and when its settings change.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_done_for_the_day() {
    let mut fixture = Fixture::new().await;
    fixture.set(&[rule("", 50)]);
    fixture.put("a", None).await;
    assert_eq!(fixture.sweeper.sweep().await.objects, 1);
    fixture.put("old", Some(SECOND_NS)).await;
    assert_eq!(fixture.sweeper.sweep().await.objects, 0, "it was examined today");
    fixture.set(&[rule("", 51)]);
    assert_eq!(fixture.sweeper.sweep().await.objects, 1);
    fixture.put("old", Some(SECOND_NS)).await;
    fixture.pass_days(1);
    assert_eq!(fixture.sweeper.sweep().await.objects, 1);
}

/// Rules that this program cannot read end nothing, and the life of uploads that the operator chose does not count instead.
#[tokio::test(flavor = "multi_thread")]
async fn rules_that_cannot_be_read_end_nothing() {
    let mut fixture = Fixture::new().await;
    fixture.sweeper.upload_life = Some(Duration::from_secs(1));
    fixture.put("k", None).await;
    fixture.set(&[]);
    let key = ObjectKey::new("bkt", b"up").unwrap();
    fixture.store.begin_upload(&key, Default::default(), None).await.unwrap();
    let change = |config: &mut shoal_engine::BucketConfig| {
        config.items.set(item::LIFECYCLE, Some(&[2, 99, 0]));
        Ok(())
    };
    fixture.store.update_bucket("bkt", change).unwrap();
    assert_eq!(fixture.sweeper.sweep().await, SweepCounts::default());
    fixture.set(&[]);
    assert_eq!(fixture.sweeper.sweep().await, SweepCounts { objects: 0, uploads: 1 });
}

/// 450 objects of three pages take at least the time that the rates give them. They are all deleted, also if pages end among them.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_is_paced() {
    let mut fixture = Fixture::new().await;
    for number in 0..450 {
        fixture.put(&format!("{number:03}"), None).await;
    }
    fixture.set(&[rule("", 1)]);
    let start = Instant::now();
    assert_eq!(fixture.sweeper.sweep().await.objects, 450);
    assert!(start.elapsed() >= Duration::from_millis(2_250 + 300), "{:?}", start.elapsed());
    assert!(
        fixture
            .store
            .list(&ListRequest { bucket: "bkt".into(), ..ListRequest::default() })
            .await
            .unwrap()
            .entries
            .is_empty()
    );
}
