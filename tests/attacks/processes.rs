//! Processes: the guest and its minders as victims, and trees that would outlive their end.

use std::time::Duration;

use sandbar_api::{ExitReason, HumanDuration, StartProcess};

use crate::{
    attack::{
        Attack, Class,
        Control::{self, Host, Unshared},
        Finding, act,
    },
    files_api::alive,
    stage::{Stage, Target, recipe, request},
    support::{Outcome, until},
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Processes, name, act, control);
    let shell = |name, script, control| Attack::shell(Class::Processes, name, script, control);
    let survives = || Control::Act("ended by TERM, which reaches the group alone", act!(survives_term));
    vec![
        doing(
            "every_signal_to_the_guest",
            act!(signal_guest),
            Control::Act("to a process of its own", act!(signal_own)),
        ),
        doing("killing_the_minder", act!(kill_minder), survives()),
        doing("stopping_the_minder", act!(stop_minder), survives()),
        doing("daemon_after_kill", act!(daemon_kill), survives()),
        doing("daemon_after_timeout", act!(daemon_timeout), survives()),
        doing("subreaper_after_kill", act!(subreaper), survives()),
        doing("daemon_after_delete", act!(daemon_delete), survives()),
        Attack::probe(
            Class::Processes,
            "others_in_proc",
            "keep theirs to themselves",
            Control::Act("of a process of its own", act!(own_in_proc)),
        ),
        shell(
            "limits_of_the_guest",
            "prlimit --pid 1 --nofile=3:3 2>/dev/null && echo escaped: changed || echo contained: refused",
            Control::Act("of a process of its own, without seccomp", act!(own_limits)),
        ),
        shell(
            "priority_of_the_guest",
            "renice -n 19 -p 1 >/dev/null 2>&1 && echo escaped: lowered || echo contained: refused",
            Control::Act("of a process of its own", act!(own_priority)),
        ),
        shell(
            "processors_of_the_guest",
            "taskset -pc 0 1 >/dev/null 2>&1 && echo escaped: pinned || echo contained: refused",
            Control::Act("of a process of its own", act!(own_priority)),
        ),
        Attack::probe(Class::Processes, "core_dump", "nothing was dumped", Host),
        shell("processes_of_the_host", PROCESSES, Host),
        shell(
            "kill_by_the_hosts_pid",
            "kill -0 $SERVER_PID 2>/dev/null && echo escaped: the server can be signalled || echo contained: no such process",
            Host,
        ),
        doing("kill_everybody", act!(kill_everybody), Control::Act("of a process of its own", act!(signal_own))),
        shell(
            "oom_score_of_the_guest",
            "(echo 1000 > /proc/1/oom_score_adj) 2>/dev/null && echo escaped: set || echo contained: refused",
            Unshared,
        ),
        shell("lower_oom_score", LOWER, Control::Without(&["landlock"])),
        shell("lower_oom_score", LOWER, Control::Without(&["landlock"])).by_root(),
        doing("oom_scores", act!(oom_scores), Control::Act("without Landlock, not below the guest", act!(oom_lowered))),
        shell(
            "cgroups",
            "if [ -d /sys/fs/cgroup ] && ls /sys/fs/cgroup >/dev/null 2>&1 || grep -q cgroup /proc/self/mountinfo; then echo escaped: mounted; else echo contained: none is mounted; fi",
            Host,
        ),
        doing("impersonating_the_guest", act!(impersonate), Control::Act("on the host", act!(host_socket))),
    ]
}

/// By one: what the kernel kills first could make it kill others.
const LOWER: &str = "own=$(cat /proc/self/oom_score_adj)
(echo $((own - 1)) > /proc/self/oom_score_adj && echo escaped: from $own to $(cat /proc/self/oom_score_adj)) 2>/dev/null || echo contained: refused at $own";

/// Of the server and of a workload as the host sees them, and below which none inside can get, whatever its fence.
async fn oom_scores(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let server = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", stage.server.pid()))?;
    let server: i16 = server.trim().parse()?;
    let workload: i16 = stage.sh(target, "cat /proc/self/oom_score_adj").await?.stdout.trim().parse()?;
    if workload <= server {
        return Ok(Finding::escaped(format!("a workload has {workload}, the server {server}")));
    }
    if server >= 0 {
        return Ok(Finding::contained(format!(
            "a workload has {workload}, the server {server}, which it may not lower"
        )));
    }
    let lowest = lowered(stage, target, 0).await?;
    Ok(match lowest > 0 {
        true => {
            Finding::contained(format!("a workload has {workload} and cannot get below {lowest}, the server {server}"))
        }
        false => Finding::escaped(format!("a workload has made it {lowest}, the server has {server}")),
    })
}

