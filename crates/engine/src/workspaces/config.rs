//! `workspaces.toml` of the home: how the workspaces of each agent are made. Read whenever one is asked for, so that an
//! edit takes effect at once; a file that is wrong refuses, and nothing is made by what it might have meant.

use std::{path::Path, time::Duration};

use sandbar_api::{Code, HumanDuration, Idle, Limits, Problem, SetBudget, Template, check};

use crate::{
    gate::config::{
        self,
        document::{Document, Field, Mistake, Read, Section},
        file, sizes,
    },
    templates,
};

const FILE: &str = "workspaces.toml";
/// Where neither the file nor the template says anything.
const TTL: HumanDuration = HumanDuration(Duration::from_secs(7 * 24 * 3600));
const STOP_AFTER: HumanDuration = HumanDuration(Duration::from_secs(3600));

/// What holds for one agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) template: String,
    pub(crate) enabled: bool,
    ttl: Option<HumanDuration>,
    idle: Option<Idle>,
    limits: Limits,
    budget: SetBudget,
}

impl Plan {
    /// Of a conversation of this agent, unless its template or the server says otherwise.
    pub(crate) fn budget(&self, template: &Template) -> SetBudget {
        self.budget.over(&template.budget)
    }

    /// Gives the template what holds for workspaces made of it, and says how long each use puts their expiry off.
    pub(crate) fn shape(&self, template: &mut Template) -> HumanDuration {
        template.limits = self.limits.over(&template.limits);
        if let Some(idle) = &self.idle {
            template.idle = idle.clone();
        } else if template.idle == Idle::default() {
            template.idle.stop_after = Some(STOP_AFTER);
        }
        self.ttl.or(template.ttl).unwrap_or(TTL)
    }
}

/// As it is written in one section.
#[derive(Debug, Default, Clone)]
struct Written {
    template: Option<String>,
    enabled: Option<bool>,
    ttl: Option<HumanDuration>,
    idle: Option<Idle>,
    limits: Limits,
    budget: SetBudget,
}

/// The agent's section, by its whole name or by what comes after its namespace; what that leaves open `[default]` says.
pub(crate) fn plan(home: &Path, agent: &str) -> Result<Plan, Problem> {
    let path = home.join(FILE);
    // On this thread, as templates are read.
    let text = file::read(&path, config::LARGEST)
        .map_err(|cause| vec![Mistake { line: None, cause: format!("it cannot be read: {cause}") }])
        .and_then(|text| read(&text.unwrap_or_default(), agent));
    text.map_err(|mistakes| {
        let told: Vec<_> = mistakes.iter().map(|mistake| config::told(&path, mistake)).collect();
        Problem::new(
            Code::BadWorkspaceConfig,
            told.join(" "),
            "Correct the file, or move it away; no workspace is given out until then.",
        )
    })
}

fn read(text: &str, agent: &str) -> Result<Plan, Vec<Mistake>> {
    let document = Document::read(text).map_err(|mistake| vec![mistake])?;
    let (whole, mut mistakes) = (document.whole(), Vec::new());
    mistakes.extend(whole.only(&["default", "agents"]).err());
    let mut keep = |read: Read<Written>| match read {
        Ok(written) => Some(written),
        Err(mistake) => {
            mistakes.push(mistake);
            None
        }
    };
    let default = whole.field("default").and_then(|field| keep(section(&field))).unwrap_or_default();
    let mut agents = Vec::new();
    match whole.field("agents").map(|field| field.section()).transpose() {
        Ok(listed) => {
            for field in listed.iter().flat_map(Section::fields) {
                agents.extend(keep(section(&field)).map(|written| (field.name, written)));
            }
        }
        Err(mistake) => drop(keep(Err(mistake))),
    }
    if !mistakes.is_empty() {
        mistakes.sort_by_key(|mistake| mistake.line);
        return Err(mistakes);
    }
    let short = agent.rsplit('/').next().unwrap_or(agent);
    let named = |name: &str| agents.iter().find(|(known, _)| *known == name).map(|(_, written)| written.clone());
    let own = named(agent).or_else(|| named(short)).unwrap_or_default();
    Ok(Plan {
        template: own.template.or(default.template).unwrap_or_else(|| templates::DEFAULT.to_owned()),
        enabled: own.enabled.or(default.enabled).unwrap_or(true),
        ttl: own.ttl.or(default.ttl),
        idle: own.idle.or(default.idle),
        limits: own.limits.over(&default.limits),
        budget: own.budget.over(&default.budget),
    })
}

fn section(field: &Field<'_>) -> Read<Written> {
    let section = field.section()?;
    section.only(&["template", "enabled", "ttl", "idle", "limits", "budget"])?;
    let template = section.field("template").map(|field| match field.text()? {
        name if check::name(name).is_ok() => Ok(name.to_owned()),
        name => Err(field.bad(format!(
            "`{}` cannot be the name of a template: use 1 to 63 of a-z, 0-9 and `-`",
            name.escape_debug()
        ))),
    });
    Ok(Written {
        template: template.transpose()?,
        enabled: section.field("enabled").map(|field| field.flag()).transpose()?,
        ttl: section.field("ttl").map(|field| duration(&field)).transpose()?,
        idle: section.field("idle").map(|field| idle(&field)).transpose()?,
        limits: section.field("limits").map(|field| sizes::limits(&field)).transpose()?.unwrap_or_default(),
        budget: section.field("budget").map(|field| sizes::budget(&field)).transpose()?.unwrap_or_default(),
    })
}

