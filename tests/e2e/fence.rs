//! What holds, bounds and multiplies sandboxes, as a person at the command line meets it: the enforcement report,
//! limits, profiles, pause, snapshots, forks and pools.

use std::{
    fs,
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{Outcome, SANDBAR, Server, done, expect_clean, text};

fn sandbar(server: &Server, arguments: &[&str]) -> Outcome<String> {
    done(&mut server.command(arguments))
}

fn json(server: &Server, arguments: &[&str]) -> Outcome<Value> {
    let arguments: Vec<_> = ["--json"].iter().chain(arguments).copied().collect();
    Ok(serde_json::from_str(&sandbar(server, &arguments)?)?)
}

/// A command in a sandbox, through a shell, whatever comes of it.
fn shell(server: &Server, sandbox: &str, script: &str) -> Outcome<Output> {
    Ok(server.command(&["exec", sandbox, "--", "sh", "-c", script]).output()?)
}

/// Ends with this code and says this.
fn refused(server: &Server, arguments: &[&str], code: i32, says: &str) -> Outcome {
    let output = server.command(arguments).output()?;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(says), "{arguments:?}: {said}");
    Ok(())
}

fn until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn template(server: &Server, name: &str, text: &str) -> Outcome {
    Ok(fs::write(server.home.path().join("templates").join(name).with_extension("toml"), text)?)
}

/// Makes a sandbox of a template, or says why this host cannot.
fn create_if_enforceable(server: &Server, test: &str, name: &str, template: &str) -> Outcome<bool> {
    let output = server.command(&["create", "--name", name, "--template", template]).output()?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(7) => {
            sandbar_test_harness::not_run(test, text(&output.stderr).trim());
            Ok(false)
        }
        _ => Err(text(&output.stderr).into()),
    }
}

fn finish(mut server: Server, sandboxes: &[&str]) -> Outcome {
    for name in sandboxes {
        sandbar(&server, &["rm", name])?;
    }
    server.kill()?;
    expect_clean(server.home.path())
}

#[test]
fn inspect_shows_what_a_probe_inside_saw() -> Outcome {
    let server = Server::start()?;
    sandbar(&server, &["create", "--name", "box"])?;
    let shown = sandbar(&server, &["inspect", "box"])?;
    assert!(shown.contains("LAYER") && shown.contains("EVIDENCE"), "{shown}");
    assert!(shown.ends_with("everything that is required is in force\n"), "{shown}");
    let shown = json(&server, &["inspect", "box"])?;
    assert_eq!((&shown["name"], &shown["state"]), (&"box".into(), &"ready".into()));
    let layers = shown["enforcement"]["layers"].as_array().ok_or("no layers")?;
    assert_eq!(shown["enforcement"]["profile"], "standard");
    for name in ["mounts", "pid_namespace", "network", "capabilities", "no_new_privs", "seccomp", "landlock"] {
        let layer = layers.iter().find(|layer| layer["layer"] == name).ok_or_else(|| format!("no {name}"))?;
        assert_eq!((&layer["requirement"], &layer["in_force"]), (&"required".into(), &true.into()), "{layer}");
        assert!(layer["evidence"].as_str().is_some_and(|evidence| !evidence.is_empty()), "{layer}");
    }
    // Nothing was limited, so no limit is claimed.
    let memory = layers.iter().find(|layer| layer["layer"] == "memory").ok_or("no memory")?;
    assert_eq!((&memory["requirement"], &memory["in_force"]), (&"off".into(), &false.into()), "{memory}");

    sandbar(&server, &["stop", "box"])?;
    let stopped = sandbar(&server, &["inspect", "box"])?;
    assert!(stopped.contains("has to run: `sandbar start box`"), "{stopped}");
    let stopped = json(&server, &["inspect", "box"])?;
    assert_eq!((&stopped["state"], &stopped["enforcement"]), (&"stopped".into(), &Value::Null));
    finish(server, &["box"])
}

