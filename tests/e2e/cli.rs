//! The command line as a person uses it: real processes, real pipes, a real terminal.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::support::{Outcome, SANDBAR, Server, done, expect_clean, text};

/// `sandbar run` whose private home is made in `place`.
fn run(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(SANDBAR);
    command.arg("run").args(arguments).env("TMPDIR", place);
    command
}

/// Nothing runs any more, and no file is left: a killed run is cleaned up after by its launcher.
fn expect_gone(place: &Path) -> Outcome {
    expect_clean(place)?;
    let deadline = Instant::now() + Duration::from_secs(300);
    while fs::read_dir(place)?.count() > 0 {
        assert!(Instant::now() < deadline, "left: {:?}", fs::read_dir(place)?.flatten().collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn run_is_byte_exact_and_its_exit_code_is_ours() -> Outcome {
    let place = tempfile::tempdir()?;
    let mut child = run(place.path(), &["--", "sh", "-c", "cat; echo oops >&2; exit 42"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let data: Vec<u8> = (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let (copy, writer) = (data.clone(), std::thread::spawn(move || stdin.write_all(&data)));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer panicked")??;
    assert!(output.stdout == copy, "{} of {} bytes came back, or others", output.stdout.len(), copy.len());
    assert_eq!(text(&output.stderr), "oops\n");
    assert_eq!(output.status.code(), Some(42));
    for (script, code) in [("kill -TERM $$", 143), ("exit 0", 0)] {
        assert_eq!(run(place.path(), &["--", "sh", "-c", script]).status()?.code(), Some(code), "{script}");
    }
    assert_eq!(run(place.path(), &["--", "no-such-command"]).output()?.status.code(), Some(127));
    assert_eq!(run(place.path(), &["--", "/etc/passwd"]).output()?.status.code(), Some(126));
    expect_gone(place.path())
}

#[test]
fn run_brings_a_workspace_copied_or_bound() -> Outcome {
    let (place, source) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::create_dir(source.path().join("sub"))?;
    fs::write(source.path().join("sub/file"), "from here")?;
    std::os::unix::fs::symlink("sub/file", source.path().join("link"))?;
    let path = source.path().to_str().ok_or("path")?;
    let script = "cat link; echo changed > sub/file; echo new > new";
    assert_eq!(done(&mut run(place.path(), &["--workspace", path, "--", "sh", "-c", script]))?, "from here");
    assert_eq!(fs::read_to_string(source.path().join("sub/file"))?, "from here", "a copy changed the original");
    assert!(!source.path().join("new").exists());
    assert_eq!(
        done(&mut run(place.path(), &["--workspace", &format!("{path}:rw"), "--", "sh", "-c", script]))?,
        "from here"
    );
    assert_eq!(fs::read_to_string(source.path().join("sub/file"))?, "changed\n");
    assert_eq!(fs::read_to_string(source.path().join("new"))?, "new\n");
    expect_gone(place.path())
}

#[test]
fn signals_reach_the_command_and_a_killed_run_leaves_nothing() -> Outcome {
    let place = tempfile::tempdir()?;
    let begun = |command: &mut Command| -> Outcome<(std::process::Child, std::process::ChildStdout)> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = child.stdout.take().ok_or("no stdout")?;
        let mut first = [0; 6];
        stdout.read_exact(&mut first)?;
        assert_eq!(&first, b"ready\n");
        Ok((child, stdout))
    };
    let script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.02; done";
    let (mut child, mut stdout) = begun(&mut run(place.path(), &["--", "sh", "-c", script]))?;
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let mut rest = String::new();
    stdout.read_to_string(&mut rest)?;
    assert_eq!((rest.as_str(), child.wait()?.code()), ("caught\n", Some(9)));

    let (mut child, _stdout) = begun(&mut run(place.path(), &["--", "sh", "-c", "echo ready; exec sleep 1000"]))?;
    child.kill()?;
    child.wait()?;
    expect_gone(place.path())
}

/// Python's pty module plays the person at a terminal: it opens one, sets its size, types and reads.
#[test]
fn a_terminal_has_size_resize_raw_mode_and_ctrl_c() -> Outcome {
    let person = r#"
import fcntl, os, pty, struct, sys, termios, time
def size(fd, rows, cols): fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
pid, fd = pty.fork()
if pid == 0:
    size(0, 33, 101)
    os.execv(sys.argv[1], [sys.argv[1], "run", "-t", "--", "sh"])
seen = b""
def until(word):
    global seen
    while word not in seen:
        data = os.read(fd, 4096)
        if not data: sys.exit("ended: %r" % seen)
        seen += data
    seen = seen.split(word, 1)[1]
os.write(fd, b"tty; stty size\n"); until(b"/dev/pts/"); until(b"33 101")
size(fd, 20, 60); 
os.write(fd, b"until [ \"$(stty size)\" = '20 60' ]; do sleep 0.02; done; echo resized-$((1+1))\n"); until(b"resized-2")
os.write(fd, b"sleep 1000\n"); until(b"sleep 1000"); time.sleep(0.3)
os.write(fd, b"\x03"); os.write(fd, b"echo still-$((40+2))\n"); until(b"still-42")
os.write(fd, b"exit 5\n")
try:
    while os.read(fd, 4096): pass
except OSError: pass
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
"#;
    let output = Command::new("timeout").args(["60", "python3", "-c", person, SANDBAR]).output()?;
    assert_eq!(text(&output.stdout), "5\n", "{}", text(&output.stderr));
    Ok(())
}

#[test]
fn a_day_with_the_client() -> Outcome {
    let mut server = Server::start()?;
    let sandbar = |arguments: &[&str]| done(&mut server.command(arguments));
    let place = tempfile::tempdir()?;
    let path = |name: &str| place.path().join(name).to_string_lossy().into_owned();

    let id = sandbar(&["create", "--name", "day", "--label", "kind=test", "--env", "WHO=me"])?.trim().to_owned();
    assert!(id.starts_with("sbx-"), "{id}");
    assert!(sandbar(&["ls"])?.contains("day"));
    assert_eq!(sandbar(&["ls", "-q", "-l", "kind=other"])?, "");
    let shown: serde_json::Value = serde_json::from_str(&sandbar(&["--json", "inspect", "day"])?)?;
    assert!(shown.to_string().contains(&id), "{shown}");
    assert_eq!(sandbar(&["exec", "day", "--", "sh", "-c", "echo $WHO; pwd"])?, "me\n/workspace\n");
    assert_eq!(server.command(&["exec", "day", "--", "sh", "-c", "exit 4"]).status()?.code(), Some(4));

    fs::create_dir_all(place.path().join("tree/inner"))?;
    fs::write(place.path().join("tree/inner/file"), [0, 159, 146, 150])?;
    sandbar(&["cp", &path("tree"), "day:/workspace/"])?;
    assert_eq!(sandbar(&["exec", "day", "--", "ls", "/workspace/tree/inner"])?, "file\n");
    sandbar(&["cp", "day:/workspace/tree", &path("back")])?;
    assert_eq!(fs::read(place.path().join("back/inner/file"))?, [0, 159, 146, 150]);
    sandbar(&["cp", "day:/workspace/tree/inner/file", &path("one")])?;
    assert_eq!(fs::read(path("one"))?, [0, 159, 146, 150]);

    let script = "mkdir d; echo a >d/a; echo b >d/b; chmod 0 d/b; mkfifo d/pipe";
    sandbar(&["exec", "day", "--", "sh", "-c", script])?;
    let partly = server.command(&["--json", "cp", "day:d", &path("partly")]).output()?;
    assert_eq!(partly.status.code(), Some(1), "{}", text(&partly.stderr));
    let told: serde_json::Value = serde_json::from_str(&text(&partly.stdout))?;
    assert_eq!(
        (&told["copied"], &told["skipped"][0]["path"], &told["skipped"][1]["path"]),
        (&1.into(), &"b".into(), &"pipe".into())
    );
    assert_eq!(fs::read_to_string(path("partly/a"))?, "a\n");
    // Neither settings nor hooks of a repository here are changed by what is in a sandbox.
    fs::create_dir_all(place.path().join("repo/.git"))?;
    fs::write(path("repo/.git/config"), "ours")?;
    sandbar(&["exec", "day", "--", "sh", "-c", "mkdir -p r/.git; echo theirs | tee r/file r/.git/config"])?;
    for (from, to, code, says) in [
        ("day:r/.", path("repo"), 5, "--force"),
        ("day:r/.git/config", path("repo/.git/config"), 5, "--force"),
        ("day:d/a", path("missing/a"), 4, "missing`"),
        ("day:d/b", path("b"), 1, "Permission denied"),
        (&path("one"), "day:d/a/".to_owned(), 5, "not a directory"),
        ("day:d", "-".to_owned(), 5, "tar c"),
    ] {
        let refused = server.command(&["cp", from, &to]).output()?;
        assert_eq!(refused.status.code(), Some(code), "{from} {to}: {}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains(says), "{from} {to}: {}", text(&refused.stderr));
    }
    assert_eq!((fs::read_to_string(path("repo/.git/config"))?, fs::exists(path("repo/file"))?), ("ours".into(), false));
    sandbar(&["cp", "--force", "day:r/.", &path("repo")])?;
    assert_eq!(fs::read_to_string(path("repo/.git/config"))?, "theirs\n");
    assert!(text(&server.command(&["start", "day"]).output()?.stderr).contains("already running"));

    sandbar(&["exec", "-d", "day", "--", "sh", "-c", "echo logged; exec sleep 1000"])?;
    let processes: serde_json::Value = serde_json::from_str(&sandbar(&["--json", "ps", "day"])?)?;
    let running = processes.to_string();
    assert!(running.contains("running"), "{running}");
    let process = processes["processes"]
        .as_array()
        .into_iter()
        .flatten()
        .rfind(|one| one["state"] == "running")
        .ok_or("none runs")?["id"]
        .as_str()
        .ok_or("no id")?
        .to_owned();
    // It has been started, and may not have come to writing yet.
    let deadline = Instant::now() + Duration::from_secs(300);
    while sandbar(&["logs", "day", &process])?.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(sandbar(&["logs", "day", &process])?, "logged\n");
    sandbar(&["kill", "day", &process])?;
    sandbar(&["logs", "-f", "day", &process])?;
    sandbar(&["stop", "day"])?;
    let refused = server.command(&["exec", "day", "--", "true"]).output()?;
    // Not the command's code, nor one a command is likely to have.
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("hint:"), "{}", text(&refused.stderr));
    sandbar(&["start", "day"])?;
    assert!(sandbar(&["template", "ls"])?.contains("default"));
    assert!(sandbar(&["template", "show", "default"])?.contains("local"));
    let token: serde_json::Value =
        serde_json::from_str(&sandbar(&["--json", "token", "create", "--name", "t", "--role", "viewer"])?)?;
    let secret = token["secret"].as_str().ok_or("no secret")?;
    let over_tcp = |token: &str| {
        let mut command = Command::new(SANDBAR);
        command.args(["ls", "-q"]).env("SANDBAR_SERVER", server.base().unwrap_or_default()).env("SANDBAR_TOKEN", token);
        command.output()
    };
    assert_eq!(text(&over_tcp(secret)?.stdout).lines().count(), 1);
    sandbar(&["token", "revoke", token["id"].as_str().ok_or("no id")?])?;
    assert_eq!(over_tcp(secret)?.status.code(), Some(6));
    assert!(sandbar(&["events"])?.contains("sandbox.ready"));
    sandbar(&["rm", "-f", "day"])?;
    assert_eq!(server.command(&["inspect", "day"]).output()?.status.code(), Some(4));
    server.kill()?;
    assert_eq!(server.command(&["ls"]).output()?.status.code(), Some(3));
    expect_clean(server.home.path())
}

/// Somebody begins a session at a terminal and hangs up; the server is killed; somebody else comes back to it.
#[test]
fn a_session_outlives_its_client_and_its_server() -> Outcome {
    let person = r#"
import os, pty, sys
def at_a_terminal(*arguments):
    pid, fd = pty.fork()
    if pid == 0: os.execv(sys.argv[1], [sys.argv[1], *arguments])
    return pid, fd
everything = b""
def until(fd, word):
    global everything
    seen = b""
    while word not in seen:
        data = os.read(fd, 4096)
        if not data: sys.exit("ended: %r" % seen)
        seen += data; everything += data
def wait(pid, fd):
    try:
        while os.read(fd, 4096): pass
    except OSError: pass
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if sys.argv[2] == "begin":
    pid, fd = at_a_terminal("session", "new", "--name", "agent", "--label", "task=42", "--", "sh")
    os.write(fd, b"printf '\\033]52;c;%s\\007' ZXZ''pbA==; echo before-$((40+2)); kept=still-there\n"); until(fd, b"before-42")
    os.kill(pid, 1)
else:
    pid, fd = at_a_terminal("session", "attach", "agent")
    until(fd, b"before-42")
    os.write(fd, b"echo $kept-$((1+1)); stty size; exit 7\n"); until(fd, b"still-there-2")
if b"ZXZpbA" in everything: sys.exit("the clipboard was written: %r" % everything)
print(wait(pid, fd))
"#;
    let mut server = Server::start()?;
    let sandbar = |server: &Server, arguments: &[&str]| done(&mut server.command(arguments));
    let at_terminal = |server: &Server, act: &str| {
        let mut command = Command::new("timeout");
        command.args(["60", "python3", "-c", person, SANDBAR, act]).env("SANDBAR_HOME", server.home.path());
        done(&mut command)
    };
    let shown = |server: &Server| -> Outcome<serde_json::Value> {
        Ok(serde_json::from_str(&sandbar(server, &["--json", "session", "show", "agent"])?)?)
    };
    assert_eq!(at_terminal(&server, "begin")?, "0\n");
    let before = shown(&server)?;
    assert_eq!((&before["state"], &before["terminals"][0]["argv"][0]), (&"active".into(), &"sh".into()));
    server.kill()?;
    server.restart()?;
    assert_eq!(shown(&server)?, before);
    let id = before["id"].as_str().ok_or("no id")?;
    assert_eq!(sandbar(&server, &["session", "ls", "-q", "-l", "task=42"])?, format!("{id}\n"));
    assert_eq!(at_terminal(&server, "come back")?, "7\n", "the command's code");
    // The control: it did print what would have written the clipboard of whoever looked.
    assert!(sandbar(&server, &["logs", "agent"])?.contains("\u{1b}]52;c;ZXZpbA=="));

    let code = |arguments: &[&str]| -> Outcome<Option<i32>> { Ok(server.command(arguments).output()?.status.code()) };
    assert_eq!(code(&["session", "attach", "agent"])?, Some(125), "nothing runs in it any more");
    assert_eq!(code(&["session", "new", "--name", "agent"])?, Some(5), "the name is taken");
    assert_eq!(code(&["session", "new", "-d", "--name", "failed", "--", "no-such-command"])?, Some(127));
    assert_eq!(code(&["session", "show", "failed"])?, Some(4));
    let detached = sandbar(&server, &["session", "new", "-d", "--parent", "agent", "--", "sleep", "1000"])?;
    let child: serde_json::Value =
        serde_json::from_str(&sandbar(&server, &["--json", "session", "show", detached.trim()])?)?;
    assert_eq!((&child["parent"], child["terminals"].as_array().map(Vec::len)), (&before["id"], Some(1)));
    for _ in 0..2 {
        sandbar(&server, &["session", "rm", "agent"])?;
    }
    assert_eq!(code(&["session", "show", "agent"])?, Some(4));
    assert_eq!(code(&["session", "rm", "nobody"])?, Some(4));
    sandbar(&server, &["session", "rm", "-f", "nobody"])?;
    assert_eq!(sandbar(&server, &["session", "ls", "-q"])?, detached, "a child stays");
    sandbar(&server, &["session", "rm", detached.trim()])?;
    assert_eq!(sandbar(&server, &["ls", "-q"])?, "");
    server.kill()?;
    expect_clean(server.home.path())
}

#[test]
fn a_second_server_and_a_home_that_cannot_be_written_are_refused() -> Outcome {
    let server = Server::start()?;
    let second = server.command(&["up", "--listen", "127.0.0.1:0"]).stdin(Stdio::null()).output()?;
    assert!(!second.status.success());
    assert!(text(&second.stderr).contains("another server"), "{}", text(&second.stderr));
    let beyond = server.command(&["up", "--listen", "0.0.0.0:0", "--home", "/tmp/sandbar-never"]).output()?;
    assert!(!beyond.status.success() && text(&beyond.stderr).contains("TLS"), "{}", text(&beyond.stderr));
    let nowhere = server.command(&["--home", "/proc/nowhere", "up", "--listen", "127.0.0.1:0"]).output()?;
    assert!(!nowhere.status.success() && text(&nowhere.stderr).contains("/proc/nowhere"), "{}", text(&nowhere.stderr));
    Ok(())
}

#[test]
fn a_host_without_user_namespaces_is_told_the_sysctl() -> Outcome {
    let closed = |arguments: &str| {
        let script = format!("echo 0 > /proc/sys/user/max_user_namespaces && exec {SANDBAR} {arguments}");
        Command::new("unshare").args(["--user", "--map-root-user", "sh", "-c", &script]).output()
    };
    for arguments in ["doctor", "run -- true"] {
        let output = closed(arguments)?;
        assert!(!output.status.success(), "{arguments}");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("user.max_user_namespaces"), "{arguments}: {said}");
    }
    // The control: the same host with them.
    done(Command::new(SANDBAR).arg("doctor"))?;
    Ok(())
}

#[test]
fn a_host_without_core_files_has_sandboxes_all_the_same() -> Outcome {
    let script = format!("ulimit -Hc 0 && exec {SANDBAR} run -- sh -c 'ulimit -Hc'");
    assert_eq!(done(Command::new("sh").args(["-c", &script]))?, "0\n");
    // The control: where there are some, a sandbox has none either.
    assert_eq!(done(Command::new(SANDBAR).args(["run", "--", "sh", "-c", "ulimit -Sc"]))?, "0\n");
    Ok(())
}
