//! The runtime contracts of agent-sandbox, case by case, as their clients see them.

mod client;
pub(crate) mod grpc;
pub(crate) mod legacy;
pub(crate) mod links;
pub(crate) mod rest;
pub(crate) mod serve;
