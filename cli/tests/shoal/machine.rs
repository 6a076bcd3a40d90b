//! Parts of the machine that a test uses: a runtime, a port, a folder on a disk, a loop device.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use shoal_testkit::skipped::skipped;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A runtime of two threads.
pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A free port, for a program that cannot find one itself.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A folder below the build's: that is on a disk.
pub(crate) fn disk_folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A loop device; taken down when it is dropped.
pub(crate) struct LoopDevice(pub(crate) String);

impl LoopDevice {
    /// None if this machine makes none, which is printed.
    pub(crate) fn over(path: &Path, options: &[&str]) -> Option<Self> {
        let mut command = Command::new("losetup");
        let output = command.args(["--find", "--show"]).args(options).arg(path).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
            }
            failed => {
                skipped(&format!("this machine makes no loop device: {failed:?}"));
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
