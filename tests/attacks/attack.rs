//! What an attack is: data. An attempt, what must become of it, and the control that shows the attempt can succeed.

use std::pin::Pin;

use crate::{
    stage::{Stage, Target},
    support::Outcome,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Files,
    Kernel,
    Processes,
    Terminals,
    Limits,
    Neighbours,
    Identity,
    Web,
    Policy,
    Gate,
    Secrets,
    Budgets,
    Approvals,
    Surfaces,
}

impl Class {
    pub(crate) const ALL: &[Self] = &[
        Self::Files,
        Self::Kernel,
        Self::Processes,
        Self::Terminals,
        Self::Limits,
        Self::Neighbours,
        Self::Identity,
        Self::Web,
        Self::Policy,
        Self::Gate,
        Self::Secrets,
        Self::Budgets,
        Self::Approvals,
        Self::Surfaces,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Kernel => "kernel",
            Self::Processes => "processes",
            Self::Terminals => "terminals",
            Self::Limits => "limits",
            Self::Neighbours => "neighbours",
            Self::Identity => "identity",
            Self::Web => "web",
            Self::Policy => "policy",
            Self::Gate => "gate",
            Self::Secrets => "secrets",
            Self::Budgets => "budgets",
            Self::Approvals => "approvals",
            Self::Surfaces => "surfaces",
        }
    }
}

/// What became of an attempt, and how that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    Escaped(String),
    Contained(String),
    NotRun(String),
}

impl Finding {
    pub(crate) fn escaped(what: impl Into<String>) -> Self {
        Self::Escaped(what.into())
    }

    pub(crate) fn contained(how: impl Into<String>) -> Self {
        Self::Contained(how.into())
    }

    pub(crate) fn not_run(why: impl Into<String>) -> Self {
        Self::NotRun(why.into())
    }

    pub(crate) fn line(&self) -> String {
        match self {
            Self::Escaped(what) => format!("escaped: {what}"),
            Self::Contained(how) => format!("contained: {how}"),
            Self::NotRun(why) => format!("not run: {why}"),
        }
    }

    /// From the last line of a probe or script that says it.
    pub(crate) fn parse(output: &str) -> Option<Self> {
        output.lines().rev().find_map(|line| {
            let (kind, text) = line.split_once(": ")?;
            match kind {
                "escaped" => Some(Self::escaped(text)),
                "contained" => Some(Self::contained(text)),
                "not run" => Some(Self::not_run(text)),
                _ => None,
            }
        })
    }
}

pub(crate) type Acting<'a> = Pin<Box<dyn Future<Output = Outcome<Finding>> + 'a>>;
pub(crate) type Act = for<'a> fn(&'a Stage, &'a Target) -> Acting<'a>;

/// An async function as an [`Act`].
macro_rules! act {
    ($function:path) => {
        |stage, target| Box::pin($function(stage, target))
    };
}
pub(crate) use act;

#[derive(Clone, Copy)]
pub(crate) enum Attempt {
    /// This program inside the sandbox, as the probe of that name.
    Probe(&'static str),
    /// A script that says `escaped: …` or `contained: …` itself.
    Shell(&'static str),
    /// From outside, through the API.
    Act(Act),
}

#[derive(Clone, Copy)]
pub(crate) enum Control {
    /// The same in a sandbox without these layers.
    Without(&'static [&'static str]),
    /// The same in a sandbox of this template.
    Template(&'static str),
    /// The same by a process of the host, as the user of this run, in a directory of its own.
    Host,
    /// The same in fresh namespaces, as their root, without a fence.
    Unshared,
    /// Something else that differs in one thing only, which is said.
    Act(&'static str, Act),
    NotRun(&'static str),
    /// As root, and as an ordinary user.
    PerUser(&'static Control, &'static Control),
}

#[derive(Clone)]
pub(crate) struct Attack {
    pub(crate) class: Class,
    pub(crate) name: &'static str,
    pub(crate) attempt: Attempt,
    /// What must be said of how it was contained, alternatives separated by `|`; empty where the attempt judges itself.
    pub(crate) contained: &'static str,
    pub(crate) control: Control,
    /// On which profiles, besides each other's.
    pub(crate) profiles: &'static [&'static str],
    /// What the sandbox's template says besides its profile.
    pub(crate) with: &'static str,
}

const ROOT: &str = "user = \"root\"\n";
pub(crate) const BOTH: &[&str] = &["standard", "hardened"];

impl Attack {
    pub(crate) fn new(class: Class, name: &'static str, attempt: Attempt, control: Control) -> Self {
        Self { class, name, attempt, contained: "", control, profiles: BOTH, with: "" }
    }

    /// A probe of the same name.
    pub(crate) fn probe(class: Class, name: &'static str, contained: &'static str, control: Control) -> Self {
        Self { contained, ..Self::new(class, name, Attempt::Probe(name), control) }
    }

    pub(crate) fn shell(class: Class, name: &'static str, script: &'static str, control: Control) -> Self {
        Self::new(class, name, Attempt::Shell(script), control)
    }

    pub(crate) fn act(class: Class, name: &'static str, act: Act, control: Control) -> Self {
        Self::new(class, name, Attempt::Act(act), control)
    }

    pub(crate) fn on(self, profiles: &'static [&'static str]) -> Self {
        Self { profiles, ..self }
    }

    /// By root of the sandbox instead of its ordinary user; `hardened` refuses that.
    pub(crate) fn by_root(self) -> Self {
        self.with(ROOT).on(&["standard"])
    }

    pub(crate) fn title(&self, profile: &str) -> String {
        let whose = if self.with == ROOT { " by its root" } else { "" };
        format!("{}/{}{whose} on {profile}", self.class.as_str(), self.name)
    }

    pub(crate) fn with(self, with: &'static str) -> Self {
        Self { with, ..self }
    }
}
