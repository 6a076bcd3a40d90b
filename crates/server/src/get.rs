//! Reads one object, or a range of it, into one message.

use shoal_api::v1;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_engine::ObjectInfo;

use crate::auth::Authenticated;
use crate::body::Data;
use crate::convert;
use crate::failure::Failure;
use crate::unary::Parted;

pub(crate) async fn get(
    request: Authenticated<Parted<v1::GetRequest>>,
) -> Result<Parted<v1::GetResponse>, Failure> {
    let (Parted { message, .. }, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let range = convert::range(message.range);
    let bytes_max = message.value_bytes_max.unwrap_or(VALUE_BYTES_SINGLE_MAX).min(VALUE_BYTES_SINGLE_MAX);
    let object = admitted.store().get(&key, convert::capped(range, bytes_max)).await;
    let object = object.map_err(|error| Failure::of(&error))?.ok_or_else(|| Failure::not_found(&key))?;
    check_version(&object.info, message.version)?;
    let wanted = range.within(object.info.bytes).1;
    if message.value_bytes_max.is_none() && wanted > bytes_max {
        return Err(Failure::invalid(format!(
            "{wanted} bytes do not fit in one message, which takes {bytes_max}: use GetStream or ranges"
        )));
    }
    let message = v1::GetResponse { info: Some(convert::info(&object.info)), ..Default::default() };
    Ok(Parted { message, value: Data::of(object.value) })
}

/// Whether the object has the version that was asked for.
pub(crate) fn check_version(info: &ObjectInfo, wanted: Option<u64>) -> Result<(), Failure> {
    match wanted {
        Some(wanted) if wanted != info.version.0 => Err(Failure::changed(info.version)),
        _ => Ok(()),
    }
}
