//! gRPC-Web, as a browser sends it: raw HTTP/1.1.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use prost::Message;
use shoal_api::{MESSAGE_BYTES_MAX, v1};
use shoal_client::{ByteRange, PutOptions};
use shoal_server::ServerOptions;
use shoal_testkit::http2::message;
use shoal_testkit::wait::HANGS_AFTER;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Running, call, put_request, value};

/// A request by hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) timeout: Option<&'static str>,
    pub(crate) origin: Option<&'static str>,
    pub(crate) encoding: Option<&'static str>,
    /// The compression that the answer may have.
    pub(crate) accept: Option<&'static str>,
    /// The announced length, if it is not the real one.
    pub(crate) claimed: Option<usize>,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) http: u16,
    pub(crate) headers: String,
    pub(crate) messages: Vec<Vec<u8>>,
    /// The number of packed ones among them.
    pub(crate) packed: usize,
    pub(crate) trailers: String,
}

impl Answer {
    /// The status of the call, in headers or trailers.
    pub(crate) fn status(&self) -> Option<u32> {
        let lines = self.trailers.lines().chain(self.headers.lines());
        let mut statuses = lines.filter_map(|line| line.strip_prefix("grpc-status: "));
        statuses.next().and_then(|status| status.parse().ok())
    }

    fn has(&self, header: &str) -> bool {
        self.headers.lines().any(|line| line == header)
    }
}

impl Post {
    pub(crate) fn new(path: &'static str) -> Self {
        let content_type = "application/grpc-web+proto";
        Self { path, content_type, timeout: None, origin: None, encoding: None, accept: None, claimed: None }
    }

    fn text(path: &'static str) -> Self {
        Self { content_type: "application/grpc-web-text", ..Self::new(path) }
    }

    fn head(&self, bytes: usize) -> String {
        let mut head =
            format!("POST {} HTTP/1.1\r\nhost: shoal\r\ncontent-type: {}\r\n", self.path, self.content_type);
        for (name, value) in [
            ("grpc-timeout", self.timeout),
            ("origin", self.origin),
            ("grpc-encoding", self.encoding),
            ("grpc-accept-encoding", self.accept),
        ] {
            if let Some(value) = value {
                head += &format!("{name}: {value}\r\n");
            }
        }
        head + &format!("content-length: {}\r\n\r\n", self.claimed.unwrap_or(bytes))
    }

    pub(crate) async fn send(&self, server: &Running, body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(self.head(body.len()).as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        read_answer(&mut stream, self.content_type.contains("text")).await
    }
}

/// Reads one answer.
async fn read_answer(stream: &mut TcpStream, is_text: bool) -> Answer {
    let mut bytes = Vec::new();
    let head_end = loop {
        read_more(stream, &mut bytes).await;
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let headers = String::from_utf8(bytes.drain(..head_end).collect()).unwrap();
    let http = headers.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    if headers.contains("transfer-encoding: chunked") {
        loop {
            let end = loop {
                match bytes.windows(2).position(|window| window == b"\r\n") {
                    Some(end) => break end,
                    None => read_more(stream, &mut bytes).await,
                }
            };
            let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
            while bytes.len() < end + 2 + length + 2 {
                read_more(stream, &mut bytes).await;
            }
            body.extend_from_slice(&bytes[end + 2..end + 2 + length]);
            bytes.drain(..end + 2 + length + 2);
            if length == 0 {
                break;
            }
        }
    }
    if is_text {
        // Pieces are padded separately.
        body = body.chunks(4).flat_map(|quad| STANDARD.decode(quad).unwrap()).collect();
    }
    let (mut messages, mut trailers, mut rest) = (Vec::new(), String::new(), &body[..]);
    let mut packed = 0;
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
        let message = &rest[5..5 + length];
        match rest[0] {
            0 => messages.push(message.to_vec()),
            1 => {
                let mut plain = Vec::new();
                GzDecoder::new(message).read_to_end(&mut plain).unwrap();
                messages.push(plain);
                packed += 1;
            }
            0x80 => trailers = String::from_utf8(message.to_vec()).unwrap(),
            flag => panic!("{flag}"),
        }
        rest = &rest[5 + length..];
    }
    Answer {
        http,
        headers: headers.replace("\r\n", "\n"),
        messages,
        packed,
        trailers: trailers.replace("\r\n", "\n"),
    }
}

async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) {
    let read = tokio::time::timeout(HANGS_AFTER, stream.read_buf(bytes)).await;
    assert_ne!(
        read.expect("an answer").unwrap(),
        0,
        "the connection ended: {}",
        String::from_utf8_lossy(bytes)
    );
}

