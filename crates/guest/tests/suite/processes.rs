//! Starting, ending and killing.

use std::{fs, os::unix::fs::PermissionsExt};

use sandbar_guest::protocol::{ExitReason, ForgetRequest, HelloRequest, StartRequest, State};

use crate::support::{Guest, Outcome, code_of, is_alive, pid_in, stat, told_pid, until};

pub(crate) async fn greets(guest: Guest) -> Outcome {
    let first = guest.client.clone().hello(HelloRequest {}).await?.into_inner();
    assert_eq!((first.protocol, first.sandbox_id.as_str(), first.version.as_str()), (6, "sbx-test", "0.0.0-test"));
    let other = Guest::start().await?;
    let second = other.client.clone().hello(HelloRequest {}).await?.into_inner();
    assert_ne!(first.boot_id, second.boot_id);
    Ok(())
}

pub(crate) async fn gives_the_defaults(guest: Guest) -> Outcome {
    let mut request =
        guest.script("p", "pwd; env; umask; readlink /proc/self/fd/0; ls /proc/self/fd; exec cat /proc/self/status");
    request.env.insert("EXTRA".into(), "a b".into());
    let ended = guest.run(request).await?;
    let text = ended.text();
    let here = guest.directory.path().canonicalize()?.display().to_string();
    for line in [
        here.as_str(),
        "EXTRA=a b",
        "HOME=/home/test",
        "USER=test",
        "LOGNAME=test",
        "LANG=C.UTF-8",
        "SHELL=/bin/sh",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "0022",
        "/dev/null",
        "SigBlk:\t0000000000000000",
        "SigIgn:\t0000000000000000",
    ] {
        assert!(text.lines().any(|candidate| candidate == line), "`{line}` in {text}");
    }
    assert!(!text.contains("TERM=") && !text.contains("SANDBAR"), "{text}");
    // 0, 1, 2 and the directory that `ls` reads: nothing of the guest's leaked.
    assert_eq!(text.lines().filter(|line| line.len() == 1 && line.parse::<u8>().is_ok()).count(), 4, "{text}");
    Ok(())
}

pub(crate) async fn starts_once(guest: Guest) -> Outcome {
    let request = guest.script("same", "echo once >> count; exec sleep 1000");
    let (mut a, mut b) = (guest.client.clone(), guest.client.clone());
    let (first, second) = tokio::join!(a.start(request.clone()), b.start(request.clone()));
    first?;
    second?;
    guest.client.clone().start(request).await?;
    until("the script", || fs::read_to_string(guest.path("count")).is_ok_and(|text| text.ends_with('\n'))).await?;
    guest.signal("same", libc::SIGKILL).await?;
    guest.follow("same", 0).await?.until_exit().await?;
    assert_eq!(fs::read_to_string(guest.path("count"))?, "once\n");
    Ok(())
}

pub(crate) async fn tells_why_it_did_not_start(guest: Guest) -> Outcome {
    let file = |name: &str, text: &str, mode: u32| -> Outcome<String> {
        fs::write(guest.path(name), text)?;
        fs::set_permissions(guest.path(name), fs::Permissions::from_mode(mode))?;
        Ok(guest.text_path(name))
    };
    let plain = file("plain", "hello", 0o644)?;
    let text = file("text", "hello", 0o755)?;
    let orphan = file("orphan", "#!/no/such/interpreter\n", 0o755)?;
    let here = guest.directory.path().display().to_string();
    for (argv0, cwd, wanted) in [
        ("no-such-command", "/", "command_not_found"),
        ("/no/such/file", "/", "command_not_found"),
        (plain.as_str(), "/", "command_not_executable"),
        (here.as_str(), "/", "command_not_executable"),
        (text.as_str(), "/", "command_not_executable"),
        (orphan.as_str(), "/", "command_not_executable"),
        ("true", "/no/such/directory", "unknown_file"),
        ("true", plain.as_str(), "wrong_file_kind"),
        ("true", "relative", "bad_path"),
        ("", "/", "bad_command"),
    ] {
        let request = StartRequest {
            process_id: "p".into(),
            argv: vec![argv0.into()],
            cwd: cwd.into(),
            ..StartRequest::default()
        };
        assert_eq!(code_of(guest.client.clone().start(request).await), wanted, "{argv0} in {cwd}");
        assert!(guest.status("p").await?.is_none(), "{argv0} left a record");
    }
    Ok(())
}

