//! Bodies: framing, checksums, and refusals before they are sent.

use crate::support::{EMPTY, Running};

const TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// The headers that SDKs send with a checksum in the trailer.
const HEADERS: [(&str, &str); 3] = [
    ("content-encoding", "aws-chunked"),
    ("x-amz-decoded-content-length", "9"),
    ("x-amz-trailer", "x-amz-checksum-crc32"),
];

async fn put_chunked(client: &mut crate::support::Client, target: &str, body: &str) -> crate::support::Reply {
    let mut headers = client.signed("PUT", target, &HEADERS, TRAILER);
    headers.push(("content-length".to_owned(), body.len().to_string()));
    client.send_head("PUT", target, &headers).await;
    client.send_body(body.as_bytes()).await;
    client.receive("PUT").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_framed_body_is_stored_without_its_frame() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let right = "4\r\n1234\r\n5\r\n56789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n";
    let put = put_chunked(&mut client, "/bkt/k", right).await;
    assert_eq!(put.status, 200, "{}", put.text());
    assert_eq!(put.header("x-amz-checksum-crc32"), Some("y/Q5Jg=="));
    let got = client.get("/bkt/k").await;
    assert_eq!((got.body.as_slice(), got.header("content-encoding")), (&b"123456789"[..], None));
    for (body, code) in [
        (right.replace("y/Q5Jg==", "AAAAAA=="), "BadDigest"),
        (right.replace("x-amz-checksum-crc32:y/Q5Jg==\r\n", ""), "MalformedTrailerError"),
        ("3\r\n123\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n".to_owned(), "IncompleteBody"),
        ("a\r\n1234567890\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n".to_owned(), "IncompleteBody"),
    ] {
        let mut client = running.client().await;
        assert_eq!(
            put_chunked(&mut client, "/bkt/wrong", &body).await.error(),
            (400, code.to_owned()),
            "{body}"
        );
        assert_eq!(running.client().await.head("/bkt/wrong").await.status, 404, "nothing is stored");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_a_claim_is_not_stored() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for (bytes, length) in [(9, "9"), (100_000, "100000"), (5 << 20, "5242880")] {
        let body = vec![7; bytes];
        let mut headers = client.signed("PUT", "/bkt/wrong", &[], EMPTY);
        headers.push(("content-length".to_owned(), length.to_owned()));
        client.send_head("PUT", "/bkt/wrong", &headers).await;
        client.send_body(&body).await;
        assert_eq!(client.receive("PUT").await.error(), (400, "XAmzContentSHA256Mismatch".to_owned()));
        let md5 = [("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")];
        assert_eq!(client.send("PUT", "/bkt/wrong", &md5, &body).await.error().1, "BadDigest");
        assert_eq!(client.head("/bkt/wrong").await.status, 404);
    }
    assert_eq!(running.store.stat().puts, 1, "the bucket's record");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_length_is_taken() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let mut headers = client.signed("PUT", "/bkt/k", &[], "UNSIGNED-PAYLOAD");
    headers.push(("transfer-encoding".to_owned(), "chunked".to_owned()));
    client.send_head("PUT", "/bkt/k", &headers).await;
    client.send_body(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").await;
    let put = client.receive("PUT").await;
    assert_eq!(put.status, 200, "{}", put.text());
    assert_eq!(put.header("etag"), Some("\"ab56b4d92b40713acc5af89985d4b786\""));
    assert_eq!(client.get("/bkt/k").await.body, b"abcde");
}

/// A client that asks first does not send a body for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_not_asked_for_its_body() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/k", b"1").await;
    let ask = async |target: &str, condition: (&str, &str)| {
        let mut client = running.client().await;
        let mut headers = client.signed("PUT", target, &[condition], "UNSIGNED-PAYLOAD");
        headers.push(("content-length".to_owned(), "5".to_owned()));
        headers.push(("expect".to_owned(), "100-continue".to_owned()));
        client.send_head("PUT", target, &headers).await;
        let first = client.receive("PUT").await;
        if first.status == 100 {
            client.send_body(b"12345").await;
            return (100, client.receive("PUT").await.status);
        }
        (first.status, 0)
    };
    assert_eq!(ask("/bkt/k", ("if-none-match", "*")).await, (412, 0));
    assert_eq!(ask("/none/k", ("if-none-match", "*")).await, (404, 0));
    assert_eq!(ask("/bkt/k", ("x-amz-acl", "aws-exec-read")).await, (501, 0));
    assert_eq!(ask("/bkt/new", ("if-none-match", "*")).await, (100, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_heads_and_documents_are_refused() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let long = "k".repeat(1_025);
    assert_eq!(client.get(&format!("/bkt/{long}")).await.error(), (400, "KeyTooLongError".to_owned()));
    let parameters: String = (0..65).map(|number| format!("p{number:02}=&")).collect();
    assert_eq!(client.get(&format!("/bkt?{parameters}")).await.error().0, 400);
    let document = vec![b' '; (4 << 20) + 1];
    let mut headers = client.signed("POST", "/bkt?delete", &[], "UNSIGNED-PAYLOAD");
    headers.push(("content-length".to_owned(), document.len().to_string()));
    client.send_head("POST", "/bkt?delete", &headers).await;
    assert_eq!(client.receive("POST").await.error(), (400, "MaxMessageLengthExceeded".to_owned()));
}
