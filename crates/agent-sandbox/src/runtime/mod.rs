//! Clients of the servers that run *inside* a sandbox, and the ways to reach them.
//!
//! [`Sandboxd`] speaks gRPC (processes) and REST (files), [`Legacy`] is the older HTTP API of port 8888. A [`Connection`] says how
//! they are reached: at an address, through agent-sandbox's router, or through the API server without a socket on this side.
//!
//! ```no_run
//! # async fn example(cluster: agent_sandbox::AgentSandbox) -> Result<(), agent_sandbox::runtime::RuntimeError> {
//! use agent_sandbox::runtime::{Command, Connection, Sandboxd};
//!
//! let sandboxd = Sandboxd::new(Connection::port_forward(&cluster, "my-sandbox"))?;
//! sandboxd.write("data/in.txt", "3\n1\n2\n").await?;
//! let sorted = sandboxd.execute(Command::shell("sort data/in.txt")).await?;
//! assert_eq!(&sorted.stdout[..], b"1\n2\n3\n");
//! # Ok(())
//! # }
//! ```
//!
//! Requests that can be repeated without harm are (`GET`, `HEAD`, `PUT`, `DELETE`, while the sandbox cannot be reached or answers
//! 500, 502, 503 or 504); a command, an upload to [`Legacy`] and a streamed body never are. A redirection is refused, since it would
//! carry the token elsewhere.

mod answer;
mod connection;
mod error;
mod http;
mod legacy;
mod path;
mod process;
mod sandboxd;

pub use answer::{Entry, Kind};
pub use connection::{Connection, Router, Token};
pub use error::RuntimeError;
pub use http::Retry;
pub use legacy::{Executed, Legacy};
pub use process::{Command, Control, Event, Finished, Process, Signal};
pub use sandboxd::{Sandboxd, Stat};

mod proto {
    #![expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]
    tonic::include_proto!("process.v1");
}
