//! What is in force for one sandbox, in memory: compiled when it or the named sets change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_api::{Code, Effect, NetworkRule, Problem, Source, Template, network};
use sandbar_gateway::Question;
use sandbar_policy::{Policy, Rule, Sets};

/// Lives in its sandbox's handle.
pub(crate) struct Rules {
    pub(super) template: Vec<NetworkRule>,
    pub(super) template_secrets: Vec<String>,
    own: Mutex<Own>,
    /// Held over a change's commit, so that two at once do not lose one another.
    changing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Own {
    rules: Vec<NetworkRule>,
    secrets: Vec<String>,
    /// Until the rules change, with the generation of the sets it was compiled under.
    compiled: Option<(u64, Arc<Compiled>)>,
}

pub(super) struct Compiled {
    policy: Arc<Policy>,
    pub(super) findings: Vec<String>,
}

/// The sandbox's own rules and secrets, about to be changed.
pub(crate) type After = (Vec<NetworkRule>, Vec<String>);

impl Rules {
    /// `own` are the sandbox's rules and secrets as stored, beyond the template's.
    pub(crate) fn new(template: &Template, own: Vec<NetworkRule>, secrets: Vec<String>) -> Self {
        let rule = |(effect, text): (Effect, &str)| NetworkRule {
            effect,
            rule: Rule::parse(text).map_or_else(|_| text.to_owned(), |rule| rule.text),
            source: Source::Template,
        };
        Self {
            template: template.network.rules().map(rule).collect(),
            template_secrets: template.secrets.clone(),
            own: Mutex::new(Own { rules: own, secrets, compiled: None }),
            changing: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiled under these sets, which are told apart by their generation. A rule that cannot be compiled (its set is
    /// gone) allows nothing, and one that would have denied or asked denies everything: what it was meant for is not known.
    pub(crate) fn policy(&self, generation: u64, sets: &Sets) -> Arc<Policy> {
        self.compiled(generation, sets).policy.clone()
    }

    pub(super) fn compiled(&self, generation: u64, sets: &Sets) -> Arc<Compiled> {
        let mut own = self.lock();
        if let Some((under, compiled)) = &own.compiled
            && *under == generation
        {
            return compiled.clone();
        }
        let compiled = Arc::new(compile(self.template.iter().chain(&own.rules), sets));
        own.compiled = Some((generation, compiled.clone()));
        compiled
    }

    /// Names of the secrets it may use, the template's and its own.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let mut names = self.template_secrets.clone();
        names.extend(self.lock().secrets.iter().filter(|name| !self.template_secrets.contains(name)).cloned());
        names
    }

    /// The sandbox's own, for a fork.
    pub(crate) fn own(&self) -> After {
        let own = self.lock();
        (own.rules.clone(), own.secrets.clone())
    }

    /// Whether a person allowed exactly this for the sandbox, perhaps a moment ago.
    pub(crate) fn approved(&self, question: &Question) -> bool {
        let whole = Rule::exactly(&question.host, question.port).text;
        let exact = approval_rule(question).map(|rule| rule.text);
        let allows = |rule: &NetworkRule| {
            let by_approval = rule.source == Source::Approval && rule.effect == Effect::Allow;
            by_approval && (rule.rule == whole || Some(&rule.rule) == exact.as_ref())
        };
        self.lock().rules.iter().any(allows)
    }

    /// Nobody else changes them until this is dropped.
    pub(crate) async fn alone(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.changing.clone().lock_owned().await
    }

    /// Takes what was committed.
    pub(crate) fn take(&self, (rules, secrets): After) {
        *self.lock() = Own { rules, secrets, compiled: None };
    }

    /// With these added. Those it has already with another effect change it.
    pub(super) fn with(&self, effect: Effect, added: &[Rule]) -> Result<After, Problem> {
        let (mut rules, secrets) = self.own();
        for Rule { text, .. } in added {
            let same = |rule: &NetworkRule| rule.rule == *text && rule.effect == effect;
            rules.retain(|rule| rule.rule != *text || rule.effect == effect);
            if !self.template.iter().any(same) && !rules.iter().any(same) {
                rules.push(NetworkRule { effect, rule: text.clone(), source: Source::Sandbox });
            }
        }
        self.counted(rules, secrets)
    }

    /// With what a person allowed for the sandbox, whatever else says the same: only this goes before what asked.
    pub(crate) fn with_approved(&self, rule: &Rule) -> Result<After, Problem> {
        let (mut rules, secrets) = self.own();
        rules.retain(|own| own.rule != rule.text);
        rules.push(NetworkRule { effect: Effect::Allow, rule: rule.text.clone(), source: Source::Approval });
        self.counted(rules, secrets)
    }

    fn counted(&self, rules: Vec<NetworkRule>, secrets: Vec<String>) -> Result<After, Problem> {
        let count = self.template.len() + rules.len();
        if count <= network::MAX_RULES {
            return Ok((rules, secrets));
        }
        Err(Problem::new(
            Code::BadRule,
            format!("The sandbox would have {count} rules."),
            format!("Use at most {}; a named set counts once.", network::MAX_RULES),
        ))
    }
}

/// The rule that an answer for the whole sandbox makes; none if the path could be read differently by different parsers.
pub(crate) fn approval_rule(question: &Question) -> Option<Rule> {
    let rule = match (&question.method, &question.path) {
        (None, None) => Rule::exactly(&question.host, question.port),
        (method, path) => {
            let (method, path) = (method.as_deref()?, path.as_deref()?);
            Rule::exactly_request(&question.host, question.port, method, path).ok()?
        }
    };
    // As it will be read back.
    (Rule::parse(&rule.text).as_ref() == Ok(&rule)).then_some(rule)
}

/// With its full stop, unless it asks something.
pub(super) fn sentence(cause: &str) -> String {
    if cause.ends_with('?') { cause.to_owned() } else { format!("{cause}.") }
}

fn compile<'r>(rules: impl Iterator<Item = &'r NetworkRule>, sets: &Sets) -> Compiled {
    let (mut good, mut findings, mut closed) = (Vec::new(), Vec::new(), false);
    for NetworkRule { effect, rule: text, source } in rules {
        // Each alone first: what is wrong with one is not the others' fault.
        let usable =
            Rule::parse(text).and_then(|rule| Policy::compile([(*effect, &rule, *source)], sets).map(|_| rule));
        match usable {
            Ok(rule) => good.push((*effect, rule, *source)),
            Err(bad) if *effect == Effect::Allow => {
                findings.push(format!("`{text}` allows nothing: {}", sentence(&bad.cause)))
            }
            Err(bad) => {
                closed = true;
                let cause = sentence(&bad.cause);
                findings.push(format!("`{text}` cannot be used, and everything is denied until it can: {cause}"));
            }
        }
    }
    let all = Policy::compile(good.iter().map(|(effect, rule, source)| (*effect, rule, *source)), sets);
    let policy = all.unwrap_or_else(|bad| {
        closed = true;
        findings.push(format!("The rules cannot be used together, and everything is denied: {bad}."));
        Policy::default()
    });
    findings.extend(
        policy.findings().into_iter().map(|finding| format!("`{}`: {}", finding.rule, sentence(&finding.cause))),
    );
    let policy = if closed { Policy::default() } else { policy };
    Compiled { policy: Arc::new(policy), findings }
}
