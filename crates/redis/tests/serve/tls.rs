//! The protocol over TLS: the same answers, certificates that are replaced, and clients that are refused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use shoal_redis::{RedisOptions, RedisServer, StartError, Tls};
use shoal_testkit::certificates::RootCertificate;
use shoal_testkit::resp::encode;
use shoal_testkit::wait::HANGS_AFTER;

use crate::support::{Served, serve};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A certificate of this root, with its key.
type Identity = (CertificateDer<'static>, PrivateKeyDer<'static>);

fn identity(root: &RootCertificate) -> Identity {
    let made = root.sign("localhost", |_| {});
    (made.certificate.der().clone(), made.key.serialize_der().try_into().unwrap())
}

fn believes(root: &RootCertificate) -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add(root.der().clone()).unwrap();
    store
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificate that a server presents, and the roots of the certificates that it requires.
fn server_config(root: &RootCertificate, clients: Option<&RootCertificate>) -> Arc<ServerConfig> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let roots = Arc::new(believes(clients));
            builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(roots, provider()).build().unwrap(),
            )
        }
    };
    let (certificate, key) = identity(root);
    Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
}

fn options(config: &Arc<Mutex<Arc<ServerConfig>>>, asks_certificates: bool) -> RedisOptions {
    let config = config.clone();
    let tls = Tls { config: Arc::new(move || Some(config.lock().unwrap().clone())), asks_certificates };
    RedisOptions { tls: Some(tls), ..RedisOptions::default() }
}

fn connect(served: &Served, root: &RootCertificate, identity: Option<Identity>) -> Stream {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(believes(root));
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(served.address).unwrap();
    socket.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
}

fn ask(stream: &mut Stream, request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut seen = vec![0; answer.len()];
    stream.read_exact(&mut seen).unwrap();
    assert!(seen == answer, "{}", seen.escape_ascii());
}

#[test]
fn commands_over_tls_are_answered() {
    let root = RootCertificate::new();
    let config = Arc::new(Mutex::new(server_config(&root, None)));
    let served = serve(options(&config, false));
    let mut stream = connect(&served, &root, None);
    ask(&mut stream, b"PING\r\n", b"+PONG\r\n");
    for bytes in [1, 500, 16_000, 100_000, 4 << 20] {
        let value = vec![b'v'; bytes];
        ask(&mut stream, &encode(&[b"set", b"k", &value]), b"+OK\r\n");
        ask(&mut stream, b"get k\r\n", &[format!("${bytes}\r\n").as_bytes(), &value, b"\r\n"].concat());
    }
    // A pipeline with more answers than may be sealed at a time.
    let (gets, value) = (encode(&[b"get", b"k"]).repeat(5), vec![b'v'; 4 << 20]);
    let one = [b"$4194304\r\n", &value[..], b"\r\n"].concat();
    ask(&mut stream, &gets, &one.repeat(5));
    // It closes TLS properly.
    ask(&mut stream, b"QUIT\r\n", b"+OK\r\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a proper end, not a cut");
}

#[test]
fn pipeline_over_tls_can_be_written_before_reading() {
    const ROUNDS: usize = 300;
    let root = RootCertificate::new();
    let config = Arc::new(Mutex::new(server_config(&root, None)));
    let served = serve(options(&config, false));
    let mut stream = connect(&served, &root, None);
    let long = vec![b'x'; 64 << 10];
    for _ in 0..ROUNDS {
        stream.write_all(&[encode(&[b"incr", b"n"]), encode(&[b"echo", &long])].concat()).unwrap();
    }
    for number in 1..=ROUNDS {
        let expected = [format!(":{number}\r\n$65536\r\n").as_bytes(), &long, b"\r\n"].concat();
        ask(&mut stream, b"", &expected);
    }
}

#[test]
fn a_certificate_that_is_replaced_is_shown_to_new_connections() {
    let (old, new) = (RootCertificate::new(), RootCertificate::new());
    let config = Arc::new(Mutex::new(server_config(&old, None)));
    let served = serve(options(&config, false));
    let mut before = connect(&served, &old, None);
    ask(&mut before, b"PING\r\n", b"+PONG\r\n");
    *config.lock().unwrap() = server_config(&new, None);
    ask(&mut connect(&served, &new, None), b"PING\r\n", b"+PONG\r\n");
    ask(&mut before, b"PING\r\n", b"+PONG\r\n");
    let mut wrong = connect(&served, &old, None);
    assert!(wrong.write_all(b"PING\r\n").is_err() || wrong.read(&mut [0]).is_err());
}

#[test]
fn client_without_trusted_certificate_is_rejected() {
    let (root, clients, others) = (RootCertificate::new(), RootCertificate::new(), RootCertificate::new());
    let config = Arc::new(Mutex::new(server_config(&root, Some(&clients))));
    let served = serve(options(&config, true));
    ask(&mut connect(&served, &root, Some(identity(&clients))), b"PING\r\n", b"+PONG\r\n");
    for shown in [None, Some(identity(&others))] {
        let mut stream = connect(&served, &root, shown);
        let _ = stream.write_all(b"PING\r\n");
        assert!(stream.read(&mut [0]).is_err(), "told so by an alert");
    }
    // Certificates prove the client's identity: other machines may connect.
    let listen = ([0, 0, 0, 0], 0).into();
    assert!(RedisServer::bind(RedisOptions { listen, ..options(&config, true) }).is_ok());
    let open = RedisServer::bind(RedisOptions { listen, ..options(&config, false) });
    assert!(matches!(open, Err(StartError::Listen(shoal_frontend::ListenError::NotLoopback { .. }))));
}

/// Plain text, garbage and half a handshake close their connections, or wait; the others are served.
#[test]
fn a_connection_without_tls_ends() {
    let root = RootCertificate::new();
    let config = Arc::new(Mutex::new(server_config(&root, None)));
    let served = serve(options(&config, false));
    let mut waits = TcpStream::connect(served.address).unwrap();
    waits.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    for noise in [&b"*1\r\n$4\r\nPING\r\n"[..], b"PING\r\n", &[0xFF; 100_000], b"\x16\x03\x01\x00\x05hello"] {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        let _ = stream.write_all(noise);
        let mut seen = Vec::new();
        // An alert, or a reset because some bytes were not read.
        let _ = stream.read_to_end(&mut seen);
        assert!(!seen.windows(4).any(|part| part == b"PONG"));
        assert!(seen.is_empty() || seen[0] == 0x15, "{}", seen.escape_ascii());
    }
    ask(&mut connect(&served, &root, None), b"PING\r\n", b"+PONG\r\n");
}
