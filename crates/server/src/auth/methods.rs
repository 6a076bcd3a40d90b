//! The actions of each method. The store is reached only for a method that is listed here, and routes take no other.

use shoal_api::{Method, key_value as kv, v1};
use shoal_frontend::access::{Action, Actions};

/// A method whose callers need grants.
pub(crate) trait Guarded: Method {
    /// The actions that a caller must have a grant for: on the keys of the request, its prefix, or the whole store.
    const ACTIONS: Actions;
}

macro_rules! guarded {
    ($($method:path: $($action:ident)*;)*) => {$(
        impl Guarded for $method {
            const ACTIONS: Actions = Actions::of(&[$(Action::$action),*]);
        }
    )*};
}

guarded! {
    v1::Put: Write;
    v1::PutStream: Write;
    v1::MultiPut: Write;
    v1::Get: Read;
    v1::GetStream: Read;
    v1::MultiGet: Read;
    v1::Head: Read;
    v1::Delete: Delete;
    v1::MultiDelete: Delete;
    v1::List: List;
    kv::Create: Write;
    kv::Retrieve: Read;
    kv::Update: Write;
    kv::Delete: Delete;
    // Those of each operation (`actions_of`).
    v1::Operations:;
    // About the whole store: the action `admin` is enough for these, too.
    v1::ListBuckets: List;
    v1::Stat: List;
    v1::FreeSpace: List;
    v1::Backup: Read List;
    v1::Report: Admin;
    v1::Moving: Admin;
    v1::Grow: Admin;
}

/// The actions of an operation of a stream.
pub(crate) const fn actions_of(operation: v1::operation::Action) -> Actions {
    use v1::operation::Action as Operation;
    Actions::of(match operation {
        Operation::Put => &[Action::Write],
        Operation::Delete => &[Action::Delete],
        Operation::Get | Operation::Head | Operation::Unspecified => &[Action::Read],
    })
}
