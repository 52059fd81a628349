//! Policy that fails open: a host that cannot enforce what is required must refuse, say which layer and leave nothing.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Command, ExitCode},
};

use sandbar_api::{Code, CreateSandbox, Layer, Requirement};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    score::say,
    stage::{Stage, Target, recipe},
    support::{Outcome, Server, program},
    sys,
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Policy, name, act, control);
    let whole = |act| Control::Act("on a host that can", act);
    vec![
        doing("kernel_without_landlock", act!(no_landlock), whole(act!(created))),
        doing("kernel_without_seccomp", act!(no_seccomp), whole(act!(created))),
        doing("kernel_that_keeps_capabilities", act!(no_capabilities), whole(act!(created))),
        doing("optional_layer_is_reported", act!(optional_landlock), whole(act!(reported))),
        doing("memory_limit_without_control_groups", act!(no_memory), Control::Act("without a limit", act!(created))),
        doing(
            "process_limit_without_control_groups",
            act!(no_processes),
            Control::Act("without a limit", act!(created)),
        ),
        doing("essential_layer_off", act!(essential_off), Control::Act("another layer off", act!(landlock_off)))
            .on(&["standard"]),
        doing("unknown_profile_or_layer", act!(unknown), Control::Act("a known one", act!(landlock_off)))
            .on(&["standard"]),
    ]
}

/// Becomes `command` on a kernel that seems to lack a layer: the outer limit under which a server is tried.
pub(crate) fn deny(layer: &str, command: &[&str]) -> ExitCode {
    match filtered(layer)
        .map(|()| Command::new(command.first().unwrap_or(&"")).args(command.get(1..).unwrap_or_default()).exec())
    {
        Ok(error) | Err(error) => say(&format!("cannot run {command:?} without {layer}: {error}")),
    }
    ExitCode::FAILURE
}

fn filtered(layer: &str) -> io::Result<()> {
    // A system call, or `prctl` with that first argument, and the error it ends with.
    let rules: &[(i64, Option<i32>, i32)] = match layer {
        "landlock" => &[(libc::SYS_landlock_create_ruleset, None, libc::ENOSYS)],
        "seccomp" => {
            &[(libc::SYS_seccomp, None, libc::ENOSYS), (libc::SYS_prctl, Some(libc::PR_SET_SECCOMP), libc::EINVAL)]
        }
        "capabilities" => {
            &[(libc::SYS_prctl, Some(libc::PR_CAPBSET_DROP), libc::EPERM), (libc::SYS_capset, None, libc::EPERM)]
        }
        _ => return Err(io::Error::other("there is no such layer")),
    };
    let load = |offset| sys::step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equal = |value: u32, no| sys::step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, no, value);
    let end = |value| sys::step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let mut program = vec![];
    for (number, first, error) in rules {
        let refusal = end(libc::SECCOMP_RET_ERRNO | *error as u32);
        program.push(load(0));
        match first {
            None => program.extend([equal(*number as u32, 1), refusal]),
            Some(first) => program.extend([equal(*number as u32, 3), load(16), equal(*first as u32, 1), refusal]),
        }
    }
    program.push(end(libc::SECCOMP_RET_ALLOW));
    sys::filter(&mut program, 0).map(drop)
}

/// A server of its own, started by a script.
fn server(stage: &Stage, script: &str) -> Outcome<Server> {
    let place = stage.directory("other")?;
    let starter = place.join("start");
    fs::write(&starter, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&starter, fs::Permissions::from_mode(0o755))?;
    Server::start_by(starter, place.join("home"))
}

fn without(stage: &Stage, layer: &str) -> Outcome<Server> {
    let (denier, sandbar): (PathBuf, PathBuf) = (stage.scratch.join("attacks"), program());
    server(stage, &format!("exec {} --deny {layer} {} \"$@\"", denier.display(), sandbar.display()))
}

/// Asks for a sandbox of this template and looks at what is left of it.
async fn asked(server: &Server, text: &str, layer: &str) -> Outcome<Finding> {
    let templates = server.home.path().join("templates");
    fs::create_dir_all(&templates)?;
    fs::write(templates.join("asked.toml"), text)?;
    let client = server.client()?;
    let request = CreateSandbox { template: Some("asked".into()), ..CreateSandbox::default() };
    let error = match client.create(&request, None).await {
        Ok(made) => {
            client.delete(made.sandbox.id.as_str()).await?;
            return Ok(Finding::escaped("it was made"));
        }
        Err(error) => error,
    };
    if error.code() != Some(Code::NotEnforceable) {
        return Ok(Finding::escaped(format!("refused for another reason: {error}")));
    }
    let fix = error.fix().unwrap_or_default();
    let said = format!("{error} {fix}").to_lowercase();
    if !said.contains(layer) {
        return Ok(Finding::escaped(format!("the layer is not named: {said}")));
    }
    let listed = client.sandbox_page(&sandbar_client::SandboxQuery::default()).await?.sandboxes;
    let on_disk: Vec<_> =
        fs::read_dir(server.home.path().join("local"))?.flatten().map(|entry| entry.file_name()).collect();
    let left = on_disk.iter().any(|name| name.to_string_lossy().starts_with("sbx-"));
    Ok(match (listed.is_empty(), left) {
        (true, false) => Finding::contained(format!("not_enforceable: {error}")),
        _ => Finding::escaped(format!("something was left: {listed:?} {on_disk:?}")),
    })
}

