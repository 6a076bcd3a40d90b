//! Canned ACLs, and the settings that keep them from letting others in.

use crate::support::{Client, Reply, Running};

const PUBLIC: [(&str, &str); 1] = [("x-amz-acl", "public-read")];

/// A client without a key.
async fn nobody(running: &Running) -> Client {
    let mut client = running.client().await;
    client.key = None;
    client
}

fn statuses(replies: &[Reply]) -> Vec<u16> {
    replies.iter().map(|reply| reply.status).collect()
}

/// Symptom: a caller without a key read a private object that replaced a public one between the look at the ACL and the read. Fix: the ACL of
/// the version that is answered decides, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_replacement_of_a_public_object_is_read_by_nobody() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    assert_eq!(client.send("PUT", "/bkt/k", &PUBLIC, b"public").await.status, 200);
    let mut readers = Vec::new();
    for method in ["GET", "GET", "HEAD"] {
        let mut reader = nobody(&running).await;
        readers.push(tokio::spawn(async move {
            for _ in 0..1_500 {
                let reply = reader.send(method, "/bkt/k", &[], b"").await;
                let is_public = reply.header("content-length") == Some("6") && reply.status == 200;
                assert!(is_public || reply.status == 403, "{reply:?}");
            }
        }));
    }
    while readers.iter().any(|reader| !reader.is_finished()) {
        assert_eq!(client.put("/bkt/k", b"secret text").await.status, 200);
        assert_eq!(client.send("PUT", "/bkt/k", &PUBLIC, b"public").await.status, 200);
    }
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_a_public_acl_is_read_by_everybody() {
    let mut running = Running::start().await;
    let mut client = running.with_bucket().await;
    assert_eq!(client.put("/bkt/hidden", b"1").await.status, 200);
    assert_eq!(client.send("PUT", "/bkt/seen", &PUBLIC, b"2").await.status, 200);
    let given = [("x-amz-acl", "authenticated-read")];
    assert_eq!(client.send("PUT", "/bkt/keys", &given, b"3").await.status, 200);
    let stranger = running.add_key("read other");
    let mut stranger = running.client_of(&stranger).await;
    let mut nobody = nobody(&running).await;
    for (key, by_nobody, by_stranger) in
        [("hidden", 403, 403), ("seen", 200, 200), ("keys", 403, 200), ("none", 403, 403)]
    {
        let target = format!("/bkt/{key}");
        assert_eq!(nobody.get(&target).await.status, by_nobody, "{key}");
        assert_eq!(nobody.head(&target).await.status, by_nobody, "{key}");
        assert_eq!(stranger.get(&target).await.status, by_stranger, "{key}");
    }
    // It opens nothing else.
    let others = [
        nobody.put("/bkt/seen", b"x").await,
        nobody.delete("/bkt/seen").await,
        nobody.get("/bkt").await,
        nobody.get("/bkt/seen?acl").await,
        nobody.get("/bkt/seen?tagging").await,
        nobody.send("PUT", "/bkt/seen?acl", &PUBLIC, b"").await,
    ];
    assert_eq!(statuses(&others), [403; 6]);
    let stored = client.get("/bkt/seen?acl").await;
    assert_eq!(
        (stored.all("Permission"), stored.all("URI").len()),
        (vec!["READ".into(), "FULL_CONTROL".into()], 1)
    );
    assert_eq!(client.get("/bkt/hidden?acl").await.all("Permission"), ["FULL_CONTROL"]);
    // An object may get another one, by a header or by the document that was answered.
    let document = stored.body;
    assert_eq!(client.send("PUT", "/bkt/seen?acl", &[("x-amz-acl", "private")], b"").await.status, 200);
    assert_eq!(nobody.get("/bkt/seen").await.status, 403);
    assert_eq!(client.put("/bkt/hidden?acl", &document).await.status, 200);
    assert_eq!(nobody.get("/bkt/hidden").await.body, b"1");
    assert_eq!(
        client.send("PUT", "/bkt/hidden?acl", &PUBLIC, &document).await.error().1,
        "InvalidRequest",
        "both"
    );
    // A copy is private unless its request sets another ACL, an upload has the ACL of its start.
    client.send("PUT", "/bkt/copy", &[("x-amz-copy-source", "/bkt/hidden")], b"").await;
    assert_eq!(nobody.get("/bkt/copy").await.status, 403);
    let upload = client.begin_upload("/bkt/parts", &PUBLIC).await;
    let sent = client.send_part("/bkt/parts", &upload, 1, b"4").await;
    client.complete_upload("/bkt/parts", &upload, &[(1, sent.header("etag").unwrap())], &[]).await;
    assert_eq!(nobody.get("/bkt/parts").await.body, b"4");
    let source = [("x-amz-copy-source", "/bkt/parts")];
    let own = running.add_key("write,list own");
    client.put("/own", b"").await;
    let mut own = running.client_of(&own).await;
    assert_eq!(own.send("PUT", "/own/k", &source, b"").await.status, 200, "the source lets it in");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_acl_of_a_bucket_opens_its_list_or_its_writes() {
    let running = Running::start().await;
    let mut client = running.client().await;
    let mut nobody = nobody(&running).await;
    for (bucket, acl, list, write) in [
        ("one", "private", 403, 403),
        ("two", "public-read", 200, 403),
        ("three", "public-read-write", 200, 200),
    ] {
        assert_eq!(client.send("PUT", &format!("/{bucket}"), &[("x-amz-acl", acl)], b"").await.status, 200);
        client.put(&format!("/{bucket}/k"), b"1").await;
        assert_eq!(nobody.get(&format!("/{bucket}?list-type=2")).await.status, list, "{acl}");
        assert_eq!(nobody.head(&format!("/{bucket}")).await.status, list, "{acl}");
        assert_eq!(nobody.get(&format!("/{bucket}/k")).await.status, 403, "objects have their own");
        let missing = if list == 200 { 404 } else { 403 };
        assert_eq!(nobody.get(&format!("/{bucket}/none")).await.status, missing, "as its list shows");
        assert_eq!(nobody.put(&format!("/{bucket}/new"), b"1").await.status, write, "{acl}");
        let form = nobody.post_form(&format!("/{bucket}"), &[("key", "form")], &[], b"1").await;
        assert_eq!(form.status, if write == 200 { 204 } else { 403 }, "{acl}");
        let denied = [
            nobody.put(&format!("/{bucket}?acl"), b"").await,
            nobody.get(&format!("/{bucket}?acl")).await,
            nobody.delete(&format!("/{bucket}")).await,
        ];
        assert_eq!(statuses(&denied), [403; 3]);
    }
    assert_eq!(nobody.delete("/three/k").await.status, 204);
    assert_eq!(client.send("PUT", "/three?acl", &[("x-amz-acl", "private")], b"").await.status, 200);
    assert_eq!(nobody.put("/three/new", b"1").await.status, 403);
    assert_eq!(client.get("/two?acl").await.all("Permission"), ["READ", "FULL_CONTROL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_and_ownership_count_more_than_acls() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let mut nobody = nobody(&running).await;
    client.send("PUT", "/bkt/k", &PUBLIC, b"1").await;
    client.send("PUT", "/bkt?acl", &PUBLIC, b"").await;
    assert_eq!(client.get("/bkt?publicAccessBlock").await.error().1, "NoSuchPublicAccessBlockConfiguration");
    let block = |flag: &str| {
        format!("<PublicAccessBlockConfiguration><{flag}>true</{flag}></PublicAccessBlockConfiguration>")
    };
    assert_eq!(client.put("/bkt?publicAccessBlock", block("IgnorePublicAcls").as_bytes()).await.status, 200);
    assert_eq!(client.get("/bkt?publicAccessBlock").await.one("IgnorePublicAcls"), "true");
    assert_eq!(statuses(&[nobody.get("/bkt/k").await, nobody.get("/bkt").await]), [403; 2]);
    assert_eq!(client.put("/bkt?publicAccessBlock", block("BlockPublicAcls").as_bytes()).await.status, 200);
    assert_eq!(
        statuses(&[nobody.get("/bkt/k").await, nobody.get("/bkt").await]),
        [200; 2],
        "those that are set"
    );
    for target in ["/bkt/new", "/bkt/k?acl", "/bkt?acl"] {
        assert_eq!(client.send("PUT", target, &PUBLIC, b"").await.error().1, "AccessDenied", "{target}");
    }
    assert_eq!(client.send("POST", "/bkt/new?uploads", &PUBLIC, b"").await.error().1, "AccessDenied");
    assert_eq!(client.delete("/bkt?publicAccessBlock").await.status, 204);

    let rule = "<OwnershipControls><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>";
    assert_eq!(client.get("/bkt?ownershipControls").await.error().1, "OwnershipControlsNotFoundError");
    let open = client.put("/bkt?ownershipControls", rule.as_bytes()).await;
    assert_eq!(open.error().1, "InvalidBucketAclWithObjectOwnership");
    client.send("PUT", "/bkt?acl", &[("x-amz-acl", "private")], b"").await;
    assert_eq!(client.put("/bkt?ownershipControls", rule.as_bytes()).await.status, 200);
    assert_eq!(client.get("/bkt?ownershipControls").await.one("ObjectOwnership"), "BucketOwnerEnforced");
    assert_eq!(nobody.get("/bkt/k").await.status, 403, "ACLs do not count");
    for acl in ["public-read", "private"] {
        let given = [("x-amz-acl", acl)];
        let copy = [("x-amz-copy-source", "/bkt/k"), given[0]];
        for refused in [
            client.send("PUT", "/bkt/k", &given, b"").await,
            client.send("PUT", "/bkt/copy", &copy, b"").await,
            client.send("POST", "/bkt/k?uploads", &given, b"").await,
            client.send("PUT", "/bkt/k?acl", &given, b"").await,
            client.send("PUT", "/bkt?acl", &given, b"").await,
            client.post_form("/bkt", &[("key", "form"), ("acl", acl)], &[], b"1").await,
        ] {
            assert_eq!(refused.error(), (400, "AccessControlListNotSupported".to_owned()), "{acl}");
        }
    }
    let full = [("x-amz-acl", "bucket-owner-full-control")];
    assert_eq!(client.send("PUT", "/bkt/k", &full, b"").await.status, 200);
    assert_eq!(client.put("/bkt/k", b"").await.status, 200);
    assert_eq!(client.delete("/bkt?ownershipControls").await.status, 204);
    let owned = [("x-amz-object-ownership", "BucketOwnerEnforced")];
    assert_eq!(client.send("PUT", "/owned", &owned, b"").await.status, 200);
    assert_eq!(client.get("/owned?ownershipControls").await.one("ObjectOwnership"), "BucketOwnerEnforced");
    let both = [owned[0], PUBLIC[0]];
    assert_eq!(
        client.send("PUT", "/both", &both, b"").await.error().1,
        "InvalidBucketAclWithObjectOwnership"
    );
}
