//! Stores an object where there is none, and gives the one that is there otherwise, in one call.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{ByteRange, GetResult, Lsn, PutOptions, PutResult, RejectRules};
use crate::{put, wire};

/// How often it is tried while others create and delete a large object all the time.
const ATTEMPTS_MAX: usize = 5;

/// The outcome of [`Client::create_or_get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOrGet {
    /// There was no object: it is stored now.
    Created(PutResult),
    /// There was one, and it stays.
    Existing(GetResult),
}

impl Client {
    /// Stores `value` (at most 4 MiB) where there is no object, and gives the one that is there otherwise. The rules of
    /// `options` are not looked at: this is one itself.
    ///
    /// # Errors
    /// As [`Client::put`] and [`Client::get`]; [`Error::Changed`] where others create and delete a value over 4 MiB all the
    /// time.
    pub fn create_or_get<'a>(
        &'a self,
        bucket: &'a str,
        key: &'a [u8],
        value: Bytes,
        options: PutOptions,
    ) -> Boxed<'a, Result<CreateOrGet>> {
        Box::pin(async move {
            let rules = RejectRules { if_exists: true, ..RejectRules::default() };
            let request = put::request(bucket, key, value, PutOptions { rules, ..options });
            let request = v1::PutRequest { return_existing: true, ..request };
            for _ in 0..ATTEMPTS_MAX {
                let answer = self.put_message(&request).await?;
                let Some(existing) = answer.existing else {
                    return Ok(CreateOrGet::Created(PutResult { version: Lsn(answer.version) }));
                };
                if !answer.value_omitted {
                    let info = wire::info(Some(existing)).map_err(|failed| failed.error)?;
                    return Ok(CreateOrGet::Existing(GetResult { info, value: answer.value }));
                }
                if let Some(object) = self.get(bucket, key, ByteRange::ALL).await? {
                    return Ok(CreateOrGet::Existing(object));
                }
            }
            Err(Error::Changed)
        })
    }
}
