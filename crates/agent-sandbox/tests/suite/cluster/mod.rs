//! The same client against a real apiserver, controller and kubelet.
//!
//! Runs when `SANDBAR_CLUSTER` names a kubeconfig. `SANDBAR_CLUSTER_TOOL` and `SANDBAR_CLUSTER_DIR` name a program that
//! stops and starts parts of the cluster (`TOOL stop DIR apiserver`) and its argument; without them outages are not run.

mod claims;
mod outage;
mod place;
mod proxied;
mod refused;
mod sandboxes;
mod trouble;
