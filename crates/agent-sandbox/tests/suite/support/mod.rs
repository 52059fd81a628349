//! What is talked to.

pub(crate) mod cluster;
pub(crate) mod served;
