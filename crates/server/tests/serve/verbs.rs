//! Every verb, with conditions and their details, as a program sees it through the client.

use bytes::Bytes;
use shoal_api::v1;
use shoal_client::{
    ByteRange, Client, CreateOrGet, DeleteItem, Error, GetItem, ListRequest, Lsn, Metadata, PutItem,
    PutOptions, RejectRules, Rule,
};
use shoal_storekit::names;
use tonic::Code;

use crate::support::{Running, call, kind, value};

async fn put(client: &Client, key: &[u8], value: &'static str) -> Lsn {
    client.put("b", key, value.into(), PutOptions::default()).await.unwrap().version
}

fn with(rules: RejectRules) -> PutOptions {
    PutOptions { rules, ..PutOptions::default() }
}

#[tokio::test]
async fn put_get_round_trip() {
    let server = Running::start().await;
    let client = server.client().await;
    let metadata = Metadata {
        content_type: "text/plain".into(),
        user: vec![
            ("b".into(), Bytes::from_static(b"\xff\x00")),
            ("a".into(), "".into()),
            ("b".into(), "2".into()),
        ],
        ..Metadata::default()
    };
    let options = PutOptions {
        metadata: metadata.clone(),
        modified_ns: Some(1_234_567_890_123),
        ..PutOptions::default()
    };
    let key = b"\x00\xff any bytes \n";
    let version = client.put("b", key, "hello".into(), options).await.unwrap().version;
    let object = client.get("b", key, ByteRange::ALL).await.unwrap().unwrap();
    assert_eq!(object.value, "hello");
    assert_eq!(
        (object.info.version, object.info.bytes, object.info.modified_ns),
        (version, 5, 1_234_567_890_123)
    );
    assert_eq!(object.info.metadata, metadata);
    assert_eq!(client.head("b", key).await.unwrap(), Some(object.info));
    // Another bucket, another key.
    assert_eq!(client.head("c", key).await.unwrap(), None);
    assert_eq!(client.get("b", b"other", ByteRange::ALL).await.unwrap(), None);
    server.stop().await;
}

