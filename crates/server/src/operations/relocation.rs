//! Stops the relocation of values, and resumes it.

use shoal_api::v1;

use crate::auth::Authenticated;
use crate::failure::Failure;

pub(crate) fn relocation(request: Authenticated<v1::MovingRequest>) -> Result<v1::MovingResponse, Failure> {
    let (message, admitted) = request.take();
    let store = admitted.to_whole_store::<v1::Moving>()?;
    if message.pause {
        store.pause_relocation();
    } else {
        store.resume_relocation();
    }
    Ok(v1::MovingResponse {})
}
