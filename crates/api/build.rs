//! Compiles the protobuf schema without protoc, and writes a marker type for each method of a service.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use prost::Message;
use prost_build::{Config, Service, ServiceGenerator};

const ROOT: &str = "proto";
const FILES: [&str; 2] = ["shoal/v1/object_store.proto", "io/grpc/key_value.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let files = protox::compile(FILES, [ROOT])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    Config::new().bytes(["."]).service_generator(Box::new(Methods)).compile_fds(files)?;
    Ok(())
}

/// Writes `pub struct Put; impl Method for Put { ... }` for each method, and a table of all of them. The server's routes
/// and the client's calls are both written in terms of these types, so a path and its messages cannot disagree.
struct Methods;

impl ServiceGenerator for Methods {
    fn generate(&mut self, service: Service, out: &mut String) {
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
                 impl crate::Method for {name} {{\n\
                 const PATH: &'static str = {path:?};\n\
                 type Request = {};\n\
                 type Response = {};\n\
                 }}\n\
                 impl crate::{} for {name} {{}}\n",
                method.input_type,
                method.output_type,
                shape(method.client_streaming, method.server_streaming),
            );
            let _ = write!(paths, "{path:?},");
        }
        let constant = service.name.chars().fold(String::new(), |mut constant, c| {
            if c.is_uppercase() && !constant.is_empty() {
                constant.push('_');
            }
            constant.extend(c.to_uppercase());
            constant
        });
        let _ = write!(
            out,
            "/// The full name of `{full_name}`.\n\
             pub const {constant}: &str = {full_name:?};\n\
             /// The paths of all methods of `{full_name}`.\n\
             pub const {constant}_PATHS: &[&str] = &[{paths}];\n"
        );
    }
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
