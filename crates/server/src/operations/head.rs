//! Reads the attributes of an object.

use shoal_api::v1;

use crate::auth::Authenticated;
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;

pub(crate) async fn head(
    request: Authenticated<v1::HeadRequest>,
) -> Result<WithValue<v1::HeadResponse>, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let info = admitted
        .to::<v1::Head>(key.bucket(), key.key())?
        .head(&key)
        .await
        .map_err(|error| Failure::of(&error))?;
    let info = info.ok_or_else(|| Failure::not_found(&key))?;
    Ok(v1::HeadResponse { info: Some(convert::info(&info)) }.into())
}
