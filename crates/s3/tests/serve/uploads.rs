//! Uploads in parts.

use md5::{Digest, Md5};
use shoal_s3::text::hex;

use crate::support::{Client, Reply, Running};

/// The least bytes of a part that is not the last one.
const LEAST: usize = 5 << 20;

/// A value of which no two parts are the same.
fn value(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|number| (number / 4_096) as u8 ^ (number % 251) as u8 ^ seed).collect()
}

fn etag(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("etag").unwrap().to_owned()
}

/// The ETag of an upload of these parts.
fn joined_etag(parts: &[&[u8]]) -> String {
    let sums: Vec<u8> = parts.iter().flat_map(Md5::digest).collect();
    format!("\"{}-{}\"", hex(&Md5::digest(&sums)), parts.len())
}

/// Uploads a value of two parts, numbered 1 and 7. Returns their bytes.
async fn upload_two(client: &mut Client, path: &str) -> [Vec<u8>; 2] {
    let parts = [value(1, LEAST), value(2, 70_000)];
    let upload = client.begin_upload(path, &[]).await;
    let etags = [
        etag(&client.send_part(path, &upload, 1, &parts[0]).await),
        etag(&client.send_part(path, &upload, 7, &parts[1]).await),
    ];
    let done = client.complete_upload(path, &upload, &[(1, &etags[0]), (7, &etags[1])], &[]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    parts
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_become_one_object() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let given = [("content-type", "a/b"), ("x-amz-meta-m", "x"), ("x-amz-tagging", "a=1")];
    let upload = client.begin_upload("/bkt/k", &given).await;
    let parts = [value(1, LEAST), value(2, LEAST + 1), value(3, 100)];
    let mut etags = Vec::new();
    // In any order.
    for index in [2, 0, 1] {
        let sent = client.send_part("/bkt/k", &upload, index as u32 + 1, &parts[index]).await;
        assert_eq!(etag(&sent), format!("\"{}\"", hex(&Md5::digest(&parts[index]))));
        etags.push((index as u32 + 1, etag(&sent)));
    }
    etags.sort();
    assert_eq!(client.head("/bkt/k").await.status, 404, "nothing is visible before");
    assert_eq!(client.get("/bkt?list-type=2").await.all("Key"), Vec::<String>::new());
    let listed = client.get(&format!("/bkt/k?uploadId={upload}")).await;
    assert_eq!(listed.all("PartNumber"), ["1", "2", "3"]);
    assert_eq!(listed.all("Size"), parts.each_ref().map(|part| part.len().to_string()));
    assert_eq!(client.get("/bkt?uploads").await.all("UploadId"), [upload.as_str()]);

    let asked: Vec<(u32, &str)> = etags.iter().map(|(number, etag)| (*number, etag.as_str())).collect();
    let done = client.complete_upload("/bkt/k", &upload, &asked, &[]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    let expected = joined_etag(&parts.each_ref().map(Vec::as_slice));
    assert_eq!(done.one("ETag").replace("&quot;", "\""), expected);
    assert_eq!(done.one("Location"), format!("http://{}/bkt/k", running.address));
    let whole = parts.concat();
    let got = client.get("/bkt/k").await;
    assert!(got.body == whole);
    let found = ["etag", "content-type", "x-amz-meta-m", "x-amz-tagging-count"].map(|name| got.header(name));
    assert_eq!(found, [Some(expected.as_str()), Some("a/b"), Some("x"), Some("1")]);
    for (first, last) in [(0, 0), (LEAST - 3, LEAST + 2), (2 * LEAST, whole.len() - 1), (1, whole.len() - 2)]
    {
        let range = format!("bytes={first}-{last}");
        let part = client.get_with("/bkt/k", &[("range", &range)]).await;
        assert!(part.status == 206 && part.body == whole[first..=last], "{range}");
    }
    assert_eq!(client.get("/bkt?list-type=2").await.one("Size"), whole.len().to_string());
    assert_eq!(client.get("/bkt?uploads").await.all("UploadId"), Vec::<String>::new());
    assert_eq!(client.get(&format!("/bkt/k?uploadId={upload}")).await.error().1, "NoSuchUpload");
    // A client that saw no answer asks again.
    let again = client.complete_upload("/bkt/k", &upload, &asked, &[]).await;
    assert_eq!((again.status, again.text()), (200, done.text()));
    let late = client.send_part("/bkt/k", &upload, 1, b"late").await;
    assert_eq!(late.error(), (404, "NoSuchUpload".to_owned()));
    assert_eq!(client.delete(&format!("/bkt/k?uploadId={upload}")).await.error().1, "NoSuchUpload");
    assert_eq!(client.delete("/bkt/k").await.status, 204);
    assert_eq!(client.delete("/bkt").await.status, 204);
}

/// Requests number the parts of an object without gaps: SDKs read 1 to x-amz-mp-parts-count.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_an_object_are_read_by_number() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let parts = upload_two(&mut client, "/bkt/k").await;
    for (index, part) in parts.iter().enumerate() {
        let target = format!("/bkt/k?partNumber={}", index + 1);
        let got = client.get(&target).await;
        assert!(got.status == 206 && got.body == *part, "{target}");
        assert_eq!(got.header("x-amz-mp-parts-count"), Some("2"));
        let head = client.head(&target).await;
        assert_eq!((head.status, head.header("content-length")), (206, Some(&*part.len().to_string())));
    }
    assert_eq!(client.get("/bkt/k?partNumber=3").await.error().1, "InvalidPart");
    assert_eq!(client.get("/bkt/k?partNumber=0").await.error().1, "InvalidArgument");
    let wanted = ("x-amz-object-attributes", "ObjectParts,ObjectSize,ETag");
    let about = client.get_with("/bkt/k?attributes", &[wanted]).await;
    assert_eq!(about.one("PartsCount"), "2");
    assert_eq!(about.one("ObjectSize"), parts.concat().len().to_string());
    assert_eq!(about.one("ETag"), joined_etag(&parts.each_ref().map(Vec::as_slice)).trim_matches('"'));
    // An object of one request is its own part.
    client.put("/bkt/single", b"1").await;
    let single = client.get("/bkt/single?partNumber=1").await;
    assert_eq!((single.body.as_slice(), single.header("x-amz-mp-parts-count")), (&b"1"[..], None));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_about_uploads_are_refused() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/other", b"").await;
    let upload = client.begin_upload("/bkt/k", &[]).await;
    for number in ["0", "10001", "x", "-1", ""] {
        let target = format!("/bkt/k?partNumber={number}&uploadId={upload}");
        assert_eq!(client.put(&target, b"1").await.error(), (400, "InvalidArgument".to_owned()), "{number}");
    }
    let bare = client.put(&format!("/bkt/k?uploadId={upload}"), b"1").await;
    assert_eq!(bare.error().1, "InvalidArgument");
    let first = etag(&client.send_part("/bkt/k", &upload, 1, b"short").await);
    let last = etag(&client.send_part("/bkt/k", &upload, 10_000, b"last").await);
    let complete = |parts: &'static [(u32, usize)]| {
        let etags = [first.clone(), last.clone(), "\"0123456789abcdef0123456789abcdef\"".to_owned()];
        let parts: Vec<_> = parts.iter().map(|(number, index)| (*number, etags[*index].clone())).collect();
        parts
    };
    for (parts, code) in [
        (&[][..], "MalformedXML"),
        (&[(10_000, 1), (1, 0)], "InvalidPartOrder"),
        (&[(1, 0), (1, 0)], "InvalidPartOrder"),
        (&[(1, 0), (10_000, 1)], "EntityTooSmall"),
        (&[(1, 2)], "InvalidPart"),
        (&[(2, 0)], "InvalidPart"),
        (&[(0, 0)], "InvalidPart"),
        (&[(10_001, 0)], "InvalidPart"),
    ] {
        let parts = complete(parts);
        let parts: Vec<(u32, &str)> = parts.iter().map(|(number, etag)| (*number, etag.as_str())).collect();
        let refused = client.complete_upload("/bkt/k", &upload, &parts, &[]).await;
        assert_eq!(refused.error(), (400, code.to_owned()), "{parts:?}");
    }
    // The upload of another key or another bucket, and ids that nobody has.
    let zero = "0".repeat(16);
    for (path, id) in
        [("/bkt/l", &*upload), ("/other/k", &upload), ("/bkt/k", &zero), ("/bkt/k", "x"), ("/bkt/k", "")]
    {
        let answers = [
            client.send_part(path, id, 1, b"1").await,
            client.complete_upload(path, id, &[(1, &first)], &[]).await,
            client.get(&format!("{path}?uploadId={id}")).await,
            client.delete(&format!("{path}?uploadId={id}")).await,
        ];
        for answer in answers {
            assert_eq!(answer.error(), (404, "NoSuchUpload".to_owned()), "{path} {id}");
        }
    }
    assert_eq!(client.send("POST", "/none/k?uploads", &[], b"").await.error().1, "NoSuchBucket");
    let done = client.complete_upload("/bkt/k", &upload, &[(1, &first)], &[]).await;
    assert_eq!(done.status, 200, "it is still open: {}", done.text());
    assert_eq!(client.get("/bkt/k").await.body, b"short");
}

