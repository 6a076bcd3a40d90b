//! Health, reflection, and the table of routes.

use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use shoal_api::{key_value, v1};
use shoal_client::{ByteRange, Error, PutOptions};
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, SimDevice};
use shoal_server::ServerLimits;
use shoal_storekit::eventually;
use shoal_testkit::wait::FOR_EVER;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::support::{Running, grpc_over, kit};

#[tokio::test]
async fn health_answers() {
    let server = Running::with(ServerLimits { drain_max: FOR_EVER, ..ServerLimits::default() }).await;
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", "shoal.v1.ObjectStore", "io.grpc.KeyValueService"] {
        let request = HealthCheckRequest { service: service.into() };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let unknown = health.check(HealthCheckRequest { service: "no.such.Service".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    // A watcher learns of the shutdown, and does not delay it.
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.stop().await;
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
}

#[tokio::test]
async fn failed_device_reports_not_serving_and_reads_continue() {
    let device = SimDevice::new(kit().format.blocks_max);
    let store = kit().create(&Device::new(device.clone()));
    let server = Running::over(store, ServerLimits::default()).await;
    let client = server.impatient_client().await;
    client.put("", b"k", "v".into(), PutOptions::default()).await.unwrap();
    device.inject(Fault::fail(FaultOp::Flush, 5).for_good());
    let error = client.put("", b"k", "w".into(), PutOptions::default()).await.unwrap_err();
    // The flush that meets the failure first may be that of a background thread: then the put finds the store read-only.
    assert!(matches!(error, Error::Unknown(_) | Error::ReadOnly(_)), "{error:?}");
    let error = client.put("", b"k", "w".into(), PutOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)), "{error:?}");
    assert!(client.get("", b"k", ByteRange::ALL).await.unwrap().is_some());
    assert!(client.stat().await.unwrap().read_only.is_some());
    let health = HealthClient::new(server.channel().await);
    eventually("not serving", || async {
        let answer = health.clone().check(HealthCheckRequest::default()).await.unwrap().into_inner();
        answer.status() == ServingStatus::NotServing
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn reflection_lists_services() {
    let server = Running::start().await;
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let ask = |message_request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    };
    let requests = stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("shoal.v1.ObjectStore".into())),
        ask(MessageRequest::FileContainingSymbol("io.grpc.KeyValueService".into())),
    ]);
    let mut answers = reflection.server_reflection_info(requests).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(services)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<&str> = services.service.iter().map(|service| service.name.as_str()).collect();
    for expected in [
        "shoal.v1.ObjectStore",
        "io.grpc.KeyValueService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ] {
        assert!(names.contains(&expected), "{names:?}");
    }
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap().message_response;
        assert!(
            matches!(answer, Some(MessageResponse::FileDescriptorResponse(file)) if !file.file_descriptor_proto.is_empty())
        );
    }
    server.stop().await;
}

/// Symptom: an open reflection stream delayed the shutdown of a server for all of the time of a drain. Cause: nothing closed the stream.
/// Fix: it is closed when the server stops, as a watch of the health is.
#[tokio::test]
async fn open_reflection_stream_does_not_delay_shutdown() {
    let server = Running::with(ServerLimits { drain_max: FOR_EVER, ..ServerLimits::default() }).await;
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let list = MessageRequest::ListServices(String::new());
    let ask = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let requests = stream::once(async { ask }).chain(stream::pending());
    let mut answers = reflection.server_reflection_info(requests).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    server.stop().await;
    assert_eq!(answers.message().await.unwrap().map(|_| ()), None);
}

#[tokio::test]
async fn every_method_of_the_schema_has_a_route() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let code = async |path: &'static str| {
        // An empty message is one of any type.
        let codec = ProstCodec::<v1::StatRequest, v1::StatRequest>::default();
        let request = Request::new(stream::iter([v1::StatRequest {}]));
        let answer =
            grpc_over(&channel).await.streaming(request, PathAndQuery::from_static(path), codec).await;
        answer.err().map(|status| status.code())
    };
    assert_eq!(v1::OBJECT_STORE_PATHS.len(), 18);
    assert_eq!(key_value::KEY_VALUE_SERVICE_PATHS.len(), 4);
    for path in v1::OBJECT_STORE_PATHS.iter().chain(key_value::KEY_VALUE_SERVICE_PATHS) {
        assert_ne!(code(path).await, Some(Code::Unimplemented), "{path}");
    }
    for path in ["/shoal.v1.ObjectStore/Nothing", "/shoal.v1.Other/Put", "/", "/shoal.v1.ObjectStore/Put/"] {
        assert_eq!(code(path).await, Some(Code::Unimplemented), "{path}");
    }
    server.stop().await;
}
