//! The matrix of permissions: every operation by every kind of caller, on several keys, against the oracle of the testkit.

use std::collections::HashSet;

use shoal_engine::{NewUpload, ObjectKey, PutOptions};
use shoal_frontend::access::KeyFile;
use shoal_s3::request::operation::OPERATIONS;
use shoal_storekit::StoreKit;
use shoal_testkit::permissions::{HOLDERS, Holder, Shows, key_file};

use crate::support::{Client, Reply, Running, TestKey};

/// Each operation: its name, method and target, the source of a copy, its body, and its needs: actions on the keys K and L, the
/// prefix P, or the bucket. `known`: any grant in the bucket; `any`: a key; `page`: nothing, browsers ask without a signature.
const REQUESTS: &[(&str, &str, &str, &str, &str, &str)] = &[
    ("ListBuckets", "GET", "/", "", "", "any"),
    ("PreflightBucket", "OPTIONS", "/films", "", "", "page"),
    ("PreflightObject", "OPTIONS", "/films/K", "", "", "page"),
    ("HeadBucket", "HEAD", "/films", "", "", "known"),
    ("GetBucketLocation", "GET", "/films?location", "", "", "known"),
    ("GetBucketVersioning", "GET", "/films?versioning", "", "", "known"),
    ("GetBucketAcl", "GET", "/films?acl", "", "", "bucket bucket"),
    ("PutBucketAcl", "PUT", "/films?acl", "", "", "bucket bucket"),
    ("GetBucketPolicy", "GET", "/films?policy", "", "", "bucket bucket"),
    ("PutBucketPolicy", "PUT", "/films?policy", "", POLICY, "bucket bucket"),
    ("GetBucketPolicyStatus", "GET", "/films?policyStatus", "", "", "bucket bucket"),
    ("DeleteBucketPolicy", "DELETE", "/films?policy", "", "", "bucket bucket"),
    ("GetBucketTagging", "GET", "/films?tagging", "", "", "bucket bucket"),
    ("PutBucketTagging", "PUT", "/films?tagging", "", "<Tagging><TagSet/></Tagging>", "bucket bucket"),
    ("DeleteBucketTagging", "DELETE", "/films?tagging", "", "", "bucket bucket"),
    ("GetPublicAccessBlock", "GET", "/films?publicAccessBlock", "", "", "bucket bucket"),
    ("PutPublicAccessBlock", "PUT", "/films?publicAccessBlock", "", BLOCK, "bucket bucket"),
    ("DeletePublicAccessBlock", "DELETE", "/films?publicAccessBlock", "", "", "bucket bucket"),
    ("GetBucketOwnershipControls", "GET", "/films?ownershipControls", "", "", "bucket bucket"),
    ("PutBucketOwnershipControls", "PUT", "/films?ownershipControls", "", OWNERSHIP, "bucket bucket"),
    ("DeleteBucketOwnershipControls", "DELETE", "/films?ownershipControls", "", "", "bucket bucket"),
    ("GetObjectAcl", "GET", "/films/K?acl", "", "", "read K"),
    ("PutObjectAcl", "PUT", "/films/K?acl", "", "", "write K"),
    ("GetBucketCors", "GET", "/films?cors", "", "", "bucket bucket"),
    ("PutBucketCors", "PUT", "/films?cors", "", CORS, "bucket bucket"),
    ("DeleteBucketCors", "DELETE", "/films?cors", "", "", "bucket bucket"),
    ("GetBucketLifecycleConfiguration", "GET", "/films?lifecycle", "", "", "bucket bucket"),
    ("PutBucketLifecycleConfiguration", "PUT", "/films?lifecycle", "", LIFECYCLE, "bucket bucket"),
    ("DeleteBucketLifecycle", "DELETE", "/films?lifecycle", "", "", "bucket bucket"),
    ("GetBucketWebsite", "GET", "/films?website", "", "", "bucket bucket"),
    ("PutBucketWebsite", "PUT", "/films?website", "", WEBSITE, "bucket bucket"),
    ("DeleteBucketWebsite", "DELETE", "/films?website", "", "", "bucket bucket"),
    ("GetBucketAccelerateConfiguration", "GET", "/films?accelerate", "", "", "bucket bucket"),
    ("GetBucketEncryption", "GET", "/films?encryption", "", "", "bucket bucket"),
    ("GetBucketLogging", "GET", "/films?logging", "", "", "bucket bucket"),
    ("GetBucketNotificationConfiguration", "GET", "/films?notification", "", "", "bucket bucket"),
    ("GetObjectLockConfiguration", "GET", "/films?object-lock", "", "", "bucket bucket"),
    ("GetBucketReplication", "GET", "/films?replication", "", "", "bucket bucket"),
    ("GetBucketRequestPayment", "GET", "/films?requestPayment", "", "", "bucket bucket"),
    ("ListObjects", "GET", "/films", "", "", "list bucket"),
    ("ListObjects", "GET", "/films?prefix=P", "", "", "list P"),
    ("ListObjectsV2", "GET", "/films?list-type=2&prefix=P", "", "", "list P"),
    ("ListObjectVersions", "GET", "/films?versions&prefix=P", "", "", "list P"),
    ("CreateBucket", "PUT", "/films", "", "", "bucket bucket"),
    ("DeleteBucket", "DELETE", "/films", "", "", "bucket bucket"),
    ("GetObject", "GET", "/films/K", "", "", "read K"),
    ("HeadObject", "HEAD", "/films/K", "", "", "read K"),
    ("GetObjectAttributes", "GET", "/films/K?attributes", "", "", "read K"),
    ("GetObjectTagging", "GET", "/films/K?tagging", "", "", "read K"),
    ("PutObjectTagging", "PUT", "/films/K?tagging", "", "<Tagging><TagSet/></Tagging>", "write K"),
    ("DeleteObjectTagging", "DELETE", "/films/K?tagging", "", "", "write K"),
    ("PutObject", "PUT", "/films/K", "", "v", "write K"),
    ("PostObject", "POST", "/films", "", "v", "write K"),
    ("CreateMultipartUpload", "POST", "/films/K?uploads", "", "", "write K"),
    ("UploadPart", "PUT", "/films/K?partNumber=1&uploadId=U", "", "v", "write K"),
    ("UploadPartCopy", "PUT", "/films/L?partNumber=1&uploadId=U", "/films/K", "", "read K, write L"),
    ("ListParts", "GET", "/films/K?uploadId=U", "", "", "list K"),
    ("CompleteMultipartUpload", "POST", "/films/K?uploadId=U", "", COMPLETE, "write K"),
    ("AbortMultipartUpload", "DELETE", "/films/K?uploadId=U", "", "", "write K"),
    ("ListMultipartUploads", "GET", "/films?uploads&prefix=P", "", "", "list P"),
    ("CopyObject", "PUT", "/films/L", "/films/K", "", "read K, write L"),
    ("DeleteObject", "DELETE", "/films/K", "", "", "delete K"),
    (
        "DeleteObjects",
        "POST",
        "/films?delete",
        "",
        "<Delete><Object><Key>K</Key></Object></Delete>",
        "delete K",
    ),
];

