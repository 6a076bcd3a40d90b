//! Keys of the file of keys.

use crate::support::Running;

#[tokio::test]
async fn a_key_is_made_and_revoked_at_once() {
    let running = Running::start();
    let mut page = running.admin().await;
    let document = r#"{"name":"uploads","grants":["read,list photos/*","write photos/in/*"],"expires_ms":4102444800000}"#;
    let made = page.post("/api/keys", document).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let (id, secret) = (made.field("id"), made.field("secret"));
    let listed = page.get("/api/keys").await;
    assert!(!listed.text().contains(&secret), "no secret is listed");
    let listed = listed.json();
    assert_eq!(listed["file"], "/etc/shoal/keys");
    assert_eq!(
        (&listed["keys"][0]["is_this_session"], &listed["keys"][1]["is_this_session"]),
        (&true.into(), &false.into())
    );
    let key = &listed["keys"][1];
    assert_eq!(
        (&key["id"], &key["name"], &key["grants"][1]),
        (&id.clone().into(), &"uploads".into(), &"write photos/in/*".into())
    );
    assert_eq!(
        (&key["expires_ms"], &key["certificate"]),
        (&4_102_444_800_000_u64.into(), &serde_json::Value::Null)
    );
    let mut other = running.page().await;
    assert_eq!(other.sign_in(&id, &secret).await.status, 200, "it is in force");
    let rotated = page.post(&format!("/api/keys/{id}/rotate"), "").await;
    assert_eq!(rotated.field("id"), id);
    assert_ne!(rotated.field("secret"), secret);
    assert!(page.get("/api/keys").await.json()["keys"][1]["rotated_until_ms"].is_u64());
    assert_eq!(other.get("/api/session").await.status, 200, "the old secret is accepted for a day");
    assert_eq!(page.send("DELETE", &format!("/api/keys/{id}"), &[], b"").await.status, 204);
    assert_eq!(other.get("/api/session").await.status, 401, "it is revoked");
    assert_eq!(page.send("DELETE", &format!("/api/keys/{id}"), &[], b"").await.status, 404);
    assert_eq!(page.post(&format!("/api/keys/{id}/rotate"), "").await.status, 404);
}

#[tokio::test]
async fn keys_are_for_administrators_with_their_own_grants() {
    let running = Running::start();
    let mut reader = running.signed_in("read,list,write,delete,bucket *").await;
    let id = running.book.file.lock().entries[0].id.clone();
    let document = r#"{"name":null,"grants":["read a"],"expires_ms":null}"#;
    assert_eq!(reader.get("/api/keys").await.status, 403);
    assert_eq!(reader.post("/api/keys", document).await.status, 403);
    assert_eq!(reader.send("DELETE", &format!("/api/keys/{id}"), &[], b"").await.status, 403);
    assert_eq!(reader.post(&format!("/api/keys/{id}/rotate"), "").await.status, 403);
    // An administrator without the right to read does not get it by a key.
    let mut operator = running.signed_in("admin *").await;
    let refused = operator.post("/api/keys", document).await;
    assert!(
        refused.status == 400 && refused.field("error").contains("does not have the grant"),
        "{}",
        refused.text()
    );
    assert_eq!(
        operator.post(&format!("/api/keys/{id}/rotate"), "").await.status,
        400,
        "its new secret reads"
    );
    let own = r#"{"name":null,"grants":["admin *"],"expires_ms":null}"#;
    assert_eq!(operator.post("/api/keys", own).await.status, 201);
    assert_eq!(running.book.file.lock().entries.len(), 3);
}

#[tokio::test]
async fn a_wrong_key_is_refused_with_words() {
    let running = Running::start();
    let mut page = running.admin().await;
    let long = "x".repeat(257);
    for (document, words) in [
        (r#"{"name":null,"grants":["reed a"],"expires_ms":null}"#.to_owned(), "unknown or repeated action"),
        (r#"{"name":null,"grants":[],"expires_ms":null}"#.to_owned(), "at least one"),
        (r#"{"name":null,"grants":["read a"],"expires_ms":1000}"#.to_owned(), "past"),
        (format!(r#"{{"name":"{long}","grants":["read a"],"expires_ms":null}}"#), "256 bytes"),
        (r#"{"name":null}"#.to_owned(), "grants"),
    ] {
        let reply = page.post("/api/keys", &document).await;
        assert!(reply.status == 400 && reply.field("error").contains(words), "{}", reply.text());
    }
    assert_eq!(running.book.file.lock().entries.len(), 1);
}

#[tokio::test]
async fn grants_are_explained() {
    let running = Running::start();
    let mut page = running.signed_in("read a").await;
    let reply = page.post("/api/grants/explain", r#"{"grants":["read,list photos/in/*","all *"]}"#).await;
    let sentences =
        ["may read and list objects of the bucket photos whose keys start with in/", "may do everything"];
    assert_eq!(reply.json()["sentences"], serde_json::json!(sentences));
    assert_eq!(page.post("/api/grants/explain", r#"{"grants":["x"]}"#).await.status, 400);
}