/// Neither is stored, and both are sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_cut_or_wrong_is_not_stored() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let upload = client.begin_upload("/bkt/k", &[]).await;
    let target = format!("/bkt/k?partNumber=1&uploadId={upload}");
    for bytes in [1_000, LEAST] {
        let sum = [("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")];
        assert_eq!(client.send("PUT", &target, &sum, &value(1, bytes)).await.error().1, "BadDigest");
        let mut cut = running.client().await;
        let mut headers = cut.signed("PUT", &target, &[], "UNSIGNED-PAYLOAD");
        headers.push(("content-length".to_owned(), bytes.to_string()));
        cut.send_head("PUT", &target, &headers).await;
        cut.send_body(&value(1, bytes - 1)).await;
        drop(cut);
    }
    let listed = client.get(&format!("/bkt/k?uploadId={upload}")).await;
    assert_eq!(listed.all("PartNumber"), Vec::<String>::new());
    let first = client.send_part("/bkt/k", &upload, 1, b"first").await;
    let second = client.send_part("/bkt/k", &upload, 1, b"second").await;
    let old = client.complete_upload("/bkt/k", &upload, &[(1, &etag(&first))], &[]).await;
    assert_eq!(old.error().1, "InvalidPart", "it was replaced");
    assert_eq!(client.complete_upload("/bkt/k", &upload, &[(1, &etag(&second))], &[]).await.status, 200);
    assert_eq!(client.get("/bkt/k").await.body, b"second");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_upload_is_gone() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let upload = client.begin_upload("/bkt/k", &[]).await;
    let sent = etag(&client.send_part("/bkt/k", &upload, 1, &value(1, LEAST)).await);
    let target = format!("/bkt/k?uploadId={upload}");
    assert_eq!(client.delete(&target).await.status, 204);
    assert_eq!(client.delete(&target).await.error(), (404, "NoSuchUpload".to_owned()));
    assert_eq!(client.send_part("/bkt/k", &upload, 2, b"1").await.error().1, "NoSuchUpload");
    let done = client.complete_upload("/bkt/k", &upload, &[(1, &sent)], &[]).await;
    assert_eq!(done.error().1, "NoSuchUpload");
    assert_eq!(client.head("/bkt/k").await.status, 404);
    // A bucket with nothing but open uploads is empty, and they end with it.
    let upload = client.begin_upload("/bkt/k", &[]).await;
    assert_eq!(client.delete("/bkt").await.status, 204);
    assert_eq!(client.put("/bkt", b"").await.status, 200);
    assert_eq!(client.get("/bkt?uploads").await.all("UploadId"), Vec::<String>::new());
    assert_eq!(client.send_part("/bkt/k", &upload, 1, b"1").await.error().1, "NoSuchUpload");
}