pub(crate) async fn tells_how_it_ended(guest: Guest) -> Outcome {
    let ended = guest.run(guest.script("code", "exit 3")).await?;
    let exit = ended.exit.ok_or("no exit")?;
    assert_eq!((exit.code, exit.signal, exit.reason()), (3, 0, ExitReason::ByItself));
    assert!(exit.at_ms > 1_600_000_000_000);
    let ended = guest.run(guest.script("signal", "kill -SEGV $$")).await?;
    let exit = ended.exit.ok_or("no exit")?;
    assert_eq!((exit.code, exit.signal, exit.reason()), (139, 11, ExitReason::ByItself));
    let status = guest.status("signal").await?.ok_or("no record")?;
    assert_eq!((status.state(), status.exit), (State::Exited, Some(exit)));
    Ok(())
}

/// A child in the group, one that daemonised, and a leader that ignores what can be ignored.
const TREE: &str = "trap '' TERM HUP INT
sh -c 'echo $$ > child; exec sleep 1000' &
(setsid sh -c '(setsid sh -c \"trap : HUP; echo \\$\\$ > daemon; exec sleep 1000\" &) ; exit' &)
echo $$ > leader
sleep 1000";

pub(crate) async fn kills_the_whole_tree(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.script("tree", TREE)).await?;
    let mut pids = Vec::new();
    for name in ["child", "daemon", "leader"] {
        pids.push(pid_in(&guest.path(name)).await?);
    }
    guest.signal("tree", libc::SIGKILL).await?;
    let ended = guest.follow("tree", 0).await?.until_end().await?;
    let exit = ended.exit.ok_or("no exit")?;
    assert_eq!((exit.code, exit.signal, exit.reason()), (137, 9, ExitReason::Killed));
    until("the tree to die", || pids.iter().all(|pid| !is_alive(*pid))).await?;
    until_kill_is_refused(&guest, "tree", "process_over").await
}

/// As long as something may be left, killing it is no error.
async fn until_kill_is_refused(guest: &Guest, id: &str, wanted: &str) -> Outcome {
    loop {
        match code_of(guest.signal(id, libc::SIGKILL).await).as_str() {
            "ok" => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            code => {
                assert_eq!(code, wanted);
                return Ok(());
            }
        }
    }
}

/// A leader that exits at once, and leaves a daemon that holds none of its streams.
const LEAVES: &str = "setsid sh -c 'echo $$ > daemon; exec sleep 1000' >/dev/null 2>&1 </dev/null &
while [ ! -s daemon ]; do sleep 0.01; done; exit 3";

pub(crate) async fn kills_what_a_leader_left_behind(guest: Guest) -> Outcome {
    for forgotten in [false, true] {
        let id = if forgotten { "forgotten" } else { "known" };
        let _ = fs::remove_file(guest.path("daemon"));
        let ended = guest.run(guest.script(id, LEAVES)).await?;
        assert_eq!(ended.code(), Some(3));
        let daemon = pid_in(&guest.path("daemon")).await?;
        if forgotten {
            guest.client.clone().forget(ForgetRequest { process_id: id.into() }).await?;
            assert!(guest.status(id).await?.is_none());
            assert_eq!(code_of(guest.signal(id, libc::SIGTERM).await), "unknown_process");
        } else {
            assert_eq!(code_of(guest.signal(id, libc::SIGTERM).await), "process_over");
        }
        assert!(is_alive(daemon));
        guest.signal(id, libc::SIGKILL).await?;
        until("the daemon to die", || !is_alive(daemon)).await?;
        until_kill_is_refused(&guest, id, if forgotten { "unknown_process" } else { "process_over" }).await?;
        if !forgotten {
            assert_eq!(guest.status(id).await?.and_then(|status| status.exit), ended.exit, "the exit changed");
        }
    }
    Ok(())
}