/// What a workload without Landlock has after it tried to have no more than that.
async fn lowered(stage: &Stage, target: &Target, least: i16) -> Outcome<i16> {
    let open = stage.target(target.profile, &recipe(target.profile, "", &["landlock"])).await?;
    let script = format!(
        "own=/proc/$$/oom_score_adj
        while [ $(cat $own) -gt {least} ] && echo $(($(cat $own) - 50)) > $own; do :; done 2>/dev/null
        cat $own"
    );
    Ok(stage.sh(&open, &script).await?.stdout.trim().parse()?)
}

async fn oom_lowered(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let got = lowered(stage, target, 500).await?;
    Ok(if got <= 500 { Finding::escaped(format!("it has {got}")) } else { Finding::contained(format!("it has {got}")) })
}

async fn own_priority(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = "sleep 20 & renice -n 19 -p $! >/dev/null && taskset -pc 0 $! >/dev/null && echo escaped: lowered and pinned; kill $!";
    let ran = stage.sh(target, script).await?;
    Finding::parse(&ran.stdout).ok_or_else(|| ran.stderr.into())
}

async fn own_limits(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let open = stage.target(target.profile, &recipe(target.profile, "", &["seccomp"])).await?;
    let script = "sleep 20 & prlimit --pid $! --nofile=64:64 && echo escaped: they were changed; kill $!";
    let ran = stage.sh(&open, script).await?;
    Finding::parse(&ran.stdout).ok_or_else(|| ran.stderr.into())
}

const PROCESSES: &str = "count=$(ls /proc | grep -c '^[0-9]')
[ -e /proc/$SERVER_PID/cmdline ] && tr '\\0' ' ' < /proc/$SERVER_PID/cmdline | grep -q 'up --listen' && echo \"escaped: the server is one of $count\" || echo contained: its own alone";

/// Everything it can reach but itself: whoever minds it too, where there is one uid for all.
async fn kill_everybody(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let victim = stage.fresh(target.profile, &recipe(target.profile, "", &[])).await?;
    let before = stage.sh(&victim, "kill -9 -1; sleep 0.1; echo alone").await.map(|ran| ran.stdout);
    let found = alive(stage, &victim, &format!("the guest answers, after {before:?}")).await;
    stage.delete(&victim).await?;
    found
}

async fn signal_guest(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = "i=1; while [ $i -le 64 ]; do kill -$i 1 2>/dev/null; i=$((i+1)); done; echo tried";
    let ran = stage.sh(target, script).await?;
    if ran.stdout != "tried\n" {
        return Err(format!("not tried: {ran:?}").into());
    }
    alive(stage, target, "it answers").await
}

async fn signal_own(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let ran = stage.sh(target, "sleep 20 & kill -9 $!; wait $!; echo $?").await?;
    Ok(if ran.stdout == "137\n" { Finding::escaped("it died") } else { Finding::contained(ran.stdout) })
}

/// What is left of a marked process after its end.
async fn left(stage: &Stage, target: &Target, mark: &str) -> Outcome<bool> {
    // Itself, not the shells that have it in their scripts.
    let script = format!(
        "for process in /proc/[0-9]*; do
          tr '\\0' ' ' 2>/dev/null < $process/cmdline | grep -q '^sleep {mark} ' && echo $process
        done"
    );
    Ok(!stage.sh(target, &script).await?.stdout.is_empty())
}

