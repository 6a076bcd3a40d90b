//! `cargo x dist`: the files of a release, in target/release-files: a static binary, an archive, a Debian package, a container image, the
//! bill of materials of the binary, and checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

pub(crate) const USAGE: &str = "Usage: cargo x dist [--target TRIPLE] [--binary FILE]

Looks for known vulnerabilities of the crates if cargo-deny is installed (cargo install cargo-deny --locked) and its list can be had.
Builds the binary with the profile dist (fat link-time optimisation, stripped) and writes into target/release-files:
  shoal                      the binary, static with the default target
  man/, completions/         written by the binary
  shoal-VERSION-TRIPLE.tar.gz
  shoal_VERSION_ARCH.deb     if cargo-deb is installed (cargo install cargo-deb)
  shoal-VERSION-image.tar    the container image, if buildah is installed and the binary is static
  shoal-VERSION.cdx.json     the crates in the binary, with their licences (CycloneDX)
  SHA256SUMS

  --target TRIPLE  [default: x86_64-unknown-linux-musl; needs rustup target add, and the package musl-tools for C]
  --binary FILE    package this binary, without a build";

const TARGET: &str = "x86_64-unknown-linux-musl";
const OUT: &str = "target/release-files";

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    target: String,
    binary: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { target: TARGET.into(), binary: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            match *word {
                "--target" => options.target = (*value).into(),
                "--binary" => options.binary = Some(value.into()),
                _ => bail!("{word} is no option"),
            }
        }
        Ok(options)
    }
}

/// Makes them all.
pub(crate) fn run(options: &Options) -> Result<()> {
    std::env::set_current_dir(super::root()?)?;
    let metadata = metadata(&options.target)?;
    let version = version_of(&metadata, "shoal")?;
    let target = &options.target;
    check_advisories()?;
    if Path::new(OUT).exists() {
        fs::remove_dir_all(OUT).with_context(|| format!("cannot empty {OUT}"))?;
    }
    fs::create_dir_all(OUT)?;
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            let build = ["build", "--profile", "dist", "--locked", "--package", "shoal", "--target", target];
            super::run("cargo", &build)?;
            Path::new("target").join(target).join("dist/shoal")
        }
    };
    let shoal = format!("{OUT}/shoal");
    fs::copy(&binary, &shoal).with_context(|| format!("cannot copy {}", binary.display()))?;
    super::run(&shoal, &["man", &format!("{OUT}/man")])?;
    completions(&shoal)?;
    let archive = archive(&version, target)?;
    let list = format!("shoal-{version}.cdx.json");
    fs::write(format!("{OUT}/{list}"), format!("{:#}\n", bill_of_materials(&metadata)?))?;
    let mut files = vec!["shoal".to_owned(), archive, list];
    files.extend(debian_package(target)?);
    files.extend(image(&version, target)?);
    files.sort();
    checksums(&files)
}

/// Refuses a release with a crate that has a known vulnerability, or that was taken back. Without the tool or its list it prints that, and
/// the release continues: a release can be made without a network.
fn check_advisories() -> Result<()> {
    let is_done =
        |words: &[&str]| Command::new("cargo-deny").args(words).status().map(|status| status.success());
    match is_done(&["--locked", "fetch", "db"]) {
        Err(_) => {
            eprintln!(
                "vulnerabilities were not looked for: cargo-deny is not installed; cargo install cargo-deny --locked"
            );
        }
        Ok(false) => eprintln!(
            "vulnerabilities were not looked for: cargo-deny could not fetch the list from github.com/rustsec/advisory-db"
        ),
        Ok(true) => super::run("cargo-deny", &["--locked", "check", "--disable-fetch", "advisories"])?,
    }
    Ok(())
}

fn completions(shoal: &str) -> Result<()> {
    let folder = format!("{OUT}/completions");
    fs::create_dir_all(&folder)?;
    for (shell, name) in [("bash", "shoal.bash"), ("zsh", "_shoal"), ("fish", "shoal.fish")] {
        let script = output(Command::new(shoal).args(["completions", shell]))?;
        fs::write(format!("{folder}/{name}"), script)?;
    }
    Ok(())
}

/// A tar archive with the same bytes for the same files, independent of the user that packs them and of the time.
fn archive(version: &str, target: &str) -> Result<String> {
    let name = format!("shoal-{version}-{target}");
    let archive = format!("{name}.tar.gz");
    let tar = [
        "--create",
        "--gzip",
        "--file",
        &format!("{OUT}/{archive}"),
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u=rwX,go=rX",
        &format!("--transform=s,^,{name}/,"),
        "-C",
        OUT,
        "shoal",
        "man",
        "completions",
        "-C",
        "../..",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "deploy",
        "docs/operate",
    ];
    super::run("tar", &tar)?;
    Ok(archive)
}

/// The Debian package; none if cargo-deb is not installed.
fn debian_package(target: &str) -> Result<Option<String>> {
    if Command::new("cargo-deb").arg("--version").output().is_err() {
        eprintln!("no Debian package: cargo-deb is not installed; cargo install cargo-deb");
        return Ok(None);
    }
    // cargo-deb takes the binary from the folder of a build.
    let built = Path::new("target").join(target).join("dist");
    fs::create_dir_all(&built)?;
    fs::copy(format!("{OUT}/shoal"), built.join("shoal.packed"))?;
    fs::rename(built.join("shoal.packed"), built.join("shoal"))?;
    let deb = [
        "deb",
        "--package",
        "shoal",
        "--no-build",
        "--no-strip",
        "--profile",
        "dist",
        "--target",
        target,
        "--output",
        OUT,
    ];
    super::run("cargo", &deb)?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let mut paths = fs::read_dir(OUT)?.filter_map(Result::ok).map(|entry| entry.path()).filter(is_package);
    let path = paths.next().context("cargo deb wrote no package")?;
    Ok(path.file_name().map(|name| name.to_string_lossy().into_owned()))
}

