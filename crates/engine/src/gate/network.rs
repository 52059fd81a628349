//! The network of a sandbox: its template's rules and secrets, then its own; changed live.

mod rules;

use std::time::Duration;

use sandbar_api::{
    AddRules, Code, CreateSandbox, Effect, Network, NetworkRule, Problem, SandboxState, Source, Template, network,
};
use sandbar_policy::{Host, Policy, Rule, Sets, Verdict};
use serde_json::{Value, json};
use tokio::time;

use self::rules::{After, sentence};
pub(crate) use self::rules::{Rules, approval_rule};
use super::secrets;
use crate::{Caller, Engine, Inner, handle::Handle, problem};

const EFFECTS: [Effect; 3] = [Effect::Deny, Effect::Ask, Effect::Allow];

/// How long a guest may take to spread its authority's certificate.
const TRUST: Duration = Duration::from_secs(5);
const UNTRUSTED: &str =
    "Programs inside could not be told of the sandbox's certificates: stop and start it if they refuse connections.";

/// Asking or denying anew takes back what a person had allowed before: the answer to another question is no answer.
fn take_back(rules: &mut Vec<NetworkRule>, effect: Effect, added: &[Rule], sets: &Sets) {
    if effect == Effect::Allow {
        return;
    }
    // As allow rules: those would not be looked for where nothing is allowed.
    let added = added.iter().map(|rule| (Effect::Allow, rule, Source::Sandbox));
    let Ok(reached) = Policy::compile(added, sets) else { return };
    rules.retain(|rule| {
        let target = rule.rule.split(' ').next().unwrap_or_default();
        let Ok((host, port)) = Host::parse_authority(target, 443) else { return true };
        let untouched = matches!(reached.connect(&host, port), Verdict::Decided(decision) if decision.rule.is_none());
        rule.source != Source::Approval || untouched
    });
}

fn compile<'r>(rules: impl Iterator<Item = (Effect, &'r Rule, Source)>, sets: &Sets) -> Result<Policy, Problem> {
    Policy::compile(rules, sets).map_err(|bad| {
        let detail = format!("`{}` cannot be used: {}", bad.text.escape_debug(), sentence(&bad.cause));
        Problem::new(Code::BadRule, detail, "Named sets are in sets.toml of the home.")
    })
}

impl Inner {
    /// Whether what a new sandbox asks of its gate can be given: its sets and secrets are there.
    pub(crate) fn check_gate(&self, template: &Template, request: &CreateSandbox) -> Result<(), Problem> {
        let written = template.network.rules().chain(request.network.rules());
        let rules = written.map(|(effect, text)| Ok((effect, network::rule(text)?)));
        let rules = rules.collect::<Result<Vec<_>, Problem>>()?;
        let rules = rules.iter().map(|(effect, rule)| (*effect, rule, Source::Sandbox));
        compile(rules, &self.gates.loaded().sets)?;
        match template.secrets.iter().chain(&request.secrets).find(|name| !self.gates.secrets.exists(name)) {
            Some(name) => Err(secrets::unknown(name)),
            None => Ok(()),
        }
    }

    fn network(&self, handle: &Handle) -> Network {
        let loaded = self.gates.loaded();
        let rules = &handle.rules;
        let mut findings = rules.compiled(loaded.generation, &loaded.sets).findings.clone();
        let keys =
            loaded.catalogue.upstreams.iter().filter_map(|(name, upstream)| Some((name, upstream.secret.as_ref()?)));
        findings.extend(keys.filter(|(_, secret)| rules.secrets().contains(secret)).map(|(name, secret)| {
            format!("{secret} is the key of the upstream {name}: calls made with it past the gate's LLM endpoints are not counted")
        }));
        let (own, _) = rules.own();
        let all: Vec<_> = rules.template.iter().chain(&own).collect();
        let of = |effect| all.iter().filter(move |rule| rule.effect == effect).map(|rule| (*rule).clone());
        Network { rules: EFFECTS.into_iter().flat_map(of).collect(), secrets: rules.secrets(), findings }
    }
}

impl Engine {
    pub async fn network(&self, sandbox: &str) -> Result<Network, Problem> {
        Ok(self.inner.network(&*self.inner.handle(sandbox).await?))
    }

