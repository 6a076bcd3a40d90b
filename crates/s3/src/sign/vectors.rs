//! AWS's published examples of signature version 4, and changed ones, which are refused.

use std::sync::Arc;

use http::HeaderMap;
use proptest::prelude::*;

use super::key::{SecretPair, SigningKeys};
use super::payload::PayloadHash;
use super::verify::{RequestHead, Verified, verify};
use crate::request::error::{ErrorCode, S3Result};
use crate::request::query::QueryParameters;
use crate::testing::headers_of;
use crate::text::unhex;
use crate::time::parse_basic;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const CREDENTIAL: &str = "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
const DATE: (&str, &str) = ("x-amz-date", "20130524T000000Z");

pub(super) fn secrets(id: &str) -> SecretPair {
    let is_known = id == "AKIAIOSFODNN7EXAMPLE";
    [is_known.then(|| Arc::from("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")), None]
}

fn at(date: &str, method: &str, target: &str, headers: &HeaderMap) -> S3Result<Verified> {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let head = RequestHead { method, path, query, headers };
    let keys = SigningKeys::new("us-east-1");
    verify(&head, &QueryParameters::parse(query)?, &keys, &secrets, parse_basic(date).unwrap())
}

fn signed(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    names: &str,
    signature: &str,
) -> S3Result<Verified> {
    let value = format!("AWS4-HMAC-SHA256 {CREDENTIAL},SignedHeaders={names},Signature={signature}");
    let mut all = vec![DATE, ("authorization", &value)];
    all.extend(headers);
    at("20130524T001000Z", method, target, &headers_of(&all))
}

const GET: (&str, &str) = (
    "host;range;x-amz-content-sha256;x-amz-date",
    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
);

