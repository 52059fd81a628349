//! Compiles the protocols without `protoc`, so that `cargo build` needs nothing installed.

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file("guest.proto")?.open_file("process.proto")?;
    tonic_prost_build::configure().bytes(".").compile_fds(compiler.file_descriptor_set())?;
    // What reflection shows to clients of sandboxd, and nothing else.
    let mut shown = protox::Compiler::new(["proto"])?;
    shown.include_imports(true).open_file("process.proto")?;
    let place = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?).join("process.bin");
    fs::write(place, shown.encode_file_descriptor_set())?;
    Ok(())
}
