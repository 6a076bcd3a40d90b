//! Settings that cannot be read, by damage or from a newer version: they let nobody in, and those who configure the bucket repair them.

use crate::support::{Client, Reply, Running};

const POLICY: &str = "{\"Statement\": {\"Effect\": \"Allow\", \"Principal\": \"*\", \"Action\": \"s3:*\", \
    \"Resource\": [\"arn:aws:s3:::bkt\", \"arn:aws:s3:::bkt/*\"]}}";

/// A setting: its item, its name in errors, its subresource, and a document that replaces it.
struct Setting {
    item: u8,
    name: &'static str,
    target: &'static str,
    document: &'static str,
}

const OF_ACCESS: [Setting; 4] = [
    Setting { item: 3, name: "policy", target: "/bkt?policy", document: POLICY },
    Setting { item: 2, name: "ACL", target: "/bkt?acl", document: "" },
    Setting {
        item: 10,
        name: "public access block",
        target: "/bkt?publicAccessBlock",
        document: "<PublicAccessBlockConfiguration/>",
    },
    Setting {
        item: 11,
        name: "ownership controls",
        target: "/bkt?ownershipControls",
        document: "<OwnershipControls><Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule></OwnershipControls>",
    },
];

fn damage(running: &Running, item: u8) {
    let change = |config: &mut shoal_engine::BucketConfig| {
        config.items.set(item, Some(b"\xff"));
        Ok(())
    };
    running.store.update_bucket("bkt", change).unwrap();
}

/// Replaces a setting.
async fn replace(client: &mut Client, setting: &Setting) -> Reply {
    let acl: &[(&str, &str)] = if setting.document.is_empty() { &[("x-amz-acl", "private")] } else { &[] };
    client.send("PUT", setting.target, acl, setting.document.as_bytes()).await
}

/// A request of each kind, of which none is a repair.
async fn requests(client: &mut Client, own_target: &str) -> Vec<Reply> {
    vec![
        client.get("/bkt/k").await,
        client.put("/bkt/new", b"2").await,
        client.delete("/bkt/k").await,
        client.get("/bkt").await,
        client.get("/bkt?location").await,
        client.send("PUT", "/other/copy", &[("x-amz-copy-source", "/bkt/k")], b"").await,
        client.send("POST", "/bkt/k?uploads", &[], b"").await,
        client.post_form("/bkt", &[("key", "form")], &[], b"1").await,
        client.get(own_target).await,
        client.put("/bkt?tagging", b"<Tagging><TagSet/></Tagging>").await,
        client.delete("/bkt").await,
    ]
}

