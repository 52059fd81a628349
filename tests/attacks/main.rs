//! The attack suite: what breaks sandboxes in the wild, tried for real from inside, each attempt beside a control that
//! succeeds without the fence. Without a harness: the probes inside a sandbox are this very program, executed again.
//! `make attacks` runs it as root and as an ordinary user; an argument chooses attacks by a part of their names.

mod approvals;
mod archives;
mod attack;
mod budgets;
mod cut;
mod files;
mod files_api;
mod floods;
mod fronting;
mod identity;
mod inside;
mod inward;
mod judge;
mod kernel;
mod limits;
mod names;
mod neighbours;
mod operator;
mod outside;
mod person;
mod policy;
mod previews;
mod processes;
mod programs;
mod prompts;
mod queries;
mod races;
mod room;
#[path = "../e2e/gate/roots.rs"]
mod roots;
mod routes;
mod score;
mod seats;
mod secrets;
mod shared;
mod shown;
mod skills;
mod smuggling;
mod stage;
#[expect(dead_code, reason = "shared with tests that use more of it")]
#[path = "../e2e/support/mod.rs"]
mod support;
mod surfaces;
mod sys;
mod terminals;
mod tokens;
mod tools;
#[expect(dead_code, reason = "shared with tests that use more of it")]
#[path = "../../crates/gateway/tests/suite/support/upstream.rs"]
mod upstream;
mod web;
mod wire;

use std::process::ExitCode;

use attack::{Attack, Attempt, Control, Finding};
use score::{Line, Score, say};
use stage::{Stage, UNSHARED, recipe};
use support::Outcome;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--inside", name, rest @ ..] => inside::main(name, rest),
        ["--deny", layer, command @ ..] => policy::deny(layer, command),
        ["--list", ..] => list(),
        chosen => match run(chosen.iter().find(|word| !word.starts_with('-')).unwrap_or(&"")) {
            Ok(code) => code,
            Err(error) => {
                say(&format!("the suite itself failed: {error}"));
                ExitCode::FAILURE
            }
        },
    }
}

/// A batch for each class: its attacks share a server, which is slow to start.
fn list() -> ExitCode {
    let classes: std::collections::BTreeSet<_> = here().iter().map(|(attack, _)| attack.class.as_str()).collect();
    classes.iter().for_each(|class| say(&format!("{class}/: batch")));
    ExitCode::SUCCESS
}

/// `files/` chooses a class, anything else is a part of a name.
fn is_chosen(title: &str, chosen: &str) -> bool {
    if chosen.ends_with('/') { title.starts_with(chosen) } else { title.contains(chosen) }
}

fn all() -> Vec<Attack> {
    [
        files::all(),
        files_api::all(),
        archives::all(),
        races::all(),
        skills::all(),
        operator::all(),
        programs::all(),
        kernel::all(),
        processes::all(),
        terminals::all(),
        shown::all(),
        queries::all(),
        seats::all(),
        limits::all(),
        neighbours::all(),
        shared::all(),
        identity::all(),
        web::all(),
        policy::all(),
        names::all(),
        routes::all(),
        smuggling::all(),
        fronting::all(),
        floods::all(),
        secrets::all(),
        budgets::all(),
        approvals::all(),
        prompts::all(),
        surfaces::all(),
        previews::all(),
        tokens::all(),
        inward::all(),
        tools::all(),
        cut::all(),
    ]
    .concat()
}

fn run(chosen: &str) -> Outcome<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut score = Score::default();
    let mut attacks = here();
    attacks.retain(|(attack, profile)| is_chosen(&attack.title(profile), chosen));
    if cluster() {
        for (title, why) in OTHERWISE_IN_A_POD.iter().filter(|(title, _)| is_chosen(title, chosen)) {
            say(&format!("test {title} on standard ... not run: {why} (0.00 s)"));
        }
    }
    if attacks.is_empty() {
        return Ok(score.finish());
    }
    runtime.block_on(async {
        let stage = Stage::open().await?;
        for (attack, profile) in attacks {
            let begun = std::time::Instant::now();
            let line = one(&stage, &attack, profile).await;
            score.add(attack.class, &attack.title(profile), line, begun.elapsed());
        }
        stage.close().await
    })?;
    Ok(score.finish())
}

/// Each attack on each of its profiles.
fn here() -> Vec<(Attack, &'static str)> {
    let each = |attack: &Attack| attack.profiles.iter().map(|profile| (attack.clone(), *profile)).collect::<Vec<_>>();
    let mut attacks: Vec<_> = all().iter().flat_map(each).collect();
    if cluster() {
        attacks.retain(|(attack, profile)| makes_sense_in_a_pod(attack, profile));
    }
    attacks
}

/// Whether the sandboxes are pods.
fn cluster() -> bool {
    support::cluster::Cluster::chosen().is_some()
}

/// What a process inside tries by itself, in a sandbox as it usually is. The rest is about the host's side of the local
/// provider, or about the server, which is the same whoever makes its sandboxes.
fn makes_sense_in_a_pod(attack: &Attack, profile: &str) -> bool {
    let by_itself = matches!(attack.attempt, Attempt::Probe(_) | Attempt::Shell(_));
    let otherwise = |(title, _): &(&str, &str)| attack.title(profile).starts_with(&format!("{title} "));
    by_itself && profile == "standard" && attack.with.is_empty() && !OTHERWISE_IN_A_POD.iter().any(otherwise)
}