/// No upload has this part: the request is let in, and changes nothing.
const COMPLETE: &str = "<CompleteMultipartUpload><Part><PartNumber>9</PartNumber><ETag>e</ETag></Part></CompleteMultipartUpload>";

/// It is about nobody of the matrix.
const POLICY: &str = r#"{"Statement": {"Effect": "Allow", "Principal": {"AWS": "NOBODY"}, "Action": "s3:*", "Resource": "arn:aws:s3:::films/*"}}"#;

const BLOCK: &str = "<PublicAccessBlockConfiguration></PublicAccessBlockConfiguration>";

const OWNERSHIP: &str =
    "<OwnershipControls><Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule></OwnershipControls>";

const CORS: &str = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";

const LIFECYCLE: &str = "<LifecycleConfiguration><Rule><Filter/><Status>Enabled</Status><Expiration><Days>9</Days></Expiration></Rule></LifecycleConfiguration>";

const WEBSITE: &str =
    "<WebsiteConfiguration><IndexDocument><Suffix>i</Suffix></IndexDocument></WebsiteConfiguration>";

/// The callers of this protocol.
fn callers() -> impl Iterator<Item = &'static Holder> {
    HOLDERS.iter().filter(|holder| {
        matches!(holder.shows, Shows::Nothing | Shows::Key | Shows::OldSecret | Shows::BadKey)
    })
}