fn duration(field: &Field<'_>) -> Read<HumanDuration> {
    let duration: HumanDuration =
        field.text()?.parse().map_err(|bad: sandbar_api::duration::BadDuration| field.bad(bad.to_string()))?;
    match duration.0.is_zero() {
        true => Err(field.bad(format!("`{}` is zero: write a longer time, or leave it out", field.name))),
        false => Ok(duration),
    }
}

/// Takes the place of all that the template says about idleness.
fn idle(field: &Field<'_>) -> Read<Idle> {
    const STEPS: [&str; 3] = ["pause_after", "stop_after", "delete_after"];
    let section = field.section()?;
    section.only(&STEPS)?;
    let mut after = [None; 3];
    let mut before: Option<(&str, HumanDuration)> = None;
    for (step, after) in STEPS.into_iter().zip(&mut after) {
        let Some(field) = section.field(step) else { continue };
        let time = duration(&field)?;
        if let Some((earlier, earlier_time)) = before.filter(|(_, earlier)| time <= *earlier) {
            return Err(field.bad(format!(
                "`{step}` ({time}) is not after `{earlier}` ({earlier_time}), so that one would never happen: make it longer, or leave one out"
            )));
        }
        before = Some((step, time));
        *after = Some(time);
    }
    let [pause_after, stop_after, delete_after] = after;
    Ok(Idle { pause_after, stop_after, delete_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tested = Result<(), Box<dyn std::error::Error>>;

    fn plan_of(text: &str, agent: &str) -> Result<Plan, String> {
        read(text, agent).map_err(|mistakes| {
            let told = mistakes.iter().map(|bad| format!("{}: {}", bad.line.unwrap_or_default(), bad.cause));
            told.collect::<Vec<_>>().join("; ")
        })
    }

    #[test]
    fn what_is_not_said_is_filled_in_from_outside_to_inside() -> Tested {
        let text = "[default]\nttl = \"2d\"\nidle.stop_after = \"5m\"\n\n[agents.coder]\ntemplate = \"rust\"\n\n\
                    [agents.\"team/coder\"]\nenabled = false\nttl = \"1h\"\n";
        let mut template = Template::default();
        let other = plan_of(text, "ns/other")?;
        assert_eq!((other.template.as_str(), other.enabled), ("default", true));
        assert_eq!(other.shape(&mut template), "2d".parse()?);
        assert_eq!(template.idle.stop_after, Some("5m".parse()?));
        for agent in ["coder", "ns/coder"] {
            assert_eq!(plan_of(text, agent)?.template, "rust", "{agent}");
        }
        let team = plan_of(text, "team/coder")?;
        assert_eq!((team.template.as_str(), team.enabled, team.ttl), ("default", false, Some("1h".parse()?)));

        let nothing = plan_of("", "any")?;
        let mut template = Template::default();
        assert_eq!((nothing.shape(&mut template), template.idle.stop_after), (TTL, Some(STOP_AFTER)));
        let idle = Idle { pause_after: Some("3s".parse()?), ..Idle::default() };
        let mut template = Template { ttl: Some("9d".parse()?), idle: idle.clone(), ..Template::default() };
        assert_eq!((nothing.shape(&mut template), template.idle), ("9d".parse()?, idle), "the template's word");
        Ok(())
    }

    #[test]
    fn mistakes_point_at_their_line_and_say_what_to_do() {
        for (text, told) in [
            ("[defualt]\n", "1: there is no section `defualt`: did you mean `default`?"),
            ("[default]\n\nttll = \"1h\"\n", "3: there is no field of [default] `ttll`: did you mean `ttl`?"),
            ("[agents.a]\nttl = \"soon\"\n", "2: `soon` is not a duration"),
            ("[agents.a]\nttl = \"0s\"\n", "2: `ttl` is zero"),
            ("[agents.a]\nenabled = \"no\"\n", "2: `agents.a.enabled` is not `true` or `false`"),
            ("[agents.a]\ntemplate = \"A B\"\n", "2: `A B` cannot be the name of a template"),
            ("[agents.a.idle]\nstop = \"1h\"\n", "2: there is no field of [agents.a.idle] `stop`: did you mean"),
            ("[default.idle]\npause_after = \"2h\"\nstop_after = \"1h\"\n", "3: `stop_after` (1h) is not after"),
            ("agents = 1\n", "1: `agents` is not a table: write it as [agents]"),
            ("[default]\nttl = \n", "2: "),
            ("[default]\nttl = 1\n[agents.a]\nidle = 2\n", "4: `agents.a.idle` is not a table"),
        ] {
            let got = plan_of(text, "another").err().unwrap_or_default();
            assert!(got.contains(told), "{text:?}: {got}");
        }
    }
}
