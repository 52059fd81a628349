//! The SDK over the wire, against servers that answer, break off or go away as a test wants.

mod attach;
mod away;
mod mcp;
mod ports;
mod requests;
mod resume;
mod trust;
