//! The reasons why an export cannot write a name.

use std::io;

use rustix::io::Errno;

/// The reason why a name cannot be written.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// The target cannot represent it: it would leave the folder, or the file system refuses it.
    Unheld(String),
    /// An I/O error.
    Failed(io::Error),
    /// Another file or folder has the name.
    InTheWay(&'static str),
}

impl From<Errno> for Obstacle {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

/// The obstacle if the creation of a name fails with `error`.
pub(crate) fn name_obstacle(error: Errno) -> Obstacle {
    match error {
        Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG => {
            Obstacle::Unheld(format!("the file system does not take its name: {}", io::Error::from(error)))
        }
        _ => error.into(),
    }
}

/// The name is another name of an existing file.
pub(crate) fn folded() -> Obstacle {
    Obstacle::Unheld("the file system cannot distinguish its name from that of another file".into())
}

/// The file system stored the name in another form.
pub(crate) fn altered() -> Obstacle {
    Obstacle::Unheld("the file system stores it under another name".into())
}