/// The oracle's answer.
fn is_allowed(holder: &Holder, needs: &str, name: impl Fn(&str) -> String) -> bool {
    let is_let_in = !matches!(holder.shows, Shows::Nothing | Shows::BadKey);
    let knows = || {
        let actions = ["read", "list", "write", "delete", "bucket", "admin"];
        let may = |action: &str| ["", "in/", "out/"].iter().any(|key| holder.may(&[(action, "films", *key)]));
        actions.into_iter().any(may)
    };
    needs == "page"
        || is_let_in
            && match needs {
                "any" => true,
                "known" => knows(),
                needs => needs.split(", ").all(|need| match need.split_once(' ').unwrap() {
                    (action, "bucket") => holder.may(&[(action, "films", "")]),
                    (action, of) => holder.may(&[(action, "films", &name(of))]),
                }),
            }
}

fn is_denied(reply: &Reply) -> bool {
    reply.status == 403 || reply.text().contains("<Code>AccessDenied</Code>")
}

#[test]
fn every_operation_that_is_served_is_in_the_matrix() {
    let served: HashSet<&str> = OPERATIONS.iter().map(|row| row.operation.name()).collect();
    let asked: HashSet<&str> = REQUESTS.iter().map(|request| request.0).collect();
    assert_eq!(served, asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_of_operations_and_callers_matches_the_oracle() {
    let file = KeyFile::parse(key_file("2020-01-01T00:00:00Z", "2500-01-01T00:00:00Z").as_bytes()).unwrap();
    let running = Running::with_keys(StoreKit::new(64 << 10).in_memory(), file).await;
    let mut cases = 0;
    for holder in callers() {
        let key = TestKey { id: holder.id(), secret: holder.secret() };
        let mut client = running.client_of(&key).await;
        if holder.shows == Shows::Nothing {
            client.key = None;
        }
        for (first, second) in [("in/", "in/"), ("in/", "out/"), ("out/", "in/"), ("inside", "out/")] {
            for request in REQUESTS {
                cases += 1;
                check(&running, &mut client, holder, request, (first, second)).await;
            }
        }
    }
    println!("{cases} cases");
    assert!(cases > 1_500, "{cases}");
}

async fn check(
    running: &Running,
    client: &mut Client,
    holder: &Holder,
    &(name, method, target, source, body, needs): &(&str, &str, &str, &str, &str, &str),
    (first, second): (&str, &str),
) {
    let of = |word: &str| match word {
        "K" => format!("{first}k"),
        "L" => format!("{second}l"),
        _ => first.to_owned(),
    };
    let object = ObjectKey::new("films", of("K").as_bytes()).unwrap();
    running.store.put(&object, b"v".to_vec().into(), PutOptions::default()).await.unwrap();
    let encoded = |text: &str| text.replace('/', "%2F");
    let target = match target.split_once('P') {
        Some((start, "")) => format!("{start}{}", encoded(&of("P"))),
        _ => target.replace("/K", &format!("/{}", of("K"))).replace("/L", &format!("/{}", of("L"))),
    };
    let target = match target.strip_suffix('U') {
        Some(start) => {
            let key =
                ObjectKey::new("films", of(if name == "UploadPartCopy" { "L" } else { "K" }).as_bytes());
            let upload = running.store.begin_upload(&key.unwrap(), NewUpload::default(), None).await.unwrap();
            format!("{start}{}", upload.id)
        }
        None => target,
    };
    let source = source.replace("/K", &format!("/{}", of("K")));
    let body = body.replace("<Key>K<", &format!("<Key>{}<", of("K")));
    if needs == "page" {
        let set = running.client().await.put("/films?cors", CORS.as_bytes()).await;
        assert_eq!(set.status, 200, "{}", set.text());
    }
    let page = [("origin", "https://page"), ("access-control-request-method", "GET")];
    let headers = [("x-amz-copy-source", source.as_str()), ("x-amz-object-attributes", "ETag")];
    let headers = match name {
        "CopyObject" | "UploadPartCopy" => &headers[..1],
        "PutBucketAcl" | "PutObjectAcl" => &[("x-amz-acl", "private")],
        "PreflightBucket" | "PreflightObject" => &page[..],
        "GetObjectAttributes" => &headers[1..],
        _ => &[],
    };
    let reply = match name {
        "PostObject" => client.post_form(&target, &[("key", &of("K"))], &[], body.as_bytes()).await,
        _ => client.send(method, &target, headers, body.as_bytes()).await,
    };
    let expected = is_allowed(holder, needs, of);
    let what = format!("{} {name} {target}: {} {}", holder.name, reply.status, reply.text());
    assert_eq!(!is_denied(&reply), expected, "{what}");
    assert!(reply.status < 500, "{what}");
}
