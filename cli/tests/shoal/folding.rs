//! Exports to file systems that fold names, by case or by Unicode normalisation: no object takes the place of another, and no file gets
//! another name than its key in silence.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use shoal_testkit::skipped::skipped;

use crate::harness::Server;
use crate::machine::{LoopDevice, disk_folder};

/// A mounted file system; taken down when it is dropped.
struct Mount {
    folder: PathBuf,
    _device: LoopDevice,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

fn done(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A file system that folds names.
struct System {
    name: &'static str,
    make: &'static [&'static str],
    mount: &'static [&'static str],
    /// A folder folds names only after `chattr +F`.
    has_flag: bool,
}

const SYSTEMS: [System; 3] = [
    System { name: "exFAT", make: &["mkfs.exfat"], mount: &["mount.exfat-fuse"], has_flag: false },
    System {
        name: "vfat",
        make: &["mkfs.vfat"],
        mount: &["mount", "-t", "vfat", "-o", "utf8"],
        has_flag: false,
    },
    System {
        name: "ext4 with casefold",
        make: &["mkfs.ext4", "-q", "-O", "casefold"],
        mount: &["mount"],
        has_flag: true,
    },
];

/// None if this machine does not make or mount it, which is printed.
fn mount(root: &Path, system: &System) -> Option<Mount> {
    let System { name, make, mount, has_flag } = *system;
    let (image, folder) = (root.join("image"), root.join("mount"));
    fs::create_dir(&folder).unwrap();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let device = LoopDevice::over(&image, &[])?;
    let place = folder.to_str().unwrap().to_owned();
    let is_made = done(make[0], &[&make[1..], &[&device.0]].concat())
        && done(mount[0], &[&mount[1..], &[&device.0, &place]].concat());
    if !is_made {
        skipped(&format!("this machine makes or mounts no {name}"));
        return None;
    }
    let mount = Mount { folder, _device: device };
    let inside = mount.folder.join("inside");
    fs::create_dir(&inside).unwrap();
    if has_flag && !done("chattr", &["+F", inside.to_str().unwrap()]) {
        skipped(&format!("this machine has no {name}"));
        return None;
    }
    Some(mount)
}

/// All files below `root` with their content.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// `README` and `readme` became one file, with exit code 0, and each further run wrote both again.
#[test]
fn case_folding_never_overwrites_another_object() {
    for system in &SYSTEMS {
        let root = disk_folder();
        let Some(mount) = mount(root.path(), system) else { continue };
        let server = Server::start();
        let keys = ["README", "readme", "A/x", "a/x", "a/y", "only", "sub/One", "sub/oNE", "sub/two"];
        for key in keys {
            server.put(key, key.as_bytes(), &[]);
        }
        // Larger than a batch, and the same size for both.
        server.put("LARGE", &vec![1; 1_500_000], &[]);
        server.put("large", &vec![2; 1_500_000], &[]);
        let target = mount.folder.join("inside/out");
        let name = system.name;

        let done = server.export("", &target, &["--jobs", "1"]);
        assert_eq!(done.code, 1, "{name}: {}", done.stderr);
        assert!(done.stderr.contains("cannot distinguish its name from that of another"), "{}", done.stderr);
        for round in 0..3 {
            let done = server.export("", &target, &["--lossy"]);
            let summary = done.json();
            assert_eq!(
                (done.code, summary["refused"].as_u64()),
                (5, Some(5)),
                "{name} {round}: {}",
                done.stderr
            );
            let files = files(&target);
            assert_eq!(files.len(), keys.len() + 2 - 5, "{name}: {:?}", files.keys());
            for (key, value) in &files {
                let is_own = key.eq_ignore_ascii_case("large") || value == key.as_bytes();
                assert!(is_own, "{name}, {key} has the value {:?}", value.get(..20));
                assert!(done.stderr.matches(&format!("{key}: refused")).count() == 0, "{}", done.stderr);
            }
        }
    }
}

/// Another user's file whose name differs in case only was replaced.
#[test]
fn existing_file_with_folded_name_stays() {
    for system in &SYSTEMS {
        let root = disk_folder();
        let Some(mount) = mount(root.path(), system) else { continue };
        let server = Server::start();
        let target = mount.folder.join("inside/out");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("Notes"), b"precious").unwrap();
        fs::write(target.join("same"), b"older").unwrap();
        server.put("notes", b"exported", &[]);
        server.put("same", b"newer", &[]);
        let done = server.export("", &target, &["--lossy"]);
        assert_eq!(done.code, 5, "{}: {}", system.name, done.stderr);
        let expected =
            BTreeMap::from([("Notes".into(), b"precious".to_vec()), ("same".into(), b"newer".to_vec())]);
        assert_eq!(files(&target), expected, "{}", system.name);
    }
}
