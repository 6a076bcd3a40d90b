//! The matrix of permissions: every method by every kind of caller, on several buckets and keys, against the oracle of the testkit.

use bytes::Bytes;
use futures_util::stream;
use http::uri::PathAndQuery;
use shoal_api::v1::operation::Action;
use shoal_api::{Method, key_value as kv, v1};
use shoal_base::{Clock, SystemClock};
use shoal_server::{Credentials, KeyFile, Security, ServerOptions, Tokens};
use shoal_storekit::{in_time, put};
use shoal_testkit::certificates::RootCertificate;
use shoal_testkit::permissions::{HOLDERS, Holder, Shows, key_file, token_file};
use tokio::sync::mpsc::{Receiver, Sender};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::credentials::{channel, server_pem};
use crate::support::{Running, chunk, end, grpc_over, with_token};

/// The buckets and keys of the requests.
const PLACES: [(&str, &str); 5] =
    [("films", "in/k"), ("films", "out/k"), ("films", "inside"), ("film", "in/k"), ("maps", "in/k")];

/// The oracle's needs of a request.
enum Needs<'a> {
    /// Actions on buckets and keys.
    Keys(Vec<(&'a str, &'a str, &'a str)>),
    /// Actions on the whole store.
    Store(&'a [&'a str]),
}

impl Needs<'_> {
    fn are_met_by(&self, holder: &Holder) -> bool {
        match self {
            Self::Keys(needs) => holder.may(needs),
            Self::Store(actions) => holder.may_whole_store(actions),
        }
    }
}

fn is_let_in(holder: &Holder) -> bool {
    !matches!(holder.shows, Shows::Nothing | Shows::BadKey | Shows::UnnamedCertificate(_))
}

fn credentials(root: &RootCertificate, keys: &str) -> Credentials {
    let mut tls = server_pem(root);
    tls.client_roots = Some(root.pem().into());
    let keys = KeyFile::parse(keys.as_bytes()).unwrap().keys().unwrap();
    Credentials::with_keys(Some(&tls), Tokens::parse(token_file().as_bytes()).unwrap(), Some(keys)).unwrap()
}

/// A server, the channels of all callers of this protocol, and counts.
struct Matrix {
    server: Running,
    security: Security,
    root: RootCertificate,
    callers: Vec<(&'static Holder, Channel)>,
    tried: Vec<&'static str>,
    cases: usize,
}

impl Matrix {
    async fn new() -> Self {
        let root = RootCertificate::new();
        let security =
            Security::new(credentials(&root, &key_file("2020-01-01T00:00:00Z", "2500-01-01T00:00:00Z")));
        let options =
            ServerOptions { security: security.clone(), kv_bucket: "films".into(), ..Default::default() };
        let server = Running::told(options).await;
        let mut callers = Vec::new();
        for holder in HOLDERS.iter().filter(|holder| holder.shows != Shows::Password) {
            let identity = match holder.shows {
                Shows::Certificate(name) | Shows::UnnamedCertificate(name) => Some(root.client(name).pem()),
                _ => None,
            };
            callers.push((holder, channel(&server, &root, identity.as_ref()).await.unwrap()));
        }
        Self { server, security, root, callers, tried: Vec::new(), cases: 0 }
    }

    fn fill(&self) {
        for (bucket, key) in PLACES {
            put(&self.server.store, bucket, key.as_bytes(), [5; 9]);
        }
    }

