# needs: cargo rustc
# A crate from nothing: build, test, run.
export CARGO_HOME=$PWD/.cargo
cargo --version
cargo new -q --vcs none made
cd made
cargo build -q --offline
cargo test -q --offline
cargo run -q --offline | grep >/dev/null Hello