/// The condition is decided with the write, and a refused upload stays open.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_when_an_upload_is_completed() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let present = etag(&client.put("/bkt/k", b"1").await);
    let upload = client.begin_upload("/bkt/k", &[]).await;
    let sent = etag(&client.send_part("/bkt/k", &upload, 1, b"2").await);
    let parts = [(1, sent.as_str())];
    for (name, tag, status) in
        [("if-none-match", "*", 412), ("if-match", "\"x\"", 412), ("if-none-match", &*present, 412)]
    {
        let refused = client.complete_upload("/bkt/k", &upload, &parts, &[(name, tag)]).await;
        assert_eq!(refused.status, status, "{name}: {tag}");
    }
    assert_eq!(client.get("/bkt/k").await.body, b"1");
    let done = client.complete_upload("/bkt/k", &upload, &parts, &[("if-match", &present)]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(client.get("/bkt/k").await.body, b"2");
    let upload = client.begin_upload("/bkt/new", &[]).await;
    let sent = etag(&client.send_part("/bkt/new", &upload, 1, b"3").await);
    let missing = client.complete_upload("/bkt/new", &upload, &[(1, &sent)], &[("if-match", "*")]).await;
    assert_eq!(missing.error(), (404, "NoSuchKey".to_owned()));
    let done = client.complete_upload("/bkt/new", &upload, &[(1, &sent)], &[("if-none-match", "*")]).await;
    assert_eq!(done.status, 200);
}

