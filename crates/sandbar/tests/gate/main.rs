//! The gate as programs inside meet it: real clients in real sandboxes, against servers on loopback under made-up names
//! whose certificates a test's own authority signed.

mod asking;
mod away;
mod git;
mod house;
mod lives;
mod models;
mod packages;
mod registries;
mod roots;
mod secrets;
mod site;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
