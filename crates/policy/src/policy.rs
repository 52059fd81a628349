//! The rules a sandbox lives under, compiled: `deny` before `ask` before `allow`, else denied. An allow that an approval
//! made goes before `ask`, being the answer to it, and never before `deny`.

use std::net::IpAddr;

use crate::{
    BadRule, Effect, Host, Rule, Sets, Source, TunnelOptions, address::effective, findings, path::Plain, rule::Scope,
};

/// What is decided, and by which rule; without one nothing matched, and that is a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub effect: Effect,
    /// The rule's text (with the set it came by: `@python → packages.example.org`).
    pub rule: Option<String>,
}

/// What can be said when only host and port are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The same for every request.
    Decided(Decision),
    /// It depends on method or path: TLS has to be terminated and each request judged.
    Inspect,
}

/// Something the author of the rules should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: String,
    /// For example: `never used: the deny rule `*.example.org` covers it`.
    pub cause: String,
}

#[derive(Debug, Clone, Default)]
pub struct Policy {
    entries: Vec<Entry>,
    sets: Vec<NamedSet>,
}

/// One rule, its own or of a set.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) effect: Effect,
    pub(crate) source: Source,
    pub(crate) scope: Scope,
    /// With the set it came by.
    pub(crate) label: String,
    /// Which of the policy's sets it came by.
    pub(crate) set: Option<usize>,
}

/// A rule that names a set.
#[derive(Debug, Clone)]
pub(crate) struct NamedSet {
    pub(crate) effect: Effect,
    pub(crate) text: String,
}

impl Entry {
    /// The lowest decides.
    pub(crate) fn rank(&self) -> u8 {
        match (self.effect, self.source) {
            (Effect::Deny, _) => 0,
            (Effect::Allow, Source::Approval) => 1,
            (Effect::Ask, _) => 2,
            (Effect::Allow, _) => 3,
        }
    }
}

impl Policy {
    /// Sets are looked up now: a policy is compiled anew when they change. An unknown set is an error.
    pub fn compile<'r>(
        rules: impl IntoIterator<Item = (Effect, &'r Rule, Source)>,
        sets: &Sets,
    ) -> Result<Self, BadRule> {
        let mut policy = Self::default();
        for (effect, rule, source) in rules {
            match (rule.set(), rule.scope()) {
                (Some(name), _) => {
                    let members = sets.get(name).ok_or_else(|| unknown(rule, name, sets))?;
                    policy.sets.push(NamedSet { effect, text: rule.text.clone() });
                    let set = Some(policy.sets.len() - 1);
                    for member in members {
                        let (scope, text) = read_member(name, member)?;
                        let label = format!("@{name} → {text}");
                        policy.entries.push(Entry { effect, source, scope, label, set });
                    }
                }
                (None, Some(scope)) => {
                    check_options(effect, scope, rule)?;
                    let (scope, label) = (scope.clone(), rule.text.clone());
                    policy.entries.push(Entry { effect, source, scope, label, set: None });
                }
                (None, None) => {
                    return Err(BadRule { text: rule.text.clone(), cause: "it was changed after it was read".into() });
                }
            }
        }
        Ok(policy)
    }

    /// Whether some rule depends on what only a request tells, so that connections may have to be looked into.
    pub fn inspects(&self) -> bool {
        self.entries.iter().any(|entry| entry.scope.has_conditions())
    }

    /// Before a connection is made. Where nothing could be allowed nothing is inspected, so that such a name is not even
    /// resolved.
    pub fn connect(&self, host: &Host, port: u16) -> Verdict {
        let here = || self.entries.iter().filter(|entry| entry.scope.reaches(host, port));
        let denied = here().find(|entry| entry.effect == Effect::Deny && !entry.scope.has_conditions());
        if denied.is_some() || here().all(|entry| entry.effect == Effect::Deny) {
            return Verdict::Decided(decision(denied));
        }
        if here().any(|entry| entry.scope.has_conditions()) {
            return Verdict::Inspect;
        }
        Verdict::Decided(decision(here().min_by_key(|entry| entry.rank())))
    }

    /// A request whose method and path are seen. A path that two parsers could read differently (`..`, `//`, encoded
    /// slashes, dots or NULs, backslashes, `;`) matches no allow rule that has a path, and every deny and ask rule that
    /// has one and whose methods match. Those also match with a slash added to the path's end, or taken from it.
    pub fn request(&self, host: &Host, port: u16, method: &str, path: &str) -> Decision {
        let path = Plain::read(path);
        let holds =
            |entry: &&Entry| entry.scope.reaches(host, port) && entry.scope.holds(entry.effect, method, path.as_ref());
        decision(self.entries.iter().filter(holds).min_by_key(|entry| entry.rank()))
    }

    /// What a tunnel to there may carry, as all rules together say that could have allowed it.
    pub fn tunnel_options(&self, host: &Host, port: u16) -> TunnelOptions {
        let here = self.entries.iter().filter(|entry| entry.effect != Effect::Deny && entry.scope.reaches(host, port));
        here.fold(TunnelOptions::default(), |sum, entry| sum.or(entry.scope.options))
    }

    /// The rule that denies an address, whatever name led to it: asked of every address before it is dialled.
    pub fn denies_address(&self, address: IpAddr, port: u16) -> Option<String> {
        let ways = [address.to_canonical(), effective(address)].map(Host::Ip);
        let denies = |entry: &&Entry| {
            let reaches = ways.iter().any(|host| entry.scope.reaches(host, port));
            entry.effect == Effect::Deny && !entry.scope.has_conditions() && reaches
        };
        self.entries.iter().find(denies).map(|entry| entry.label.clone())
    }

    /// Rules that can never decide anything, and those that contradict each other.
    pub fn findings(&self) -> Vec<Finding> {
        findings::find(&self.entries, &self.sets)
    }
}

/// A deny rule with an option could be read as one that only takes the option away. In a set it is about the host.
fn check_options(effect: Effect, scope: &Scope, rule: &Rule) -> Result<(), BadRule> {
    let options = scope.options;
    if effect != Effect::Deny || options == TunnelOptions::default() {
        return Ok(());
    }
    let cause = format!("a deny rule has no options: leave out `{options}`, which nothing has unless a rule allows it");
    Err(BadRule { text: rule.text.clone(), cause })
}

fn decision(by: Option<&Entry>) -> Decision {
    by.map_or(Decision { effect: Effect::Deny, rule: None }, |entry| Decision {
        effect: entry.effect,
        rule: Some(entry.label.clone()),
    })
}

fn read_member(set: &str, text: &str) -> Result<(Scope, String), BadRule> {
    let bad = |cause: String| BadRule { text: text.to_owned(), cause: format!("in the set `@{set}`: {cause}") };
    let rule = Rule::parse(text).map_err(|error| bad(error.cause))?;
    let scope = rule.scope().ok_or_else(|| bad("a set may not name another: write its rules here".into()))?;
    Ok((scope.clone(), rule.text.clone()))
}

fn unknown(rule: &Rule, name: &str, sets: &Sets) -> BadRule {
    let nearest = sets.keys().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
    let cause = match nearest {
        Some((distance, known)) if distance <= name.len().div_ceil(3) => {
            format!("there is no such set: did you mean `@{known}`?")
        }
        Some(_) => format!(
            "there is no such set, only {}",
            sets.keys().map(|known| format!("`@{known}`")).collect::<Vec<_>>().join(", ")
        ),
        None => "there are no sets: write its rules instead, or make the set first".into(),
    };
    BadRule { text: rule.text.clone(), cause }
}

#[cfg(test)]
mod tests;
