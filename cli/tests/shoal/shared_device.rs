//! Two servers on one device, as on two machines: two loop devices over one file that has lost its name, so that no lock of the first server
//! reaches the second one. And the files of `deploy/` for a fail-over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use shoal_testkit::skipped::skipped;
use shoal_testkit::wait::eventually;
use tempfile::TempDir;

use crate::harness::{Done, Process, assert_clean, command, run, run_with, signal, started};
use crate::machine::{LoopDevice, disk_folder};

/// Two ways to the same bytes, with a store.
struct Shared {
    _folder: TempDir,
    ways: [LoopDevice; 2],
}

impl Shared {
    /// None if this machine makes no loop devices.
    fn make() -> Option<Self> {
        let folder = disk_folder();
        let file = folder.path().join("file");
        fs::File::create(&file).unwrap().set_len(128 << 20).unwrap();
        let ways = [LoopDevice::over(&file, &[])?, LoopDevice::over(&file, &[])?];
        assert_eq!(run(&["format", &ways[0].0]).code, 0);
        // A lock of the file under a device is taken by its name.
        fs::remove_file(&file).unwrap();
        Some(Self { _folder: folder, ways })
    }

    fn path(&self, way: usize) -> &Path {
        Path::new(&self.ways[way].0)
    }
}

struct Watched {
    child: Process,
    url: String,
    said: PathBuf,
}

impl Watched {
    fn start(device: &Path, said: &Path) -> Self {
        let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--resp", "off", "--cache", "16M"]);
        serve.args(["--must-exist", "--shared-device", "--log", "warn", "--data"]).arg(device);
        serve.stderr(fs::File::create(said).unwrap());
        let (child, url) = started(serve);
        Self { child, url, said: said.to_owned() }
    }

    fn ask(&self, arguments: &[&str], input: &[u8]) -> Done {
        let mut asked = command(arguments);
        asked.arg("--server").arg(&self.url);
        run_with(asked, input)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    /// Stops it; returns its exit code.
    fn stop(&mut self) -> Option<i32> {
        signal(&self.child, Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

/// The first server acknowledges nothing once the second one opened the device, and reports itself as failed. Its acknowledged writes are in
/// the second one's store. (Its refused write may be in the second one's log, in place of a batch: the device has to refuse it.)
#[test]
fn a_server_stops_when_another_one_opens_its_device() {
    let Some(shared) = Shared::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut first = Watched::start(shared.path(0), &folder.path().join("first"));
    assert!(first.said().contains("--shared-device is an alarm, not a fence"), "{}", first.said());
    assert_eq!(first.ask(&["put", "one", "-"], b"of the first").code, 0);
    let second = Watched::start(shared.path(1), &folder.path().join("second"));
    let refused = first.ask(&["put", "two", "-"], b"of the first");
    assert_ne!(refused.code, 0);
    let words = ["another server opened", "shoal check"];
    assert!(words.iter().all(|words| refused.stderr.contains(words)), "{}", refused.stderr);
    let health = first.ask(&["stat"], b"");
    assert!(health.text().contains("READ-ONLY: another server opened"), "{}", health.text());
    assert_eq!(second.ask(&["get", "one"], b"").text(), "of the first");
    assert_eq!(first.stop(), Some(1), "{}", first.said());
    assert!(first.said().contains("do not restart before that"), "{}", first.said());
}

/// A server without writes notices within seconds, and everything that both acknowledged is there.
#[test]
fn an_idle_server_notices_another_one() {
    let Some(shared) = Shared::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut first = Watched::start(shared.path(0), &folder.path().join("first"));
    assert_eq!(first.ask(&["put", "one", "-"], b"of the first").code, 0);
    let mut second = Watched::start(shared.path(1), &folder.path().join("second"));
    eventually("the idle server notices", || first.said().contains("read-only from now on"));
    assert_eq!(second.ask(&["put", "two", "-"], b"of the second").code, 0);
    assert_ne!(first.ask(&["put", "three", "-"], b"of the first").code, 0);
    assert_eq!(first.stop(), Some(1), "{}", first.said());
    assert_eq!(second.stop(), Some(0), "{}", second.said());
    let mut third = Watched::start(shared.path(0), &folder.path().join("third"));
    assert_eq!(third.ask(&["get", "one"], b"").text(), "of the first");
    assert_eq!(third.ask(&["get", "two"], b"").text(), "of the second");
    assert_eq!(third.stop(), Some(0), "{}", third.said());
    assert_clean(shared.path(0));
}

/// The configuration in a file of `deploy/`: a file of TOML, or the part of a file of YAML.
fn configuration(text: &str) -> String {
    let Some((_, rest)) = text.split_once("  shoal.toml: |\n") else { return text.to_owned() };
    rest.lines().take_while(|line| line.starts_with("    ")).map(|line| format!("{}\n", &line[4..])).collect()
}

/// Each option in the files for a fail-over exists, and has a value that a server takes.
#[test]
fn options_of_deployed_files_exist() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shoal.toml");
    let files =
        ["shoal.toml", "kubernetes/shoal.yaml", "kubernetes/shoal-failover.yaml", "pacemaker/shoal.toml"];
    for file in files {
        let text = fs::read_to_string(deploy.join(file)).unwrap();
        let configuration = configuration(&text);
        assert!(configuration.contains("data = "), "{file}");
        fs::write(&path, configuration).unwrap();
        let shown = run(&["config", "show", "--config", path.to_str().unwrap()]);
        assert_eq!(shown.code, 0, "{file}: {}", shown.stderr);
        let is_shared = shown.text().contains("shared-device = true");
        assert_eq!(
            is_shared,
            file.contains("failover") || file.contains("pacemaker"),
            "{file}: {}",
            shown.text()
        );
        // The arguments of containers.
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("args: [")) {
            let words: Vec<&str> = line.trim_end_matches(']').split(", ").collect();
            let help = run(&[words[0], "--help"]);
            let options = words.iter().filter(|word| word.starts_with("--"));
            options.for_each(|option| assert!(help.text().contains(option), "{file}: {option}"));
        }
    }
}

/// The files of Kubernetes are YAML with the parts that the fail-over relies on.
#[test]
fn files_of_kubernetes_are_yaml() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes");
    let program = "
import sys, yaml
kinds = {document['kind']: document for document in yaml.safe_load_all(open(sys.argv[1]))}
pod = kinds['StatefulSet']['spec']['template']['spec']
assert kinds['StatefulSet']['spec']['replicas'] == 1
assert pod['terminationGracePeriodSeconds'] > 25
assert {'startupProbe', 'livenessProbe', 'readinessProbe', 'resources'} <= set(pod['containers'][0])
claim = kinds['StatefulSet']['spec']['volumeClaimTemplates'][0]['spec']
if 'failover' in sys.argv[1]:
    assert claim['accessModes'] == ['ReadWriteOncePod'] and claim['volumeMode'] == 'Block'
    assert kinds['PodDisruptionBudget']['spec']['maxUnavailable'] == 0
";
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).status().is_ok_and(|it| it.success());
    if !has_yaml {
        skipped("there is no python3 with yaml");
        return;
    }
    for file in ["shoal.yaml", "shoal-failover.yaml"] {
        let checked = Command::new("python3").args(["-c", program]).arg(deploy.join(file)).output().unwrap();
        assert!(checked.status.success(), "{file}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}
