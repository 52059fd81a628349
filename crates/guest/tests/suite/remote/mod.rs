//! A guest that is reached over TCP, as in a pod: who is let in, whose it is, what it carries out, how it ends.

pub(crate) mod carried;
pub(crate) mod ended;
pub(crate) mod entrance;
mod house;
pub(crate) mod known;

pub(crate) use house::{be_remote, is_remote};