/// The second is for a busy machine, where too little was begun in the first.
const TIMEOUTS: [u64; 2] = [2000, 20_000];

pub(crate) async fn timeout_reaches_what_a_leader_left_behind(_: Guest) -> Outcome {
    for timeout_ms in TIMEOUTS {
        let guest = Guest::start().await?;
        let request = StartRequest { timeout_ms, ..guest.script("p", LEAVES) };
        let exit = guest.run(request).await?.exit.ok_or("no exit")?;
        if exit.reason() == ExitReason::Timeout {
            continue;
        }
        assert_eq!((exit.code, exit.reason()), (3, ExitReason::ByItself));
        let daemon = pid_in(&guest.path("daemon")).await?;
        if is_alive(daemon) {
            guest.client.clone().forget(ForgetRequest { process_id: "p".into() }).await?;
            return until("the daemon to die", || !is_alive(daemon)).await;
        }
    }
    Err("nothing is left behind".into())
}

pub(crate) async fn timeout_kills_what_daemonised(_: Guest) -> Outcome {
    for timeout_ms in TIMEOUTS {
        let guest = Guest::start().await?;
        let request = StartRequest { timeout_ms, ..guest.script("slow", TREE) };
        guest.client.clone().start(request).await?;
        let exit = guest.follow("slow", 0).await?.until_exit().await?;
        assert_eq!((exit.code, exit.reason()), (137, ExitReason::Timeout));
        if let Some(daemon) = told_pid(&guest.path("daemon")) {
            return until("the daemon to die", || !is_alive(daemon)).await;
        }
    }
    Err("nothing daemonised".into())
}

pub(crate) async fn survives_the_death_of_a_minder(guest: Guest) -> Outcome {
    let other = guest.script("other", "echo $$ > other; exec sleep 1000");
    guest.client.clone().start(other).await?;
    guest.client.clone().start(guest.script("tree", TREE)).await?;
    let daemon = pid_in(&guest.path("daemon")).await?;
    let child = pid_in(&guest.path("child")).await?;
    let leader = pid_in(&guest.path("leader")).await?;
    let (_, minder) = stat(leader).ok_or("no leader")?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(minder)?).ok_or("no minder")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let exit = guest.follow("tree", 0).await?.until_exit().await?;
    assert_eq!((exit.code, exit.signal), (137, 9));
    until("the tree to die", || [daemon, child, leader].iter().all(|pid| !is_alive(*pid))).await?;
    assert!(is_alive(pid_in(&guest.path("other")).await?), "a neighbour died");
    let ended = guest.run(guest.script("next", "echo fine")).await?;
    assert_eq!(ended.text(), "fine\n");
    Ok(())
}

pub(crate) async fn outruns_what_keeps_forking(guest: Guest) -> Outcome {
    let bomb = guest.path("bomb");
    fs::write(&bomb, "#!/bin/sh\nsetsid ./bomb &\nexit\n")?;
    fs::set_permissions(&bomb, fs::Permissions::from_mode(0o755))?;
    guest.client.clone().start(guest.script("p", "./bomb; ./bomb; echo ready; sleep 1000")).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("ready").await?;
    guest.signal("p", libc::SIGKILL).await?;
    // Every generation holds the output, so its end proves that none is left.
    assert_eq!(follower.until_end().await?.code(), Some(137));
    Ok(())
}

pub(crate) async fn kills_past_a_stopped_minder(guest: Guest) -> Outcome {
    let script = "echo $PPID > minder; while :; do kill -STOP $PPID; done";
    guest.client.clone().start(guest.script("p", script)).await?;
    pid_in(&guest.path("minder")).await?;
    guest.signal("p", libc::SIGKILL).await?;
    let exit = guest.follow("p", 0).await?.until_end().await?.exit.ok_or("no exit")?;
    assert_eq!((exit.code, exit.signal, exit.reason()), (137, 9, ExitReason::Killed));
    Ok(())
}