    /// An unknown set is refused; findings about the new rules are in what is returned.
    pub async fn add_rules(&self, caller: &Caller, sandbox: &str, request: AddRules) -> Result<Network, Problem> {
        let AddRules { effect, rules } = request;
        let added = rules.iter().map(|text| network::rule(text)).collect::<Result<Vec<_>, _>>()?;
        if added.is_empty() {
            let fix = "Name at least one, for example api.github.com.";
            return Err(Problem::new(Code::BadRule, "There is no rule to add.", fix));
        }
        let loaded = self.inner.gates.loaded();
        compile(added.iter().map(|rule| (effect, rule, Source::Sandbox)), &loaded.sets)?;
        let texts: Vec<_> = added.iter().map(|rule| rule.text.clone()).collect();
        let change = json!({ "effect": effect, "rules": texts, "by": caller.owner });
        self.change_rules(sandbox, change, move |handle| {
            let (mut rules, secrets) = handle.rules.with(effect, &added)?;
            take_back(&mut rules, effect, &added, &loaded.sets);
            Ok((rules, secrets))
        })
        .await
    }

    /// Only the sandbox's own: a template's rules stay.
    pub async fn remove_rule(&self, caller: &Caller, sandbox: &str, rule: &str) -> Result<Network, Problem> {
        let text = Rule::parse(rule).map_or_else(|_| rule.to_owned(), |rule| rule.text);
        let change = json!({ "removed": [text], "by": caller.owner });
        self.change_rules(sandbox, change, move |handle| {
            let (mut rules, secrets) = handle.rules.own();
            let before = rules.len();
            rules.retain(|rule| rule.rule != text);
            if rules.len() < before {
                return Ok((rules, secrets));
            }
            let (name, templates) = (handle.name(), handle.rules.template.iter().any(|rule| rule.rule == text));
            Err(Problem::new(
                Code::UnknownRule,
                format!("The sandbox `{name}` has no rule `{}` of its own.", text.escape_debug()),
                if templates {
                    format!("It is its template's and stays; `sandbar net deny {name} …` goes before it.")
                } else {
                    format!("`sandbar net show {name}` shows those it has.")
                },
            ))
        })
        .await
    }

    pub async fn grant_secret(&self, caller: &Caller, sandbox: &str, secret: &str) -> Result<Network, Problem> {
        let (inner, name) = (self.inner.clone(), secret.to_owned());
        let change = json!({ "granted": name, "by": caller.owner });
        self.change_rules(sandbox, change, move |handle| {
            let (rules, mut secrets) = handle.rules.own();
            if !inner.gates.secrets.exists(&name) {
                return Err(secrets::unknown(&name));
            }
            if !handle.rules.secrets().contains(&name) {
                secrets.push(name);
            }
            Ok((rules, secrets))
        })
        .await
    }

    pub async fn revoke_secret(&self, caller: &Caller, sandbox: &str, secret: &str) -> Result<Network, Problem> {
        let name = secret.to_owned();
        let change = json!({ "revoked": name, "by": caller.owner });
        self.change_rules(sandbox, change, move |handle| {
            let (rules, mut secrets) = handle.rules.own();
            let before = secrets.len();
            secrets.retain(|own| *own != name);
            if secrets.len() < before {
                return Ok((rules, secrets));
            }
            let (of, templates) = (handle.name(), handle.rules.template_secrets.contains(&name));
            Err(Problem::new(
                Code::UnknownSecret,
                format!("The sandbox `{of}` was not granted the secret `{}`.", name.escape_debug()),
                if templates {
                    "It may use it by its template; remove the secret, or take it out of the template for new sandboxes."
                        .to_owned()
                } else {
                    format!("`sandbar net show {of}` shows those it may use.")
                },
            ))
        })
        .await
    }

    /// One change after the other, each in the store before it is in force. What changes nothing is not told.
    async fn change_rules(
        &self,
        sandbox: &str,
        change: Value,
        after: impl FnOnce(&Handle) -> Result<After, Problem> + Send + 'static,
    ) -> Result<Network, Problem> {
        let (inner, handle) = (self.inner.clone(), self.inner.handle(sandbox).await?);
        let work = async move {
            let alone = handle.rules.alone().await;
            if handle.state() == SandboxState::Deleted {
                return Err(problem::gone(&handle.name()));
            }
            let after = after(&handle)?;
            if after == handle.rules.own() {
                return Ok(inner.network(&handle));
            }
            inner.store.set_network(&handle.id, &after.0, &after.1, change).await?;
            handle.rules.take(after);
            drop(alone);
            let mut network = inner.network(&handle);
            // The change stands either way: at worst programs inside do not trust what it lets them reach.
            let told = time::timeout(TRUST, inner.spread_trust(&handle)).await;
            if !matches!(told, Ok(Ok(()))) {
                tracing::warn!(sandbox = %handle.id, "programs inside could not be told whom to trust");
                network.findings.push(UNTRUSTED.into());
            }
            Ok(network)
        };
        self.inner.finish(work).await
    }
}
