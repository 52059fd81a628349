//! Compiles the guest protocol without `protoc`, so that `cargo build` needs nothing installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/guest.proto");
    let descriptors = protox::compile(["proto/guest.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
