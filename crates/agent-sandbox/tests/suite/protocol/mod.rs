//! What the wire can do to a client, shown by a stand-in for the apiserver.

mod cache;
mod config;
mod stand_in;
mod version;
mod wait;
