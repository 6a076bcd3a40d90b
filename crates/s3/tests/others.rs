//! Faults that users of other stores reported, each as a request that Shoal must answer as S3 does. They work on the protocol
//! alone; a small signer takes the place of the client.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use ring::{digest, hmac};
use shoal_s3::ErrorCode;
use shoal_s3::answer::object::ObjectRead;
use shoal_s3::body::check::{BodyCheck, CheckedBody, EtagScheme};
use shoal_s3::body::claims::{BodyClaims, stored_encoding};
use shoal_s3::object::metadata::S3Metadata;
use shoal_s3::request::headers::with_presigned;
use shoal_s3::request::list::KeyListQuery;
use shoal_s3::request::query::QueryParameters;
use shoal_s3::sign::key::{SecretPair, SigningKeys};
use shoal_s3::sign::payload::PayloadHash;
use shoal_s3::sign::verify::{RequestHead, Verified, verify};
use shoal_s3::text::hex;

const DATE: &str = "20130524T000000Z";
const NOW_S: u64 = 1_369_353_600;
const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";

fn secrets(id: &str) -> SecretPair {
    [(id == "ID").then(|| Arc::from("secret")), None]
}

fn headers_of(pairs: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("the value of a header");
        (HeaderName::try_from(*name).expect("the name of a header"), value)
    };
    pairs.iter().map(pair).collect()
}

/// The signature of a canonical request.
fn signature(canonical: &str) -> String {
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let mut key = b"AWS4secret".to_vec();
    for part in SCOPE.split('/') {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    let text = format!("AWS4-HMAC-SHA256\n{DATE}\n{SCOPE}\n{hash}");
    hex(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), text.as_bytes()).as_ref())
}

/// Verifies a PUT of `/b/k` that signs `signed` (sorted), and sends `more` besides.
fn put(signed: &[(&str, &str)], more: &[(&str, &str)]) -> Result<Verified, ErrorCode> {
    let mut all = vec![("host", "h"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("x-amz-date", DATE)];
    all.extend(signed);
    all.sort_unstable();
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let lines: String = all.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let canonical = format!("PUT\n/b/k\n\n{lines}\n{}\nUNSIGNED-PAYLOAD", names.join(";"));
    let value = format!(
        "AWS4-HMAC-SHA256 Credential=ID/{SCOPE}, SignedHeaders={}, Signature={}",
        names.join(";"),
        signature(&canonical)
    );
    // An empty value stands for a header that is signed and gets lost on its way.
    let sent = all.into_iter().filter(|(name, value)| !value.is_empty() && *name != "expect");
    let sent: Vec<_> = sent.chain(more.iter().copied()).chain([("authorization", value.as_str())]).collect();
    let headers = headers_of(&sent);
    let head = RequestHead { method: "PUT", path: "/b/k", query: None, headers: &headers };
    let keys = SigningKeys::new("us-east-1");
    verify(&head, &QueryParameters::default(), &keys, &secrets, NOW_S).map_err(|error| error.code)
}

/// The query of a presigned PUT of `/b/k` with these parameters more, for a body with this hash.
fn presigned_for(payload: &str, parameters: &str, expires: &str) -> String {
    let scope = SCOPE.replace('/', "%2F");
    let query = format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=ID%2F{scope}&X-Amz-Date={DATE}&X-Amz-Expires={expires}\
         &X-Amz-SignedHeaders=host{parameters}"
    );
    let mut pairs: Vec<&str> = query.split('&').collect();
    pairs.sort_unstable();
    let signed = pairs.join("&");
    let signature = signature(&format!("PUT\n/b/k\n{signed}\nhost:h\n\nhost\n{payload}"));
    format!("{signed}&X-Amz-Signature={signature}")
}

fn presigned(parameters: &str, expires: &str) -> String {
    presigned_for("UNSIGNED-PAYLOAD", parameters, expires)
}

fn put_presigned(query: &str, more: &[(&str, &str)]) -> Result<HeaderMap, ErrorCode> {
    put_presigned_as(query, more).map(|(headers, _)| headers)
}

