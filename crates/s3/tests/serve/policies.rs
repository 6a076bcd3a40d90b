//! Policies of buckets: they let in callers without grants, and keep out others.

use crate::support::{Client, Running};

/// A policy of `bkt` with one statement.
fn policy(effect: &str, principal: &str, action: &str, resource: &str, condition: &str) -> String {
    format!(
        "{{\"Version\": \"2012-10-17\", \"Statement\": [{{\"Effect\": \"{effect}\", \"Principal\": {principal}, \
         \"Action\": \"{action}\", \"Resource\": \"arn:aws:s3:::{resource}\"{condition}}}]}}"
    )
}

async fn set(client: &mut Client, policy: &str) {
    let set = client.put("/bkt?policy", policy.as_bytes()).await;
    assert_eq!(set.status, 204, "{}", set.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_stored_answered_and_removed() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for target in ["/bkt?policy", "/bkt?policyStatus"] {
        assert_eq!(client.get(target).await.error(), (404, "NoSuchBucketPolicy".to_owned()));
    }
    let public = policy("Allow", "\"*\"", "s3:GetObject", "bkt/*", "");
    set(&mut client, &public).await;
    let stored = client.get("/bkt?policy").await;
    assert_eq!((stored.text(), stored.header("content-type")), (public.clone(), Some("application/json")));
    assert_eq!(client.get("/bkt?policyStatus").await.one("IsPublic"), "true");
    for (refused, code) in [
        ("x".to_owned(), "MalformedPolicy"),
        (policy("Allow", "\"*\"", "s3:GetObject", "other/*", ""), "MalformedPolicy"),
        (policy("Allow", "\"*\"", "s3:GetObjectVersion", "bkt/*", ""), "NotImplemented"),
        (
            policy("Allow", "\"*\"", "s3:GetObject", "bkt/*", ", \"NotAction\": \"s3:PutObject\""),
            "NotImplemented",
        ),
    ] {
        assert_eq!(client.put("/bkt?policy", refused.as_bytes()).await.error().1, code, "{refused}");
    }
    assert_eq!(client.get("/bkt?policy").await.text(), public, "nothing was changed");
    assert_eq!(client.delete("/bkt?policy").await.status, 204);
    assert_eq!(client.get("/bkt?policy").await.error().0, 404);
    let block = "<PublicAccessBlockConfiguration><BlockPublicPolicy>true</BlockPublicPolicy></PublicAccessBlockConfiguration>";
    client.put("/bkt?publicAccessBlock", block.as_bytes()).await;
    assert_eq!(client.put("/bkt?policy", public.as_bytes()).await.error().1, "AccessDenied");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_lets_in_those_that_it_names() {
    let mut running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.put("/bkt/open/k", b"1").await;
    client.put("/bkt/closed", b"2").await;
    let friend = running.add_key("read other");
    let id = friend.id.clone();
    let mut friend = running.client_of(&friend).await;
    let mut nobody = running.client().await;
    nobody.key = None;
    set(&mut client, &policy("Allow", "\"*\"", "s3:GetObject", "bkt/open/*", "")).await;
    assert_eq!(nobody.get("/bkt/open/k").await.body, b"1");
    assert_eq!(friend.get("/bkt/open/k").await.body, b"1");
    for target in ["/bkt/closed", "/bkt", "/bkt/open/k?tagging", "/bkt/open/none"] {
        assert_eq!(nobody.get(target).await.status, 403, "{target}");
    }
    assert_eq!(nobody.put("/bkt/open/k", b"x").await.status, 403);
    let block = "<PublicAccessBlockConfiguration><RestrictPublicBuckets>true</RestrictPublicBuckets></PublicAccessBlockConfiguration>";
    client.put("/bkt?publicAccessBlock", block.as_bytes()).await;
    assert_eq!(nobody.get("/bkt/open/k").await.status, 403, "restricted");
    client.delete("/bkt?publicAccessBlock").await;

    let named = format!("{{\"AWS\": \"{id}\"}}");
    set(&mut client, &policy("Allow", &named, "s3:*", "bkt*", "")).await;
    assert_eq!(nobody.get("/bkt/open/k").await.status, 403);
    assert_eq!(friend.put("/bkt/by-friend", b"3").await.status, 200);
    assert_eq!(friend.get("/bkt").await.all("Key").len(), 3);
    let both = "<Delete><Object><Key>by-friend</Key></Object><Object><Key>closed</Key></Object></Delete>";
    assert_eq!(friend.send("POST", "/bkt?delete", &[], both.as_bytes()).await.all("Deleted").len(), 2);
    let copy = [("x-amz-copy-source", "/bkt/open/k")];
    assert_eq!(friend.send("PUT", "/bkt/copy", &copy, b"").await.status, 200);
    assert_eq!(friend.get("/bkt/none").await.error().1, "NoSuchKey", "it may list");

    let prefix = ", \"Condition\": {\"StringLike\": {\"s3:prefix\": \"open/*\"}}";
    set(&mut client, &policy("Allow", "\"*\"", "s3:ListBucket", "bkt", prefix)).await;
    assert_eq!(nobody.get("/bkt?prefix=open%2F").await.all("Key"), ["open/k"]);
    assert_eq!(nobody.get("/bkt").await.status, 403);
    // What a caller may list it may also miss.
    for (target, status) in [("/bkt/open/none", 404), ("/bkt/open/k", 403), ("/bkt/none", 403)] {
        assert_eq!(nobody.get(target).await.status, status, "{target}");
        assert_eq!(nobody.head(target).await.status, status, "{target}");
        assert_eq!(friend.get(target).await.status, status, "{target}");
    }
    for (network, status) in [("127.0.0.0/8", 200), ("10.0.0.0/8", 403)] {
        let from = format!(", \"Condition\": {{\"IpAddress\": {{\"aws:SourceIp\": \"{network}\"}}}}");
        set(&mut client, &policy("Allow", "\"*\"", "s3:GetObject", "bkt/*", &from)).await;
        assert_eq!(nobody.get("/bkt/open/k").await.status, status, "{network}");
    }
}

/// Also those who may do everything; but they can always change the policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_denies_holds_for_all() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    client.send("PUT", "/bkt/k", &[("x-amz-acl", "public-read")], b"1").await;
    set(&mut client, &policy("Deny", "\"*\"", "s3:*", "bkt*", "")).await;
    let mut nobody = running.client().await;
    nobody.key = None;
    assert_eq!(nobody.get("/bkt/k").await.status, 403, "an ACL does not count");
    let list = "<Delete><Object><Key>k</Key></Object></Delete>";
    for denied in [
        client.get("/bkt/k").await,
        client.put("/bkt/k", b"2").await,
        client.delete("/bkt/k").await,
        client.get("/bkt").await,
        client.get("/bkt?location").await,
        client.send("POST", "/bkt/k?uploads", &[], b"").await,
        client.send("PUT", "/bkt/l", &[("x-amz-copy-source", "/bkt/k")], b"").await,
        client.put("/bkt?acl", b"").await,
        client.delete("/bkt").await,
        client.post_form("/bkt", &[("key", "form")], &[], b"1").await,
    ] {
        assert_eq!(denied.error(), (403, "AccessDenied".to_owned()), "{}", denied.text());
    }
    assert_eq!(client.send("POST", "/bkt?delete", &[], list.as_bytes()).await.all("Code"), ["AccessDenied"]);
    assert_eq!(client.get("/bkt?policy").await.status, 200);
    assert_eq!(client.delete("/bkt?policy").await.status, 204);
    assert_eq!(client.get("/bkt/k").await.body, b"1");
}
