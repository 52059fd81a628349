//! Compiles the gRPC API without `protoc`, so that `cargo build` needs nothing installed.

use std::{env, fmt::Write as _, fs, path::PathBuf};

const API: &str = "sandbar/v1/sandbar.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/{API}");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_file(API)?;
    let place = PathBuf::from(env::var("OUT_DIR")?);
    // What reflection tells.
    fs::write(place.join("sandbar.v1.bin"), compiler.encode_file_descriptor_set())?;
    let descriptors = compiler.file_descriptor_set();
    // Each method is a route of its own, so that what is for whom, and what is metered, is told by the router's names.
    let mut methods = String::from("&[");
    for file in &descriptors.file {
        for service in &file.service {
            for method in &service.method {
                let service = format!("{}.{}", file.package(), service.name());
                let streams = method.client_streaming() || method.server_streaming();
                let path = format!("/{service}/{}", method.name());
                write!(methods, "Method {{ service: {service:?}, path: {path:?}, streams: {streams} }},")?;
            }
        }
    }
    fs::write(place.join("methods.rs"), methods + "]")?;
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
