//! Compiles the protobuf schema without protoc, and writes a marker type for each method of the service.

use std::error::Error;
use std::fmt::Write as _;

use prost_build::{Config, Service, ServiceGenerator};

const ROOT: &str = "proto";
const FILES: [&str; 1] = ["shoal/space/v1/space_service.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let files = protox::compile(FILES, [ROOT])?;
    Config::new().service_generator(Box::new(Methods)).compile_fds(files)?;
    Ok(())
}

/// Writes `pub struct Open; impl Method for Open { ... }` for each method, as `shoal-api` does. All are unary.
struct Methods;

impl ServiceGenerator for Methods {
    fn generate(&mut self, service: Service, out: &mut String) {
        for method in &service.methods {
            assert!(!method.client_streaming && !method.server_streaming, "{} streams", method.proto_name);
            let name = &method.proto_name;
            let path = format!("/{}.{}/{name}", service.package, service.proto_name);
            // Writing into a String cannot fail.
            let _ = write!(
                out,
                "/// The method `{name}`.\n\
                 pub struct {name};\n\
                 impl shoal_api::Method for {name} {{\n\
                 const PATH: &'static str = {path:?};\n\
                 type Request = {};\n\
                 type Response = {};\n\
                 }}\n\
                 impl shoal_api::Unary for {name} {{}}\n",
                method.input_type, method.output_type,
            );
        }
    }
}