#[tokio::test]
async fn a_browser_puts_and_gets() {
    let server = Running::start().await;
    for bytes in [0, 10, 70_000, 1 << 20] {
        let put = message(&put_request("k", value(bytes, 1)).encode_to_vec());
        let get = message(&v1::GetRequest { key: "k".into(), ..Default::default() }.encode_to_vec());
        let answer = Post::new("/shoal.v1.ObjectStore/Put").send(&server, &put).await;
        assert_eq!((answer.http, answer.status(), answer.messages.len()), (200, Some(0), 1), "{answer:?}");
        assert!(answer.has("content-type: application/grpc-web+proto"), "{}", answer.headers);
        let answer = Post::new("/shoal.v1.ObjectStore/Get").send(&server, &get).await;
        let object = v1::GetResponse::decode(&answer.messages[0][..]).unwrap();
        assert!(object.value == value(bytes, 1));
        assert_eq!(answer.trailers, "grpc-status: 0\n");
        // As text, which many browsers send.
        let post = Post::text("/shoal.v1.ObjectStore/Get");
        let answer = post.send(&server, STANDARD.encode(&get).as_bytes()).await;
        assert_eq!(answer.status(), Some(0), "{answer:?}");
        assert!(answer.has("content-type: application/grpc-web-text+proto"), "{}", answer.headers);
        assert!(v1::GetResponse::decode(&answer.messages[0][..]).unwrap().value == value(bytes, 1));
    }
    // A method that streams, one that fails, and one that does not exist.
    let request = message(&v1::GetStreamRequest { key: "k".into(), ..Default::default() }.encode_to_vec());
    let answer = Post::new("/shoal.v1.ObjectStore/GetStream").send(&server, &request).await;
    assert_eq!((answer.status(), answer.messages.len()), (Some(0), 1));
    let none = message(&v1::GetRequest { key: "none".into(), ..Default::default() }.encode_to_vec());
    let answer = Post::new("/shoal.v1.ObjectStore/Get").send(&server, &none).await;
    assert_eq!((answer.http, answer.status(), answer.messages.len()), (200, Some(5), 0));
    let answer = Post::new("/shoal.v1.ObjectStore/None").send(&server, &none).await;
    assert_eq!(answer.status(), Some(12));
    let answer = Post::text("/shoal.v1.ObjectStore/Get").send(&server, b"not/base64!!").await;
    assert_eq!(answer.status(), Some(13), "{answer:?}");
    server.stop().await;
}