#[test]
fn a_paused_sandbox_stands_still_and_goes_on_without_losing_a_byte() -> Outcome {
    let server = Server::start()?;
    sandbar(&server, &["create", "--name", "box"])?;
    let script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done";
    let process = sandbar(&server, &["exec", "-d", "box", "--", "sh", "-c", script])?.trim().to_owned();
    let written = || -> Outcome<u64> {
        let processes = json(&server, &["ps", "box"])?;
        processes["processes"][0]["output"]["end"].as_u64().ok_or_else(|| processes.to_string().into())
    };
    until("it writes", || Ok(written()? > 0))?;
    sandbar(&server, &["pause", "box"])?;
    assert!(sandbar(&server, &["ls"])?.contains("paused"));
    refused(&server, &["exec", "box", "--", "true"], 125, "sandbar resume box")?;
    assert!(sandbar(&server, &["inspect", "box"])?.contains("has to run: `sandbar resume box`"));
    assert!(text(&server.command(&["pause", "box"]).output()?.stderr).contains("already paused"));
    // A writer that ran would never be caught silent for as long as twenty of its steps.
    let mut held = 0;
    until("it stands still", || {
        let before = std::mem::replace(&mut held, written()?);
        std::thread::sleep(Duration::from_millis(200));
        Ok(before == held && written()? == held)
    })?;
    sandbar(&server, &["resume", "box"])?;
    assert!(text(&server.command(&["resume", "box"]).output()?.stderr).contains("already running"));
    until("it goes on", || Ok(written()? > held))?;
    assert_eq!(sandbar(&server, &["exec", "box", "--", "echo", "awake"])?, "awake\n");
    sandbar(&server, &["kill", "-s", "KILL", "box", &process])?;
    let log = sandbar(&server, &["logs", "-f", "box", &process])?;
    assert!(log.lines().zip(1u64..).all(|(line, number)| line == number.to_string()), "{log}");
    finish(server, &["box"])
}

#[test]
fn a_snapshot_outlives_its_sandbox_and_the_sandboxes_made_from_it_outlive_the_snapshot() -> Outcome {
    let server = Server::start()?;
    sandbar(&server, &["create", "--name", "origin"])?;
    done(&mut server.command(&["exec", "origin", "--", "sh", "-c", "echo one > file; echo root > ~/file"]))?;
    let id = sandbar(&server, &["snapshot", "origin", "--name", "before"])?.trim().to_owned();
    assert!(id.starts_with("snp-"), "{id}");
    refused(&server, &["snapshot", "origin", "--name", "before"], 5, "before")?;
    done(&mut server.command(&["exec", "origin", "--", "sh", "-c", "echo two > file"]))?;
    assert_eq!(sandbar(&server, &["snapshots", "ls", "-q"])?.trim(), id);
    let listed = sandbar(&server, &["snapshots"])?;
    assert!(listed.contains("before") && listed.contains(&id), "{listed}");
    sandbar(&server, &["rm", "origin"])?;

    sandbar(&server, &["create", "--name", "named", "--from", "before"])?;
    sandbar(&server, &["create", "--name", "by-id", "--from", &id])?;
    for name in ["named", "by-id"] {
        assert_eq!(text(&shell(&server, name, "cat file ~/file; hostname")?.stdout), format!("one\nroot\n{name}\n"));
        assert_eq!(json(&server, &["inspect", name])?["from"], id.as_str());
    }
    done(&mut server.command(&["exec", "named", "--", "sh", "-c", "echo mine > file"]))?;
    sandbar(&server, &["snapshots", "rm", "before"])?;
    assert_eq!(sandbar(&server, &["snapshots", "ls", "-q"])?, "");
    assert_eq!(text(&shell(&server, "by-id", "cat file ~/file")?.stdout), "one\nroot\n");
    sandbar(&server, &["stop", "by-id"])?;
    sandbar(&server, &["start", "by-id"])?;
    assert_eq!(text(&shell(&server, "by-id", "cat file ~/file")?.stdout), "one\nroot\n");
    sandbar(&server, &["snapshots", "rm", "before"])?;
    refused(&server, &["snapshots", "rm", "never"], 4, "never")?;
    sandbar(&server, &["snapshots", "rm", "-f", "never"])?;
    refused(&server, &["create", "--from", "before"], 4, "before")?;
    finish(server, &["named", "by-id"])
}

