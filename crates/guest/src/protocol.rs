//! The generated guest protocol, and the facts both sides must agree on.

#![expect(clippy::all, clippy::pedantic, reason = "generated code")]

tonic::include_proto!("sandbar.guest.v1");

/// Of agent-sandbox, for its clients.
pub mod process {
    tonic::include_proto!("process.v1");

    pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/process.bin"));
}

/// Raised when a method or field is added; never lowered, never reused.
pub const VERSION: u32 = 6;

/// Status metadata that carries the stable code of the API's problem.
pub const CODE_KEY: &str = "sandbar-code";

/// Among the addresses that a probe is asked to reach: the API server, where the kubelet told the guest's container that it
/// is.
pub const REACH_KUBERNETES: &str = "kubernetes";
/// What came of an address begins so where nothing was tried.
pub const NOT_AN_ADDRESS: &str = "not an address";

/// The largest `data` in one message, in both directions.
pub const CHUNK: usize = 64 * 1024;

/// Records of a global pax header in a packed archive: what was left out at this place, and why. The API has them too.
pub const SKIPPED: &str = "SANDBAR.skipped";
pub const SKIPPED_WHY: &str = "SANDBAR.skipped.why";
