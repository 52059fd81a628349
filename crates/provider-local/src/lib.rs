//! The local provider: sandboxes out of the kernel's own parts (namespaces, mounts, Landlock, seccomp), without a
//! helper binary, as root and as an ordinary user.
//!
//! The server side (`Local`) keeps each sandbox's files in a directory of its own and asks the launcher, a
//! single-threaded re-execution of this binary, to fork its guest into new namespaces.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the local provider's seccomp filter is written for x86_64 only");

mod base;
mod boot;
mod bound;
mod cgroup;
mod copy;
mod directory;
mod disk;
mod fence;
mod filter;
mod forge;
mod fork;
mod frame;
mod gate;
mod guest_pid;
mod idmap;
mod inspect;
mod launch;
pub mod launcher;
mod layer;
mod life;
mod local;
mod mount;
mod oom;
mod ownership;
mod plan;
pub mod pod;
mod probe;
mod programs;
mod remove;
mod snapshot;
mod step;
mod sys;
mod syscalls;
mod uids;
mod view;

pub use local::{Lifetime, Local};
pub use oom::spare_server;

/// `argv[0]` of the re-execution that becomes the launcher.
pub const LAUNCHER_NAME: &str = "sandbar-launcher";