async fn no_landlock(stage: &Stage, target: &Target) -> Outcome<Finding> {
    asked(&without(stage, "landlock")?, &recipe(target.profile, "", &[]), "landlock").await
}

async fn no_seccomp(stage: &Stage, target: &Target) -> Outcome<Finding> {
    asked(&without(stage, "seccomp")?, &recipe(target.profile, "", &[]), "seccomp").await
}

async fn no_capabilities(stage: &Stage, target: &Target) -> Outcome<Finding> {
    asked(&without(stage, "capabilities")?, &recipe(target.profile, "", &[]), "capabilit").await
}

async fn created(stage: &Stage, target: &Target) -> Outcome<Finding> {
    asked(&stage.server, &recipe(target.profile, "", &[]), "").await
}

/// A report must never claim what is not there.
async fn report(server: &Server, profile: &str) -> Outcome<Finding> {
    let templates = server.home.path().join("templates");
    fs::create_dir_all(&templates)?;
    fs::write(
        templates.join("optional.toml"),
        format!("profile = \"{profile}\"\n[layers]\nlandlock = \"optional\"\n"),
    )?;
    let client = server.client()?;
    let request = CreateSandbox { template: Some("optional".into()), ..CreateSandbox::default() };
    let made = client.create(&request, None).await?.sandbox;
    let report = client.enforcement(made.id.as_str()).await?;
    client.delete(made.id.as_str()).await?;
    let found = report.layers.iter().find(|layer| layer.layer == Layer::Landlock).ok_or("no word of Landlock")?;
    if found.requirement != Requirement::Optional {
        return Err(format!("another requirement: {found:?}").into());
    }
    Ok(if found.in_force {
        Finding::escaped("in force")
    } else {
        Finding::contained(format!("not in force: {}", found.evidence))
    })
}

async fn optional_landlock(stage: &Stage, target: &Target) -> Outcome<Finding> {
    report(&without(stage, "landlock")?, target.profile).await
}

async fn reported(stage: &Stage, target: &Target) -> Outcome<Finding> {
    report(&stage.server, target.profile).await
}

/// An ordinary user has no control groups; root is tried in a mount namespace without them.
async fn limited(stage: &Stage, target: &Target, limit: &str, layer: &str) -> Outcome<Finding> {
    let text = recipe(target.profile, &format!("[limits]\n{limit}\n"), &[]);
    let hidden = "umount -R /sys/fs/cgroup && exec";
    let server = if stage.is_root {
        server(stage, &format!("exec unshare --mount sh -c '{hidden} {} \"$@\"' sh \"$@\"", program().display()))?
    } else {
        server(stage, &format!("exec {} \"$@\"", program().display()))?
    };
    asked(&server, &text, layer).await
}

async fn no_memory(stage: &Stage, target: &Target) -> Outcome<Finding> {
    limited(stage, target, "memory = \"64MiB\"", "memory").await
}

async fn no_processes(stage: &Stage, target: &Target) -> Outcome<Finding> {
    limited(stage, target, "processes = 64", "process").await
}

async fn taken(stage: &Stage, texts: &[&str]) -> Outcome<Finding> {
    for text in texts {
        let template = stage.template(text)?;
        match stage.client.create(&CreateSandbox { template: Some(template), ..CreateSandbox::default() }, None).await {
            Ok(made) => {
                stage.client.delete(made.sandbox.id.as_str()).await?;
                return Ok(Finding::escaped(format!("taken: {}", text.replace('\n', " "))));
            }
            Err(error) if error.code() == Some(Code::BadTemplate) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Finding::contained("each was refused as bad_template"))
}

async fn essential_off(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let off = |layer: &str| format!("[layers]\n{layer} = \"off\"\n");
    let texts = ["mounts", "pid_namespace", "net_namespace", "ipc_namespace", "uts_namespace", "network"].map(off);
    taken(stage, &texts.iter().map(String::as_str).collect::<Vec<_>>()).await
}

async fn landlock_off(stage: &Stage, _: &Target) -> Outcome<Finding> {
    taken(stage, &["[layers]\nlandlock = \"off\"\n"]).await
}

/// A misspelt word must not become a sandbox without the layer.
async fn unknown(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let texts = [
        "profile = \"hardned\"\n",
        "[layers]\nlandlok = \"required\"\n",
        "[layers]\nseccomp = \"maybe\"\n",
        "[limits]\nmemroy = \"1GiB\"\n",
    ];
    taken(stage, &texts).await
}