/// The container image, as `docker load` and `podman load` read it; none without buildah, and none of a binary that needs a libc.
/// The image is the binary and an empty folder, so no other image is fetched.
fn image(version: &str, target: &str) -> Result<Option<String>> {
    if !target.ends_with("-musl") {
        eprintln!("no container image: a binary for {target} needs a libc, and the image has none");
        return Ok(None);
    }
    if Command::new("buildah").arg("--version").output().is_err() {
        eprintln!("no container image: buildah is not installed; apt install buildah");
        return Ok(None);
    }
    let (name, tag) = (format!("shoal-{version}-image.tar"), format!("localhost/shoal:{version}"));
    let build = [
        "bud",
        "--build-arg",
        "BINARY=prebuilt",
        // The same image for the same binary.
        "--timestamp",
        "0",
        "--file",
        "deploy/docker/Dockerfile",
        "--tag",
        &tag,
        ".",
    ];
    super::run("buildah", &build)?;
    super::run("buildah", &["push", &tag, &format!("docker-archive:{OUT}/{name}:{tag}")])?;
    Ok(Some(name))
}

fn checksums(files: &[String]) -> Result<()> {
    let sums = output(Command::new("sha256sum").args(files).current_dir(OUT))?;
    fs::write(format!("{OUT}/SHA256SUMS"), &sums)?;
    print!("{}", String::from_utf8_lossy(&sums));
    println!("in {OUT}");
    Ok(())
}

/// The packages and their dependencies for `target`, as cargo reports them.
fn metadata(target: &str) -> Result<Value> {
    let words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", target];
    Ok(serde_json::from_slice(&output(Command::new("cargo").args(words))?)?)
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn version_of(metadata: &Value, name: &str) -> Result<String> {
    let package = packages(metadata).find(|package| package["name"] == name);
    let version = package.and_then(|package| package["version"].as_str());
    version.map(str::to_owned).with_context(|| format!("there is no package {name}"))
}

/// The crates that the binary is built of, as CycloneDX 1.5: the ones that `shoal` needs, without those for tests and builds.
fn bill_of_materials(metadata: &Value) -> Result<Value> {
    let id_of = |package: &Value| package["id"].as_str().map(str::to_owned);
    let root = packages(metadata).find(|package| package["name"] == "shoal").and_then(id_of);
    let mut needed = vec![root.context("there is no package shoal")?];
    let mut at = 0;
    while let Some(id) = needed.get(at).cloned() {
        at += 1;
        let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
        let dependencies = nodes.filter(|node| node["id"] == *id).flat_map(|node| node["deps"].as_array());
        for dependency in dependencies.flatten() {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            // The kind of an ordinary dependency is null.
            let is_linked = kinds.into_iter().any(|kind| kind["kind"].is_null());
            if let Some(id) = dependency["pkg"].as_str().filter(|_| is_linked)
                && !needed.iter().any(|known| known == id)
            {
                needed.push(id.to_owned());
            }
        }
    }
    let component = |package: &Value| {
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let mut component = json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
        });
        if let Some(licence) = package["license"].as_str() {
            // An old way to write OR.
            component["licenses"] =
                json!([{ "expression": licence.replace(" / ", "/").replace('/', " OR ") }]);
        }
        Some(component)
    };
    let is_needed = |package: &&Value| needed.iter().any(|id| package["id"] == **id);
    let mut components: Vec<Value> = packages(metadata)
        .filter(is_needed)
        .filter(|package| package["name"] != "shoal")
        .filter_map(component)
        .collect();
    components.sort_by_key(|component| component["purl"].to_string());
    let version = version_of(metadata, "shoal")?;
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "shoal", "version": version } },
        "components": components,
    }))
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    let done = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(done.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let default = Options::parse(&[]).unwrap();
        assert_eq!((default.target.as_str(), default.binary), (TARGET, None));
        let given = Options::parse(&["--target", "t", "--binary", "b"]).unwrap();
        assert_eq!((given.target.as_str(), given.binary), ("t", Some("b".into())));
        for wrong in [&["--target"][..], &["--what", "x"], &["x"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn list_has_exactly_linked_licences() {
        let package =
            |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let needs = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("shoal"), package("a"), package("b"), package("tests"), package("cc"), package("other")],
            "resolve": { "nodes": [
                { "id": "shoal", "deps": [needs("a", Value::Null), needs("tests", "dev".into()), needs("cc", "build".into())] },
                { "id": "a", "deps": [needs("b", Value::Null)] },
                { "id": "b", "deps": [needs("a", Value::Null)] },
                { "id": "other", "deps": [needs("shoal", Value::Null)] },
            ] },
        });
        let list = bill_of_materials(&metadata).unwrap();
        let names: Vec<_> =
            list["components"].as_array().unwrap().iter().map(|it| it["purl"].as_str().unwrap()).collect();
        assert_eq!(names, ["pkg:cargo/a@1.0.0", "pkg:cargo/b@1.0.0"]);
        assert_eq!(list["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }
}
