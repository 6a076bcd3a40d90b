//! Stops the moving of values, and lets it go on.

use shoal_api::v1;

use crate::auth::Authenticated;

pub(crate) fn moving(request: Authenticated<v1::MovingRequest>) -> v1::MovingResponse {
    let (v1::MovingRequest { pause }, admitted) = request.take();
    if pause {
        admitted.store().pause_moving();
    } else {
        admitted.store().resume_moving();
    }
    v1::MovingResponse {}
}
