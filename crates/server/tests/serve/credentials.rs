//! The rights of callers: every route by every kind of caller, TLS, and credentials that change while the server runs.

use std::time::Duration;

use futures_util::stream;
use http::uri::PathAndQuery;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
use shoal_api::{Method, key_value, v1};
use shoal_client::{Client, ConnectOptions, Error, PutOptions};
use shoal_server::{Credentials, ListenError, Security, ServeError, Server, ServerOptions, TlsPem, Tokens};
use shoal_testkit::certificates::RootCertificate;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::support::{Running, with_token};

const TOKEN: &str = "correct-horse-battery";
const OTHER: &str = "incorrect-horse-battery";

pub(crate) fn server_pem(root: &RootCertificate) -> TlsPem {
    let (certificate, key) = root.server().pem();
    TlsPem { certificates: certificate.into(), key: key.into(), ..TlsPem::default() }
}

fn tokens() -> Tokens {
    Tokens::parse(format!("{TOKEN}\n{TOKEN}-next\n").as_bytes()).unwrap()
}

async fn serve(tls: Option<&TlsPem>, tokens: Tokens) -> (Running, Security) {
    let security = Security::new(Credentials::new(tls, tokens).unwrap());
    let options = ServerOptions { security: security.clone(), ..ServerOptions::default() };
    (Running::told(options).await, security)
}

/// A channel to `server` that trusts `root`, and shows `identity`.
pub(crate) async fn channel(
    server: &Running,
    root: &RootCertificate,
    identity: Option<&(String, String)>,
) -> Result<Channel, tonic::transport::Error> {
    let mut tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root.pem())).domain_name("localhost");
    if let Some((certificate, key)) = identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{}", server.address)).unwrap();
    endpoint.tls_config(tls)?.connect().await
}

/// The status code for an empty message of any type; `None` if the call succeeds.
async fn code(channel: &Channel, path: &'static str, token: Option<&str>) -> Option<Code> {
    let mut grpc = Grpc::new(channel.clone());
    if grpc.ready().await.is_err() {
        return Some(Code::Unavailable);
    }
    let nothing = stream::iter([v1::StatRequest {}]);
    let request = match token {
        Some(token) => with_token(nothing, token),
        None => Request::new(nothing),
    };
    let codec = ProstCodec::<v1::StatRequest, v1::StatRequest>::default();
    match grpc.streaming(request, PathAndQuery::from_static(path), codec).await {
        Err(status) => Some(status.code()),
        Ok(answer) => match answer.into_inner().message().await {
            // The answer is no StatRequest, and may not pass for one.
            Ok(_) | Err(_) => None,
        },
    }
}

/// Every route: a new one is in the schema, or this table misses it, and the test below fails.
fn routes() -> Vec<&'static str> {
    let standard = [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ];
    let schema = v1::OBJECT_STORE_PATHS.iter().chain(key_value::KEY_VALUE_SERVICE_PATHS);
    schema.copied().chain(standard).collect()
}

/// The services that the server lists are those of [`routes`]: none is missing from the matrix.
#[tokio::test]
async fn the_matrix_has_every_service() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = Running::start().await;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let mut answers = reflection.server_reflection_info(stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    assert!(list.service.len() >= 4);
    for service in list.service {
        let prefix = format!("/{}/", service.name);
        assert!(routes().iter().any(|path| path.starts_with(&prefix)), "{prefix} has no rows");
    }
    server.stop().await;
}

