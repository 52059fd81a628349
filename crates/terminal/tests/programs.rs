//! Real programs that ask, and real ones that do not, in a real terminal with its real flags.

mod pane;

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use pane::{PATIENCE, Pane, can_run};
use sandbar_terminal::{
    Look, Prompt, detect,
    prompt::{Kind, Tty},
};

/// What the kernel says of the pane's terminal.
fn tty(pane: &Pane) -> Tty {
    let path = pane.tmux(&["display-message", "-p", "#{pane_tty}"]);
    let output =
        Command::new("stty").args(["-a", "-F", path.trim()]).output().unwrap_or_else(|error| panic!("stty: {error}"));
    let flags = String::from_utf8_lossy(&output.stdout).into_owned();
    let set = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    Tty { echo: set("echo"), canonical: set("icanon"), quiet_ms: 1000, blocked_read: None }
}

/// The first prompt for which `wanted` holds, within a bound; else what there is at last.
fn wait_for(pane: &Pane, wanted: impl Fn(&Prompt) -> bool) -> Option<Prompt> {
    let begun = Instant::now();
    loop {
        let found = detect(&Look::of(&pane.screen(), tty(pane)));
        if begun.elapsed() > PATIENCE || found.as_ref().is_some_and(&wanted) {
            return found;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn asks(command: &str, kind: &Kind, question: &str) {
    let pane = Pane::start(command);
    let right = |prompt: &Prompt| prompt.asks() && prompt.kind == *kind && prompt.question.contains(question);
    let found = wait_for(&pane, right);
    assert!(found.as_ref().is_some_and(right), "{command}: {found:?}\n{}", pane.screen().text());
}

#[test]
fn bash_asks() {
    if can_run("bash_asks", &["tmux", "bash", "stty"]) {
        asks("bash -c 'read -p \"Deploy now? [y/N] \" answer'", &Kind::YesNo, "Deploy now?");
        asks("bash -c 'read -rs -p \"Speak, friend: \" answer'", &Kind::Password, "Speak, friend:");
        asks("bash -c 'select place in here there; do :; done'", &Kind::Menu { selected: None }, "");
    }
}

#[test]
fn python_asks() {
    if can_run("python_asks", &["tmux", "python3", "stty"]) {
        asks("python3 -c 'input(\"What is your name? \")'", &Kind::Text, "What is your name?");
        asks("python3 -c 'import getpass; getpass.getpass()'", &Kind::Password, "Password:");
    }
}

#[test]
fn npm_init_asks() {
    if can_run("npm_init_asks", &["tmux", "npm", "stty"]) {
        asks("mkdir -p $HOME/demo && cd $HOME/demo && npm init", &Kind::Text, "package name: (demo)");
    }
}

#[test]
fn git_and_ssh_keygen_ask() {
    if can_run("git_and_ssh_keygen_ask", &["tmux", "git", "ssh-keygen", "stty"]) {
        let change = "cd $HOME && git init -q r && cd r && echo a > f && git add f && echo b > f && git add -p";
        asks(change, &Kind::YesNo, "Stage this hunk");
        asks("ssh-keygen -t ed25519 -f $HOME/key", &Kind::Password, "passphrase");
    }
}

/// Shown and at rest, these wait for commands and ask nothing.
#[test]
fn nobody_asks() {
    if !can_run("nobody_asks", &["tmux", "bash", "vim", "less", "python3", "stty"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = place.path().join("asks.txt");
    let text = "Are you sure? (y/n)\n".repeat(50);
    fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
    let file = file.display();
    for (command, sign) in [
        (format!("vim -u NONE -N -n '{file}'"), "asks.txt"),
        (format!("less '{file}'"), "asks.txt"),
        (format!("cat '{file}'"), "Are you sure?"),
        ("PS1='user@host:~$ ' bash --norc --noprofile -i".to_owned(), "user@host:~$"),
        ("python3 -q".to_owned(), ">>>"),
    ] {
        let pane = Pane::start(&command);
        pane::until(&command, || pane.screen().text().contains(sign));
        let found = detect(&Look::of(&pane.screen(), tty(&pane)));
        assert!(!found.as_ref().is_some_and(Prompt::asks), "{command}: {found:?}");
    }
}
