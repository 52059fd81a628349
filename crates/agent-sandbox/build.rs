//! Compiles the process service without `protoc`, so that `cargo build` needs nothing installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let service = protox::compile(["process.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(service)?;
    Ok(())
}
