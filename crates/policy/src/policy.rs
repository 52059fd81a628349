//! The rules a sandbox lives under, compiled: `deny` before `ask` before `allow`, else denied.

use crate::{BadRule, Effect, Host, Rule, Sets, Source};

/// What is decided, and by which rule; without one nothing matched, and that is a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub effect: Effect,
    /// The rule's text (with the set it came by: `@python → pypi.org`).
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
    // Private: compiled rules.
}

impl Policy {
    /// Sets are looked up now: a policy is compiled anew when they change. An unknown set is an error.
    pub fn compile<'r>(
        rules: impl IntoIterator<Item = (Effect, &'r Rule, Source)>,
        sets: &Sets,
    ) -> Result<Self, BadRule> {
        let (_, _) = (rules.into_iter().count(), sets);
        Ok(Self {})
    }

    /// Before a connection is made.
    pub fn connect(&self, host: &Host, port: u16) -> Verdict {
        let (_, _) = (host, port);
        Verdict::Decided(Decision { effect: Effect::Deny, rule: None })
    }

    /// A request whose method and path are seen. A path that two parsers could read differently (`..`, `//`, encoded
    /// slashes, dots or NULs, backslashes) matches no allow rule that has a path, and every deny and ask rule that has one.
    pub fn request(&self, host: &Host, port: u16, method: &str, path: &str) -> Decision {
        let (_, _, _, _) = (host, port, method, path);
        Decision { effect: Effect::Deny, rule: None }
    }

    /// Rules that can never decide anything, and those that contradict each other.
    pub fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}