/// The headers that count, and the hash that the body must have.
fn put_presigned_as(query: &str, more: &[(&str, &str)]) -> Result<(HeaderMap, PayloadHash), ErrorCode> {
    let mut pairs = vec![("host", "h")];
    pairs.extend(more);
    let headers = headers_of(&pairs);
    let head = RequestHead { method: "PUT", path: "/b/k", query: Some(query), headers: &headers };
    let parameters = QueryParameters::parse(Some(query)).expect("a query");
    let keys = SigningKeys::new("us-east-1");
    let verified = verify(&head, &parameters, &keys, &secrets, NOW_S).map_err(|error| error.code)?;
    assert!(verified.is_presigned);
    let all = with_presigned(&headers, &parameters).map_err(|error| error.code)?;
    Ok((all, verified.payload))
}

fn check(payload: &str, headers: &[(&str, &str)], body: &str) -> Result<CheckedBody, ErrorCode> {
    let run = || {
        let claims = BodyClaims::of(&headers_of(headers), PayloadHash::parse(payload)?)?;
        let mut check = BodyCheck::new(claims, None, EtagScheme::Md5, None);
        check.feed(body.as_bytes(), &mut |_| {})?;
        check.finish()
    };
    run().map_err(|error: shoal_s3::S3Error| error.code)
}

const CRC32_BODY: &str = "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n";
const DECODED: (&str, &str) = ("x-amz-decoded-content-length", "9");
const ENCODING: (&str, &str) = ("content-encoding", "aws-chunked");

/// SDKs since January 2025 send every upload in chunks with a CRC32 in the trailer.
#[test]
fn boto3_4392_aws_cli_9214_and_js_v3_6810_upload_with_a_trailer() {
    let headers = [
        DECODED,
        ENCODING,
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
    ];
    let checked = check("STREAMING-UNSIGNED-PAYLOAD-TRAILER", &headers, CRC32_BODY).unwrap();
    assert_eq!((checked.bytes, checked.checksum.unwrap().text().as_str()), (9, "y/Q5Jg=="));
}

/// The framing, or its name, was stored with the object.
#[test]
fn boto3_4435_framing_is_not_stored() {
    assert_eq!(stored_encoding("aws-chunked"), None);
    assert_eq!(stored_encoding("gzip,aws-chunked").as_deref(), Some("gzip"));
    assert_eq!(stored_encoding("deflate, gzip").as_deref(), Some("deflate, gzip"));
    let checked =
        check("STREAMING-UNSIGNED-PAYLOAD-TRAILER", &[DECODED], "9\r\n123456789\r\n0\r\n\r\n").unwrap();
    assert_eq!(checked.etag.to_string(), "\"25f9e794323b453885f5181f1b624d0b\"");
}

/// Java's second SDK frames a body although it announces an unsigned payload.
#[test]
fn ministack_100_unsigned_payload_may_be_framed() {
    let headers = [DECODED, ENCODING, ("x-amz-trailer", "x-amz-checksum-crc32")];
    assert_eq!(check("UNSIGNED-PAYLOAD", &headers, CRC32_BODY).unwrap().bytes, 9);
}

/// A cut body was stored, because nobody compared the decoded length.
#[test]
fn s3s_772_a_decoded_length_that_is_not_met_is_refused() {
    for length in ["8", "10"] {
        let headers = [("x-amz-decoded-content-length", length)];
        let result = check("STREAMING-UNSIGNED-PAYLOAD-TRAILER", &headers, "9\r\n123456789\r\n0\r\n\r\n");
        assert_eq!(result, Err(ErrorCode::IncompleteBody), "{length}");
    }
}

/// Headers that were not signed were obeyed.
#[test]
fn s3s_818_a_third_party_adds_no_headers() {
    assert_eq!(put(&[], &[("x-amz-acl", "public-read")]).unwrap_err(), ErrorCode::AccessDenied);
    assert_eq!(
        put_presigned(&presigned("", "60"), &[("x-amz-acl", "public-read")]),
        Err(ErrorCode::AccessDenied)
    );
    assert!(put(&[("x-amz-acl", "public-read")], &[]).is_ok());
}

/// Presigned URLs lived for ever.
#[test]
fn s3s_645_a_presigned_url_expires_within_a_week() {
    assert!(put_presigned(&presigned("", "604800"), &[]).is_ok());
    let result = put_presigned(&presigned("", "604801"), &[]);
    assert_eq!(result, Err(ErrorCode::AccessDenied));
}

