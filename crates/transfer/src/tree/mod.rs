//! Folders in and out of a store.
//!
//! The key of a file is the prefix and the file's path below the folder, byte by byte. A folder is an object too: an empty one with a
//! final `/` in its key, so that empty folders, modes and times survive.
//!
//! In: [`walk`] returns a folder's entries in the order of their keys, `compare` skips the objects that the store has already, `load`
//! reads the files and puts them in batches. Out: `names` checks which keys are names below a folder, [`folder`] and `place` write
//! below the target without following symlinks, `folding` handles file systems that treat different names as equal (an `obstacle` is
//! why a name is not written), [`unload`] reads the objects. `xattr` maps the other parts of an object to extended attributes,
//! [`temporary`] makes and recognises temporary names.

mod compare;
pub mod folder;
mod folding;
mod load;
mod names;
mod obstacle;
pub(crate) mod place;
pub mod temporary;
pub mod unload;
pub mod walk;
mod xattr;
