//! `sandbar up --provider kubernetes` as people use it, on a real cluster: real pods, the real controller, the real
//! API server. Where no cluster is named, each test says so.

mod gate;
mod isolation;
mod killed;
mod life;
mod memory;
mod node;
mod orphans;
mod parts;
mod place;
mod pools;
mod python;
mod recovery;
mod refusals;
mod rights;
#[path = "../gate/roots.rs"]
mod roots;
#[expect(dead_code, reason = "the tests of the gate use more of it")]
#[path = "../gate/site.rs"]
mod site;
mod starting;
#[path = "../support/mod.rs"]
mod support;
mod web;