#[tokio::test]
async fn every_route_wants_credentials() {
    let (root, strangers) = (RootCertificate::new(), RootCertificate::new());
    let mut tls = server_pem(&root);
    tls.client_roots = Some(root.pem().into());
    let (server, _) = serve(Some(&tls), tokens()).await;
    let plain = channel(&server, &root, None).await.unwrap();
    let known = channel(&server, &root, Some(&root.client("a.example").pem())).await.unwrap();
    for path in routes() {
        for (channel, token, lets_in, who) in [
            (&plain, None, false, "nobody"),
            (&plain, Some(OTHER), false, "a wrong token"),
            (&plain, Some(""), false, "an empty token"),
            (&plain, Some(TOKEN), true, "a token"),
            (&plain, Some("correct-horse-battery-next"), true, "the next token"),
            (&known, None, true, "a certificate"),
            (&known, Some(TOKEN), true, "a certificate and a token"),
            (&known, Some(OTHER), false, "a certificate and a wrong token"),
        ] {
            let code = code(channel, path, token).await;
            assert_eq!(code != Some(Code::Unauthenticated), lets_in, "{path} by {who}: {code:?}");
            assert_ne!(code, Some(Code::Unimplemented), "{path}");
        }
    }
    // A path that does not exist reveals nothing to strangers.
    assert_eq!(code(&plain, "/shoal.v1.ObjectStore/None", None).await, Some(Code::Unauthenticated));
    // A certificate of a foreign root does not get past TLS.
    let unknown = channel(&server, &root, Some(&strangers.client("a.example").pem())).await;
    if let Ok(channel) = unknown {
        let code = code(&channel, "/shoal.v1.ObjectStore/Stat", Some(TOKEN)).await;
        assert!(code.is_some_and(is_broken), "{code:?}");
    }
    // Nor does a client that speaks without TLS.
    let options = ConnectOptions { attempts: 1, ..server.options() };
    if let Ok(client) = Client::connect(options).await {
        assert!(client.stat().await.is_err());
    }
    server.stop().await;
}

fn is_broken(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled)
}

/// If only certificates count, TLS itself asks for one, and tokens do not count.
#[tokio::test]
async fn certificates_alone() {
    let root = RootCertificate::new();
    let mut tls = server_pem(&root);
    tls.client_roots = Some(root.pem().into());
    let (server, _) = serve(Some(&tls), Tokens::default()).await;
    let known = channel(&server, &root, Some(&root.client("a.example").pem())).await.unwrap();
    assert_eq!(code(&known, "/shoal.v1.ObjectStore/Stat", None).await, None);
    assert_eq!(code(&known, "/shoal.v1.ObjectStore/Stat", Some(OTHER)).await, None);
    if let Ok(channel) = channel(&server, &root, None).await {
        let code = code(&channel, "/shoal.v1.ObjectStore/Stat", Some(TOKEN)).await;
        assert!(code.is_some_and(is_broken), "{code:?}");
    }
    server.stop().await;
}

/// Our own client: by token, by certificate, and its errors if it is not let in.
#[tokio::test]
async fn client_sends_configured_credentials() {
    let root = RootCertificate::new();
    let mut tls = server_pem(&root);
    tls.client_roots = Some(root.pem().into());
    let (server, security) = serve(Some(&tls), tokens()).await;
    let options = || ConnectOptions {
        ca_pem: Some(root.pem().into()),
        ..ConnectOptions::new(format!("https://localhost:{}", server.address.port()))
    };
    let with_token = ConnectOptions { token: Some(TOKEN.into()), ..options() };
    let (certificate, key) = root.client("a.example").pem();
    let with_certificate =
        ConnectOptions { identity_pem: Some((certificate.into(), key.into())), ..options() };
    for options in [with_token.clone(), with_certificate] {
        let client = Client::connect(options).await.unwrap();
        let value = bytes::Bytes::from(vec![5; 3 << 20]);
        client.put("", b"k", value.clone(), PutOptions::default()).await.unwrap();
        assert!(client.get("", b"k", shoal_client::ByteRange::ALL).await.unwrap().unwrap().value == value);
    }
    let nobody = Client::connect(options()).await.unwrap();
    let error = nobody.put("", b"k", "v".into(), PutOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    // Another root is not trusted, and no plain text is spoken to a TLS port.
    let stranger = ConnectOptions { ca_pem: Some(RootCertificate::new().pem().into()), ..with_token.clone() };
    assert!(matches!(Client::connect(stranger).await, Err(Error::Unavailable { .. })));
    let text = format!("{:?}", with_token);
    assert!(!text.contains(TOKEN), "{text}");

    // Credentials change: the old token is gone on the open connection too, a new certificate is shown to new ones.
    let client = Client::connect(with_token.clone()).await.unwrap();
    let next = RootCertificate::new();
    let tokens = Tokens::parse(format!("{TOKEN}-next\n").as_bytes()).unwrap();
    security.replace(Credentials::new(Some(&server_pem(&next)), tokens).unwrap());
    let error = client.stat().await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error:?}");
    let options = ConnectOptions {
        ca_pem: Some(next.pem().into()),
        token: Some(format!("{TOKEN}-next").into()),
        ..options()
    };
    Client::connect(options).await.unwrap().stat().await.unwrap();
    server.stop().await;
}