    /// Sends `requests` as every caller.
    async fn attempt<M: Method>(&mut self, needs: Needs<'_>, requests: Vec<M::Request>)
    where
        M::Request: Clone,
    {
        for (holder, channel) in &self.callers {
            let code = ask::<M>(channel, holder, requests.clone()).await.err().map(|status| status.code());
            let context = format!("{} by {}: {code:?}", M::PATH, holder.name);
            match (is_let_in(holder), needs.are_met_by(holder)) {
                (false, _) => assert_eq!(code, Some(Code::Unauthenticated), "{context}"),
                (true, false) => assert_eq!(code, Some(Code::PermissionDenied), "{context}"),
                (true, true) => assert!(
                    !matches!(code, Some(Code::PermissionDenied | Code::Unauthenticated)),
                    "{context}"
                ),
            }
            self.cases += 1;
        }
        self.tried.push(M::PATH);
    }

    /// The methods of one object, and of several.
    async fn attempt_objects(&mut self, (bucket, key): (&'static str, &'static str)) {
        let name = || bucket.to_owned();
        let (bytes, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(b"new"));
        let of = |action| Needs::Keys(vec![(action, bucket, key)]);
        let get = v1::GetRequest { bucket: name(), key: bytes.clone(), ..Default::default() };
        self.attempt::<v1::Get>(of("read"), vec![get]).await;
        let head = v1::HeadRequest { bucket: name(), key: bytes.clone() };
        self.attempt::<v1::Head>(of("read"), vec![head]).await;
        let get = v1::GetStreamRequest { bucket: name(), key: bytes.clone(), ..Default::default() };
        self.attempt::<v1::GetStream>(of("read"), vec![get]).await;
        let list = v1::ListRequest { bucket: name(), prefix: bytes.clone(), ..Default::default() };
        self.attempt::<v1::List>(of("list"), vec![list]).await;
        for (value, returns) in
            [(value.clone(), false), (vec![1; 100_000].into(), false), (value.clone(), true)]
        {
            let rules = returns.then(|| v1::RejectRules { if_exists: true, ..Default::default() });
            let put = v1::PutRequest {
                bucket: name(),
                key: bytes.clone(),
                value,
                rules,
                return_existing: returns,
                ..Default::default()
            };
            let mut needs = vec![("write", bucket, key)];
            needs.extend(returns.then_some(("read", bucket, key)));
            self.attempt::<v1::Put>(Needs::Keys(needs), vec![put]).await;
        }
        let header = v1::PutStreamHeader { bucket: name(), key: bytes.clone(), ..Default::default() };
        let header = v1::PutStreamRequest { part: Some(v1::put_stream_request::Part::Header(header)) };
        self.attempt::<v1::PutStream>(of("write"), vec![header, chunk(value.clone()), end(3)]).await;
        let delete = v1::DeleteRequest { bucket: name(), key: bytes, ..Default::default() };
        self.attempt::<v1::Delete>(of("delete"), vec![delete]).await;
    }

    /// Batches of keys of which one may be beyond the grants, and of none.
    async fn attempt_batches(&mut self, bucket: &'static str) {
        for keys in [&[][..], &["in/k"], &["in/k", "in/l"], &["in/k", "out/k"], &["out/k", "in/k"]] {
            let needs = |action| match keys {
                [] => Needs::Keys(vec![(action, bucket, "")]),
                keys => Needs::Keys(keys.iter().map(|key| (action, bucket, *key)).collect()),
            };
            let name = || bucket.to_owned();
            let items = keys.iter().map(|&key| v1::MultiGetItem { key: key.into(), ..Default::default() });
            let request = v1::MultiGetRequest { bucket: name(), items: items.collect() };
            self.attempt::<v1::MultiGet>(needs("read"), vec![request]).await;
            for atomic in [false, true] {
                let item = |&key: &&'static str| v1::MultiPutItem {
                    key: key.into(),
                    value: "v".into(),
                    ..Default::default()
                };
                let request =
                    v1::MultiPutRequest { bucket: name(), items: keys.iter().map(item).collect(), atomic };
                self.attempt::<v1::MultiPut>(needs("write"), vec![request]).await;
            }
            let items = keys.iter().map(|&key| v1::MultiDeleteItem { key: key.into(), ..Default::default() });
            let request = v1::MultiDeleteRequest { bucket: name(), items: items.collect() };
            self.attempt::<v1::MultiDelete>(needs("delete"), vec![request]).await;
        }
        for prefix in ["", "in/", "i", "out/k"] {
            let list = v1::ListRequest { bucket: bucket.into(), prefix: prefix.into(), ..Default::default() };
            self.attempt::<v1::List>(Needs::Keys(vec![("list", bucket, prefix)]), vec![list]).await;
        }
    }

