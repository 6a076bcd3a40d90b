//! `cargo x proto`: writes the Rust code of the protobuf schemas, without protoc. The code is checked in, so that a build of the product
//! does not compile a compiler for schemas.
//!
//! For each method of a service there is a marker type with its path and its messages. The server's routes and the client's calls are
//! both written in terms of these types, so a path and its messages cannot disagree. A test compares the files with the schemas.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use prost::Message;
use prost_build::{Config, Module, Service, ServiceGenerator};

/// The crates with schemas: the folder, the path of the crate with the traits of methods, and the schemas.
const CRATES: [(&str, &str, &[&str]); 2] = [
    ("crates/api", "crate", &["shoal/v1/object_store.proto", "io/grpc/key_value.proto"]),
    ("crates/space-service", "shoal_api", &["shoal/space/v1/space_service.proto"]),
];

/// The crate that serves its schema by reflection, and the file with it.
const REFLECTED: (&str, &str) = ("crates/api", "descriptors.bin");

/// Writes the files that differ. The code of the Python and Go clients comes from their generators, which need protoc.
pub(crate) fn run() -> Result<()> {
    let root = super::root()?;
    for (path, content) in generated(&root)? {
        let file = root.join(&path);
        if std::fs::read(&file).ok().as_ref() != Some(&content) {
            std::fs::write(&file, content).with_context(|| format!("cannot write {path}"))?;
            println!("{path}");
        }
    }
    println!(
        "The clients have generated code, too: clients/python/scripts/generate.py and clients/go-example/generate write it."
    );
    Ok(())
}

/// The paths and contents of all generated files.
fn generated(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for (folder, traits, schemas) in CRATES {
        let set = protox::compile(schemas, [root.join(folder).join("proto")])?;
        if folder == REFLECTED.0 {
            files.insert(format!("{folder}/src/generated/{}", REFLECTED.1), set.encode_to_vec());
        }
        let module = |package: &str| Module::from_protobuf_package_name(package);
        let requests = set.file.into_iter().map(|file| (module(file.package()), file)).collect();
        let mut config = Config::new();
        config.bytes(["."]).service_generator(Box::new(Methods { traits }));
        for (module, code) in config.generate(requests)? {
            let name = module.to_file_name_or("package");
            files.insert(format!("{folder}/src/generated/{name}"), code.into_bytes());
        }
    }
    Ok(files)
}

/// Writes `pub struct Put; impl Method for Put { ... }` for each method, and a table of all of them.
struct Methods {
    /// The path of the crate with the traits.
    traits: &'static str,
}

impl ServiceGenerator for Methods {
    fn generate(&mut self, service: Service, out: &mut String) {
        let traits = self.traits;
        let full_name = format!("{}.{}", service.package, service.proto_name);
        let mut paths = String::new();
        for method in &service.methods {
            let name = &method.proto_name;
            let path = format!("/{full_name}/{name}");
            // Writing into a String cannot fail.
            let _ = write!(
                out,
                "/// The method `{name}` of `{full_name}`.\n\
                 pub struct {name};\n\
                 impl {traits}::Method for {name} {{\n    \
                 const PATH: &'static str = {path:?};\n    \
                 type Request = {};\n    \
                 type Response = {};\n\
                 }}\n\
                 impl {traits}::{} for {name} {{}}\n",
                method.input_type,
                method.output_type,
                shape(method.client_streaming, method.server_streaming),
            );
            let _ = writeln!(paths, "    {path:?},");
        }
        let constant = constant(&service.name);
        let _ = write!(
            out,
            "/// The full name of `{full_name}`.\n\
             pub const {constant}: &str = {full_name:?};\n\
             /// The paths of all methods of `{full_name}`.\n\
             pub const {constant}_PATHS: &[&str] = &[\n{paths}];\n"
        );
    }
}

/// The name of a constant for the type `name`: `OBJECT_STORE` for `ObjectStore`.
fn constant(name: &str) -> String {
    name.chars().fold(String::new(), |mut constant, c| {
        if c.is_uppercase() && !constant.is_empty() {
            constant.push('_');
        }
        constant.extend(c.to_uppercase());
        constant
    })
}

/// The name of the trait for the sides that stream.
fn shape(client_streams: bool, server_streams: bool) -> &'static str {
    match (client_streams, server_streams) {
        (false, false) => "Unary",
        (true, false) => "ClientStreaming",
        (false, true) => "ServerStreaming",
        (true, true) => "Bidirectional",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_code_is_that_of_the_schemas() {
        let root = crate::root().unwrap();
        let files = generated(&root).unwrap();
        for (path, content) in &files {
            let is_same = std::fs::read(root.join(path)).is_ok_and(|found| found == *content);
            assert!(is_same, "{path} differs from its schema: `cargo x proto` writes it");
        }
        let folders = CRATES.map(|(folder, ..)| format!("{folder}/src/generated"));
        let found = folders.iter().flat_map(|folder| {
            let entries = root.join(folder).read_dir().unwrap();
            entries.map(move |entry| format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap()))
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), files.into_keys().collect(), "files without a schema");
    }

    /// The generators of the clients copy the comments of services into one file and those of messages into another. This test needs
    /// neither protoc nor Python nor Go, so it catches a changed comment on every machine.
    #[test]
    fn the_clients_have_the_comments_of_the_schema() {
        const SCHEMA: &str = "crates/api/proto/shoal/v1/object_store.proto";
        const GO_MESSAGES: &str = "clients/go-example/shoalv1/object_store.pb.go";
        const GO_SERVICE: &str = "clients/go-example/shoalv1/object_store_grpc.pb.go";
        const PYTHON_SERVICE: &str = "clients/python/src/shoal/v1/object_store_pb2_grpc.py";
        let root = crate::root().unwrap();
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let text_of = |line: &str| line.trim_start_matches([' ', '\t', '/', '"']).trim_end().to_owned();
        let lines_of = |path: &str| read(path).lines().map(text_of).collect::<BTreeSet<_>>();
        let messages = lines_of(GO_MESSAGES);
        let services = [(GO_SERVICE, lines_of(GO_SERVICE)), (PYTHON_SERVICE, lines_of(PYTHON_SERVICE))];

        let schema = read(SCHEMA);
        let (mut is_service, mut comments, mut pending) = (false, 0, Vec::new());
        for line in schema.lines() {
            if line.trim_start().starts_with("//") {
                pending.extend(Some(text_of(line)).filter(|text| !text.is_empty()));
                continue;
            }
            let starts_service = line.starts_with("service ");
            // Generators drop the comment of a reserved number.
            let copied = if line.trim_start().starts_with("reserved ") {
                Vec::new()
            } else {
                std::mem::take(&mut pending)
            };
            pending.clear();
            for text in copied {
                comments += 1;
                if is_service || starts_service {
                    for (path, lines) in &services {
                        assert!(
                            lines.contains(&text),
                            "{path} has no comment {text:?}: its generator writes it anew"
                        );
                    }
                } else {
                    assert!(
                        messages.contains(&text),
                        "{GO_MESSAGES} has no comment {text:?}: its generator writes it anew"
                    );
                }
            }
            is_service = (is_service || starts_service) && line != "}";
        }
        assert!(comments > 200, "{SCHEMA} has {comments} lines of comments");
    }
}