/// What a pod rightly has and a sandbox of the local provider has not.
const OTHERWISE_IN_A_POD: &[(&str, &str)] = &[
    ("files/shadow_of_the_host", "an image has an /etc/shadow of its own"),
    ("files/mounts_of_the_host", "a runtime mounts /sys and its own volumes"),
    ("files/sys", "a runtime shows /sys, read-only"),
    ("files/kernel_files_in_proc", "a runtime masks them by empty files"),
    ("files/kernel_command_line", "a runtime shows it"),
    ("kernel/no_route_udp", "a pod has a route, along which its NetworkPolicy lets nothing"),
    ("processes/priority_of_the_guest", "the guest of a pod has its workload's uid, which can slow its own guest down"),
    (
        "processes/processors_of_the_guest",
        "the guest of a pod has its workload's uid, which can slow its own guest down",
    ),
    ("processes/cgroups", "a runtime shows a pod its own groups, read-only"),
    ("neighbours/files_of_all_sandboxes", "there is no directory of all sandboxes"),
];

/// By these the kernel says that it was built without something; a fence says EPERM or EACCES.
const MISSING: &[&str] = &["ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ENOPROTOOPT", "ESOCKTNOSUPPORT", "SIGSEGV"];

/// The attempt, then its control: an attempt that cannot succeed shows nothing.
async fn one(stage: &Stage, attack: &Attack, profile: &'static str) -> Line {
    let text = recipe(profile, attack.with, &[]);
    let found = match tried(stage, attack, profile, &text).await {
        Ok(found) => found,
        Err(error) => {
            stage.forget(&text);
            return Line::Failed(format!("could not be tried: {error}"));
        }
    };
    let how = match found {
        Finding::Contained(how) => how,
        Finding::Escaped(what) => return Line::Escaped(what),
        Finding::NotRun(why) => return Line::NotRun(why),
    };
    // A pod has other walls: that it holds is what counts there.
    if !cluster() && !attack.contained.split('|').any(|wanted| how.contains(wanted)) {
        return Line::Failed(format!("contained by {how}, not by {}", attack.contained));
    }
    match control(stage, attack, profile, attack.control).await {
        Ok((_, Finding::Escaped(what))) => Line::Contained { how, control: Ok(what) },
        Ok((_, Finding::NotRun(why))) => Line::Contained { how, control: Err(why) },
        Ok((_, Finding::Contained(missing))) if MISSING.contains(&missing.as_str()) => {
            Line::Contained { how, control: Err(format!("this kernel does not have it: {missing}")) }
        }
        Ok((where_, Finding::Contained(also))) => {
            Line::Failed(format!("contained by {how}; its control {where_} too: {also}"))
        }
        Err(error) => Line::Failed(format!("contained by {how}; its control could not be tried: {error}")),
    }
}

async fn tried(stage: &Stage, attack: &Attack, profile: &'static str, text: &str) -> Outcome<Finding> {
    match stage.target(profile, text).await {
        Ok(target) => stage.attempt(&target, attack.attempt).await,
        // More was asked for than the profile has, and this host says what it lacks for it.
        Err(error) if !attack.with.is_empty() && is_refused(error.as_ref()) => Ok(Finding::not_run(error.to_string())),
        Err(error) => Err(error),
    }
}

fn is_refused(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    let client = error.downcast_ref::<sandbar_client::Error>();
    client.and_then(sandbar_client::Error::code) == Some(sandbar_api::Code::NotEnforceable)
}

/// Where the control was tried, and what became of it.
async fn control(
    stage: &Stage,
    attack: &Attack,
    profile: &'static str,
    control: Control,
) -> Outcome<(String, Finding)> {
    let elsewhere = async |place: String, text: String| -> Outcome<(String, Finding)> {
        let found = tried(stage, attack, profile, &text).await;
        if found.is_err() {
            stage.forget(&text);
        }
        Ok((place.clone(), said(&place, found?)))
    };
    match control {
        // A cluster's own walls stay when ours are taken down, and on the host some of these would do harm.
        Control::Without(_) | Control::Template(_) if cluster() => {
            Ok((String::new(), Finding::not_run("it is tried with the local provider")))
        }
        Control::Without(layers) => {
            elsewhere(format!("without {}", layers.join(" and ")), recipe(profile, attack.with, layers)).await
        }
        Control::Template(text) => {
            elsewhere(format!("with {}", text.trim().replace('\n', ", ")), text.to_owned()).await
        }
        Control::Host => Ok(("on the host".into(), said("on the host", stage.on_host(&[], attack.attempt)?))),
        Control::Unshared => {
            let place = "in namespaces without a fence";
            Ok((place.into(), said(place, stage.on_host(UNSHARED, attack.attempt)?)))
        }
        Control::Act(place, act) => {
            let target = stage.target(profile, &recipe(profile, attack.with, &[])).await?;
            Ok((place.into(), said(place, act(stage, &target).await?)))
        }
        Control::NotRun(why) => Ok((String::new(), Finding::not_run(why))),
        Control::PerUser(root, user) => {
            Box::pin(self::control(stage, attack, profile, if stage.is_root { *root } else { *user })).await
        }
    }
}

fn said(place: &str, found: Finding) -> Finding {
    match found {
        Finding::Escaped(what) => Finding::Escaped(format!("{place}: {what}")),
        other => other,
    }
}