pub(crate) async fn wakes_a_stopped_minder(guest: Guest) -> Outcome {
    // Nobody but the minder can tell of the exit.
    let exit = guest.run(guest.script("p", "kill -STOP $PPID; exit 6")).await?.exit.ok_or("no exit")?;
    assert_eq!((exit.code, exit.reason()), (6, ExitReason::ByItself));
    Ok(())
}

pub(crate) async fn no_signal_but_one_ends_a_minder(guest: Guest) -> Outcome {
    // All but KILL and STOP, those that the C library keeps for itself included.
    let script = "i=1; while [ $i -le 64 ]; do
case $i in 9|19) ;; *) kill -$i $PPID || exit 1 ;; esac; i=$((i+1)); done; (exit 0); exit 6";
    let ended = guest.run(guest.script("p", script)).await?;
    assert_eq!(ended.code(), Some(6), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}

pub(crate) async fn signals_reach_the_group(guest: Guest) -> Outcome {
    let script = "sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.01; done' &
trap 'wait; echo leader; exit 5' TERM; wait";
    guest.client.clone().start(guest.script("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("ready").await?;
    assert_eq!(code_of(guest.signal("p", 0).await), "bad_request");
    assert_eq!(code_of(guest.signal("p", 65).await), "bad_request");
    assert_eq!(code_of(guest.signal("nobody", 15).await), "unknown_process");
    guest.signal("p", libc::SIGTERM).await?;
    let ended = follower.until_end().await?;
    assert_eq!((ended.text().as_str(), ended.code()), ("ready\nchild\nleader\n", Some(5)));
    assert_eq!(ended.exit.map(|exit| exit.reason()), Some(ExitReason::ByItself));
    Ok(())
}

pub(crate) async fn exit_comes_after_the_last_words(guest: Guest) -> Outcome {
    // The descendant keeps the streams open, so their end cannot be what the exit waits for.
    let script = "sh -c 'while [ ! -e go ]; do sleep 0.01; done; echo late' &
head -c 60000 /dev/zero; echo end >&2; exit 4";
    guest.client.clone().start(guest.script("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    let exit = follower.until_exit().await?;
    assert_eq!((exit.code, follower.ended.offset), (4, 60_004));
    assert_eq!(guest.status("p").await?.map(|status| status.state()), Some(State::Exited));
    assert_eq!(code_of(guest.signal("p", libc::SIGTERM).await), "process_over");
    fs::write(guest.path("go"), "")?;
    let ended = follower.until_end().await?;
    assert!(ended.text().ends_with("late\n"));
    Ok(())
}

pub(crate) async fn forgets_what_is_over(guest: Guest) -> Outcome {
    let mut client = guest.client.clone();
    let script = "sh -c 'while [ ! -e go ]; do sleep 0.01; done; head -c 3000000 /dev/zero; touch done; sleep 1000' &
while [ ! -e exit ]; do sleep 0.01; done";
    client.start(guest.script("p", script)).await?;
    let forget = || ForgetRequest { process_id: "p".into() };
    assert_eq!(code_of(client.forget(forget()).await), "wrong_state");
    fs::write(guest.path("exit"), "")?;
    guest.follow("p", 0).await?.until_exit().await?;
    client.forget(forget()).await?;
    client.forget(forget()).await?;
    assert!(guest.status("p").await?.is_none());
    // What was left behind lives on, and its output blocks nobody.
    fs::write(guest.path("go"), "")?;
    until("the leftover to write", || guest.path("done").exists()).await
}

pub(crate) async fn buries_orphans(guest: Guest) -> Outcome {
    for round in 0..20 {
        let script = "(sh -c 'exit 1' &) ; (setsid sh -c 'sleep 0.01' &)";
        guest.run(guest.script(&format!("p{round}"), script)).await?;
    }
    until("all children of the guest to be reaped", || guest.children().is_empty()).await
}

pub(crate) async fn is_small_again_when_idle(guest: Guest) -> Outcome {
    for round in 0..20 {
        let id = format!("p{round}");
        guest.run(guest.script(&id, "head -c 2000000 /dev/zero")).await?;
        guest.client.clone().forget(ForgetRequest { process_id: id }).await?;
    }
    until("freed memory to be given back", || guest.own_memory().is_ok_and(|memory| memory < 512)).await
}
