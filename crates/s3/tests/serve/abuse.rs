//! Burdensome clients: each is refused within its bounds, and others are served meanwhile.

use std::time::{Duration, Instant};

use shoal_frontend::MinRate;
use shoal_http::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Client, Reply, Running, TestKey};

/// Sends a signed request whose body has this framing.
async fn put_framed(client: &mut Client, target: &str, decoded: usize, body: &[u8]) -> Reply {
    let decoded = decoded.to_string();
    let headers = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", decoded.as_str())];
    let mut headers = client.signed("PUT", target, &headers, "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    headers.push(("content-length".to_owned(), body.len().to_string()));
    client.send_head("PUT", target, &headers).await;
    client.send_body(body).await;
    client.receive("PUT").await
}

/// Limits in milliseconds, for tests that wait for them.
fn short_times() -> ServerLimits {
    let second = Duration::from_secs(1);
    let mut limits = ServerLimits { greeting_max: second, ..ServerLimits::default() };
    limits.min_rate = MinRate { silence_max: second, ..limits.min_rate };
    limits
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_end_and_leave_room_for_others() {
    let running = Running::with_limits(short_times()).await;
    let mut client = running.with_bucket().await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx").await.unwrap();
        slow.push(stream);
    }
    let started = Instant::now();
    for mut stream in slow {
        assert_eq!(client.put("/bkt/k", b"1").await.status, 200, "others are served");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_is_answered() {
    let running = Running::with_limits(short_times()).await;
    let mut client = running.with_bucket().await;
    for bytes in [100, 100 << 10, 6 << 20] {
        let mut slow = running.client().await;
        let mut headers = slow.signed("PUT", "/bkt/slow", &[], "UNSIGNED-PAYLOAD");
        headers.push(("content-length".to_owned(), bytes.to_string()));
        slow.send_head("PUT", "/bkt/slow", &headers).await;
        slow.send_body(&[7; 50]).await;
        assert_eq!(slow.receive("PUT").await.error(), (408, "RequestTimeout".to_owned()), "{bytes}");
        assert_eq!(client.head("/bkt/slow").await.status, 404);
    }
}

/// 85 bytes of frame for each byte of a value.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_one_byte_are_refused() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let body = b"1\r\nx\r\n".repeat(200_000);
    assert_eq!(put_framed(&mut client, "/bkt/k", 200_000, &body).await.error().1, "InvalidChunkSizeError");
    let trailer = [&b"1\r\nx\r\n0\r\nx-amz-checksum-crc32:"[..], &[b'A'; 1 << 20], b"\r\n\r\n"].concat();
    let mut client = running.client().await;
    assert_eq!(put_framed(&mut client, "/bkt/k", 1, &trailer).await.error().0, 400);
    let mut client = running.client().await;
    let long = b"ffffffffffffffff\r\nx";
    assert_eq!(put_framed(&mut client, "/bkt/k", 1, long).await.error().0, 400);
    assert_eq!(running.client().await.head("/bkt/k").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_documents_are_refused() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let deep = "<Delete>".repeat(1_000) + &"</Delete>".repeat(1_000);
    let empty = format!("<Delete>{}</Delete>", "<Object><Key></Key></Object>".repeat(100_000));
    let many = format!("<Delete>{}</Delete>", "<Object><Key>k</Key></Object>".repeat(1_001));
    let entities = "<!DOCTYPE d [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><Delete><Object><Key>&b;</Key></Object></Delete>";
    let utf16 = "<?xml version=\"1.0\" encoding=\"UTF-16\"?><Delete><Object><Key>k</Key></Object></Delete>";
    let wide: Vec<u8> = std::iter::once(0xFEFF)
        .chain("<Delete><Object><Key>k</Key></Object></Delete>".encode_utf16())
        .flat_map(u16::to_be_bytes)
        .collect();
    let refused = client.send("POST", "/bkt?delete", &[], &wide).await;
    assert_eq!(refused.error(), (400, "MalformedXML".to_owned()), "UTF-16 without a declaration");
    for document in [&deep, &empty, &many, entities, utf16, "", "<", "<Delete/>"] {
        let refused = client.send("POST", "/bkt?delete", &[], document.as_bytes()).await;
        assert_eq!(
            refused.error(),
            (400, "MalformedXML".to_owned()),
            "{}",
            &document[..document.len().min(60)]
        );
    }
    let started = Instant::now();
    let tags = format!(
        "<Tagging><TagSet>{}</TagSet></Tagging>",
        "<Tag><Key>a</Key><Value>b</Value></Tag>".repeat(1_000)
    );
    assert_eq!(client.put("/bkt/k?tagging", tags.as_bytes()).await.status, 400);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn header_bombs_are_refused() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let many: Vec<(String, String)> = (0..101).map(|number| (format!("a{number}"), "1".to_owned())).collect();
    let long = vec![("a".to_owned(), "x".repeat(33 << 10))];
    for headers in [many, long] {
        let mut bomber = running.client().await;
        bomber.send_head("GET", "/bkt", &headers).await;
        assert_eq!(bomber.receive("GET").await.status, 431, "{} headers", headers.len());
    }
    for (target, status) in
        [(format!("/bkt/{}", "k".repeat(17 << 10)), 414), (format!("/bkt?{}", "p&".repeat(65)), 400)]
    {
        let mut bomber = running.client().await;
        bomber.send_head("GET", &target, &[]).await;
        assert_eq!(bomber.receive("GET").await.status, status, "{} bytes", target.len());
    }
    assert_eq!(client.get("/bkt").await.status, 200, "others are served");
}

/// 16 stars in each of many statements: a pattern is matched without a search over all places of its stars.
#[tokio::test(flavor = "multi_thread")]
async fn policies_of_stars_are_judged_in_bounded_time() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let statement = format!(
        "{{\"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"s3:GetObject\", \
         \"Resource\": \"arn:aws:s3:::bkt/{}b\"}}",
        "*a".repeat(16)
    );
    let policy = format!("{{\"Statement\": [{}]}}", vec![statement.as_str(); 150].join(","));
    assert_eq!(client.put("/bkt?policy", policy.as_bytes()).await.status, 204);
    let key = format!("/bkt/{}", "a".repeat(1_000));
    assert_eq!(client.put(&key, b"1").await.status, 200);
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(client.get(&key).await.status, 200);
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(client.get(&format!("{key}b")).await.status, 403, "it matches");
}

/// They cost no read of the store, and keep nobody out.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_signatures_read_nothing() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/k", b"1").await;
    let wrong = TestKey { secret: "x".repeat(40), ..running.key.clone() };
    let mut guesser = running.client_of(&wrong).await;
    let before = running.store.stat();
    for _ in 0..500 {
        assert_eq!(guesser.get("/bkt/k").await.error().1, "SignatureDoesNotMatch");
    }
    let after = running.store.stat();
    assert_eq!((after.gets, after.puts), (before.gets, before.puts));
    assert_eq!(client.get("/bkt/k").await.body, b"1");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_range_is_answered_and_several_are_ignored() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/k", &[b'x'; 2_000]).await;
    let ranges: String = (0..1_000).map(|number| format!("{number}-{number},")).collect();
    let got =
        client.get_with("/bkt/k", &[("range", &format!("bytes={}", ranges.trim_end_matches(',')))]).await;
    assert_eq!((got.status, got.body.len()), (200, 2_000), "as AWS does");
}

/// Each answer of a page is a prefix or a key: no page reads a bucket to its end.
#[tokio::test(flavor = "multi_thread")]
async fn pages_by_a_delimiter_inside_keys_are_bounded() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for number in 0..300 {
        let key = format!("/bkt/{:x}{}", number * 7_919 % 4_096, if number % 2 == 0 { "e" } else { "" });
        assert_eq!(client.put(&key, b"").await.status, 200);
    }
    let all = client.get("/bkt?list-type=2&delimiter=e").await;
    let (mut found, mut token) = (0, String::new());
    loop {
        let page = client.get(&format!("/bkt?list-type=2&delimiter=e&max-keys=7{token}")).await;
        let count: usize = page.one("KeyCount").parse().unwrap();
        assert!(count <= 7);
        found += count;
        if page.one("IsTruncated") == "false" {
            break;
        }
        token = format!("&continuation-token={}", page.one("NextContinuationToken"));
    }
    assert_eq!(found.to_string(), all.one("KeyCount"));
}

