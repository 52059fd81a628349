//! A sandbox's rules: its template's, then its own; changed live, compiled when they or the named sets change.

use std::sync::Arc;

use sandbar_api::{AddRules, Network, NetworkRule, Problem, Template};
use sandbar_policy::{Policy, Sets};

use crate::{Caller, Engine};

/// What is in force for one sandbox, in memory. Lives in its handle.
pub(crate) struct Rules {}

impl Rules {
    /// `own` are the sandbox's rules and secrets as stored, beyond the template's.
    pub(crate) fn new(template: &Template, own: Vec<NetworkRule>, secrets: Vec<String>) -> Self {
        let (_, _, _) = (template, own, secrets);
        Self {}
    }

    /// Compiled under these sets, which are told apart by their generation. A rule whose set is gone denies everything it
    /// could have allowed: compile without it and report it as a finding.
    pub(crate) fn policy(&self, generation: u64, sets: &Sets) -> Arc<Policy> {
        let (_, _) = (generation, sets);
        Arc::new(Policy::default())
    }

    /// Names of the secrets it may use, the template's and its own.
    pub(crate) fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// The sandbox's own, for a fork.
    pub(crate) fn own(&self) -> (Vec<NetworkRule>, Vec<String>) {
        (Vec::new(), Vec::new())
    }
}

impl Engine {
    pub async fn network(&self, sandbox: &str) -> Result<Network, Problem> {
        let _ = sandbox;
        Err(crate::problem::shutting_down())
    }

    /// An unknown set is refused; findings about the new rules are in what is returned.
    pub async fn add_rules(&self, caller: &Caller, sandbox: &str, request: AddRules) -> Result<Network, Problem> {
        let (_, _, _) = (caller, sandbox, request);
        Err(crate::problem::shutting_down())
    }

    /// Only the sandbox's own: a template's rules stay.
    pub async fn remove_rule(&self, caller: &Caller, sandbox: &str, rule: &str) -> Result<Network, Problem> {
        let (_, _, _) = (caller, sandbox, rule);
        Err(crate::problem::shutting_down())
    }

    pub async fn grant_secret(&self, caller: &Caller, sandbox: &str, secret: &str) -> Result<Network, Problem> {
        let (_, _, _) = (caller, sandbox, secret);
        Err(crate::problem::shutting_down())
    }

    pub async fn revoke_secret(&self, caller: &Caller, sandbox: &str, secret: &str) -> Result<Network, Problem> {
        let (_, _, _) = (caller, sandbox, secret);
        Err(crate::problem::shutting_down())
    }
}