/// A URL that is signed for one body must not take another one, although its user sends another hash in a header.
#[test]
fn a_hash_in_a_presigned_url_is_binding() {
    let hash = "ab".repeat(32);
    let query = presigned_for(&hash, &format!("&X-Amz-Content-Sha256={hash}"), "60");
    for more in [&[][..], &[("x-amz-content-sha256", "UNSIGNED-PAYLOAD")]] {
        let (_, payload) = put_presigned_as(&query, more).unwrap();
        assert_eq!(payload, PayloadHash::Sha256([0xAB; 32]));
    }
    let (_, payload) = put_presigned_as(&presigned("", "60"), &[("x-amz-content-sha256", &hash)]).unwrap();
    assert_eq!(payload, PayloadHash::Sha256([0xAB; 32]));
}

/// A proxy takes a signed `Expect` away.
#[test]
fn versitygw_1517_expect_is_assumed() {
    assert!(put(&[("expect", "100-continue")], &[]).is_ok());
}

/// libs3 signs an empty header that curl then does not send.
#[test]
fn versitygw_457_a_signed_header_that_is_missing_is_empty() {
    assert!(put(&[("transfer-encoding", "")], &[]).is_ok());
    assert!(put(&[("expect", "")], &[]).is_ok());
}

/// PHP's SDK, Bun and others do not sign Content-Type.
#[test]
fn nextcloud_63489_content_type_needs_no_signature() {
    assert!(put(&[], &[("content-type", "image/jpeg")]).is_ok());
    assert!(put_presigned(&presigned("", "60"), &[("content-type", "image/jpeg")]).is_ok());
}

/// JavaScript's SDK signs the checksum of an empty body into a URL, because it does not know the body.
#[test]
fn js_v3_6994_the_checksum_in_a_presigned_url_does_not_count() {
    let query = presigned(
        "&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-meta-a=1&x-amz-sdk-checksum-algorithm=CRC32",
        "60",
    );
    let headers = put_presigned(&query, &[("content-length", "9")]).unwrap();
    assert_eq!(headers["x-amz-meta-a"], "1");
    let claims = BodyClaims::of(&headers, PayloadHash::Unsigned).unwrap();
    let mut check = BodyCheck::new(claims, None, EtagScheme::Md5, None);
    check.feed(b"123456789", &mut |_| {}).unwrap();
    assert_eq!(check.finish().unwrap().checksum, None);
}

/// A presigned upload with a checksum in a header that was not signed: it is checked against the body.
#[test]
fn aws_sdk_rust_1240_an_unsigned_checksum_header_counts() {
    let more = [("content-length", "9"), ("x-amz-checksum-crc32", "y/Q5Jg==")];
    assert!(put_presigned(&presigned("", "60"), &more).is_ok());
    assert!(check("UNSIGNED-PAYLOAD", &more, "123456789").is_ok());
    assert_eq!(check("UNSIGNED-PAYLOAD", &more, "12345678x"), Err(ErrorCode::BadDigest));
}

/// The encoding of names was ignored, or any name of one was accepted.
#[test]
fn versitygw_813_and_1985_the_encoding_type_counts() {
    let parse = |query: &str| KeyListQuery::objects(&QueryParameters::parse(Some(query)).unwrap());
    assert!(parse("encoding-type=url").unwrap().is_url);
    assert_eq!(parse("encoding-type=hex").unwrap_err().code, ErrorCode::InvalidArgument);
}

/// A checksum was answered unasked, which old clients compared with the bytes of a range.
#[test]
fn boto3_4396_checksums_are_answered_on_request_only() {
    let headers = headers_of(&[("range", "bytes=0-1"), ("x-amz-checksum-mode", "ENABLED")]);
    let read = ObjectRead::parse(&headers, &QueryParameters::default(), true).unwrap();
    let mut metadata = shoal_engine::Metadata::default();
    let checked = check(
        "UNSIGNED-PAYLOAD",
        &[("content-length", "9"), ("x-amz-checksum-crc32", "y/Q5Jg==")],
        "123456789",
    )
    .unwrap();
    let value = checked.checksum.unwrap();
    let stored = shoal_s3::object::metadata::StoredChecksum { value, parts: None };
    metadata.set_of_value(&checked.etag, Some(stored));
    let facts = shoal_s3::answer::object::ObjectFacts {
        metadata: &metadata,
        etag: checked.etag,
        bytes: 9,
        modified_ns: 0,
        parts: &[],
    };
    assert!(!read.answer(&facts).unwrap().headers.contains_key("x-amz-checksum-crc32"));
    let plain = ObjectRead::parse(&HeaderMap::new(), &QueryParameters::default(), true).unwrap();
    assert!(!plain.answer(&facts).unwrap().headers.contains_key("x-amz-checksum-crc32"));
}
