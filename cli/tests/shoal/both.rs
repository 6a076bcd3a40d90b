//! The objects of one bucket through all frontends, for tests that use them alike: gRPC by the client of this workspace,
//! the Redis protocol by redis-rs, S3 by the tests' client. Every call is made once.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, cmd};
use shoal_client::{
    ByteRange, Client, ConnectOptions, Error, GetItem, Lsn, PutItem, PutOptions, RejectRules, Result,
};

use crate::s3_client::S3Client;

/// From this length on, in bytes, S3 stores a value by an upload of one part.
const UPLOADED_BYTES: usize = 9_000;

/// The least length of a part that is not the last one, in bytes.
pub(crate) const PART_BYTES: usize = 5 << 20;

/// Longer than any call takes, short enough that a test finishes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) enum Objects {
    Grpc(Client, String),
    Redis(MultiplexedConnection),
    S3(S3Client),
}

impl Objects {
    pub(crate) async fn grpc(server: &str, bucket: &str) -> Self {
        let options = ConnectOptions { attempts: 1, ..ConnectOptions::new(server) };
        Self::Grpc(Client::connect(options).await.unwrap(), bucket.into())
    }

    /// A connection to `server`; the bucket is the one of the server's Redis clients.
    pub(crate) async fn redis(server: &str) -> Self {
        let client = redis::Client::open(format!("redis://{server}")).unwrap();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        Self::Redis(client.get_multiplexed_async_connection_with_config(&config).await.unwrap())
    }

    /// A connection to `server`, with the key that it made beside its data file.
    pub(crate) async fn s3(server: &str, data: &Path, bucket: &str) -> Self {
        Self::S3(S3Client::connect(server, data, bucket).await)
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.get_versioned(key).await?.map(|(_, value)| value))
    }

    pub(crate) async fn get_versioned(&self, key: &[u8]) -> Result<Option<(Lsn, Bytes)>> {
        match self {
            Self::Grpc(client, bucket) => {
                let object = client.get(bucket, key, ByteRange::ALL).await?;
                Ok(object.map(|object| (object.info.version, object.value)))
            }
            Self::Redis(connection) => {
                let found: Result<Option<(u64, Vec<u8>)>> = ask(connection, cmd("SHOAL.GETV").arg(key)).await;
                Ok(found.map_err(of_read)?.map(|(version, value)| (Lsn(version), value.into())))
            }
            Self::S3(client) => client.get(key).await,
        }
    }

    /// Over the Redis protocol and S3 one of `if_exists` and `if_version_not` at most. Returns the version if the protocol does.
    pub(crate) async fn put(&self, key: &[u8], value: Bytes, rules: RejectRules) -> Result<Option<Lsn>> {
        match self {
            Self::Grpc(client, bucket) => {
                let options = PutOptions { rules, ..PutOptions::default() };
                client.put(bucket, key, value, options).await.map(|done| Some(done.version))
            }
            Self::Redis(connection) => {
                let mut command = match rules.if_version_not {
                    Some(version) => cmd("SHOAL.CAS").arg(key).arg(version.0).arg(&value[..]).clone(),
                    None => cmd("SET").arg(key).arg(&value[..]).clone(),
                };
                if rules.if_exists {
                    command.arg("NX");
                }
                match ask::<Option<redis::Value>>(connection, &command).await? {
                    Some(redis::Value::Int(version)) => Ok(Some(Lsn(version as u64))),
                    Some(_) => Ok(None),
                    None => Err(Error::ConditionFailed { rule: None, current: None }),
                }
            }
            Self::S3(client) if value.len() >= UPLOADED_BYTES => {
                let parts: Vec<&[u8]> = value.chunks(PART_BYTES).collect();
                client.upload(key, &parts, &rules).await.map(|()| None)
            }
            Self::S3(client) => client.put(key, &value, &rules).await.map(|()| None),
        }
    }

    /// Returns the version if the protocol does.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<Option<Lsn>> {
        match self {
            Self::Grpc(client, bucket) => {
                let done = client.delete(bucket, key, RejectRules::default()).await;
                done.map(|done| Some(done.version))
            }
            Self::Redis(connection) => ask::<u64>(connection, cmd("DEL").arg(key)).await.map(|_| None),
            Self::S3(client) => client.delete(key).await.map(|()| None),
        }
    }

    /// Adds 1 to a number, over the Redis protocol; returns the sum.
    pub(crate) async fn increment(&self, key: &[u8]) -> Result<u64> {
        match self {
            Self::Redis(connection) => ask(connection, cmd("INCR").arg(key)).await,
            Self::Grpc(..) | Self::S3(_) => panic!("the protocol has no such command"),
        }
    }

    pub(crate) async fn get_many(&self, keys: &[Vec<u8>]) -> Vec<Option<Bytes>> {
        match self {
            Self::Grpc(client, bucket) => {
                let item = |key: &Vec<u8>| GetItem { key: key.clone().into(), range: ByteRange::ALL };
                let items: Vec<GetItem> = keys.iter().map(item).collect();
                let found = client.multi_get(bucket, &items).await.into_iter();
                found.map(|object| object.unwrap().map(|object| object.value)).collect()
            }
            Self::Redis(connection) => {
                let found: Vec<Option<Vec<u8>>> = ask(connection, cmd("MGET").arg(keys)).await.unwrap();
                found.into_iter().map(|value| value.map(Bytes::from)).collect()
            }
            Self::S3(client) => {
                let mut found = Vec::new();
                for key in keys {
                    found.push(client.get(key).await.unwrap().map(|(_, value)| value));
                }
                found
            }
        }
    }

    /// Several puts, in one message if the protocol has one, each on its own.
    pub(crate) async fn put_many(&self, items: Vec<(Vec<u8>, Bytes)>) {
        match self {
            Self::Grpc(client, bucket) => {
                let item = |(key, value): (Vec<u8>, Bytes)| PutItem {
                    key: key.into(),
                    value,
                    options: PutOptions::default(),
                };
                let items: Vec<PutItem> = items.into_iter().map(item).collect();
                for (result, item) in client.multi_put(bucket, &items).await.into_iter().zip(&items) {
                    result.unwrap_or_else(|error| panic!("{}: {error}", item.key.escape_ascii()));
                }
            }
            Self::Redis(connection) => {
                let mut pipeline = redis::pipe();
                for (key, value) in &items {
                    pipeline.cmd("SET").arg(key).arg(&value[..]).ignore();
                }
                let () = pipeline.query_async(&mut connection.clone()).await.unwrap();
            }
            Self::S3(client) => {
                for (key, value) in items {
                    client.put(&key, &value, &RejectRules::default()).await.unwrap();
                }
            }
        }
    }
}

/// Sends one command. A command that the server did not answer may have been done.
async fn ask<T: FromRedisValue>(connection: &MultiplexedConnection, command: &Cmd) -> Result<T> {
    let answer = command.query_async(&mut connection.clone()).await;
    answer.map_err(|error: redis::RedisError| match error.code() {
        None | Some("UNKNOWN") => Error::Unknown(error.to_string()),
        Some("TRYAGAIN" | "CLUSTERDOWN") => Error::Busy(error.to_string()),
        Some(_) => Error::Invalid(error.to_string()),
    })
}

/// A read that was not answered changed nothing.
fn of_read(error: Error) -> Error {
    match error {
        Error::Unknown(reason) => Error::Unavailable { server: "of the Redis protocol".into(), reason },
        error => error,
    }
}
