//! Get: reads one object, or a range of it, into one message. Next: `read/get.rs` of the engine.

use std::sync::Arc;

use shoal_api::v1;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_engine::{ByteRange, Object, ObjectInfo, ObjectKey, Store, TryGet};
use shoal_http::MemoryPermit;

use crate::auth::Authenticated;
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;

/// Reads nothing of a value for which `permit` has no room.
pub(crate) async fn get(
    request: Authenticated<v1::GetRequest>,
    permit: Arc<MemoryPermit>,
) -> Result<WithValue<v1::GetResponse>, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let range = convert::range(message.range);
    let bytes_max = message.value_bytes_max.unwrap_or(VALUE_BYTES_SINGLE_MAX).min(VALUE_BYTES_SINGLE_MAX);
    let range_read = convert::capped(range, bytes_max);
    let object = read(admitted.to::<v1::Get>(key.bucket(), key.key())?, &key, range_read, &permit).await?;
    let object = object.ok_or_else(|| Failure::not_found(&key))?;
    check_version(&object.info, message.version)?;
    let wanted = range.within(object.info.bytes).1;
    if message.value_bytes_max.is_none() && wanted > bytes_max {
        return Err(Failure::invalid(format!(
            "{wanted} bytes do not fit in one message, which takes {bytes_max}: use GetStream or ranges"
        )));
    }
    let message = v1::GetResponse { info: Some(convert::info(&object.info)), ..Default::default() };
    Ok(WithValue { message, value: Some(Box::new(object.value)) })
}

/// Reads the bytes of an object in `range`, if `permit` has room for them. A read from memory needs no future of the store; the others are
/// boxed, because the future of a call is moved several times.
pub(super) async fn read(
    store: &Store,
    key: &ObjectKey,
    range: ByteRange,
    permit: &MemoryPermit,
) -> Result<Option<Object>, Failure> {
    match store.try_get_range(key, range) {
        TryGet::Shown(object) => {
            if let Some(object) = &object {
                permit.set(object.value.len())?;
            }
            Ok(object)
        }
        TryGet::MustWait(lookup) => {
            Box::pin(store.get_from(lookup, key, range, |bytes| Ok(permit.set(bytes as usize)?))).await
        }
    }
}

/// Checks that the object has the requested version.
pub(crate) fn check_version(info: &ObjectInfo, wanted: Option<u64>) -> Result<(), Failure> {
    match wanted {
        Some(wanted) if wanted != info.version.0 => Err(Failure::changed(info.version)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use shoal_api::v1::failure::Kind;
    use shoal_engine::block_on;

    use super::*;
    use crate::testing::calls::{admitted, permit};
    use crate::testing::store;

    /// A regression: a get without room for its answer was refused after the read, which kept the device busy, and the bytes were in memory
    /// uncounted.
    #[test]
    fn get_without_room_reads_nothing() {
        let store = store();
        let key = ObjectKey::new("default", b"k").unwrap();
        block_on(store.put(&key, vec![7; 1 << 20].into(), Default::default())).unwrap();
        let asked = |room: usize| {
            let request = v1::GetRequest { key: "k".into(), ..Default::default() };
            block_on(get(admitted(&store, request), permit(room)))
        };
        assert_eq!(asked((1 << 20) - 1).unwrap_err().kind(), Kind::Overloaded);
        assert_eq!(store.stat().value_bytes_read, 0);
        assert_eq!(asked(1 << 20).unwrap().value.unwrap().len(), 1 << 20);
        assert_eq!(store.stat().value_bytes_read, 1 << 20);
    }
}
