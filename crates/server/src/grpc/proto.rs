//! The generated API of `proto/sandbar/v1/sandbar.proto`, and its methods as the router needs them.
#![expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]

tonic::include_proto!("sandbar.v1");

/// What reflection tells.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbar.v1.bin"));

pub(super) struct Method {
    pub(super) service: &'static str,
    pub(super) path: &'static str,
    /// In either direction.
    pub(super) streams: bool,
}

pub(super) const METHODS: &[Method] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));
