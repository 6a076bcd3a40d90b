//! Changes for increments: the backups that the server accepts as their base.

use bytes::Bytes;
use shoal_api::v1;
use shoal_backup::{Contents, Decoder, Event, Header};
use shoal_client::{Backup, BackupSince, Error, PutOptions};

use crate::support::{Running, figure, kind, receive, value};

/// All events of a backup.
async fn events(mut backup: Backup) -> Vec<Event> {
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    while let Some(chunk) = backup.next().await.unwrap() {
        decoder.push(&chunk);
        while let Some(event) = decoder.next_event().unwrap() {
            events.push(event);
        }
    }
    assert!(matches!(events.last(), Some(Event::End(_))));
    events
}

fn header(events: &[Event]) -> Header {
    let Some(Event::Header(header)) = events.first() else { panic!("{events:?}") };
    header.clone()
}

fn objects(events: &[Event]) -> usize {
    events.iter().map(|event| if let Event::Objects(objects) = event { objects.len() } else { 0 }).sum()
}

/// The last backup is one that was sent completely, with all objects: a client that disconnects in the middle leaves none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_backup_is_recorded() {
    let server = Running::start().await;
    let client = server.client().await;
    // More than the connection takes ahead of its reader.
    for which in 0..40_u8 {
        client.put("b", &[which], value(1 << 20, which), PutOptions::default()).await.unwrap();
    }
    let mut broken_off = client.backup().await.unwrap();
    broken_off.next().await.unwrap().unwrap();
    drop(broken_off);
    assert_eq!((figure(&client, "backup.version").await, figure(&client, "backup.taken").await), (0, 0));

    let full = header(&events(client.backup().await.unwrap()).await);
    let noted = server.store.stat().last_backup.unwrap();
    assert_eq!((noted.version, noted.taken_ns), (full.version, full.taken_ns));
    assert_eq!(figure(&client, "backup.version").await, full.version.0);
    assert_eq!(figure(&client, "backup.taken").await, full.taken_ns / 1_000_000_000);
    assert_eq!(client.stat().await.unwrap().objects, 40, "the note is no object of a user");

    let since = BackupSince { store: full.store, version: full.version, pages: Bytes::new(), up_to: None };
    let changes = events(client.backup_since(since).await.unwrap()).await;
    assert_eq!(objects(&changes), 0, "the note is no change");
    assert_eq!(figure(&client, "backup.version").await, header(&changes).version.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incremental_backup_starts_at_named_version() {
    let server = Running::start().await;
    let client = server.client().await;
    for which in 0..20_u8 {
        client.put("b", &[which], value(100, which), PutOptions::default()).await.unwrap();
    }
    let full = events(client.backup().await.unwrap()).await;
    let last = header(&full);
    assert_eq!((last.contents, objects(&full)), (Contents::Full, 20));
    client.put("b", &[3], value(100, 9), PutOptions::default()).await.unwrap();
    let since = BackupSince { store: last.store, version: last.version, pages: Bytes::new(), up_to: None };
    let changes = events(client.backup_since(since.clone()).await.unwrap()).await;
    assert_eq!(header(&changes).contents, Contents::Changes { from: last.version });
    assert_eq!(objects(&changes), 1);
    // A backup that was broken off before all objects, and one after all of them.
    for (up_to, count) in [((0, Bytes::new()), 20), ((u16::MAX, Bytes::new()), 1)] {
        let since = BackupSince { up_to: Some(up_to), ..since.clone() };
        assert_eq!(objects(&events(client.backup_since(since).await.unwrap()).await), count);
    }

    let refused = async |since: BackupSince, words: &str| {
        let error = client.backup_since(since).await.map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::Invalid(why) if why.contains(words)), "{error:?}");
    };
    refused(BackupSince { store: [1; 16], ..since.clone() }, "another store").await;
    let version = header(&changes).version;
    refused(BackupSince { version: shoal_engine::Lsn(version.0 + 1_000), ..since.clone() }, "put back").await;
    refused(BackupSince { pages: Bytes::from_static(&[0; 13]), ..since.clone() }, "whole pages").await;
    refused(BackupSince { pages: vec![0; 12 * 300_001].into(), ..since }, "whole pages").await;

    let channel = server.channel().await;
    let right = v1::BackupSince {
        store: last.store.to_vec().into(),
        version: last.version.0,
        ..v1::BackupSince::default()
    };
    let wrong = [
        v1::BackupSince { store: Bytes::from_static(b"short"), ..right.clone() },
        v1::BackupSince { up_to_tablet: Some(70_000), ..right },
    ];
    for since in wrong {
        let request = v1::BackupRequest { since: Some(since) };
        let status = match receive::<v1::Backup>(&channel, request).await {
            Err(status) => status,
            Ok(mut stream) => stream.message().await.unwrap_err(),
        };
        assert_eq!(kind(&status), v1::failure::Kind::Invalid);
    }
}
