//! The client of a Shoal server: the verbs of the store over a network, with its own types.
//!
//! ```no_run
//! # async fn example() -> shoal_client::Result<()> {
//! use shoal_client::{ByteRange, Client, PutOptions};
//!
//! let client = Client::connect("127.0.0.1:7411").await?;
//! client.put("default", b"greeting", "hello".into(), PutOptions::default()).await?;
//! let object = client.get("default", b"greeting", ByteRange::ALL).await?;
//! assert_eq!(object.map(|object| object.value).as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! Read it in this order: [`Client`] and its options; the verbs, one file each; their arguments and results; the repetition of
//! calls; the transport, the only module that knows gRPC. Everything runs on the caller's tokio runtime.

mod backup;
mod client;
mod create_or_get;
mod options;

mod delete;
mod free_space;
mod get;
mod get_stream;
mod grow;
mod head;
mod list;
mod multi;
mod operations;
mod pipeline;
mod put;
mod put_stream;
mod stat;

mod connector;
mod error;
mod exchange;
mod object;
mod operation;
mod outgoing;
mod request_id;
mod retry;
mod transport;
mod trust;
mod wire;

pub use backup::{Backup, BackupSince};
pub use client::Client;
pub use connector::connect;
pub use create_or_get::CreateOrGet;
pub use error::{Error, Result};
pub use free_space::{FreeSpace, Run};
pub use get_stream::GetStream;
pub use grow::Grown;
pub use list::ListAll;
pub use multi::{DeleteItem, GetItem, PutItem};
pub use object::*;
pub use operations::OperationStream;
pub use options::{ConnectOptions, DEFAULT_PORT, Secret};
pub use pipeline::{Answer, Pipeline};
pub use put_stream::PutStream;

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs spawn calls on runtimes with several threads.
    #[test]
    fn calls_can_be_spawned() {
        fn spawnable<T: Send>(make: fn(Client) -> T) {
            let _ = make;
        }
        spawnable(
            |client| async move { client.put("b", b"k", bytes::Bytes::new(), PutOptions::default()).await },
        );
        spawnable(
            |client| async move { client.put_reader("b", b"k", &b""[..], PutOptions::default()).await },
        );
        spawnable(|client| async move { client.put_stream("b", b"k", PutOptions::default()).finish().await });
        spawnable(|client| async move { client.get("b", b"k", ByteRange::ALL).await });
        spawnable(|client| async move {
            let stream = client.get_stream("b", b"k", ByteRange::ALL).await;
            if let Ok(Some(mut stream)) = stream {
                let _ = stream.next().await;
            }
        });
        spawnable(|client| async move { client.head("b", b"k").await });
        spawnable(|client| async move { client.delete("b", b"k", RejectRules::default()).await });
        spawnable(|client| async move { client.list(&ListRequest::default()).await });
        spawnable(|client| async move { client.list_all(ListRequest::default()).next_page().await });
        spawnable(|client| async move { client.multi_get("b", &[]).await });
        spawnable(|client| async move { client.multi_put("b", &[]).await });
        spawnable(|client| async move { client.multi_delete("b", &[]).await });
        spawnable(|client| async move {
            let operations = client.operations("b");
            let _ = operations.get("k".into(), ByteRange::ALL).await;
            let _ = operations.delete("k".into(), RejectRules::default()).await;
            operations.put("k".into(), bytes::Bytes::new(), PutOptions::default()).await
        });
        spawnable(|client| async move {
            let mut pipeline = client.pipeline("b");
            let _ = pipeline.get(b"k", ByteRange::ALL, "note");
            pipeline.next().await
        });
        spawnable(|client| async move { client.stat().await });
        spawnable(|client| async move {
            if let Ok(mut runs) = client.free_space().await {
                let _ = runs.next().await;
            }
        });
    }
}
