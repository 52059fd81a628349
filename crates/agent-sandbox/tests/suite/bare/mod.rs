//! The same client against a real apiserver that does not serve what is current: nothing of agent-sandbox, or what old
//! releases of it served, with their own schemas.
//!
//! Runs where `SANDBAR_CLUSTER_BARE` names what is served (`none`, `v0.2.1`, `v0.4.6`), by the kubeconfig that
//! `SANDBAR_CLUSTER` names. No controller is there: what one would write is written by the tests.

mod none;
mod place;
mod v0_2_1;
mod v0_4_6;