#[test]
fn forks_have_the_files_and_nothing_else_in_common() -> Outcome {
    let server = Server::start()?;
    sandbar(&server, &["create", "--name", "origin", "--env", "A=b"])?;
    done(&mut server.command(&["exec", "origin", "--", "sh", "-c", "echo shared > file"]))?;
    // Somebody goes on writing meanwhile.
    sandbar(&server, &["exec", "-d", "origin", "--", "sh", "-c", "while :; do echo x >> log; done"])?;
    let options = ["fork", "origin", "-n", "3", "--name", "try", "-l", "task=42", "--ttl", "1h"];
    let output = server.command(&options).output()?;
    let (ids, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(ids.lines().filter(|id| id.starts_with("sbx-")).count(), 3, "{ids}{said}");
    assert!(said.contains("forked origin into try-1, try-2, try-3 in "), "{said}");
    let mut found = sandbar(&server, &["ls", "-q", "-l", "task=42"])?;
    assert_eq!((found.lines().count(), ids.lines().count()), (3, 3), "{found}");
    found += &sandbar(&server, &["ls", "-q"])?;
    for name in ["try-1", "try-2", "try-3"] {
        let shown = json(&server, &["inspect", name])?;
        assert!(shown["expires_at"].is_string() && found.contains(shown["id"].as_str().unwrap_or("?")), "{shown}");
        let script = format!("cat file; hostname; echo $A; echo {name} > file");
        assert_eq!(text(&shell(&server, name, &script)?.stdout), format!("shared\n{name}\nb\n"));
        // What wrote in the origin was not copied, only its files.
        assert_eq!(text(&shell(&server, name, "cat /proc/[0-9]*/cmdline | grep -ac 'do echo x'")?.stdout), "1\n");
    }
    for name in ["try-1", "try-2", "try-3"] {
        assert_eq!(text(&shell(&server, name, "cat file")?.stdout), format!("{name}\n"));
    }
    assert_eq!(text(&shell(&server, "origin", "cat file")?.stdout), "shared\n");
    let sessions: std::collections::BTreeSet<_> = ["origin", "try-1", "try-2", "try-3"]
        .iter()
        .map(|name| Ok(json(&server, &["inspect", name])?["session"].to_string()))
        .collect::<Outcome<_>>()?;
    assert_eq!(sessions.len(), 4, "{sessions:?}");
    refused(&server, &["fork", "origin", "-n", "3", "--name", "try"], 5, "try-1")?;
    assert_eq!(sandbar(&server, &["ls", "-q"])?.lines().count(), 4, "a refused fork left something");
    sandbar(&server, &["rm", "origin"])?;
    finish(server, &["try-1", "try-2", "try-3"])
}

#[test]
fn a_pool_is_claimed_from_under_the_name_that_was_asked_for_and_refills() -> Outcome {
    let mut server = Server::start()?;
    let warm = |server: &Server, want: u64| {
        until(&format!("{want} are warm"), || Ok(json(server, &["pool", "ls"])?["pools"][0]["warm"] == want))
    };
    refused(&server, &["pool", "set", "nothing", "1"], 4, "nothing")?;
    sandbar(&server, &["pool", "set", "default", "2"])?;
    warm(&server, 2)?;
    assert_eq!(sandbar(&server, &["ls", "-q"])?, "", "those that wait are nobody's sandboxes");
    let options = ["create", "--name", "claimed", "--env", "A=b", "-l", "k=v", "--ttl", "1h"];
    let id = sandbar(&server, &options)?.trim().to_owned();
    assert_eq!(text(&shell(&server, "claimed", "hostname; echo $A; pwd; touch f")?.stdout), "claimed\nb\n/workspace\n");
    let shown = json(&server, &["inspect", "claimed"])?;
    assert_eq!((&shown["id"], &shown["labels"]["k"]), (&id.as_str().into(), &"v".into()));
    assert!(shown["expires_at"].is_string() && shown["enforcement"]["layers"].is_array(), "{shown}");
    warm(&server, 2)?;
    let directory = tempfile::tempdir()?;
    let workspace = format!("{}:rw", directory.path().display());
    sandbar(&server, &["create", "--name", "bound", "--workspace", &workspace])?;
    assert_eq!(sandbar(&server, &["exec", "bound", "--", "sh", "-c", "touch here; ls"])?, "here\n");
    assert!(directory.path().join("here").exists());
    warm(&server, 2)?;
    server.kill()?;
    server.restart()?;
    warm(&server, 2)?;
    assert_eq!(sandbar(&server, &["exec", "claimed", "--", "ls"])?, "f\n");
    let table = sandbar(&server, &["pool", "ls"])?;
    assert!(table.starts_with("TEMPLATE") && table.contains("default"), "{table}");
    sandbar(&server, &["pool", "rm", "default"])?;
    assert_eq!(json(&server, &["pool", "ls"])?["pools"], Value::Array(vec![]));
    until("the warm ones are gone", || Ok(crate::support::guests(server.home.path()).len() == 2))?;
    finish(server, &["claimed", "bound"])
}

#[test]
fn templates_and_profiles_are_read_without_a_server() -> Outcome {
    let place = tempfile::tempdir()?;
    let alone = |arguments: &[&str]| {
        Command::new(SANDBAR).args(arguments).env("SANDBAR_HOME", place.path()).current_dir(place.path()).output()
    };
    let limits = "[limits]\nmemory = \"512MiB\"\nprocesses = 64\n";
    fs::write(place.path().join("good.toml"), format!("profile = \"hardened\"\n{limits}"))?;
    fs::write(place.path().join("bad.toml"), format!("description = \"x\"\n\n{limits}memroy = \"1GiB\"\n"))?;
    let good = alone(&["template", "check", "good.toml"])?;
    assert!(good.status.success(), "{}", text(&good.stderr));
    let said = text(&good.stdout);
    assert!(said.starts_with("good.toml: ok\n") && said.contains("hardened"), "{said}");
    assert!(said.contains("memory 512MiB, processes 64"), "{said}");
    let both = alone(&["template", "check", "bad.toml", "good.toml"])?;
    assert_eq!(both.status.code(), Some(2));
    assert!(text(&both.stderr).contains("bad.toml:6: ") && text(&both.stderr).contains("memroy"), "{both:?}");
    assert!(text(&both.stdout).contains("good.toml: ok"), "{both:?}");
    assert_eq!(alone(&["template", "check", "none.toml"])?.status.code(), Some(4));

    assert!(text(&alone(&["profile", "ls"])?.stdout).contains("\nhardened"));
    let file = text(&alone(&["profile", "show", "standard"])?.stdout);
    assert!(file.contains("\n# ") && file.contains("seccomp = \"required\""), "{file}");
    assert_eq!(alone(&["profile", "show", "loose"])?.status.code(), Some(4));
    Ok(())
}

#[test]
fn what_runs_out_of_memory_is_told_so_everywhere() -> Outcome {
    let server = Server::start()?;
    template(&server, "small", "[limits]\nmemory = \"64MiB\"\n")?;
    let test = "what_runs_out_of_memory_is_told_so_everywhere";
    if !create_if_enforceable(&server, test, "small", "small")? {
        return Ok(());
    }
    sandbar(&server, &["create", "--name", "neighbour"])?;
    // Nothing ever ends a line, so all of it is kept in memory.
    let bomb = shell(&server, "small", "exec tail -n 1 /dev/zero")?;
    assert_eq!(bomb.status.code(), Some(137), "{}", text(&bomb.stderr));
    assert!(text(&bomb.stderr).contains("memory limit"), "{}", text(&bomb.stderr));
    let table = sandbar(&server, &["ps", "small"])?;
    assert!(table.contains("exited (137, oom)"), "{table}");
    assert_eq!(json(&server, &["ps", "small"])?["processes"][0]["exit"]["reason"], "oom");
    let events = sandbar(&server, &["events", "--sandbox", "small"])?;
    for (kind, says) in [("process.exited", "oom"), ("sandbox.limit", "memory")] {
        assert!(events.lines().any(|line| line.contains(kind) && line.contains(says)), "{kind}: {events}");
    }
    // The culprit's sandbox and its neighbour go on.
    for name in ["small", "neighbour"] {
        assert_eq!(sandbar(&server, &["exec", name, "--", "echo", "fine"])?, "fine\n");
    }
    let layers = json(&server, &["inspect", "small"])?["enforcement"]["layers"].clone();
    let memory = layers.as_array().into_iter().flatten().find(|layer| layer["layer"] == "memory").ok_or("no memory")?;
    assert_eq!((&memory["requirement"], &memory["in_force"]), (&"required".into(), &true.into()), "{memory}");
    finish(server, &["small", "neighbour"])
}

#[test]
fn what_reaches_a_limit_ends_with_its_reason_and_the_sandbox_goes_on() -> Outcome {
    let server = Server::start()?;
    let test = "what_reaches_a_limit_ends_with_its_reason_and_the_sandbox_goes_on";
    for (limit, script, reason) in [
        ("wall_time = \"300ms\"", "sleep 1000", "timeout"),
        ("output = \"64KiB\"", "exec cat /dev/zero", "output_limit"),
        ("processes = 16", "for i in $(seq 100); do sleep 1000 & done; wait", "pids_limit"),
        ("disk = \"16MiB\"", "exec dd if=/dev/zero of=full bs=1M", "disk_limit"),
    ] {
        template(&server, "bounded", &format!("[limits]\n{limit}\n"))?;
        if !create_if_enforceable(&server, &format!("{test}: {limit}"), "box", "bounded")? {
            continue;
        }
        let ended = shell(&server, "box", script)?;
        assert!(!ended.status.success(), "{limit}");
        let processes = json(&server, &["ps", "box"])?;
        assert_eq!(processes["processes"][0]["exit"]["reason"], reason, "{limit}: {}", text(&ended.stderr));
        // Its own time may be as short, and over before it has begun.
        until(&format!("it goes on: {limit}"), || Ok(text(&shell(&server, "box", "echo fine")?.stdout) == "fine\n"))?;
        sandbar(&server, &["rm", "box"])?;
    }
    finish(server, &[])
}

#[test]
fn what_idleness_paused_the_next_command_wakes() -> Outcome {
    let server = Server::start()?;
    // Long enough for a command that is late to begin.
    template(&server, "sleepy", "[idle]\npause_after = \"2500ms\"\n")?;
    sandbar(&server, &["create", "--name", "box", "--template", "sleepy"])?;
    // Not by `inspect`, whose probe is work.
    let paused = || Ok(!sandbar(&server, &["ls", "-q", "--state", "paused"])?.is_empty());
    until("it is paused", paused)?;
    assert_eq!(json(&server, &["inspect", "box"])?["state"], "paused", "a look wakes nobody");
    assert_eq!(sandbar(&server, &["exec", "box", "--", "echo", "awake"])?, "awake\n");
    until("it is paused again", paused)?;
    finish(server, &["box"])
}

#[test]
fn hardened_keeps_the_root_as_it_is_and_executes_nothing_written_but_in_the_workspace() -> Outcome {
    let server = Server::start()?;
    template(&server, "tight", "profile = \"hardened\"\n")?;
    sandbar(&server, &["create", "--name", "tight", "--template", "tight"])?;
    sandbar(&server, &["create", "--name", "control"])?;
    for script in ["echo x > /x", "echo x > /usr/x", "echo x > /etc/x", "mkdir /new"] {
        assert!(!shell(&server, "tight", script)?.status.success(), "{script}");
    }
    for place in ["/tmp", "/dev/shm", "/home/agent"] {
        let script = format!("cp /usr/bin/true {place}/t && echo copied && {place}/t && echo ran");
        assert_eq!(text(&shell(&server, "tight", &script)?.stdout), "copied\n", "{place}");
        let control = text(&shell(&server, "control", &script)?.stdout);
        assert!(place == "/dev/shm" || control == "copied\nran\n", "the control: {place}: {control}");
    }
    let script = "cp /usr/bin/true /workspace/t && /workspace/t && echo ran";
    assert_eq!(text(&shell(&server, "tight", script)?.stdout), "ran\n");
    let shown = sandbar(&server, &["inspect", "tight"])?;
    assert!(shown.lines().any(|line| line.starts_with("read-only root  ") && line.contains("  yes  ")), "{shown}");
    finish(server, &["tight", "control"])
}

#[test]
fn skills_are_in_what_is_warm_in_copies_and_after_a_start() -> Outcome {
    let server = Server::start()?;
    let skills = tempfile::tempdir()?;
    let place = skills.path().canonicalize()?;
    fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    fs::write(place.join("SKILL.md"), "a skill\n")?;
    fs::set_permissions(place.join("SKILL.md"), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    template(&server, "skilled", &format!("skills = \"{}\"\n", place.display()))?;
    let has = |name: &str| -> Outcome {
        let said = shell(&server, name, "cat /skills/SKILL.md; touch /skills/x && echo written")?;
        assert_eq!(text(&said.stdout), "a skill\n", "{name}: {}", text(&said.stderr));
        Ok(())
    };
    sandbar(&server, &["pool", "set", "skilled", "1"])?;
    until("one is warm", || Ok(json(&server, &["pool", "ls"])?["pools"][0]["warm"] == 1))?;
    sandbar(&server, &["create", "--name", "warm", "--template", "skilled"])?;
    sandbar(&server, &["pool", "rm", "skilled"])?;
    has("warm")?;
    sandbar(&server, &["fork", "warm", "--name", "fork"])?;
    sandbar(&server, &["snapshot", "warm", "--name", "kept"])?;
    sandbar(&server, &["create", "--name", "copy", "--from", "kept"])?;
    sandbar(&server, &["stop", "warm"])?;
    sandbar(&server, &["start", "warm"])?;
    for name in ["warm", "fork-1", "copy"] {
        has(name)?;
    }
    sandbar(&server, &["stop", "warm"])?;
    drop(skills);
    refused(&server, &["start", "warm"], 2, "leave `skills` out")?;
    refused(&server, &["create", "--template", "skilled"], 2, "leave `skills` out")?;
    sandbar(&server, &["snapshots", "rm", "kept"])?;
    finish(server, &["warm", "fork-1", "copy"])
}
