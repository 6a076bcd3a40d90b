//! Messages with a separate value, and the methods that have such messages.

use shoal_api::{key_value, v1};
use shoal_buffer::Buffer;

use crate::auth::Guarded;

/// A method with one request, and the places of its values.
pub(crate) trait Valued: Guarded {
    /// The number of the value's field in a request; `None` if it has none.
    const VALUE_IN: Option<u32>;
    /// The same of an answer. It is the last field.
    const VALUE_OUT: Option<u32>;
    /// True if a call may have changed something: its answer is never refused for lack of room.
    const WRITES: bool;
}

macro_rules! valued {
    ($($method:path: in $value_in:expr, out $value_out:expr, writes $writes:expr;)*) => {$(
        impl Valued for $method {
            const VALUE_IN: Option<u32> = $value_in;
            const VALUE_OUT: Option<u32> = $value_out;
            const WRITES: bool = $writes;
        }
    )*};
}

valued! {
    v1::Put: in Some(15), out Some(15), writes true;
    v1::Get: in None, out Some(15), writes false;
    v1::GetStream: in None, out Some(15), writes false;
    v1::Head: in None, out None, writes false;
    v1::Delete: in None, out None, writes true;
    v1::ListBuckets: in None, out None, writes false;
    v1::Stat: in None, out None, writes false;
    v1::Moving: in None, out None, writes false;
    v1::Grow: in None, out None, writes false;
    v1::Report: in None, out None, writes false;
    v1::Backup: in None, out None, writes false;
    v1::FreeSpace: in None, out None, writes false;
    key_value::Create: in Some(2), out None, writes true;
    key_value::Retrieve: in None, out Some(1), writes false;
    key_value::Update: in Some(2), out None, writes true;
    key_value::Delete: in None, out None, writes true;
}

/// A message whose value is separate. Values of answers are boxed: an answer is moved several times, and a buffer moves with its built-in
/// storage.
#[derive(Debug)]
pub(crate) struct WithValue<T, V = Option<Box<Buffer>>> {
    /// The message with an empty value.
    pub(crate) message: T,
    /// The value, in its original memory.
    pub(crate) value: V,
}

impl<T> From<T> for WithValue<T> {
    fn from(message: T) -> Self {
        Self { message, value: None }
    }
}
