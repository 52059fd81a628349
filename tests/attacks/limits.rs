//! Bombs: the culprit ends with the right reason while a neighbour keeps answering. The control of each is the same
//! bomb, bounded as it is, under a limit that it does not reach.

use std::time::Duration;

use sandbar_api::{Code, CreateSandbox, ExitReason, Process, StartProcess, WorkspaceSource};
use sandbar_client::Client;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{Stage, Target, recipe, request},
    support::Outcome,
};

/// What a bomb is, which limit stops it, which does not, and what must be said of its end.
struct Bomb {
    limit: &'static str,
    larger: &'static str,
    argv: &'static [&'static str],
    /// `None` where the kernel only refuses: then the culprit's own words count.
    reason: Option<ExitReason>,
    /// The workspace is the sandbox's own, so that its disk limit counts.
    own: bool,
}

const INSIDE: &str = "/workspace/attacks";

macro_rules! bombs {
    ($($name:ident $control:ident $bomb:expr;)*) => {
        $(
            async fn $name(stage: &Stage, target: &Target) -> Outcome<Finding> {
                let bomb: Bomb = $bomb;
                explode(stage, target, &bomb, bomb.limit).await
            }
            async fn $control(stage: &Stage, target: &Target) -> Outcome<Finding> {
                let bomb: Bomb = $bomb;
                explode(stage, target, &bomb, bomb.larger).await
            }
        )*
    };
}

bombs! {
    fork fork_larger Bomb {
        limit: "processes = 64", larger: "processes = 400", argv: &[INSIDE, "--inside", "fork_bomb", "200"],
        reason: Some(ExitReason::PidsLimit), own: false,
    };
    stubborn_fork stubborn_fork_larger Bomb {
        limit: "processes = 64", larger: "processes = 400", argv: &[INSIDE, "--inside", "stubborn_fork_bomb", "200"],
        reason: Some(ExitReason::PidsLimit), own: false,
    };
    memory memory_larger Bomb {
        limit: "memory = \"64MiB\"", larger: "memory = \"512MiB\"", argv: &[INSIDE, "--inside", "memory_bomb", "192"],
        reason: Some(ExitReason::Oom), own: false,
    };
    memory_in_tmp memory_in_tmp_larger Bomb {
        limit: "memory = \"64MiB\"", larger: "memory = \"512MiB\"", argv: &[INSIDE, "--inside", "file_bomb", "192", "/tmp"],
        reason: Some(ExitReason::Oom), own: false,
    };
    memory_in_memfd memory_in_memfd_larger Bomb {
        limit: "memory = \"64MiB\"", larger: "memory = \"512MiB\"", argv: &[INSIDE, "--inside", "memfd_bomb", "192"],
        reason: Some(ExitReason::Oom), own: false,
    };
    tmpfs tmpfs_larger Bomb {
        limit: "tmpfs = \"16MiB\"", larger: "tmpfs = \"128MiB\"", argv: &[INSIDE, "--inside", "file_bomb", "64", "/tmp"],
        reason: None, own: false,
    };
    inodes inodes_larger Bomb {
        limit: "tmpfs = \"8MiB\"", larger: "tmpfs = \"128MiB\"", argv: &[INSIDE, "--inside", "inode_bomb", "6000", "/tmp"],
        reason: None, own: false,
    };
    descriptors descriptors_larger Bomb {
        limit: "open_files = 64", larger: "open_files = 1000", argv: &[INSIDE, "--inside", "descriptor_bomb", "200"],
        reason: None, own: false,
    };
    output output_larger Bomb {
        limit: "output = \"1MiB\"", larger: "output = \"64MiB\"", argv: &[INSIDE, "--inside", "flood", "8"],
        reason: Some(ExitReason::OutputLimit), own: false,
    };
    time time_larger Bomb {
        limit: "wall_time = \"300ms\"", larger: "wall_time = \"1m\"", argv: &["sh", "-c", "sleep 1; echo escaped: it slept"],
        reason: Some(ExitReason::Timeout), own: false,
    };
    disk disk_larger Bomb {
        limit: "disk = \"32MiB\"", larger: "disk = \"256MiB\"",
        argv: &["sh", "-c", "head -c 96M /dev/zero > /workspace/bomb && sync -f /workspace/bomb && echo escaped: 96 MiB"],
        reason: Some(ExitReason::DiskLimit), own: true,
    };
}

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, control| Attack::act(Class::Limits, name, act, Control::Act("under a larger limit", control));
    vec![
        doing("fork_bomb", act!(fork), act!(fork_larger)),
        doing("stubborn_fork_bomb", act!(stubborn_fork), act!(stubborn_fork_larger)),
        doing("memory_bomb", act!(memory), act!(memory_larger)),
        doing("memory_bomb_in_tmp", act!(memory_in_tmp), act!(memory_in_tmp_larger)),
        doing("memory_bomb_in_a_memfd", act!(memory_in_memfd), act!(memory_in_memfd_larger)),
        doing("tmpfs_filler", act!(tmpfs), act!(tmpfs_larger)),
        doing("inode_filler", act!(inodes), act!(inodes_larger)),
        doing("descriptor_bomb", act!(descriptors), act!(descriptors_larger)),
        doing("output_flood", act!(output), act!(output_larger)),
        doing("endless_process", act!(time), act!(time_larger)),
        doing("disk_filler", act!(disk), act!(disk_larger)),
        Attack::act(Class::Limits, "cpu_hog", act!(cpu), Control::Act("without a limit", act!(cpu_free))),
        Attack::act(
            Class::Limits,
            "terminal_flood",
            act!(terminals),
            Control::Act("on the host", act!(host_terminals)),
        ),
        Attack::act(
            Class::Limits,
            "raising_its_own_limits",
            act!(raise),
            Control::Act("by the template", act!(descriptors_larger)),
        ),
        Attack::act(
            Class::Limits,
            "removal_of_a_hundred_thousand_files",
            act!(many_files),
            Control::NotRun("no layer holds this: it is the server that must go on answering"),
        )
        .on(&["standard"]),
    ]
}

