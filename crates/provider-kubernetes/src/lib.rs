//! Sandboxes on a cluster, through kubernetes-sigs/agent-sandbox.

mod blueprints;
pub mod check;
mod config;
mod failure;
mod inspect;
mod keep;
mod kubernetes;
mod life;
pub mod manifests;
pub mod objects;
mod open;
mod ownership;
mod probe;
mod reach;
mod ready;
pub mod settings;
mod settle;

pub use config::BadConfig;
pub use kubernetes::Kubernetes;
pub use settings::Settings;