/// The product of `openssl req -x509`: a certificate that signs itself, of an authority. It was refused as `CaUsedAsEndEntity`, by clients
/// that named this very certificate.
#[tokio::test]
async fn self_signed_root_is_trusted() {
    let own = || {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let (certificate, key) = own();
    let tls = TlsPem { certificates: certificate.clone().into(), key: key.into(), ..TlsPem::default() };
    let (server, _) = serve(Some(&tls), tokens()).await;
    let connect = |ca: Option<&str>, host: &str| {
        Client::connect(ConnectOptions {
            ca_pem: ca.map(Into::into),
            token: Some(TOKEN.into()),
            ..ConnectOptions::new(format!("https://{host}:{}", server.address.port()))
        })
    };
    connect(Some(&certificate), "localhost").await.unwrap().stat().await.unwrap();
    // It names no address, and foreign roots are useless; the error is named.
    for (ca, host, why) in [
        (Some(&*certificate), "127.0.0.1", "not valid for name"),
        (Some(&*own().0), "localhost", "--ca-file"),
        (None, "localhost", "--ca-file"),
    ] {
        let Err(Error::Unavailable { reason, .. }) = connect(ca, host).await else { panic!("{why}") };
        assert!(reason.contains(why), "{why}: {reason}");
    }
    server.stop().await;
}

/// Off loopback only with TLS and credentials, both of them.
#[tokio::test]
async fn remote_peers_need_tls_and_credentials() {
    let root = RootCertificate::new();
    let bind = async |tls: Option<&TlsPem>, tokens: Tokens| {
        let security = Security::new(Credentials::new(tls, tokens).unwrap());
        let listen = "0.0.0.0:0".parse().unwrap();
        Server::bind(ServerOptions { listen, security, ..ServerOptions::default() }).await.map(drop)
    };
    let mutual = TlsPem { client_roots: Some(root.pem().into()), ..server_pem(&root) };
    assert!(matches!(
        bind(Some(&server_pem(&root)), Tokens::default()).await,
        Err(ServeError::Listen(ListenError::NotLoopback { .. }))
    ));
    assert!(matches!(bind(None, tokens()).await, Err(ServeError::Listen(ListenError::NotLoopback { .. }))));
    assert!(bind(Some(&server_pem(&root)), tokens()).await.is_ok());
    assert!(bind(Some(&mutual), Tokens::default()).await.is_ok());
}

/// Options that do not belong together are refused before anything is served.
#[test]
fn keys_belong_to_their_certificates() {
    let root = RootCertificate::new();
    let (one, other) = (server_pem(&root), server_pem(&root));
    let mixed = TlsPem { key: other.key, ..one.clone() };
    assert!(Credentials::new(Some(&mixed), Tokens::default()).is_err());
    let no_roots = TlsPem { client_roots: Some(b"none".to_vec()), ..one };
    assert!(Credentials::new(Some(&no_roots), Tokens::default()).is_err());
}

/// A connection does not outlive the certificate that it was opened with.
#[tokio::test]
async fn expired_certificate_closes_connection() {
    let root = RootCertificate::new();
    let mut tls = server_pem(&root);
    tls.client_roots = Some(root.pem().into());
    let (server, _) = serve(Some(&tls), Tokens::default()).await;
    // Longer ones if the machine is too slow for a short one.
    for seconds in [3, 30, 300] {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let ends = Duration::from_secs(now.as_secs() + seconds);
        let short = root.sign("a.example", |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params.not_after = date_time_ymd(1970, 1, 1) + ends;
        });
        let channel = channel(&server, &root, Some(&short.pem())).await;
        let rest = || ends.saturating_sub(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap());
        let Ok(channel) = channel else {
            assert!(rest().is_zero(), "it was not let in");
            continue;
        };
        let answer = code(&channel, v1::Stat::PATH, None).await;
        if rest().is_zero() {
            continue;
        }
        assert_eq!(answer, None, "it is still valid");
        tokio::time::sleep(rest() + Duration::from_millis(500)).await;
        // The channel opens another connection, and resumes its session, for which TLS looks at no certificate again.
        assert!(code(&channel, v1::Stat::PATH, None).await.is_some());
        server.stop().await;
        return;
    }
    panic!("the machine is too slow for a certificate of five minutes");
}
