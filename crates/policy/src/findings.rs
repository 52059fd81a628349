//! What the author of rules should know: rules that never decide, rules that say nothing new, sets without rules.

use crate::{
    Effect, Finding, Host, Source, address,
    pattern::Hosts,
    policy::{Entry, NamedSet},
};

pub(crate) fn find(entries: &[Entry], sets: &[NamedSet]) -> Vec<Finding> {
    let mut found = Vec::new();
    let useless: Vec<_> = (0..entries.len()).map(|at| unused(entries, at)).collect();
    for (at, entry) in entries.iter().enumerate() {
        if entry.set.is_some_and(|set| whole_set(entries, &useless, set).is_some()) {
            continue;
        }
        // What sets have in common is not worth a word.
        let repeated = || entry.set.is_none().then(|| redundant(entries, at)).flatten();
        if let Some(cause) = useless[at].clone().or_else(repeated) {
            found.push(Finding { rule: entry.label.clone(), cause });
        }
    }
    for (at, set) in sets.iter().enumerate() {
        let said = sets[..at].iter().any(|other| other.effect == set.effect && other.text == set.text);
        let cause = if said {
            Some("said twice: leave one out".to_owned())
        } else if !entries.iter().any(|entry| entry.set == Some(at)) {
            Some("the set has no rules".to_owned())
        } else {
            whole_set(entries, &useless, at)
        };
        found.extend(cause.map(|cause| Finding { rule: set.text.clone(), cause }));
    }
    found
}

/// Why no rule of a set is ever used, if that is so: one finding instead of one for each.
fn whole_set(entries: &[Entry], useless: &[Option<String>], set: usize) -> Option<String> {
    let members = entries.iter().zip(useless).filter(|(entry, _)| entry.set == Some(set));
    let causes: Vec<_> = members.map(|(_, cause)| cause.as_ref()).collect::<Option<_>>()?;
    let first = *causes.first()?;
    Some(if causes.iter().all(|cause| *cause == first) {
        first.clone()
    } else {
        "never used: other rules cover all that is in it".into()
    })
}

/// Why it never decides anything.
fn unused(entries: &[Entry], at: usize) -> Option<String> {
    let entry = &entries[at];
    // where a person is asked, the options of rules that allow count all the same
    let adds = |other: &Entry| other.effect != Effect::Deny && !other.scope.options.covers(entry.scope.options);
    let stronger = |other: &&Entry| {
        let goes_before = other.effect != Effect::Allow && other.rank() < entry.rank();
        goes_before && other.scope.overrides(&entry.scope) && !adds(other)
    };
    if let Some(other) = entries.iter().find(stronger) {
        let (word, label, whose) = (word(other.effect), &other.label, whose(other, entry));
        let why = if other.scope == entry.scope { "says the same and goes before it" } else { "covers it" };
        return Some(format!("never used: the {word} rule `{label}`{whose} {why}"));
    }
    match &entry.scope.hosts {
        Hosts::Exactly(Host::Ip(ip)) if entry.effect != Effect::Deny => {
            address::never(*ip).map(|kind| format!("never used: {ip} is {kind}, which is never reached"))
        }
        _ => None,
    }
}

/// Which other rule of the same effect says it already.
fn redundant(entries: &[Entry], at: usize) -> Option<String> {
    let entry = &entries[at];
    let alike = |other: &Entry| other.rank() == entry.rank() && other.source != Source::Approval;
    let mut others = entries.iter().enumerate().filter(|(other, entry)| *other != at && alike(entry));
    let said = others.clone().find(|(n, other)| other.scope == entry.scope && (*n < at || other.set.is_some()));
    if let Some((_, other)) = said {
        let already = match (other.set, whose(other, entry)) {
            (Some(_), whose) => format!("said by `{}`{whose} too", other.label),
            (None, "") => "said twice".into(),
            (None, whose) => format!("said by a rule{whose} too"),
        };
        return Some(format!("{already}: leave one out"));
    }
    let (_, broader) = others.find(|(_, other)| other.scope != entry.scope && other.scope.covers(&entry.scope))?;
    let (word, label, whose) = (word(broader.effect), &broader.label, whose(broader, entry));
    Some(format!("adds nothing: the {word} rule `{label}`{whose} covers it"))
}

fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::Deny => "deny",
        Effect::Ask => "ask",
        Effect::Allow => "allow",
    }
}

/// Where the other rule is to be looked for, unless they stand together.
fn whose(other: &Entry, entry: &Entry) -> &'static str {
    match other.source {
        source if source == entry.source => "",
        Source::Template => " of the template",
        Source::Sandbox => " of the sandbox",
        Source::Approval => " of an approval",
    }
}
