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
mod starting;
mod web;