/// One connection serves several requests, and plain gRPC needs HTTP/2.
#[tokio::test]
async fn http1_is_kept_alive_and_is_for_the_web_only() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let put = message(&put_request("k", value(10, 1)).encode_to_vec());
    for _ in 0..3 {
        let post = Post::new("/shoal.v1.ObjectStore/Put");
        stream.write_all(post.head(put.len()).as_bytes()).await.unwrap();
        stream.write_all(&put).await.unwrap();
        assert_eq!(read_answer(&mut stream, false).await.status(), Some(0));
    }
    for content_type in ["application/grpc", "application/json"] {
        let post = Post { content_type, ..Post::new("/shoal.v1.ObjectStore/Put") };
        assert_eq!(post.send(&server, &put).await.http, 415);
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_of_named_origins_may_call() {
    let options = ServerOptions { web_origins: vec!["https://a.example".into()], ..ServerOptions::default() };
    let server = Running::told(options).await;
    let put = message(&put_request("k", value(10, 1)).encode_to_vec());
    for (origin, http) in [("https://a.example", 200), ("https://b.example", 403), ("null", 403)] {
        let post = Post { origin: Some(origin), ..Post::new("/shoal.v1.ObjectStore/Put") };
        let answer = post.send(&server, &put).await;
        assert_eq!(answer.http, http, "{origin}");
        let named = answer.has(&format!("access-control-allow-origin: {origin}"));
        assert_eq!(named, http == 200, "{}", answer.headers);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let asks = format!(
            "OPTIONS /shoal.v1.ObjectStore/Put HTTP/1.1\r\nhost: shoal\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: x-grpc-web\r\n\r\n"
        );
        stream.write_all(asks.as_bytes()).await.unwrap();
        let answer = read_answer(&mut stream, false).await;
        assert_eq!(answer.http, if http == 200 { 204 } else { 403 });
        assert_eq!(answer.has("access-control-allow-methods: POST"), http == 200, "{}", answer.headers);
    }
    server.stop().await;
    // If no origin was named, no page may call.
    let server = Running::start().await;
    let post = Post { origin: Some("https://a.example"), ..Post::new("/shoal.v1.ObjectStore/Put") };
    assert_eq!(post.send(&server, &put).await.http, 403);
    assert_eq!(server.client().await.head("", b"k").await.unwrap(), None);
    server.stop().await;
}

fn packed(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut encoder, message).unwrap();
    let packed = encoder.finish().unwrap();
    [&[1][..], &(packed.len() as u32).to_be_bytes(), &packed].concat()
}

#[tokio::test]
async fn gzip_requests_need_the_option() {
    let server = Running::told(ServerOptions { gzip: true, ..ServerOptions::default() }).await;
    let client = server.client().await;
    let post = Post { encoding: Some("gzip"), ..Post::new("/shoal.v1.ObjectStore/Put") };
    let put = put_request("k", value(100_000, 1)).encode_to_vec();
    for body in [packed(&put), message(&put)] {
        assert_eq!(post.send(&server, &body).await.status(), Some(0));
        assert!(client.get("", b"k", ByteRange::ALL).await.unwrap().unwrap().value == value(100_000, 1));
    }
    // Methods that tonic reads, too.
    let multi = v1::MultiPutRequest {
        items: vec![v1::MultiPutItem { key: "m".into(), value: "v".into(), ..Default::default() }],
        ..Default::default()
    };
    let post_multi = Post { path: "/shoal.v1.ObjectStore/MultiPut", ..post };
    assert_eq!(post_multi.send(&server, &packed(&multi.encode_to_vec())).await.status(), Some(0));
    assert_eq!(client.get("", b"m", ByteRange::ALL).await.unwrap().unwrap().value, "v");
    // A message of two members, of which the second one was lost.
    let (front, back) = put.split_at(put.len() / 2);
    let [front, back] = [front, back].map(|part| packed(part).split_off(5));
    let members = [front, back].concat();
    let body = [&[1][..], &(members.len() as u32).to_be_bytes(), &members].concat();
    assert_eq!(post.send(&server, &body).await.status(), Some(0));
    assert!(client.get("", b"k", ByteRange::ALL).await.unwrap().unwrap().value == value(100_000, 1));
    // A bomb, and bytes that are not gzip.
    for path in ["/shoal.v1.ObjectStore/Put", "/shoal.v1.ObjectStore/MultiPut"] {
        let bomb = packed(&vec![0; MESSAGE_BYTES_MAX * 10]);
        assert!(bomb.len() < 1 << 20);
        assert_eq!(Post { path, ..post }.send(&server, &bomb).await.status(), Some(8));
    }
    assert_eq!(post.send(&server, &[1, 0, 0, 0, 2, 5, 5]).await.status(), Some(13));
    let answer = Post { encoding: Some("snappy"), ..post }.send(&server, &message(&put)).await;
    assert_eq!(answer.status(), Some(12));
    assert!(answer.has("grpc-accept-encoding: identity,gzip"), "{}", answer.headers);
    server.stop().await;
    // If compression is off, every method reports that, with the encodings that it accepts: some reported it of the message, without the
    // header.
    let server = Running::start().await;
    let put = put_request("k", value(10, 1)).encode_to_vec();
    for path in ["Put", "MultiPut", "List", "PutStream", "GetStream", "Operations"] {
        let path: &'static str = format!("/shoal.v1.ObjectStore/{path}").leak();
        let answer = Post { path, ..post }.send(&server, &packed(&put)).await;
        assert_eq!(answer.status(), Some(12), "{path}");
        assert!(answer.has("grpc-accept-encoding: identity"), "{path}: {}", answer.headers);
        // Packed, without a header for it.
        let answer = Post { path, encoding: None, ..post }.send(&server, &packed(&put)).await;
        assert_eq!(answer.status(), Some(13), "{path}");
    }
    // Messages in JSON were read as protobuf.
    for content_type in ["application/grpc-web+json", "application/grpc-web-text+json"] {
        let answer = Post { content_type, encoding: None, ..post }.send(&server, &message(&put)).await;
        assert_eq!(answer.http, 415, "{content_type}");
    }
    assert_eq!(server.client().await.head("", b"k").await.unwrap(), None);
    server.stop().await;
}

