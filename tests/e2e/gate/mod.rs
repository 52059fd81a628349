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
pub(crate) mod roots;
mod secrets;
pub(crate) mod site;
mod traffic;