#[tokio::test]
async fn empty_bucket_is_default_and_invalid_names_fail() {
    let server = Running::start().await;
    let client = server.client().await;
    client.put("", b"k", "v".into(), PutOptions::default()).await.unwrap();
    assert!(client.head("default", b"k").await.unwrap().is_some());
    for (bucket, key) in [("UPPER", &b"k"[..]), ("a b", b"k"), ("b", b""), ("b", &[0; 1025])] {
        let error = client.put(bucket, key, "v".into(), PutOptions::default()).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{bucket} {key:?}: {error:?}");
        assert!(matches!(client.get(bucket, key, ByteRange::ALL).await, Err(Error::Invalid(_))));
        assert!(matches!(client.delete(bucket, key, RejectRules::default()).await, Err(Error::Invalid(_))));
    }
    let long = "x".repeat(64);
    assert!(matches!(
        client.list(&ListRequest { bucket: long, ..Default::default() }).await,
        Err(Error::Invalid(_))
    ));
    client.put("b", &[7; 1024], "v".into(), PutOptions::default()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn ranges_of_bytes() {
    let server = Running::start().await;
    let client = server.client().await;
    put(&client, b"k", "0123456789").await;
    for (first, bytes, expected) in [
        (0, None, "0123456789"),
        (3, Some(4), "3456"),
        (8, Some(100), "89"),
        (5, Some(0), ""),
        (10, None, ""),
        (99, Some(1), ""),
        (9, Some(u64::MAX), "9"),
    ] {
        let object = client.get("b", b"k", ByteRange { first, bytes }).await.unwrap().unwrap();
        assert_eq!(object.value, expected, "{first} {bytes:?}");
        assert_eq!(object.info.bytes, 10);
    }
    server.stop().await;
}

#[tokio::test]
async fn write_conditions_and_their_errors() {
    let server = Running::start().await;
    let client = server.client().await;
    let failed = |rule, current| Err(Error::ConditionFailed { rule: Some(rule), current });
    let missing = RejectRules { if_missing: true, ..Default::default() };
    let exists = RejectRules { if_exists: true, ..Default::default() };
    let put = async |rules| client.put("b", b"k", "v".into(), with(rules)).await.map(|done| done.version);
    assert_eq!(put(missing).await, failed(Rule::IfMissing, None));
    assert_eq!(
        put(RejectRules { if_version_not: Some(Lsn(1)), ..Default::default() }).await,
        failed(Rule::IfVersionNot, None)
    );
    let first = put(exists).await.unwrap();
    assert_eq!(put(exists).await, failed(Rule::IfExists, Some(first)));
    let second = put(RejectRules { if_version_not: Some(first), ..Default::default() }).await.unwrap();
    assert!(second > first);
    assert_eq!(
        put(RejectRules { if_version_not: Some(first), ..Default::default() }).await,
        failed(Rule::IfVersionNot, Some(second))
    );
    let at_most = RejectRules { if_version_at_most: Some(second), ..Default::default() };
    assert_eq!(put(at_most).await, failed(Rule::IfVersionAtMost, Some(second)));
    assert_eq!(
        client.delete("b", b"k", at_most).await.unwrap_err(),
        Error::ConditionFailed { rule: Some(Rule::IfVersionAtMost), current: Some(second) }
    );
    let gone = client
        .delete("b", b"k", RejectRules { if_version_not: Some(second), ..Default::default() })
        .await
        .unwrap();
    assert_eq!(gone.deleted, Some(second));
    assert!(gone.version > second);
    assert_eq!(
        client.delete("b", b"k", missing).await.unwrap_err(),
        Error::ConditionFailed { rule: Some(Rule::IfMissing), current: None }
    );
    client.delete("b", b"k", RejectRules::default()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn status_codes_on_the_wire() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let status = call::<v1::Get>(&channel, v1::GetRequest { key: "k".into(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::NotFound, v1::failure::Kind::NotFound));
    let rules = Some(v1::RejectRules { if_missing: true, ..Default::default() });
    let put = v1::PutRequest { key: "k".into(), rules, ..Default::default() };
    let status = call::<v1::Put>(&channel, put).await.unwrap_err();
    assert_eq!(
        (status.code(), kind(&status)),
        (Code::FailedPrecondition, v1::failure::Kind::ConditionFailed)
    );
    let put = v1::PutRequest { key: "k".into(), ..Default::default() };
    let version = call::<v1::Put>(&channel, put).await.unwrap().version;
    let get = v1::GetRequest { key: "k".into(), version: Some(version + 1), ..Default::default() };
    let status = call::<v1::Get>(&channel, get).await.unwrap_err();
    assert_eq!((status.code(), kind(&status)), (Code::Aborted, v1::failure::Kind::Changed));
    server.stop().await;
}

#[tokio::test]
async fn listing_pages() {
    let server = Running::start().await;
    let client = server.client().await;
    for i in 0..25_u8 {
        client.put("b", &[b'k', i], "v".into(), PutOptions::default()).await.unwrap();
    }
    put(&client, b"other", "v").await;
    client.put("c", b"k0", "v".into(), PutOptions::default()).await.unwrap();
    let request = ListRequest { bucket: "b".into(), prefix: "k".into(), limit: 10, ..Default::default() };
    let mut pages = client.list_all(request.clone());
    let mut sizes = Vec::new();
    let mut keys = Vec::new();
    while let Some(page) = pages.next_page().await.unwrap() {
        sizes.push(page.entries.len());
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert_eq!(keys, (0..25_u8).map(|i| vec![b'k', i]).collect::<Vec<_>>());
    let rest = ListRequest { start_after: vec![b'k', 23], ..request.clone() };
    assert_eq!(client.list(&rest).await.unwrap().entries.len(), 1);
    let nothing = ListRequest { bucket: "nobody-has-written-here".into(), ..request.clone() };
    assert_eq!(client.list(&nothing).await.unwrap(), Default::default());
    let wrong = ListRequest { limit: 1001, ..request };
    assert!(matches!(client.list(&wrong).await, Err(Error::Invalid(_))));
    server.stop().await;
}

#[tokio::test]
async fn listing_with_a_delimiter() {
    let server = Running::start().await;
    let client = server.client().await;
    for key in ["a/1", "a/2", "b", "c/d/1", "c/d/2", "e"] {
        put(&client, key.as_bytes(), "v").await;
    }
    let request = ListRequest { bucket: "b".into(), delimiter: "/".into(), limit: 2, ..Default::default() };
    let mut pages = client.list_all(request.clone());
    let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
    while let Some(page) = pages.next_page().await.unwrap() {
        assert!(page.entries.len() + page.common_prefixes.len() <= 2);
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        prefixes.extend(page.common_prefixes);
    }
    assert_eq!((keys, prefixes), (vec!["b".into(), "e".into()], vec![b"a/".to_vec(), b"c/".to_vec()]));
    let under = ListRequest { prefix: "c/".into(), ..request };
    assert_eq!(client.list(&under).await.unwrap().common_prefixes, [b"c/d/"]);
    server.stop().await;
}

#[tokio::test]
async fn many_keys_in_one_call() {
    let server = Running::start().await;
    let client = server.client().await;
    let key = |i: usize| Bytes::from(format!("{i:05}"));
    // Most are placed several at a time, a few alone, and the longest wait for the device.
    let content = |i: usize| match i % 97 {
        0 => value(20_000, 3),
        1 => value(1_100, 3),
        _ => value(i % 50, 3),
    };
    // More than a request may have, with some that fail.
    let mut items: Vec<PutItem> =
        (0..2300).map(|i| PutItem { key: key(i), value: content(i), ..Default::default() }).collect();
    items[7].key = Bytes::new();
    items[2222].options.rules.if_missing = true;
    let results = client.multi_put("b", &items).await;
    assert_eq!(results.len(), items.len());
    for (i, result) in results.iter().enumerate() {
        match i {
            7 => assert!(matches!(result, Err(Error::Invalid(_)))),
            2222 => assert!(matches!(result, Err(Error::ConditionFailed { current: None, .. }))),
            _ => assert!(result.is_ok(), "{i}: {result:?}"),
        }
    }
    let gets: Vec<GetItem> = (0..2300).map(|i| GetItem { key: key(i), ..Default::default() }).collect();
    for (i, result) in client.multi_get("b", &gets).await.into_iter().enumerate() {
        match result.unwrap() {
            Some(object) => {
                assert_eq!(object.value, content(i), "{i}");
                assert_eq!(Ok(object.info.version), results[i].as_ref().map(|put| put.version), "{i}");
            }
            None => assert!(i == 7 || i == 2222, "{i}"),
        }
    }
    let deletes: Vec<DeleteItem> = (0..2300)
        .map(|i| DeleteItem {
            key: key(i),
            rules: RejectRules { if_missing: i % 2 == 0, ..Default::default() },
        })
        .collect();
    for (i, result) in client.multi_delete("b", &deletes).await.into_iter().enumerate() {
        assert_eq!(result.is_ok(), i != 2222, "{i}: {result:?}");
    }
    assert_eq!(names(&server.store, "b").len(), 0);
    assert!(client.multi_get("b", &[]).await.is_empty());
    assert!(
        client.multi_get("B", &gets[..2]).await.iter().all(|result| matches!(result, Err(Error::Invalid(_))))
    );
    server.stop().await;
}

#[tokio::test]
async fn many_large_values_in_one_call() {
    let server = Running::start().await;
    let client = server.client().await;
    // Together more than a message takes; two are more by themselves.
    let sizes =
        [300_000, 1 << 20, (1 << 20) + 1, 0, 700_000, 5 << 20, 1, 1 << 20, 1 << 20, 1 << 20, 400_000, 9];
    let items: Vec<PutItem> = sizes
        .iter()
        .enumerate()
        .map(|(i, &bytes)| PutItem {
            key: i.to_string().into(),
            value: value(bytes, i as u8),
            ..Default::default()
        })
        .collect();
    assert!(client.multi_put("b", &items).await.iter().all(Result::is_ok));
    let gets: Vec<GetItem> =
        items.iter().map(|item| GetItem { key: item.key.clone(), ..Default::default() }).collect();
    for (item, result) in items.iter().zip(client.multi_get("b", &gets).await) {
        assert!(result.unwrap().unwrap().value == item.value, "{:?}", item.key);
    }
    // A range of a long value fits.
    let range = ByteRange { first: 5, bytes: Some(3) };
    let results = client.multi_get("b", &[GetItem { key: "5".into(), range }]).await;
    let object = results.into_iter().next().unwrap().unwrap().unwrap();
    assert_eq!((object.info.bytes, &object.value[..]), (5 << 20, &items[5].value[5..8]));
    server.stop().await;
}

#[tokio::test]
async fn stat_counts() {
    let server = Running::start().await;
    let client = server.client().await;
    put(&client, b"k", "v").await;
    let stat = client.stat().await.unwrap();
    assert_eq!((stat.block_bytes, stat.read_only), (4096, None));
    assert_eq!(stat.server_version, env!("CARGO_PKG_VERSION"));
    assert!(stat.uptime_ns > 0);
    let figure = |name: &str| stat.figures.iter().find(|figure| figure.name == name).unwrap().value;
    assert_eq!(figure("server.requests"), 2);
    assert!((1..=2).contains(&figure("server.connections")));
    server.stop().await;
}

#[tokio::test]
async fn free_space_matches_store() {
    let server = Running::start().await;
    let client = server.client().await;
    put(&client, b"k", "v").await;
    let mut free = client.free_space().await.unwrap();
    assert_eq!(free.block_bytes, 4096);
    assert_eq!(free.blocks, client.stat().await.unwrap().blocks);
    let (mut end, mut blocks) = (0, 0);
    while let Some(runs) = free.next().await.unwrap() {
        for run in runs {
            assert!(run.block > end || end == 0, "runs ascend and are merged");
            end = run.block + u64::from(run.blocks);
            blocks += u64::from(run.blocks);
        }
    }
    assert!(end <= free.blocks && blocks > 0, "{blocks} of {} are free", free.blocks);
    // A caller that has read it completely makes room for the next.
    assert_eq!(client.free_space().await.unwrap().blocks, free.blocks);
    server.stop().await;
}

#[tokio::test]
async fn conditions_order_concurrent_clients() {
    let server = Running::start().await;
    let client = server.client().await;
    put(&client, b"counter", "0").await;
    let add = |client: Client| async move {
        let mut done = 0;
        while done < 50 {
            let object = client.get("b", b"counter", ByteRange::ALL).await.unwrap().unwrap();
            let number: u32 = std::str::from_utf8(&object.value).unwrap().parse().unwrap();
            let rules = RejectRules { if_version_not: Some(object.info.version), ..Default::default() };
            match client.put("b", b"counter", (number + 1).to_string().into(), with(rules)).await {
                Ok(_) => done += 1,
                Err(Error::ConditionFailed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(add(client.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(client.get("b", b"counter", ByteRange::ALL).await.unwrap().unwrap().value, "200");
    server.stop().await;
}

/// A put that returns the existing object: one call for "create it, or return the present one".
#[tokio::test]
async fn create_or_get_in_one_call() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let request = |key: &'static str, bytes: usize, seed: u8| v1::PutRequest {
        key: key.into(),
        rules: Some(v1::RejectRules { if_exists: true, ..Default::default() }),
        return_existing: true,
        value: value(bytes, seed),
        ..Default::default()
    };
    for (key, bytes) in [("a", 0), ("b", 10), ("c", 70_000), ("d", 4 << 20)] {
        let created = call::<v1::Put>(&channel, request(key, bytes, 1)).await.unwrap();
        assert!(created.existing.is_none() && created.value.is_empty() && created.version > 0);
        let found = call::<v1::Put>(&channel, request(key, 5, 2)).await.unwrap();
        let info = found.existing.unwrap();
        assert_eq!(
            (found.version, info.version, info.bytes),
            (created.version, created.version, bytes as u64)
        );
        assert!(found.value == value(bytes, 1) && !found.value_omitted);
    }
    let client = server.client().await;
    client.put("", b"large", value(5 << 20, 1), PutOptions::default()).await.unwrap();
    let found = call::<v1::Put>(&channel, request("large", 5, 2)).await.unwrap();
    assert!(found.value_omitted && found.value.is_empty() && found.existing.unwrap().bytes == 5 << 20);
    // The same by the client, which asks for a large one.
    let options = PutOptions::default;
    let created = client.create_or_get("", b"new", "1".into(), options()).await.unwrap();
    let CreateOrGet::Created(put) = created else { panic!("{created:?}") };
    let found = client.create_or_get("", b"new", "2".into(), options()).await.unwrap();
    assert!(
        matches!(found, CreateOrGet::Existing(object) if object.value == "1" && object.info.version == put.version)
    );
    let found = client.create_or_get("", b"large", "2".into(), options()).await.unwrap();
    assert!(matches!(found, CreateOrGet::Existing(object) if object.value == value(5 << 20, 1)));
    // Only with the one rule that it answers for.
    for rules in [None, Some(v1::RejectRules { if_exists: true, if_missing: true, ..Default::default() })] {
        let status =
            call::<v1::Put>(&channel, v1::PutRequest { rules, ..request("a", 5, 2) }).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    // Others keep deleting it: it is created or found, and every answer is of one moment.
    let deleting = tokio::spawn({
        let channel = channel.clone();
        async move {
            for _ in 0..200 {
                let delete = v1::DeleteRequest { key: "e".into(), ..Default::default() };
                call::<v1::Delete>(&channel, delete).await.unwrap();
            }
        }
    });
    let (mut created, mut found) = (0, 0);
    while !deleting.is_finished() || created == 0 {
        let answer = call::<v1::Put>(&channel, request("e", 3000, 7)).await.unwrap();
        match answer.existing {
            Some(info) => {
                assert!(info.version == answer.version && answer.value == value(3000, 7));
                found += 1;
            }
            None => created += 1,
        }
    }
    deleting.await.unwrap();
    assert!(created + found > 0);
    server.stop().await;
}
