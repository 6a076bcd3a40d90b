//! Lists of objects, and deletes of many.

use shoal_s3::text::percent_decode;

use crate::support::{Client, Running};

/// Puts objects with these keys.
async fn fill(client: &mut Client, keys: &[&str]) {
    for key in keys {
        assert_eq!(client.put(&format!("/bkt/{key}"), key.as_bytes()).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let keys: Vec<String> = (0..25).map(|number| format!("k{number:02}")).collect();
    fill(&mut client, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/bkt?list-type=2&max-keys=10{token}")).await;
        assert_eq!(page.status, 200, "{}", page.text());
        found.extend(page.all("Key"));
        if page.one("IsTruncated") == "false" {
            break;
        }
        token = format!("&continuation-token={}", page.one("NextContinuationToken"));
    }
    assert_eq!(found, keys);
    let (mut found, mut marker) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/bkt?max-keys=7&marker={marker}")).await;
        found.extend(page.all("Key"));
        if page.one("IsTruncated") == "false" {
            break;
        }
        marker = found.last().cloned().unwrap();
    }
    assert_eq!(found, keys);
    let versions = client.get("/bkt?versions&max-keys=3").await;
    assert_eq!((versions.all("Key").len(), versions.all("VersionId").len()), (3, 3));
    let none = client.get("/bkt?list-type=2&max-keys=0").await;
    assert_eq!((none.all("Key").len(), none.one("IsTruncated")), (0, "false".to_owned()));
    let entry = client.get("/bkt?list-type=2&max-keys=1").await;
    assert_eq!((entry.one("Size"), entry.one("ETag").len()), ("3".to_owned(), 44), "{}", entry.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn common_prefixes_are_rolled_up() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    fill(&mut client, &["a/1", "a/2", "a/bkt/3", "c", "d/4", "e%20f%2B"]).await;
    let list = client.get("/bkt?list-type=2&delimiter=%2F").await;
    assert_eq!(list.all("Key"), ["c", "e f+"]);
    assert_eq!(list.all("CommonPrefixes"), ["<Prefix>a/</Prefix>", "<Prefix>d/</Prefix>"]);
    assert_eq!(list.one("KeyCount"), "4");
    let url = client.get("/bkt?list-type=2&encoding-type=url&start-after=d").await;
    assert_eq!(url.all("Key"), ["d/4", "e%20f%2B"]);
    let under = client.get("/bkt?delimiter=%2F&prefix=a%2F").await;
    assert_eq!(under.all("Key"), ["a/1", "a/2"]);
    assert_eq!(under.all("CommonPrefixes"), ["<Prefix>a/bkt/</Prefix>"]);
    // Page by page: a common prefix is no key, and comes once.
    let (mut found, mut marker) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/bkt?delimiter=%2F&max-keys=1&marker={marker}")).await;
        found.extend(page.all("Key").into_iter().chain(page.all("CommonPrefixes")));
        if page.one("IsTruncated") == "false" {
            break;
        }
        marker = page.one("NextMarker").replace('/', "%2F");
    }
    assert_eq!(found, ["<Prefix>a/</Prefix>", "c", "<Prefix>d/</Prefix>", "e f+"]);
    let long = format!("/bkt?prefix={}&delimiter={}", "p".repeat(1_100), "d".repeat(1_100));
    assert_eq!(client.get(&long).await.status, 200);
    assert_eq!(client.get("/bkt?list-type=2&continuation-token=x").await.error().1, "InvalidArgument");
}

/// versitygw 813: names that XML cannot have came without their encoding, and made the document unreadable.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_any_bytes_are_listed() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    let keys = ["%01", "%0A%0D%09", "%20%2B%25", "%26%3C%3E%22", "%7F/x", "%C3%A9/y", "%FF%FE"];
    fill(&mut client, &keys).await;
    let url = client.get("/bkt?list-type=2&encoding-type=url").await;
    assert_eq!(url.one("EncodingType"), "url");
    let decoded = |text: &str| percent_decode(text.as_bytes()).unwrap();
    let found: Vec<Vec<u8>> = url.all("Key").iter().map(|key| decoded(key)).collect();
    assert_eq!(found, keys.map(decoded));
    let plain = client.get("/bkt?list-type=2").await;
    let expected = [
        "\u{FFFD}",
        "&#10;&#13;&#9;",
        " +%",
        "&amp;&lt;&gt;&quot;",
        "\u{7F}/x",
        "\u{E9}/y",
        "\u{FFFD}\u{FFFD}",
    ];
    assert_eq!(plain.all("Key"), expected);
    // A delimiter is any bytes, also a part of a letter. Each page of one entry is followed by the others.
    for (delimiter, prefixes) in [
        ("%0A", &["%0A"][..]),
        ("%25", &["%20%2B%25"]),
        ("%A9", &["%C3%A9"]),
        ("%C3%A9/", &["%C3%A9/"]),
        ("%FF%FE", &["%FF%FE"]),
        ("%00", &[]),
    ] {
        let list = format!("/bkt?list-type=2&encoding-type=url&delimiter={delimiter}");
        let (mut found, mut count, mut token) = (Vec::new(), 0, String::new());
        loop {
            let page = client.get(&format!("{list}&max-keys=1{token}")).await;
            assert_eq!(decoded(&page.one("Delimiter")), decoded(delimiter));
            count += page.all("Contents").len() + page.all("CommonPrefixes").len();
            let inside = page.all("CommonPrefixes");
            let name = |text: &String| decoded(text.split(['<', '>']).nth(2).unwrap());
            found.extend(inside.iter().map(name));
            if page.one("IsTruncated") == "false" {
                break;
            }
            token = format!("&continuation-token={}", page.one("NextContinuationToken"));
        }
        let expected: Vec<Vec<u8>> = prefixes.iter().map(|prefix| decoded(prefix)).collect();
        assert_eq!((found, count), (expected, keys.len()), "{delimiter}");
    }
    let deleted = client.get("/bkt?versions&encoding-type=url").await;
    assert_eq!(deleted.all("Key").len(), keys.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_deleted_in_one_request() {
    let running = Running::start().await;
    let mut client = running.with_bucket().await;
    fill(&mut client, &["a", "b%26", "c"]).await;
    let document = "<Delete><Object><Key>a</Key></Object><Object><Key>b&amp;</Key></Object>\
        <Object><Key>none</Key></Object><Object><Key>c</Key><ETag>x</ETag></Object>\
        <Object><Key>c</Key><VersionId>1</VersionId></Object></Delete>";
    let done = client.send("POST", "/bkt?delete", &[], document.as_bytes()).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(done.all("Deleted").len(), 3);
    assert_eq!(done.all("Code"), ["PreconditionFailed", "NotImplemented"]);
    assert_eq!(client.get("/bkt?list-type=2").await.all("Key"), ["c"]);
    let keys: String = (0..1_000).map(|number| format!("<Object><Key>{number}</Key></Object>")).collect();
    let quiet = format!("<Delete><Quiet>true</Quiet>{keys}<Ignored/></Delete>");
    let done = client.send("POST", "/bkt?delete", &[], quiet.as_bytes()).await;
    assert_eq!((done.status, done.all("Deleted").len()), (200, 0));
    let cut = client.send("POST", "/bkt?delete", &[], b"<Delete><Object>").await;
    assert_eq!(cut.error(), (400, "MalformedXML".to_owned()));
}
