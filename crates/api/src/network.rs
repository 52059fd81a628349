//! Where a sandbox may talk to: rules of its template and its own, and the secrets it may use on the way.

use sandbar_policy::{Effect, Rule, Source};
use serde::{Deserialize, Serialize};

use crate::{Code, Problem};

/// Where programs inside find their sandbox's gate; one that few servers people run inside want for themselves.
pub const GATE_PORT: u16 = 7228;

/// More rules than anybody reads; each costs a comparison per connection.
pub const MAX_RULES: usize = 500;

/// Rules as a template or a request writes them: `HOST[:PORTS] [METHODS] [PATH]`, or `@set`. `deny` before `ask` before
/// `allow`; what no rule names is denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["@github", "api.github.com GET /repos/**"]))]
    pub allow: Vec<String>,
    /// A person is asked, and the connection waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

impl NetworkPolicy {
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.ask.is_empty() && self.deny.is_empty()
    }

    /// All of them, with what they do.
    pub fn rules(&self) -> impl Iterator<Item = (Effect, &str)> {
        let lists = [(Effect::Deny, &self.deny), (Effect::Ask, &self.ask), (Effect::Allow, &self.allow)];
        lists.into_iter().flat_map(|(effect, list)| list.iter().map(move |text| (effect, text.as_str())))
    }

    /// Whether each of them is a rule; sets are looked up when they are used.
    pub fn check(&self) -> Result<(), Problem> {
        if self.rules().count() > MAX_RULES {
            return Err(Problem::new(
                Code::BadRule,
                format!("{} rules are too many.", self.rules().count()),
                format!("Use at most {MAX_RULES}; a named set counts once."),
            ));
        }
        self.rules().try_for_each(|(_, text)| rule(text).map(drop))
    }
}

/// Parses a rule, or says what is wrong with it.
pub fn rule(text: &str) -> Result<Rule, Problem> {
    Rule::parse(text).map_err(|bad| {
        Problem::new(
            Code::BadRule,
            format!("`{}` is not a rule: {}.", bad.text.escape_debug(), bad.cause),
            "Write HOST[:PORTS] [METHODS] [PATH], for example `api.github.com`, `*.example.org:443` or `@github`.",
        )
    })
}

/// A rule in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NetworkRule {
    #[schema(value_type = String, example = "allow")]
    pub effect: Effect,
    #[schema(example = "api.github.com")]
    pub rule: String,
    /// `template`, `sandbox` (added to it) or `approval` (a person allowed it for the sandbox).
    #[schema(value_type = String, example = "template")]
    pub source: Source,
}

/// The network of a sandbox as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Network {
    /// In the order they count: deny, ask, allow.
    pub rules: Vec<NetworkRule>,
    /// Names of the secrets it may use.
    pub secrets: Vec<String>,
    /// What the author of the rules should know: those that never decide anything, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

/// Rules to add to a sandbox; one that it has already with another effect changes its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"effect": "allow", "rules": ["api.github.com"]}))]
pub struct AddRules {
    #[schema(value_type = String, example = "allow")]
    pub effect: Effect,
    pub rules: Vec<String>,
}
