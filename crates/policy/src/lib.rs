//! Pure decisions: which host may be reached and how, where a secret may go, what a call may cost. No I/O, no clock, no
//! randomness; what is decided here is fuzzed here.
//!
//! Every decision is made on the very value that is used afterwards: a host name is parsed once into [`Host`], which is
//! then matched, resolved and compared with SNI and Host header.

mod address;
mod budget;
mod findings;
#[cfg(test)]
mod fuzz;
mod host;
mod options;
mod path;
mod pattern;
mod placement;
mod policy;
mod price;
mod rule;
mod swap;

pub use address::{Refusal as AddressRefusal, vet};
pub use budget::{Account, Amount, Limits, Short};
pub use host::{BadHost, Host};
pub use options::TunnelOptions;
pub use placement::{BadPlacement, Placement};
pub use policy::{Decision, Finding, Policy, Verdict};
pub use price::Price;
pub use rule::{BadRule, Effect, Rule, Sets, Source};
pub use swap::Swap;
