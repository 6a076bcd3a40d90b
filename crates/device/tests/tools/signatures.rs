//! A look at a device names the formats of real tools, whole and with their start zeroed.
//!
//! The images are files made by the machine's tools. The part of a missing tool is skipped and reported; the same signatures, made by hand,
//! are in the unit tests of `blank`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shoal_base::SystemEntropy;
use shoal_base::task::block_on;
use shoal_device::blank::{Content, look};
use shoal_device::{FileOptions, open};

use crate::machine::{Loop, tool};
use crate::skipped::skipped;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 384 * MIB;

fn blank(path: &Path) {
    File::create(path).unwrap().set_len(BYTES).unwrap();
}

fn look_at(path: &Path) -> Content {
    let device = open(path, &FileOptions::default()).unwrap();
    block_on(look(&device, &SystemEntropy)).unwrap()
}

fn zero(path: &Path, from: u64, to: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; (to - from) as usize], from).unwrap();
}

/// Runs the tool on a blank file and returns the image. If the tool exists and works, the image must be recognised as `what`.
fn made(folder: &Path, what: &str, name: &str, arguments: &[&str], input: &str) -> Option<PathBuf> {
    let tool = tool(name)?;
    let path = folder.join(name);
    blank(&path);
    let mut command = Command::new(&tool);
    command.args(arguments).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A tool that asks nothing does not read.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let content = look_at(&path);
    println!("{name}: {content}");
    assert!(content.signatures.iter().any(|found| found.what == what), "{name} {arguments:?}: {content}");
    Some(path)
}

#[test]
fn contents_that_tools_make_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ext = "an ext2, ext3 or ext4 file system";
    for kind in ["mkfs.ext2", "mkfs.ext3", "mkfs.ext4"] {
        for block_bytes in ["1024", "2048", "4096"] {
            made(folder, ext, kind, &["-q", "-F", "-b", block_bytes], "");
        }
    }
    made(folder, "an XFS file system", "mkfs.xfs", &["-q", "-f"], "");
    made(folder, "a btrfs file system", "mkfs.btrfs", &["-q", "-f"], "");
    made(folder, "a swap area", "mkswap", &[], "");
    made(folder, "a FAT file system", "mkfs.vfat", &["-F", "32"], "");
    let luks = ["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--type"];
    for (what, kind) in [("a LUKS1 volume", "luks1"), ("a LUKS2 volume", "luks2")] {
        made(folder, what, "cryptsetup", &[&luks[..], &[kind]].concat(), "shells and pearls");
    }
    made(folder, "an MBR partition table", "sfdisk", &["-q"], "label: dos\n2048,4096,83\n");
    made(folder, "a GPT partition table", "sfdisk", &["-q"], "label: gpt\n2048,4096\n");
}

/// The start of a device is often wiped, by hand or by an installer; the rest still holds data.
#[test]
fn backup_signatures_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Found from outside: the file systems below were formatted over.
    if let Some(path) = made(folder, "a btrfs file system", "mkfs.btrfs", &["-q", "-f"], "") {
        zero(&path, 0, 64 << 10);
        assert!(look_at(&path).to_string().contains("a btrfs file system (byte 65600)"));
        zero(&path, 0, MIB);
        assert!(look_at(&path).to_string().contains("btrfs"), "its copy at 64 MiB: {}", look_at(&path));
    }
    let ext4 = ["-q", "-F", "-b", "4096"];
    if let Some(path) = made(folder, "an ext2, ext3 or ext4 file system", "mkfs.ext4", &ext4, "") {
        zero(&path, 0, MIB);
        assert!(look_at(&path).to_string().contains("ext4"), "its copy at 128 MiB: {}", look_at(&path));
        zero(&path, 0, 16 * MIB);
        assert!(!look_at(&path).is_blank());
    }
    if let Some(path) = made(folder, "an XFS file system", "mkfs.xfs", &["-q", "-f"], "") {
        zero(&path, 0, MIB);
        assert!(!look_at(&path).is_blank());
    }
    if let Some(path) = made(folder, "a GPT partition table", "sfdisk", &["-q"], "label: gpt\n2048,4096\n") {
        zero(&path, 0, MIB);
        let content = look_at(&path);
        assert_eq!(content.signatures[0].what, "a GPT partition table", "its backup: {content}");
        assert_eq!(content.signatures[0].byte, BYTES - 512, "{content}");
    }
    let luks =
        ["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--type", "luks2"];
    if let Some(path) = made(folder, "a LUKS2 volume", "cryptsetup", &luks, "shells and pearls") {
        zero(&path, 0, 4_096);
        assert!(
            look_at(&path).to_string().contains("a LUKS2 volume"),
            "its second header: {}",
            look_at(&path)
        );
    }
}

/// LVM takes devices only.
#[test]
fn a_physical_volume_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    blank(&path);
    let Some(tool) = tool("pvcreate") else { return };
    let Some(raw) = Loop::over(&path, &[]) else { return };
    let output = Command::new(tool).arg(&raw.0).output().unwrap();
    if !output.status.success() {
        skipped(&format!("pvcreate does not work here: {}", String::from_utf8_lossy(&output.stderr).trim()));
        return;
    }
    let content = look_at(Path::new(&raw.0));
    assert_eq!(content.signatures[0].what, "a physical volume of LVM", "{content}");
}
