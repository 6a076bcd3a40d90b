//! Why an export cannot write a name.

use std::io;

use rustix::io::Errno;

/// Why a name cannot be written.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// The target cannot hold it: it would leave the folder, or the file system does not take it.
    Unheld(String),
    /// Something went wrong.
    Failed(io::Error),
    /// Something else is in the way.
    InTheWay(&'static str),
}

impl From<Errno> for Obstacle {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

/// The obstacle if a call that makes a name fails with `error`.
pub(crate) fn name_obstacle(error: Errno) -> Obstacle {
    match error {
        Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG => {
            Obstacle::Unheld(format!("the file system does not take its name: {}", io::Error::from(error)))
        }
        _ => error.into(),
    }
}

/// Two names lead to one file.
pub(crate) fn folded() -> Obstacle {
    Obstacle::Unheld("the file system cannot distinguish its name from that of another file".into())
}

/// The file system stored another name.
pub(crate) fn altered() -> Obstacle {
    Obstacle::Unheld("the file system stores it under another name".into())
}