/// A sandbox under a limit. A host that cannot enforce it says so, which is no attack that was run.
async fn culprit(stage: &Stage, target: &Target, limits: &str, own: bool) -> Outcome<Result<Target, String>> {
    let text = recipe(target.profile, &format!("[limits]\n{limits}\n"), &[]);
    let made = if own {
        let template = stage.template(&text)?;
        let request = CreateSandbox {
            template: Some(template.clone()),
            workspace: WorkspaceSource::Empty,
            ..CreateSandbox::default()
        };
        let made = stage.client.create(&request, None).await;
        made.map(|made| Target {
            id: made.sandbox.id.to_string(),
            shared: stage.scratch.clone(),
            profile: target.profile,
            template,
        })
    } else {
        stage.try_fresh(target.profile, &text).await?
    };
    match made {
        Ok(made) => Ok(Ok(made)),
        Err(error) if error.code() == Some(Code::NotEnforceable) => Ok(Err(format!("{error}"))),
        Err(error) => Err(error.into()),
    }
}

async fn explode(stage: &Stage, target: &Target, bomb: &Bomb, limits: &str) -> Outcome<Finding> {
    let culprit = match culprit(stage, target, limits, bomb.own).await? {
        Ok(culprit) => culprit,
        Err(why) => return Ok(Finding::not_run(why)),
    };
    let argv = bomb.argv.iter().map(|&word| word.to_owned()).collect();
    let request = StartProcess { argv, cwd: Some("/tmp".into()), ..StartProcess::default() };
    let process = stage.client.start_process(&culprit.id, &request).await?.id.to_string();
    let (ended, answers) = watch(&stage.client, &culprit, &process, target).await?;
    let output = crate::terminals::text(stage, &culprit, &process).await?;
    // Whoever was bombed must still be there to be looked at, and to be deleted.
    let after = stage.sh(&culprit, "rm -rf /tmp/bomb /tmp/many-* /workspace/bomb; echo alive").await;
    let after = after.map(|ran| format!("{}{:?}", ran.stdout, ran.exit.reason));
    stage.delete(&culprit).await?;
    let exit = ended.exit.ok_or("it has not ended")?;
    let said = Finding::parse(&output);
    if let Some(Finding::Escaped(what)) = &said {
        return Ok(Finding::escaped(what));
    }
    if after.as_deref().ok() != Some("alive\nExited") {
        return Ok(Finding::escaped(format!("the next command did not get through: {after:?}")));
    }
    match bomb.reason {
        Some(wanted) if wanted == exit.reason => {
            Ok(Finding::contained(format!("{wanted:?}; the neighbour answered {answers} times")))
        }
        Some(wanted) => Err(format!("ended by {:?} ({}), not {wanted:?}: {said:?}", exit.reason, exit.code).into()),
        None => match said {
            Some(Finding::Contained(how)) => {
                Ok(Finding::contained(format!("{how}; the neighbour answered {answers} times")))
            }
            other => Err(format!("no verdict: {other:?} {exit:?}").into()),
        },
    }
}