fn get(target: &str, headers: &[(&str, &str)]) -> Result<Option<String>, ErrorCode> {
    let mut all = vec![HOST, ("range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY)];
    all.extend(headers);
    signed("GET", target, &all, GET.0, GET.1).map(|verified| verified.id).map_err(|error| error.code)
}

#[test]
fn published_headers_are_right() {
    let id = Ok(Some("AKIAIOSFODNN7EXAMPLE".to_owned()));
    assert_eq!(get("/test.txt", &[]), id);
    let hash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    let put = [
        HOST,
        ("date", "Fri, 24 May 2013 00:00:00 GMT"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("x-amz-content-sha256", hash),
    ];
    let verified = signed(
        "PUT",
        "/test$file.text",
        &put,
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    );
    assert_eq!(verified.unwrap().payload, PayloadHash::Sha256(unhex(hash.as_bytes()).unwrap()));
    let lists = [
        ("/?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ("/?prefix=%4a&max-keys=2", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ];
    for (target, signature) in lists {
        let headers = [HOST, ("x-amz-content-sha256", EMPTY)];
        let verified = signed("GET", target, &headers, "host;x-amz-content-sha256;x-amz-date", signature);
        assert!(verified.is_ok(), "{target} {verified:?}");
    }
}

#[test]
fn a_change_of_anything_signed_is_refused() {
    assert_eq!(get("/test.tx", &[]), Err(ErrorCode::SignatureDoesNotMatch));
    assert_eq!(get("/test.txt?a", &[]), Err(ErrorCode::SignatureDoesNotMatch));
    assert_eq!(get("/test.txt", &[("range", "bytes=0-9")]), Err(ErrorCode::SignatureDoesNotMatch));
    // A header that a third party adds must not be obeyed.
    assert_eq!(get("/test.txt", &[("x-amz-acl", "public-read")]), Err(ErrorCode::AccessDenied));
    assert_eq!(get("/test.txt", &[("x-amz-security-token", "t")]), Err(ErrorCode::InvalidToken));
    // Those of the body are checked against its bytes.
    assert!(get("/test.txt", &[("x-amz-checksum-crc32", "AAAAAA==")]).is_ok());
    assert!(get("/test.txt", &[("user-agent", "curl"), ("content-type", "text/html")]).is_ok());
}

#[test]
fn an_authorization_header_that_is_not_ours_has_the_code_of_its_fault() {
    let with = |date: &str, value: &str| {
        let headers =
            [HOST, DATE, ("range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY), ("authorization", value)];
        at(date, "GET", "/test.txt", &headers_of(&headers)).map_err(|error| error.code).unwrap_err()
    };
    let value = |credential: &str| {
        format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={}, Signature={}", GET.0, GET.1)
    };
    let right = value("AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request");
    assert_eq!(with("20130524T001501Z", &right), ErrorCode::RequestTimeTooSkewed);
    assert_eq!(with("20130523T234459Z", &right), ErrorCode::RequestTimeTooSkewed);
    for (credential, code) in [
        ("AKIAIOSFODNN7EXAMPLE/20130523/us-east-1/s3/aws4_request", ErrorCode::AuthorizationHeaderMalformed),
        ("AKIAIOSFODNN7EXAMPLE/20130524/eu-west-1/s3/aws4_request", ErrorCode::AuthorizationHeaderMalformed),
        ("AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/ec2/aws4_request", ErrorCode::AuthorizationHeaderMalformed),
        ("AKIAIOSFODNN7EXAMPLE", ErrorCode::AuthorizationHeaderMalformed),
        ("ANOTHER/20130524/us-east-1/s3/aws4_request", ErrorCode::InvalidAccessKeyId),
    ] {
        assert_eq!(with("20130524T000000Z", &value(credential)), code, "{credential}");
    }
    for (value, code) in [
        ("AWS AKIAIOSFODNN7EXAMPLE:c2ln", ErrorCode::InvalidRequest),
        ("AWS4-HMAC-SHA256 Credential=a/b", ErrorCode::AuthorizationHeaderMalformed),
        (&format!("{right}, Signature={}", GET.1), ErrorCode::AuthorizationHeaderMalformed),
        (&right.replace("host;range", "range;host"), ErrorCode::SignatureDoesNotMatch),
        (&right.replace("host;range;", "range;"), ErrorCode::AccessDenied),
        (&right.replace("=f0e8", "=xyz"), ErrorCode::SignatureDoesNotMatch),
    ] {
        assert_eq!(with("20130524T000000Z", value), code, "{value}");
    }
}

const PRESIGNED: &str = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F\
    us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
    &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";

#[test]
fn a_presigned_url_lives_from_its_date_to_its_expiry() {
    let code = |date: &str, target: &str| {
        at(date, "GET", target, &headers_of(&[HOST, ("content-type", "any")])).map_err(|error| error.code)
    };
    for date in ["20130523T234500Z", "20130524T000000Z", "20130525T000000Z"] {
        assert!(code(date, PRESIGNED).is_ok_and(|verified| verified.is_presigned), "{date}");
    }
    for date in ["20130523T234459Z", "20130525T000001Z"] {
        assert_eq!(code(date, PRESIGNED).unwrap_err(), ErrorCode::AccessDenied, "{date}");
    }
    let malformed = ErrorCode::AuthorizationQueryParametersError;
    for (from, to, expected) in [
        ("Expires=86400", "Expires=0", ErrorCode::AccessDenied),
        ("Expires=86400", "Expires=-9", ErrorCode::AccessDenied),
        ("Expires=86400", "Expires=x", malformed),
        ("Expires=86400", "Expires=604801", ErrorCode::AccessDenied),
        ("Expires=86400", "Expires=604800", ErrorCode::SignatureDoesNotMatch),
        ("Algorithm=AWS4-HMAC-SHA256", "Algorithm=AWS4-HMAC-SHA1", malformed),
        ("X-Amz-Expires=86400&", "", malformed),
        ("X-Amz-Expires=86400", "X-Amz-Expires=86400&x-amz-expires=1", malformed),
        ("us-east-1", "eu-west-1", malformed),
        ("SignedHeaders=host", "SignedHeaders=hosts", ErrorCode::AccessDenied),
        ("&X-Amz-Signature", "&response-expires=1&X-Amz-Signature", ErrorCode::SignatureDoesNotMatch),
        ("&X-Amz-Signature", "&X-Amz-Security-Token=t&X-Amz-Signature", ErrorCode::InvalidToken),
    ] {
        let target = PRESIGNED.replace(from, to);
        assert_eq!(code("20130524T000000Z", &target).unwrap_err(), expected, "{to}");
    }
}

#[test]
fn a_second_signature_is_refused_and_none_is_anonymous() {
    let both = headers_of(&[HOST, ("authorization", "AWS4-HMAC-SHA256 Credential=a")]);
    assert_eq!(at("20130524T000000Z", "GET", PRESIGNED, &both).unwrap_err().code, ErrorCode::InvalidArgument);
    let anonymous = at("20130524T000000Z", "GET", "/a/b?x-id=1", &headers_of(&[HOST])).unwrap();
    assert_eq!((anonymous.id, anonymous.payload), (None, PayloadHash::Unsigned));
    let version_2 = at("20130524T000000Z", "GET", "/?AWSAccessKeyId=a&Signature=b", &headers_of(&[HOST]));
    assert_eq!(version_2.unwrap_err().code, ErrorCode::InvalidRequest);
    let chunks = headers_of(&[HOST, ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")]);
    assert_eq!(at("20130524T000000Z", "PUT", "/a/b", &chunks).unwrap_err().code, ErrorCode::InvalidRequest);
}

/// The published upload in chunks, with the signer of its body. With a trailer it is the second example.
pub(crate) fn chunked_upload(has_trailer: bool) -> Verified {
    let mut headers = vec![
        ("host", "s3.amazonaws.com"),
        ("content-encoding", "aws-chunked"),
        ("content-length", "66824"),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ];
    let (names, signature, hash) = if has_trailer {
        headers.push(("x-amz-trailer", "x-amz-checksum-crc32c"));
        (
            "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer",
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        )
    } else {
        (
            "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        )
    };
    headers.push(("x-amz-content-sha256", hash));
    signed("PUT", "/examplebucket/chunkObject.txt", &headers, names, signature).unwrap()
}

#[test]
fn published_chunks_are_right_in_their_order_only() {
    let chunks = [
        (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
        (1_024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
        (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ];
    let is_right = |order: &[usize]| {
        let mut signer = chunked_upload(false).chunks.unwrap();
        order.iter().all(|index| {
            let (bytes, signature) = chunks[*index];
            let hash = super::key::sha256(&vec![b'a'; bytes]);
            signer.is_next_chunk(&hash, &unhex(signature.as_bytes()).unwrap())
        })
    };
    assert!(is_right(&[0, 1, 2]));
    assert!(!is_right(&[1]) && !is_right(&[0, 2]) && !is_right(&[0, 0]));
}

/// Some clients sign the path as they send it, without decoding it.
#[test]
fn the_raw_target_counts_as_well() {
    let keys = SigningKeys::new("us-east-1");
    let key = keys.derive("20130524", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    let names = "host;x-amz-content-sha256;x-amz-date";
    let canonical = format!(
        "GET\n/b/a=b%7e!\nprefix=x%7E\nhost:{}\nx-amz-content-sha256:{EMPTY}\nx-amz-date:{}\n\n{names}\n{EMPTY}",
        HOST.1, DATE.1
    );
    let hash = crate::text::hex(&super::key::sha256(canonical.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{}\n20130524/us-east-1/s3/aws4_request\n{hash}", DATE.1);
    let signature = crate::text::hex(ring::hmac::sign(&key, text.as_bytes()).as_ref());
    let headers = [HOST, ("x-amz-content-sha256", EMPTY)];
    assert!(signed("GET", "/b/a=b%7e!?prefix=x%7E", &headers, names, &signature).is_ok());
    assert!(signed("GET", "/b/a=b%7E!?prefix=x%7E", &headers, names, &signature).is_err());
}

/// A key with every character that clients encode differently, as botocore sends it.
const ODD: &str = "/b/%C3%BC/%20a%2Bb%2525//../x~%21%2A%27%28%29%26%3D%40%3A%24%2C%3B%3F%23%5B%5D";

/// Requests that botocore 1.44.8 signed at the same moment with the same key.
#[test]
fn requests_of_botocore_are_right() {
    let body = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
    let host = ("host", "h:7413");
    let get =
        [host, ("range", "bytes=0-9"), ("x-amz-checksum-mode", "ENABLED"), ("x-amz-content-sha256", EMPTY)];
    let put = [
        host,
        ("content-md5", "JfnnlDI7RTiF9RgfG2JNCw=="),
        ("content-type", "text/plain"),
        ("expect", "100-continue"),
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-content-sha256", body),
        ("x-amz-meta-two-words", "a  b"),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
    ];
    let list = "/b?list-type=2&prefix=a%20b%2Bc%26%3D%2F%C3%A9~%2A&delimiter=%2F&start-after=%252F&encoding-type=url";
    for (method, target, headers, names, signature) in [
        (
            "GET",
            ODD,
            &get[..],
            "host;range;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date",
            "d359902dd11b0b053d23d18e4c97dac2a7f02ba962f8107dcc66f7be2ba0ccfd",
        ),
        (
            "GET",
            list,
            &[host, ("x-amz-content-sha256", EMPTY)],
            "host;x-amz-content-sha256;x-amz-date",
            "16cd7b4b21e2ad438775d6e29e2681b50673ca2905594e4841f37b8b5d7960eb",
        ),
        (
            "PUT",
            ODD,
            &put,
            "content-md5;content-type;host;x-amz-checksum-crc32;x-amz-content-sha256;x-amz-date;x-amz-meta-two-words;\
             x-amz-sdk-checksum-algorithm",
            "a84cc6ad16fa3a3a833211361bd623a992671a70ddd666057760eaf1a9854a48",
        ),
    ] {
        let verified = signed(method, target, headers, names, signature);
        assert!(verified.is_ok(), "{method} {target} {verified:?}");
    }
    let signature = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F\
        aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders";
    let put = format!(
        "{ODD}?{signature}=content-type%3Bhost%3Bx-amz-meta-a\
         &X-Amz-Signature=e924fcf89f35e01e4285edcdcbf7a4854256f1ef270f8dedbf3f33117f1c964f"
    );
    let headers = headers_of(&[host, ("content-type", "a/b"), ("x-amz-meta-a", "1")]);
    assert!(at("20130524T000000Z", "PUT", &put, &headers).is_ok());
    let get = format!(
        "{ODD}?response-content-type=a%2Fb%3B%20x%3D%22y%20z%22&{signature}=host\
         &X-Amz-Signature=c4fa05652c73a162b8835e32d1863f5caf82f52906b01084c37a4fd5a7bb9c89"
    );
    assert!(at("20130524T000000Z", "GET", &get, &headers_of(&[host])).is_ok());
}

proptest! {
    #[test]
    fn any_signature_is_refused(
        authorization in "(AWS4-HMAC-SHA256 )?[ -~]{0,80}",
        names in "[a-z;-]{0,20}(host)?",
        signature in "[0-9a-f]{63,65}",
        query in "(X-Amz-[A-Z][a-z]{1,9}=[ -~]{0,9}&){0,4}",
    ) {
        let own = format!("AWS4-HMAC-SHA256 {CREDENTIAL},SignedHeaders={names},Signature={signature}");
        for value in [&authorization, &own] {
            let headers = headers_of(&[HOST, DATE, ("x-amz-content-sha256", EMPTY), ("authorization", value)]);
            let target = format!("/a?{query}");
            prop_assert!(at("20130524T000000Z", "GET", &target, &headers).is_err());
        }
        let target = format!("/a?{query}X-Amz-Signature={signature}");
        prop_assert!(at("20130524T000000Z", "GET", &target, &headers_of(&[HOST])).is_err());
    }
}
