//! Stores an object if there is none, and otherwise returns the existing one, in one call.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{ByteRange, Lsn, Object, PutOptions, PutResult, RejectRules};
use crate::{put, wire};

/// Number of attempts while others keep creating and deleting a large object.
const ATTEMPTS_MAX: usize = 5;

/// The outcome of [`Client::create_or_get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOrGet {
    /// There was no object: it is stored now.
    Created(PutResult),
    /// There was one, and it is unchanged.
    Existing(Object),
}

impl Client {
    /// Stores `value` (at most 4 MiB) if there is no object, and otherwise returns the existing one. The rules of `options` are
    /// ignored: this call is a rule itself.
    ///
    /// # Errors
    /// As [`Client::put`] and [`Client::get`]; [`Error::Changed`] if others keep creating and deleting a value over 4 MiB.
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
                    return Ok(CreateOrGet::Existing(Object { info, value: answer.value }));
                }
                if let Some(object) = self.get(bucket, key, ByteRange::ALL).await? {
                    return Ok(CreateOrGet::Existing(object));
                }
            }
            Err(Error::Changed)
        })
    }
}