    async fn attempt_key_value(&mut self, key: &'static str) {
        let of = |action| Needs::Keys(vec![(action, "films", key)]);
        let (bytes, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(b"new"));
        let create = kv::CreateRequest { key: bytes.clone(), value: value.clone() };
        self.attempt::<kv::Create>(of("write"), vec![create]).await;
        let update = kv::UpdateRequest { key: bytes.clone(), value };
        self.attempt::<kv::Update>(of("write"), vec![update]).await;
        self.attempt::<kv::Retrieve>(of("read"), vec![kv::RetrieveRequest { key: bytes.clone() }]).await;
        self.attempt::<kv::Delete>(of("delete"), vec![kv::DeleteRequest { key: bytes }]).await;
    }

    async fn attempt_whole_store(&mut self) {
        self.attempt::<v1::Stat>(Needs::Store(&["list"]), vec![v1::StatRequest {}]).await;
        self.attempt::<v1::ListBuckets>(Needs::Store(&["list"]), vec![Default::default()]).await;
        self.attempt::<v1::FreeSpace>(Needs::Store(&["list"]), vec![v1::FreeSpaceRequest {}]).await;
        self.attempt::<v1::Backup>(Needs::Store(&["read", "list"]), vec![Default::default()]).await;
        self.attempt::<v1::Report>(Needs::Store(&["admin"]), vec![v1::ReportRequest {}]).await;
        for pause in [true, false] {
            self.attempt::<v1::Moving>(Needs::Store(&["admin"]), vec![v1::MovingRequest { pause }]).await;
        }
        let grow = v1::GrowRequest { bytes: Some(1 << 40), force: true };
        self.attempt::<v1::Grow>(Needs::Store(&["admin"]), vec![grow]).await;
    }