/// Answers are packed for clients that ask, if the server's options allow it, and if it pays: one message or many.
#[tokio::test]
async fn answers_are_compressed_on_request() {
    let options = ServerOptions { gzip: true, gzip_answers: true, ..ServerOptions::default() };
    for (is_told, server) in [(true, Running::told(options).await), (false, Running::start().await)] {
        let client = server.client().await;
        let long = value(3 << 20, 1).slice(..1 << 20).to_vec().repeat(2);
        client.put("", b"long", long.clone().into(), PutOptions::default()).await.unwrap();
        client.put("", b"short", "v".into(), PutOptions::default()).await.unwrap();
        for accept in [Some("identity,gzip"), None] {
            let is_packed = is_told && accept.is_some();
            let post = |path| Post { accept, ..Post::new(path) };
            let get = |key: &'static str| v1::GetRequest { key: key.into(), ..Default::default() };
            let answer =
                post("/shoal.v1.ObjectStore/Get").send(&server, &message(&get("long").encode_to_vec())).await;
            assert_eq!((answer.status(), answer.packed), (Some(0), usize::from(is_packed)));
            assert_eq!(answer.has("grpc-encoding: gzip"), is_packed);
            assert!(v1::GetResponse::decode(&answer.messages[0][..]).unwrap().value == long);
            let answer = post("/shoal.v1.ObjectStore/Get")
                .send(&server, &message(&get("short").encode_to_vec()))
                .await;
            assert_eq!((answer.status(), answer.packed), (Some(0), 0));
            let request = v1::GetStreamRequest { key: "long".into(), ..Default::default() };
            let answer = post("/shoal.v1.ObjectStore/GetStream")
                .send(&server, &message(&request.encode_to_vec()))
                .await;
            assert_eq!(answer.packed, if is_packed { answer.messages.len() } else { 0 });
            let chunks = answer.messages.iter().map(|part| v1::GetStreamResponse::decode(&part[..]).unwrap());
            assert!(chunks.flat_map(|part| part.chunk.to_vec()).collect::<Vec<u8>>() == long);
            // The answers of tonic are short, and stay as they are.
            let list = v1::ListRequest::default().encode_to_vec();
            let answer = post("/shoal.v1.ObjectStore/List").send(&server, &message(&list)).await;
            assert_eq!((answer.status(), answer.packed), (Some(0), 0));
        }
        server.stop().await;
    }
}

/// Both protocols on one port, at the same time.
#[tokio::test]
async fn browsers_and_programs_share_a_port() {
    let server = Running::start().await;
    let client = server.client().await;
    client.put("", b"k", value(70_000, 3), PutOptions::default()).await.unwrap();
    let get = v1::GetRequest { key: "k".into(), ..Default::default() };
    let answer = Post::new("/shoal.v1.ObjectStore/Get").send(&server, &message(&get.encode_to_vec())).await;
    let object = call::<v1::Get>(&server.channel().await, get).await.unwrap();
    assert_eq!(v1::GetResponse::decode(&answer.messages[0][..]).unwrap(), object);
    server.stop().await;
}
