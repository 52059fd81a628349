//! The host's programs are read inside, and nothing else: no sandbox sees when the host uses one, nor holds it up. Each
//! control is the same with a file of a directory that is bound.

use std::{
    fs::{self, File, TryLockError},
    process::Command,
};

use sandbar_api::StartProcess;

use crate::{
    attack::{
        Attack, Class,
        Control::{self, Host},
        Finding, act,
    },
    inside,
    stage::{Stage, Target, recipe},
    support::{Outcome, until},
    terminals::text,
};

/// A program that no other test starts, and which ends at once.
const NAME: &str = "false";
const DIRECTORY: &str = "/usr/bin";
const BOUND: &str = "/workspace/programs";

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Files, name, act, control);
    let bound = |act| Control::Act("of a directory that is bound", act);
    vec![
        doing("events_of_the_hosts_programs", act!(events), bound(act!(bound_events))),
        doing("locks_on_the_hosts_programs", act!(locks), bound(act!(bound_locks))),
        doing("paths_of_the_host_in_mountinfo", act!(paths), bound(act!(bound_paths))),
        doing("events_of_the_hosts_programs", act!(events), bound(act!(bound_events))).by_root(),
        doing("locks_on_the_hosts_programs", act!(locks), bound(act!(bound_locks))).by_root(),
        Attack::shell(Class::Files, "kernel_command_line", COMMAND_LINE, Host),
        Attack::shell(Class::Files, "kernel_command_line", COMMAND_LINE, Host).by_root(),
    ]
}

const COMMAND_LINE: &str = "line=$(cat /proc/cmdline)
[ -n \"$line\" ] && echo escaped: ${#line} characters || echo contained: it is empty";

/// A sandbox in which a probe has said that it is ready.
struct Probe {
    target: Target,
    process: String,
}

impl Probe {
    async fn start(stage: &Stage, target: &Target, arguments: &[&str]) -> Outcome<Self> {
        let with = if target.profile == "standard" && is_root(stage, target).await? { "user = \"root\"\n" } else { "" };
        let target = stage.fresh(target.profile, &recipe(target.profile, with, &[])).await?;
        let programs = target.shared.join("programs");
        fs::create_dir(&programs)?;
        fs::copy(format!("{DIRECTORY}/{NAME}"), programs.join(NAME))?;
        fs::write(target.shared.join("marker"), "")?;
        let mut argv = vec!["/workspace/attacks", "--inside"];
        argv.extend(arguments);
        let argv = argv.into_iter().map(str::to_owned).collect();
        let request = StartProcess { argv, ..StartProcess::default() };
        let process = stage.client.start_process(&target.id, &request).await?.id.to_string();
        let ready = async || Ok(stage.client.process(&target.id, &process).await?.output.end > 0);
        until("the probe is ready", ready).await?;
        Ok(Self { target, process })
    }

    async fn verdict(&self, stage: &Stage) -> Outcome<Finding> {
        let over = async || Ok(stage.client.process(&self.target.id, &self.process).await?.exit.is_some());
        until("the probe ends", over).await?;
        let said = text(stage, &self.target, &self.process).await?;
        Finding::parse(&said).ok_or_else(|| format!("no verdict: {said}").into())
    }
}

async fn is_root(stage: &Stage, target: &Target) -> Outcome<bool> {
    Ok(stage.exec(target, &["id", "-u"]).await?.stdout == "0\n")
}

/// Where the kernel gives an ordinary user the host's own, because something is mounted below. Its reports say so.
fn is_shared(stage: &Stage) -> Outcome<Option<Finding>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let shown = ["/usr/", "/etc/alternatives/", "/etc/fonts/", "/etc/pki/", "/etc/ssl/certs/"];
    let found = places.find(|place| !stage.is_root && shown.iter().any(|above| place.starts_with(above)));
    Ok(found.map(|place| Finding::not_run(format!("{place} is a mount, so an ordinary user has /usr only as it is"))))
}

async fn events(stage: &Stage, target: &Target) -> Outcome<Finding> {
    if let Some(shared) = is_shared(stage)? {
        return Ok(shared);
    }
    seen(stage, target, DIRECTORY).await
}

async fn bound_events(stage: &Stage, target: &Target) -> Outcome<Finding> {
    seen(stage, target, BOUND).await
}

/// The host reads and starts the program, and then opens the marker.
async fn seen(stage: &Stage, target: &Target, directory: &str) -> Outcome<Finding> {
    let probe = Probe::start(stage, target, &["watch", directory, "/workspace", NAME]).await?;
    let shared = &probe.target.shared;
    let program =
        if directory == BOUND { shared.join("programs").join(NAME) } else { format!("{DIRECTORY}/{NAME}").into() };
    fs::read(&program)?;
    Command::new(&program).status()?;
    drop(File::open(shared.join("marker"))?);
    let found = probe.verdict(stage).await?;
    stage.delete(&probe.target).await?;
    Ok(found)
}

async fn locks(stage: &Stage, target: &Target) -> Outcome<Finding> {
    if let Some(shared) = is_shared(stage)? {
        return Ok(shared);
    }
    held(stage, target, DIRECTORY).await
}

async fn bound_locks(stage: &Stage, target: &Target) -> Outcome<Finding> {
    held(stage, target, BOUND).await
}

/// Whether the host gets what a lock from inside would refuse it.
async fn held(stage: &Stage, target: &Target, directory: &str) -> Outcome<Finding> {
    let probe = Probe::start(stage, target, &["lock", &format!("{directory}/{NAME}")]).await?;
    let shared = &probe.target.shared;
    let program =
        if directory == BOUND { shared.join("programs").join(NAME) } else { format!("{DIRECTORY}/{NAME}").into() };
    let file = File::open(program)?;
    // Shared, so that another run of this on the same host is not in the way.
    let flock = match file.try_lock_shared() {
        Ok(()) => "",
        Err(TryLockError::WouldBlock) => "flock ",
        Err(TryLockError::Error(error)) => return Err(error.into()),
    };
    let record = if inside::is_locked(&file)? { "fcntl" } else { "" };
    stage.delete(&probe.target).await?;
    Ok(match format!("{flock}{record}").as_str() {
        "" => Finding::contained("the host gets its locks"),
        kinds => Finding::escaped(format!("the host would wait: {kinds}")),
    })
}

async fn paths(stage: &Stage, target: &Target) -> Outcome<Finding> {
    if let Some(shared) = is_shared(stage)? {
        return Ok(shared);
    }
    shown(stage, target, "^/(usr|bin|sbin|lib|etc/(alternatives|fonts|pki|ssl))").await
}

async fn bound_paths(stage: &Stage, target: &Target) -> Outcome<Finding> {
    shown(stage, target, "^/workspace").await
}

/// Which part of which filesystem of the host a mount shows: the fourth field, and the second after the dash.
async fn shown(stage: &Stage, target: &Target, places: &str) -> Outcome<Finding> {
    let script =
        format!("awk '$5 ~ \"{places}\" && ($4 != \"/\" || / \\/dev\\//) {{ print $4, $5 }}' /proc/self/mountinfo");
    let ran = stage.sh(target, &script).await?;
    if ran.exit.code != 0 {
        return Err(ran.stderr.into());
    }
    let lines = ran.stdout.trim().replace('\n', ", ");
    Ok(if lines.is_empty() { Finding::contained("no mount shows any") } else { Finding::escaped(lines) })
}