    /// Every kind of operation in one stream, each with an answer; with `says_more` they take the slow path.
    async fn attempt_operations(&mut self) {
        let mut messages = Vec::new();
        let mut needs = Vec::new();
        for (bucket, key) in PLACES {
            let mut operations = Vec::new();
            for (kind, action) in [
                (Action::Get, "read"),
                (Action::Head, "read"),
                (Action::Put, "write"),
                (Action::Delete, "delete"),
                (Action::Unspecified, "read"),
            ] {
                for says_more in [false, true] {
                    let number = needs.len() as u64;
                    needs.push((action, bucket, key));
                    let (key, modified_ns) = (key.into(), says_more.then_some(7));
                    operations.push(v1::Operation {
                        number,
                        action: kind.into(),
                        key,
                        modified_ns,
                        ..Default::default()
                    });
                }
            }
            messages.push(v1::OperationsRequest { bucket: bucket.into(), operations });
        }
        for (holder, channel) in &self.callers {
            let answers = ask::<v1::Operations>(channel, holder, messages.clone()).await;
            self.cases += needs.len();
            if !is_let_in(holder) {
                assert_eq!(answers.unwrap_err().code(), Code::Unauthenticated, "{}", holder.name);
                continue;
            }
            let results: Vec<_> = answers.unwrap().into_iter().flat_map(|answer| answer.results).collect();
            assert_eq!(results.len(), needs.len());
            for result in results {
                let need = needs[result.number as usize];
                let is_denied =
                    result.status.map_or(0, |status| status.code) == Code::PermissionDenied as i32;
                assert_eq!(is_denied, !holder.may(&[need]), "{need:?} by {}", holder.name);
            }
        }
        self.tried.push(v1::Operations::PATH);
    }
}

/// All answers to `requests` of a caller, or the status with which the call fails.
async fn ask<M: Method>(
    channel: &Channel,
    holder: &Holder,
    requests: Vec<M::Request>,
) -> Result<Vec<M::Response>, Status> {
    let mut request = Request::new(stream::iter(requests));
    let shown = match holder.shows {
        Shows::Key | Shows::OldSecret | Shows::BadKey => Some(format!("{}.{}", holder.id(), holder.secret())),
        Shows::Token(_) => Some(holder.secret()),
        _ => None,
    };
    if let Some(shown) = shown {
        request.metadata_mut().insert("authorization", format!("Bearer {shown}").parse().unwrap());
    }
    let codec = ProstCodec::<M::Request, M::Response>::default();
    let mut grpc = grpc_over(channel).await;
    let mut answers = grpc.streaming(request, PathAndQuery::from_static(M::PATH), codec).await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_matrix_of_methods_and_callers_matches_the_oracle() {
    let mut matrix = Matrix::new().await;
    for place in PLACES {
        matrix.fill();
        matrix.attempt_objects(place).await;
    }
    for bucket in ["films", "maps"] {
        matrix.fill();
        matrix.attempt_batches(bucket).await;
    }
    for key in ["in/k", "out/k"] {
        matrix.attempt_key_value(key).await;
    }
    matrix.attempt_whole_store().await;
    matrix.fill();
    matrix.attempt_operations().await;
    let paths: Vec<&str> =
        v1::OBJECT_STORE_PATHS.iter().chain(kv::KEY_VALUE_SERVICE_PATHS).copied().collect();
    for path in &paths {
        assert!(matrix.tried.contains(path), "{path} is not tried");
    }
    println!("{} cases of {} methods and {} callers", matrix.cases, paths.len(), matrix.callers.len());
    matrix.server.stop().await;
}

/// An open stream of operations of a caller, which has answered one.
async fn stream_of(
    channel: &Channel,
    shown: &str,
) -> (Sender<v1::OperationsRequest>, Streaming<v1::OperationsResponse>) {
    let (asks, requests) = tokio::sync::mpsc::channel(1);
    let requests = stream::unfold(requests, async |mut requests: Receiver<v1::OperationsRequest>| {
        requests.recv().await.map(|next| (next, requests))
    });
    let operations =
        vec![v1::Operation { action: Action::Put.into(), key: "k".into(), ..Default::default() }];
    asks.send(v1::OperationsRequest { bucket: "films".into(), operations }).await.unwrap();
    let codec = ProstCodec::<v1::OperationsRequest, v1::OperationsResponse>::default();
    let path = PathAndQuery::from_static(v1::Operations::PATH);
    let request = with_token(requests, shown);
    let mut answers = grpc_over(channel).await.streaming(request, path, codec).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().unwrap().results[0].status.is_none());
    (asks, answers)
}

/// An open connection loses its rights with its key, and an open stream is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_has_no_rights_at_the_next_request() {
    let matrix = Matrix::new().await;
    let (holder, channel) = matrix.callers.iter().find(|(holder, _)| holder.name == "everything").unwrap();
    let stat = async || {
        ask::<v1::Stat>(channel, holder, vec![v1::StatRequest {}]).await.map_err(|status| status.code())
    };
    assert!(stat().await.is_ok());
    let (asks, mut answers) = stream_of(channel, &format!("{}.{}", holder.id(), holder.secret())).await;
    matrix.security.replace(credentials(&matrix.root, "# no keys"));
    assert_eq!(stat().await.unwrap_err(), Code::Unauthenticated);
    assert_eq!(answers.message().await.unwrap_err().code(), Code::Unauthenticated);
    drop((asks, answers));
    matrix.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_the_time_of_its_key() {
    let now_s = SystemClock::default().wall_ns() / 1_000_000_000;
    let mut file = KeyFile::default();
    let entry = file.create(None, vec!["all *".into()], now_s, Some(now_s + 3)).unwrap();
    let shown = format!("{}.{}", entry.id, entry.secret.clone().unwrap());
    let credentials = Credentials::with_keys(None, Tokens::default(), Some(file.keys().unwrap())).unwrap();
    let options = ServerOptions { security: Security::new(credentials), ..Default::default() };
    let server = Running::told(options).await;
    let channel = server.channel().await;
    let (asks, mut answers) = stream_of(&channel, &shown).await;
    let status = in_time("the end of the key", answers.message()).await.unwrap_err();
    assert!(status.code() == Code::Unauthenticated && status.message().contains("expired"), "{status:?}");
    assert!(SystemClock::default().wall_ns() / 1_000_000_000 >= now_s + 3, "not earlier");
    drop((asks, answers));
    server.stop().await;
}
