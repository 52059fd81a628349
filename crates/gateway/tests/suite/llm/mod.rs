//! The LLM endpoints against a scripted upstream that speaks the vendors' true wire formats.

mod client;
mod facts;
mod failures;
mod refusals;
mod settling;
mod storm;
mod streams;
#[path = "../support/upstream.rs"]
mod upstream;
mod wire;
mod world;