/// The bucket, its object and its ACL let everybody in.
async fn open_bucket(running: &Running) -> Client {
    let mut client = running.with_bucket().await;
    client.put("/other", b"").await;
    client.send("PUT", "/other?acl", &[("x-amz-acl", "public-read-write")], b"").await;
    client.send("PUT", "/bkt?acl", &[("x-amz-acl", "public-read-write")], b"").await;
    client.put("/bkt?policy", POLICY.as_bytes()).await;
    client.send("PUT", "/bkt/k", &[("x-amz-acl", "public-read")], b"1").await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_setting_about_access_lets_nobody_in_and_is_repaired() {
    for setting in &OF_ACCESS {
        let mut running = Running::start().await;
        let mut client = open_bucket(&running).await;
        let clerk = running.add_key("read,write,list,delete *");
        let others = [running.client_of(&clerk).await, running.client().await];
        let [mut clerk, mut nobody] = others;
        nobody.key = None;
        assert_eq!(nobody.get("/bkt/k").await.body, b"1");
        damage(&running, setting.item);

        let why = format!("The {} of bucket &quot;bkt&quot; cannot be read. Put", setting.name);
        for caller in [&mut client, &mut clerk, &mut nobody] {
            for refused in requests(caller, setting.target).await {
                assert!(
                    [500, 403].contains(&refused.status) && refused.text().contains(&why),
                    "{} {}",
                    refused.status,
                    refused.text()
                );
            }
            let list = b"<Delete><Object><Key>k</Key></Object></Delete>";
            let deleted = caller.send("POST", "/bkt?delete", &[], list).await;
            assert_eq!(deleted.all("Code"), ["InternalError"], "{}", deleted.text());
        }
        // Only grants let in a repair.
        for caller in [&mut clerk, &mut nobody] {
            assert_eq!(replace(caller, setting).await.error().1, "AccessDenied", "{}", setting.name);
            if setting.name != "ACL" {
                assert_eq!(caller.delete(setting.target).await.error().1, "AccessDenied", "{}", setting.name);
            }
        }
        let repaired = replace(&mut client, setting).await;
        assert!(repaired.status < 300, "{}: {}", setting.name, repaired.text());
        assert_eq!(client.get("/bkt/k").await.body, b"1", "{}", setting.name);
        assert_eq!(client.get("/bkt").await.all("Key"), ["k"], "nothing was written");
        if setting.name != "ACL" {
            damage(&running, setting.item);
            assert_eq!(client.delete(setting.target).await.status, 204, "{}", setting.name);
            assert_eq!(client.get("/bkt/k").await.body, b"1", "{}", setting.name);
        }
    }
}

/// Settings that limit others are repaired first, so that no public policy comes past a block that cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn unread_settings_are_repaired_in_their_order() {
    let running = Running::start().await;
    let mut client = open_bucket(&running).await;
    let [policy, acl, block, ownership] = &OF_ACCESS;
    let order = [block, ownership, acl, policy];
    for setting in order {
        damage(&running, setting.item);
    }
    for (at, setting) in order.into_iter().enumerate() {
        for later in &order[at + 1..] {
            let refused = replace(&mut client, later).await;
            assert!(
                refused.text().contains(&format!("The {} of bucket", setting.name)),
                "{}",
                refused.text()
            );
        }
        assert!(replace(&mut client, setting).await.status < 300, "{}", setting.name);
    }
    assert_eq!(client.get("/bkt/k").await.body, b"1");
}

/// A policy that denies the repair of another setting counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_denies_the_repair_of_another_setting() {
    let running = Running::start().await;
    let mut client = open_bucket(&running).await;
    let policy = POLICY.replace("Allow", "Deny").replace("s3:*", "s3:PutBucketAcl");
    assert_eq!(client.put("/bkt?policy", policy.as_bytes()).await.status, 204);
    damage(&running, 2);
    assert_eq!(replace(&mut client, &OF_ACCESS[1]).await.error().1, "AccessDenied");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_unread_settings_fail_alone() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    for setting in [
        Setting {
            item: 4,
            name: "CORS rules",
            target: "/bkt?cors",
            document: "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>",
        },
        Setting {
            item: 5,
            name: "lifecycle rules",
            target: "/bkt?lifecycle",
            document: "<LifecycleConfiguration><Rule><Prefix/><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>",
        },
        Setting {
            item: 6,
            name: "website",
            target: "/bkt?website",
            document: "<WebsiteConfiguration><IndexDocument><Suffix>i</Suffix></IndexDocument></WebsiteConfiguration>",
        },
        Setting {
            item: 7,
            name: "tags",
            target: "/bkt?tagging",
            document: "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
        },
    ] {
        for is_replaced in [true, false] {
            damage(&running, setting.item);
            assert_eq!(client.put("/bkt/k", b"1").await.status, 200, "{}", setting.name);
            assert_eq!(client.get("/bkt/k").await.body, b"1", "{}", setting.name);
            let refused = client.get(setting.target).await;
            let why = format!("The {} of bucket &quot;bkt&quot; cannot be read. Put", setting.name);
            assert!(refused.status == 500 && refused.text().contains(&why), "{}", refused.text());
            if is_replaced {
                assert!(replace(&mut client, &setting).await.status < 300, "{}", setting.name);
                assert_eq!(client.get(setting.target).await.status, 200, "{}", setting.name);
            } else {
                assert_eq!(client.delete(setting.target).await.status, 204, "{}", setting.name);
                assert_eq!(client.get(setting.target).await.status, 404, "{}", setting.name);
            }
        }
    }
}
