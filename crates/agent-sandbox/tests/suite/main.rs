//! The client against what it talks to: a stand-in for the API server, runtimes that are served, and real clusters where
//! `make test-kubernetes` makes them.

mod bare;
mod cluster;
mod protocol;
mod runtimes;
mod streams;
mod support;
