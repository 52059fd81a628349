//! The recipe for Claude Code as it stands in the documentation: it works on this machine, in somebody's repository, and all
//! that it does happens in the sandbox. A model that wants more than it is offered is scripted.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    asking::plays::{self, model},
    support::{Outcome, Server, done, text},
};

const RECIPE: &str = include_str!("../../docs/agents.md");
const WISH: &str = "Please work in a worktree.";
/// A built-in tool that changes the repository it is called in.
const WORKTREE: &str = "EnterWorktree";
const EXEC: &str = "mcp__sandbar__exec";
/// No tool, and refused when called: it stands for tools that are told of later.
const PLACEHOLDER: &str = "DeferredToolPlaceholder";

type Offered = Arc<Mutex<BTreeSet<String>>>;

/// Wants a worktree, then the sandbox's shell, whatever it is offered.
fn greedy(offered: &Offered) -> std::io::Result<std::net::SocketAddr> {
    let offered = Arc::clone(offered);
    model::serve(move |request| {
        let tools = request["tools"].as_array().into_iter().flatten();
        let names = tools.filter_map(|tool| tool["name"].as_str().map(str::to_owned));
        offered.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
        let said = request["messages"].to_string();
        let wants = |number: u32, name: &str, input: Value| json!({"type": "tool_use", "id": format!("toolu_{number}"), "name": name, "input": input});
        match said.matches("\"tool_result\"").count() {
            _ if !said.contains(WISH) => json!({"type": "text", "text": "A title."}),
            0 => wants(1, WORKTREE, json!({"name": "left-behind"})),
            1 => wants(2, EXEC, json!({"command": "touch made-inside; pwd"})),
            _ => json!({"type": "text", "text": model::THANKS}),
        }
    })
}

/// A repository with one commit, in which an agent is started.
fn repository(at: &Path) -> Outcome {
    fs::create_dir(at)?;
    fs::write(at.join("file"), "ours")?;
    for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "one"]] {
        done(git(at).args(arguments))?;
    }
    Ok(())
}

fn git(at: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(at).args(["-c", "user.name=a", "-c", "user.email=a@example.test"]);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

/// All of it that somebody could find changed.
fn seen(at: &Path) -> Outcome<String> {
    let mut seen = String::new();
    for arguments in [
        &["status", "--porcelain", "--ignored"][..],
        &["for-each-ref"],
        &["worktree", "list"],
        &["config", "--local", "--list"],
        &["stash", "list"],
        &["rev-parse", "HEAD"],
    ] {
        seen += &done(git(at).args(arguments))?;
    }
    Ok(seen)
}

/// What Claude Code says, and what its model was offered.
fn claude(program: &Path, server: &Server, place: &Path, taken_away: &[&str]) -> Outcome<(String, BTreeSet<String>)> {
    let offered = Offered::default();
    let address = greedy(&offered)?;
    let tools = json!({"mcpServers": {"sandbar": {
        "command": crate::support::program(),
        "args": ["mcp", "own", "--home", server.home.path()],
    }}});
    let mut claude = Command::new("timeout");
    claude.arg("300").arg(program).args(["-p", WISH, "--model", "claude-tiny", "--allowedTools", "mcp__sandbar"]);
    claude.args(["--strict-mcp-config", "--mcp-config", &tools.to_string()]).args(taken_away);
    claude.current_dir(place.join("repository")).stdin(Stdio::null()).env_clear();
    // Nothing of it leaves this machine: there is no proxy there.
    for (name, value) in [
        ("HTTPS_PROXY", "http://127.0.0.1:1"),
        ("NO_PROXY", "127.0.0.1"),
        ("ANTHROPIC_API_KEY", "none"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
    ] {
        claude.env(name, value);
    }
    claude.env("ANTHROPIC_BASE_URL", format!("http://{address}")).env("HOME", place.join("home"));
    claude.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = claude.output()?;
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    let offered = offered.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !output.status.success() {
        return Err(format!("{}: {said}", output.status).into());
    }
    Ok((said, offered))
}

#[test]
fn claude_code_leaves_the_hosts_repository_alone() -> Outcome {
    const TEST: &str = "claude_code_leaves_the_hosts_repository_alone";
    let Some(program) = plays::claude(TEST) else { return Ok(()) };
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "own"]))?;
    let place = tempfile::tempdir()?;
    let repository_at = place.path().join("repository");
    fs::create_dir(place.path().join("home"))?;
    repository(&repository_at)?;
    let before = seen(&repository_at)?;

    assert!(RECIPE.contains("`--tools \"\"`"), "the recipe takes the tools away otherwise");
    let (said, offered) = claude(&program, &server, place.path(), &["--tools", ""])?;
    assert!(said.contains(model::THANKS), "{said}");
    assert!(offered.contains(EXEC), "it has the sandbox's tools: {offered:?}");
    let built_in = |name: &&String| !name.starts_with("mcp__sandbar__") && *name != PLACEHOLDER;
    let built_in: Vec<_> = offered.iter().filter(built_in).collect();
    assert!(built_in.is_empty(), "it was offered {built_in:?}");
    assert_eq!(seen(&repository_at)?, before, "{said}");
    assert_eq!(done(&mut server.command(&["exec", "own", "ls"]))?, "made-inside\n", "{said}");

    // The control: with its tools taken away by name, what nobody thought of changes the repository.
    let by_name = ["--disallowedTools", "Bash", "Read", "Write", "Edit", "Glob", "Grep"];
    claude(&program, &server, place.path(), &by_name)?;
    assert_ne!(seen(&repository_at)?, before, "the attack does not work any more: find another one");
    Ok(())
}
