//! The stored inputs of the fuzz targets (`fuzz/corpus`): one tar a target, which `cargo x fuzz` reads and writes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The inputs of `target` with their names, in the archive's order.
///
/// # Panics
/// If there is no such archive, or it cannot be read.
#[must_use]
pub fn read(target: &str) -> Vec<(String, Vec<u8>)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target).with_extension("tar");
    let file = File::open(&path).unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries().expect("the start of an archive");
    let read = |entry: std::io::Result<tar::Entry<'_, File>>| {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let mut input = Vec::new();
        entry.read_to_end(&mut input)?;
        Ok((name, input))
    };
    let inputs: std::io::Result<Vec<_>> = entries.map(read).collect();
    inputs.unwrap_or_else(|error| panic!("{} is damaged: {error}", path.display()))
}