/// The bytes of bodies that wait are bounded for all connections together; a long body is a stream of short pieces.
#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_take_little_memory_at_a_time() {
    let limits = ServerLimits { bytes_in_flight_max: 16 << 20, ..ServerLimits::default() };
    let running = Running::with_limits(limits).await;
    let _bucket = running.with_bucket().await;
    let mut tasks = Vec::new();
    for number in 0..12 {
        let mut client = running.client().await;
        tasks.push(tokio::spawn(async move {
            client.put(&format!("/bkt/long{number}"), &vec![number; 9 << 20]).await.status
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 200);
    }
}

/// The pieces of parts that are on their way do not count as requests in flight, and are short.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_many_clients_take_little_memory_at_a_time() {
    const PART_BYTES: usize = 5 << 20;
    let limits = ServerLimits { bytes_in_flight_max: 16 << 20, ..ServerLimits::default() };
    let running = Running::with_limits(limits).await;
    let mut first = running.with_bucket().await;
    let upload = first.begin_upload("/bkt/long", &[]).await;
    let mut tasks = Vec::new();
    for number in 1..=64_u32 {
        let (mut client, upload) = (running.client().await, upload.clone());
        tasks.push(tokio::spawn(async move {
            let part = client.send_part("/bkt/long", &upload, number, &vec![number as u8; PART_BYTES]).await;
            assert_eq!(part.status, 200, "{}", part.text());
            (number, part.header("etag").unwrap().to_owned())
        }));
    }
    let mut parts = Vec::new();
    for task in tasks {
        parts.push(task.await.unwrap());
    }
    let parts: Vec<(u32, &str)> = parts.iter().map(|(number, etag)| (*number, etag.as_str())).collect();
    let completed = first.complete_upload("/bkt/long", &upload, &parts, &[]).await;
    assert_eq!(completed.status, 200, "{}", completed.text());
    let start = 62 * PART_BYTES;
    let range = format!("bytes={}-{}", start - 1, start);
    let found = first.get_with("/bkt/long", &[("range", &range)]).await;
    assert_eq!((found.status, found.body.as_slice()), (206, &[62, 63][..]));
}