/// Of several completions of different uploads that must find nothing, one wins.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_racing_uploads_wins() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let mut uploads = Vec::new();
    for number in 0..8_u8 {
        let upload = client.begin_upload("/bkt/k", &[]).await;
        let sent = etag(&client.send_part("/bkt/k", &upload, 1, &[number]).await);
        uploads.push((number, upload, sent, running.client().await));
    }
    let race = uploads.into_iter().map(|(number, upload, sent, mut client)| {
        tokio::spawn(async move {
            let only = [("if-none-match", "*")];
            let done = client.complete_upload("/bkt/k", &upload, &[(1, &sent)], &only).await;
            (number, done.status)
        })
    });
    let race: Vec<_> = race.collect();
    let mut won = Vec::new();
    for racer in race {
        match racer.await.unwrap() {
            (number, 200) => won.push(number),
            (_, status) => assert_eq!(status, 412),
        }
    }
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(client.get("/bkt/k").await.body, won);
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_of_parts_become_that_of_the_object() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for (algorithm, kind, sum) in [
        ("SHA256", "COMPOSITE", "80j+GanpMYE4lllpqp9y+puzwVy8qSz/E70HONHAzY8=-2"),
        ("CRC32", "COMPOSITE", "p4MrtA==-2"),
        ("CRC32C", "FULL_OBJECT", "aIGW6A=="),
        ("CRC64NVME", "FULL_OBJECT", "NVqSiPenhno="),
    ] {
        let element = format!("Checksum{algorithm}");
        let given = [("x-amz-checksum-algorithm", algorithm), ("x-amz-checksum-type", kind)];
        let upload = client.begin_upload("/bkt/k", &given).await;
        let parts = [value(1, LEAST), value(2, 9)];
        let header = format!("x-amz-checksum-{}", algorithm.to_lowercase());
        let (mut etags, mut last) = (Vec::new(), String::new());
        for (number, part) in (1..).zip(&parts) {
            let sent = client.send_part("/bkt/k", &upload, number, part).await;
            last = sent.header(&header).expect("it is computed").to_owned();
            etags.push(etag(&sent));
        }
        let asked = [(1, &*etags[0]), (2, &*etags[1])];
        let wrong = match algorithm {
            "SHA256" => "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "CRC64NVME" => "AAAAAAAAAAA=",
            _ => "AAAAAA==",
        };
        let refused = client.complete_upload("/bkt/k", &upload, &asked, &[(&header, wrong)]).await;
        assert_eq!(refused.error().1, "BadDigest", "{algorithm}");
        let size = [("x-amz-mp-object-size", "1")];
        let refused = client.complete_upload("/bkt/k", &upload, &asked, &size).await;
        assert_eq!(refused.error().1, "InvalidRequest");
        // The checksum in the header is that of the object, and not of the document.
        let claims = [("x-amz-checksum-type", kind), (&*header, sum)];
        let done = client.complete_upload("/bkt/k", &upload, &asked, &claims).await;
        assert_eq!((done.status, done.one("ChecksumType").as_str()), (200, kind), "{}", done.text());
        assert_eq!(done.one(&element), sum);
        let got = client.get_with("/bkt/k", &[("x-amz-checksum-mode", "ENABLED")]).await;
        assert_eq!(got.header(&header), Some(sum));
        let part = client.get_with("/bkt/k?partNumber=2", &[("x-amz-checksum-mode", "ENABLED")]).await;
        assert_eq!((part.header(&header), part.header("x-amz-checksum-type")), (Some(&*last), Some(kind)));
        if kind == "FULL_OBJECT" {
            // It is the one that a single put of the value has.
            let given = [("x-amz-sdk-checksum-algorithm", algorithm), (&*header, sum)];
            let single = client.send("PUT", "/bkt/single", &given, &parts.concat()).await;
            assert_eq!(single.status, 200, "{}", single.text());
        }
        let attributes = [("x-amz-object-attributes", "ObjectParts"), ("x-amz-max-parts", "1")];
        let about = client.get_with("/bkt/k?attributes", &attributes).await;
        assert_eq!((about.all(&element).len(), &*about.one("IsTruncated")), (1, "true"), "{}", about.text());
    }
    let upload = client.begin_upload("/bkt/k", &[("x-amz-checksum-algorithm", "SHA256")]).await;
    let target = format!("/bkt/k?partNumber=1&uploadId={upload}");
    let other = client.send("PUT", &target, &[("x-amz-checksum-crc32", "AAAAAA==")], b"").await;
    assert_eq!(other.error().1, "InvalidRequest", "another algorithm");
    let impossible = [("x-amz-checksum-algorithm", "SHA256"), ("x-amz-checksum-type", "FULL_OBJECT")];
    assert_eq!(client.send("POST", "/bkt/k?uploads", &impossible, b"").await.error().1, "InvalidRequest");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_may_be_a_copy_of_a_range() {
    let mut running = Running::start().await;
    let mut client = running.with_bucket().await;
    let source = value(5, LEAST + 1_000);
    let tag = etag(&client.put("/bkt/source", &source).await);
    let upload = client.begin_upload("/bkt/k", &[]).await;
    let part = |number: u32| format!("/bkt/k?partNumber={number}&uploadId={upload}");
    let from = ("x-amz-copy-source", "/bkt/source");
    let whole = client.send("PUT", &part(1), &[from], b"").await;
    assert_eq!(whole.status, 200, "{}", whole.text());
    let range = format!("bytes={}-{}", LEAST, LEAST + 99);
    let short = client.send("PUT", &part(2), &[from, ("x-amz-copy-source-range", &range)], b"").await;
    let etags = [&whole, &short].map(|copied| copied.one("ETag").replace("&quot;", "\""));
    assert_eq!(etags[0], tag);
    let done = client.complete_upload("/bkt/k", &upload, &[(1, &etags[0]), (2, &etags[1])], &[]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(client.get("/bkt/k").await.body == [&source[..], &source[LEAST..LEAST + 100]].concat());

    let upload = client.begin_upload("/bkt/k", &[]).await;
    let part = format!("/bkt/k?partNumber=1&uploadId={upload}");
    for (name, given, code) in [
        ("x-amz-copy-source-range", "bytes=0-9999999", "InvalidRange"),
        ("x-amz-copy-source-range", "bytes=5-", "InvalidArgument"),
        ("x-amz-copy-source-if-match", "\"x\"", "PreconditionFailed"),
        ("x-amz-copy-source-if-none-match", &tag, "PreconditionFailed"),
    ] {
        let refused = client.send("PUT", &part, &[from, (name, given)], b"").await;
        assert_eq!(refused.error().1, code, "{name}: {given}");
    }
    let missing = client.send("PUT", &part, &[("x-amz-copy-source", "/bkt/none")], b"").await;
    assert_eq!(missing.error().1, "NoSuchKey");
    // A holder that may write the target and not read the source.
    let writer = running.add_key("write,list bkt/k*");
    let denied = running.client_of(&writer).await.send("PUT", &part, &[from], b"").await;
    assert_eq!(denied.error().1, "AccessDenied");
    let listed = client.get(&format!("/bkt/k?uploadId={upload}")).await;
    assert_eq!(listed.all("PartNumber"), Vec::<String>::new());
}