/// Until the culprit ends; meanwhile every command of the neighbour must succeed.
async fn watch(client: &Client, culprit: &Target, process: &str, neighbour: &Target) -> Outcome<(Process, u32)> {
    let deadline = std::time::Instant::now() + Duration::from_secs(90);
    let mut answers = 0;
    loop {
        let ran = client.exec(&neighbour.id, &request(&["echo", "here"])).await?;
        if ran.stdout != "here\n" {
            return Err(format!("the neighbour was disturbed: {ran:?}").into());
        }
        answers += 1;
        let found = client.process(&culprit.id, process).await?;
        if found.exit.is_some() {
            return Ok((found, answers));
        }
        if std::time::Instant::now() > deadline {
            return Err("the bomb does not end".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The seconds of a processor that a loop of one second gets.
async fn share(stage: &Stage, target: &Target) -> Outcome<f64> {
    match stage.probe(target, &["spin"]).await? {
        Finding::Escaped(seconds) => Ok(seconds.parse()?),
        other => Err(other.line().into()),
    }
}

/// More than a sandbox with a twentieth of a processor can get in a second, less than a free one does.
const SHARE: f64 = 0.15;

async fn cpu(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let culprit = match culprit(stage, target, "cpus = 0.05", false).await? {
        Ok(culprit) => culprit,
        Err(why) => return Ok(Finding::not_run(why)),
    };
    let got = share(stage, &culprit).await?;
    stage.delete(&culprit).await?;
    Ok(if got > SHARE {
        Finding::escaped(format!("{got} s of one"))
    } else {
        Finding::contained(format!("{got} s of one"))
    })
}

async fn cpu_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut got: f64 = 0.0;
    // A busy host may give little for a second.
    for _ in 0..60 {
        got = got.max(share(stage, target).await?);
        if got > SHARE {
            return Ok(Finding::escaped(format!("{got} s of one")));
        }
    }
    Ok(Finding::contained(format!("{got} s of one")))
}

/// All terminals of a host share a few thousand.
async fn terminals(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.probe(target, &["terminal_bomb", "300"]).await
}

async fn host_terminals(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let ran = std::process::Command::new(stage.scratch.join("attacks"))
        .args(["--inside", "terminal_bomb", "300"])
        .output()?;
    Finding::parse(&String::from_utf8_lossy(&ran.stdout)).ok_or_else(|| "no verdict".into())
}

async fn raise(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let culprit = match culprit(stage, target, "open_files = 64", false).await? {
        Ok(culprit) => culprit,
        Err(why) => return Ok(Finding::not_run(why)),
    };
    let script = "ulimit -n 1000 2>/dev/null; prlimit --pid $$ --nofile=1000:1000 2>/dev/null; exec /workspace/attacks --inside descriptor_bomb 200";
    let ran = stage.sh(&culprit, script).await?;
    stage.delete(&culprit).await?;
    Finding::parse(&ran.stdout).ok_or_else(|| ran.stderr.into())
}

async fn many_files(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let culprit = stage.fresh(target.profile, &recipe(target.profile, "", &[])).await?;
    let made = stage.probe(&culprit, &["inode_bomb", "100000", "/tmp/tree"]).await?;
    if !matches!(made, Finding::Escaped(_)) {
        return Err(format!("the tree was not made: {}", made.line()).into());
    }
    let removing = stage.client.remove(&culprit.id, "/tmp/tree", true);
    let neighbouring = async {
        let mut answers = 0;
        for _ in 0..20 {
            let ran = stage.exec(target, &["echo", "here"]).await?;
            answers += u32::from(ran.stdout == "here\n");
        }
        Outcome::Ok(answers)
    };
    let (removed, answers) = tokio::join!(removing, neighbouring);
    removed?;
    let left = stage.exec(&culprit, &["test", "-e", "/tmp/tree"]).await?.exit.code == 0;
    stage.delete(&culprit).await?;
    let answers = answers?;
    Ok(if left || answers < 20 {
        Finding::escaped(format!("{answers} answers of 20, left: {left}"))
    } else {
        Finding::contained("the neighbour answered 20 times of 20")
    })
}
