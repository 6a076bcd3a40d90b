//! Folders in and out of a store.
//!
//! The key of a file is the prefix and the file's path below the folder, byte by byte. A folder is an object too: an empty one
//! whose key has a final `/`, so that empty folders, modes and times come back. [`xattr`] keeps the rest of an object.
//!
//! In: [`walk`] returns a folder's content in the order of the keys, [`compare`] drops the objects that the store has
//! already, [`load`] reads the files and puts them in batches. Out: [`names`] decides which keys are names below a
//! folder, [`folder`] and [`place`] write below the target without ever following a symlink, [`folding`] keeps apart names that the file
//! system does not ([`obstacle`]s are why a name is not written), [`unload`] gets the objects.

pub(crate) mod compare;
pub(crate) mod folder;
pub(crate) mod folding;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod obstacle;
pub(crate) mod place;
pub(crate) mod unload;
pub(crate) mod walk;
pub(crate) mod xattr;