/// For the kernel takes a moment either way.
async fn stays(stage: &Stage, target: &Target, mark: &str, within: Duration) -> Outcome<bool> {
    let deadline = std::time::Instant::now() + within;
    while left(stage, target, mark).await? {
        if std::time::Instant::now() > deadline {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// For what has to be gone.
const SOON: Duration = Duration::from_secs(300);

/// Starts `script` in a sandbox of its own, ends it, and looks whether the sleeper with the mark is still there.
async fn outlives(stage: &Stage, target: &Target, script: &str, end: &str) -> Outcome<Finding> {
    let text = recipe(target.profile, "", &[]);
    let victim = stage.fresh(target.profile, &text).await?;
    let mark = format!("77{}", 10_000 + stage.number());
    let request = StartProcess {
        argv: ["sh", "-c", &script.replace("MARK", &mark)].map(str::to_owned).to_vec(),
        ..StartProcess::default()
    };
    let process = stage.client.start_process(&victim.id, &request).await?.id.to_string();
    until("the daemon runs", async || left(stage, &victim, &mark).await).await?;
    std::fs::write(victim.shared.join("go"), "")?;
    if script.contains("tried") {
        until("its minder was met", async || {
            let over = stage.client.process(&victim.id, &process).await?.exit.is_some();
            Ok(over || victim.shared.join("tried").exists())
        })
        .await?;
    }
    if let Err(error) = stage.client.signal(&victim.id, &process, end).await
        && error.code() != Some(sandbar_api::Code::ProcessOver)
    {
        return Err(error.into());
    }
    let within = if end == "KILL" { SOON } else { Duration::from_millis(300) };
    let there = stays(stage, &victim, &mark, within).await?;
    stage.delete(&victim).await?;
    Ok(if there { Finding::escaped("the daemon lives on") } else { Finding::contained("nothing is left") })
}

const DAEMON: &str = "setsid sh -c 'setsid sleep MARK & exit' & sleep 600";

async fn daemon_kill(stage: &Stage, target: &Target) -> Outcome<Finding> {
    outlives(stage, target, DAEMON, "KILL").await
}

async fn survives_term(stage: &Stage, target: &Target) -> Outcome<Finding> {
    outlives(stage, target, DAEMON, "TERM").await
}

/// Once its daemon is known to run.
const MINDED: &str = "setsid sleep MARK & while [ ! -e /workspace/go ]; do sleep 0.05; done
kill -SIGNAL $PPID; : > /workspace/tried; sleep 600";

/// Whoever kills the one that minds its tree would have a tree that nobody minds.
async fn kill_minder(stage: &Stage, target: &Target) -> Outcome<Finding> {
    outlives(stage, target, &MINDED.replace("SIGNAL", "9"), "KILL").await
}

async fn stop_minder(stage: &Stage, target: &Target) -> Outcome<Finding> {
    outlives(stage, target, &MINDED.replace("SIGNAL", "STOP"), "KILL").await
}

/// A process that adopts its orphans itself, so that they never come to the minder.
async fn subreaper(stage: &Stage, target: &Target) -> Outcome<Finding> {
    outlives(stage, target, "/workspace/attacks --inside subreaper MARK; sleep 600", "KILL").await
}

async fn daemon_timeout(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = format!("77{}", 10_000 + stage.number());
    let mut timed = request(&["sh", "-c", &DAEMON.replace("MARK", &mark)]);
    timed.timeout = Some(HumanDuration(Duration::from_millis(300)));
    let ran = stage.client.exec(&target.id, &timed).await?;
    if ran.exit.reason != ExitReason::Timeout {
        return Ok(Finding::escaped(format!("it ended by {:?}", ran.exit.reason)));
    }
    let there = stays(stage, target, &mark, SOON).await?;
    Ok(if there { Finding::escaped("the daemon lives on") } else { Finding::contained("nothing is left") })
}

/// By the host's own eyes: no process that has the sandbox's files mounted.
async fn daemon_delete(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let victim = stage.fresh(target.profile, &recipe(target.profile, "", &[])).await?;
    stage.sh(&victim, "setsid sh -c 'setsid sleep 600 & exit' >/dev/null 2>&1 & sleep 0.1").await?;
    let mounted = || -> Outcome<bool> {
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
            if mounts.contains(victim.shared.file_name().unwrap_or_default().to_string_lossy().as_ref()) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    if !mounted()? {
        return Err("its processes cannot be seen from the host".into());
    }
    stage.delete(&victim).await?;
    let deadline = std::time::Instant::now() + SOON;
    while mounted()? {
        if std::time::Instant::now() > deadline {
            return Ok(Finding::escaped("something of it still runs"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(Finding::contained("nothing is left"))
}

async fn own_in_proc(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.probe(target, &["own_in_proc"]).await
}

/// The socket by which the server speaks to the guest.
async fn impersonate(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let script = "grep -v -e Path -e '^$' /proc/net/unix | awk '$8 ~ /sock/ {print $8}' | head -n 1; find / -xdev -name '*.sock' 2>/dev/null | head -n 1";
    let found = stage.sh(target, script).await?.stdout;
    let names: Vec<_> = found.lines().collect();
    for name in &names {
        let tried = stage.exec(target, &["test", "-w", name]).await?;
        if tried.exit.code == 0 {
            return Ok(Finding::escaped(format!("{name} can be reached")));
        }
    }
    Ok(Finding::contained(format!("no socket can be reached of {names:?}")))
}

async fn host_socket(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let place = stage.server.home.path().join("local").join(&target.id);
    let script = "find \"$1\" -name '*.sock' -o -type s | head -n 1";
    let ran = std::process::Command::new("sh").args(["-c", script, "sh"]).arg(&place).output()?;
    let found = String::from_utf8_lossy(&ran.stdout);
    Ok(if found.is_empty() { Finding::contained("there is none") } else { Finding::escaped(found.trim()) })
}
