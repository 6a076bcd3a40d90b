//! Tools and devices of the machine that a test may use if they exist.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skipped::skipped;

/// The tool in any usual place of the machine: those of administrators are on no other user's path.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(name)).find(|tool| tool.exists());
    if found.is_none() {
        skipped(&format!("{name} is not installed, so what it makes was not looked at"));
    }
    found
}

/// A loop device, if the machine lets us make one. Removed when it is dropped.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn over(path: &Path, options: &[&str]) -> Option<Self> {
        let mut losetup = Command::new(tool("losetup")?);
        let output = losetup.args(["--find", "--show"]).args(options).arg(path).output().unwrap();
        if !output.status.success() {
            skipped(&format!("no loop devices here: {}", String::from_utf8_lossy(&output.stderr).trim()));
            return None;
        }
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
