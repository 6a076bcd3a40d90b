//! Stops the relocation of values, and lets it go on.

use shoal_api::v1;

use crate::auth::Authenticated;
use crate::call::message::Parted;

pub(crate) fn relocation(request: Authenticated<Parted<v1::MovingRequest>>) -> v1::MovingResponse {
    let (Parted { message, .. }, admitted) = request.take();
    if message.pause {
        admitted.store().pause_relocation();
    } else {
        admitted.store().resume_relocation();
    }
    v1::MovingResponse {}
}
